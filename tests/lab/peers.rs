//! `twinring lab peers`: lists the peers present and missing, and builds them.

use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    what_is_here_has_path_and_hash_and_what_is_not_the_commands_that_get_it,
    places_are_looked_through_in_their_order_and_wrong_ones_refused,
    a_wrong_place_matters_to_experiments_with_peers_only
];

/// Runs `lab peers` in `directory`, with `path` as PATH. The binary is a copy, so that what cargo
/// has put beside it does not count as a peer.
fn peers(directory: &Path, path: &Path, arguments: &[&str]) -> Output {
    let binary = directory.join("bin/twinring");
    if !binary.exists() {
        fs::create_dir_all(directory.join("bin")).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_twinring"), &binary)
            .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_twinring"), &binary).map(drop))
            .unwrap();
    }
    let mut command = Command::new(binary);
    command.args(["lab", "peers"]).args(arguments).current_dir(directory);
    command.env_remove("TWINRING_PEERS").env("PATH", path);
    for _ in 0..1000 {
        match command.output() {
            // A process that another test started while it was copied has it open for writing until it
            // runs its own program.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(10));
            }
            output => return output.unwrap(),
        }
    }
    panic!("the copy stays open for writing")
}

fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    let file = directory.join(name);
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    file
}

/// The entry of a peer in the JSON line.
fn entry(output: &Output, name: &str) -> Value {
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["schema"], "twinring.lab.peers/1");
    let peers = line["peers"].as_array().unwrap();
    peers.iter().find(|peer| peer["name"] == name).cloned().unwrap()
}

fn what_is_here_has_path_and_hash_and_what_is_not_the_commands_that_get_it() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("path");
    let tokio = script(&base.path().join("mine"), "tokio-echo", "exit 0");
    let output = peers(base.path(), &path, &["--peers", "mine", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let found = entry(&output, "tokio");
    assert_eq!(found["present"], true);
    assert_eq!(found["path"], tokio.to_str().unwrap());
    assert_eq!(found["sha256"].as_str().unwrap().len(), 64);
    let missing = entry(&output, "go-uring");
    assert_eq!(missing["present"], false);
    let commands = missing["how_to_get"].as_array().unwrap();
    assert!(commands.iter().any(|it| it.as_str().unwrap().starts_with("git clone")), "{missing}");
    assert_eq!(entry(&output, "nginx")["present"], false);

    let table = peers(base.path(), &path, &["--peers", "mine"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    for words in ["mine/tokio-echo", "missing", "To get monoio", "To get go-uring and"] {
        assert!(table.contains(words), "{words}: {table}");
    }
}

fn places_are_looked_through_in_their_order_and_wrong_ones_refused() {
    let base = tempfile::tempdir().unwrap();
    let nothing = base.path().join("nothing");
    let built = script(&base.path().join("peers/target/release"), "floor-epoll", "exit 0");
    let output = peers(base.path(), &nothing, &["--json"]);
    assert_eq!(entry(&output, "floor-epoll")["path"], built.to_str().unwrap());
    let beside = script(&base.path().join("bin"), "floor-epoll", "exit 0");
    let output = peers(base.path(), &nothing, &["--json"]);
    assert_eq!(entry(&output, "floor-epoll")["path"], beside.to_str().unwrap());
    let output = peers(base.path(), &nothing, &["--peers", "nowhere"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("nowhere is not a directory"));
}

/// A variable that is left over from other work is no matter to who measures no peer.
fn a_wrong_place_matters_to_experiments_with_peers_only() {
    let out = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
        command.args(["lab", "run"]).args(arguments).arg("--out").arg(out.path());
        let output = command.env("TWINRING_PEERS", "/nowhere/at/all").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["peers"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("TWINRING_PEERS: /nowhere/at/all is not a directory"), "{said}");
    let short = ["quick", "--pairs", "1", "--spares", "0", "--window", "0.2", "--protocol", "tcp"];
    let small =
        ["--set", "connections=1", "--set", "bytes=128", "--subject", "one=epoll", "--no-prices"];
    let (_, said) = run(&[&short[..], &small].concat());
    assert!(!said.contains("TWINRING_PEERS"), "{said}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "{said}");
}
