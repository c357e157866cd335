//! `twinring lab peers`: lists the peers present and missing, and builds them.

use crate::measured::script;
use crate::support::*;
use std::process::Output;
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    what_is_here_has_path_and_hash_and_what_is_not_the_commands_that_get_it,
    a_wrong_place_matters_to_experiments_with_peers_only
];

/// A place with a copy of the binary, as an ordinary user may not link another's. Another process copies it: one that
/// this one starts meanwhile would have the copy open for writing.
fn base() -> TempDir {
    let base = tempfile::tempdir().unwrap();
    fs::create_dir(base.path().join("bin")).unwrap();
    let copied = Command::new("/bin/cp").arg(TWINRING).arg(base.path().join("bin")).status();
    assert!(copied.unwrap().success());
    base
}

/// Runs `lab peers` in a [`base`], with nothing in PATH. What cargo has put beside the binary counts as no peer.
fn peers(base: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(base.join("bin/twinring"));
    command.args(["lab", "peers"]).args(arguments).current_dir(base);
    command.env_remove("TWINRING_PEERS").env("PATH", base.join("nothing")).output().unwrap()
}

/// The entry of a peer in the JSON line.
fn entry(output: &Output, name: &str) -> Value {
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["schema"], "twinring.lab.peers/1");
    let peers = line["peers"].as_array().unwrap();
    peers.iter().find(|peer| peer["name"] == name).cloned().unwrap()
}

fn what_is_here_has_path_and_hash_and_what_is_not_the_commands_that_get_it() {
    let base = base();
    let tokio = script(&base.path().join("mine"), "tokio-echo", "exit 0");
    let output = peers(base.path(), &["--peers", "mine", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let found = entry(&output, "tokio");
    assert_eq!(found["present"], true);
    assert_eq!(found["path"], tokio.to_str().unwrap());
    assert_eq!(found["sha256"].as_str().unwrap().len(), 64);
    let missing = entry(&output, "go-uring");
    assert_eq!(missing["present"], false);
    assert!(missing["how_to_get"].to_string().contains("\"git clone"), "{missing}");
    assert_eq!(entry(&output, "nginx")["present"], false);

    let table = peers(base.path(), &["--peers", "mine"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    for words in ["mine/tokio-echo", "missing", "To get monoio", "To get go-uring and"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    // Places are looked through in their order, and wrong ones refused.
    let built = script(&base.path().join("peers/target/release"), "floor-epoll", "exit 0");
    let output = peers(base.path(), &["--json"]);
    assert_eq!(entry(&output, "floor-epoll")["path"], built.to_str().unwrap());
    let beside = script(&base.path().join("bin"), "floor-epoll", "exit 0");
    let output = peers(base.path(), &["--json"]);
    assert_eq!(entry(&output, "floor-epoll")["path"], beside.to_str().unwrap());
    let output = peers(base.path(), &["--peers", "nowhere"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("nowhere is not a directory"));
}

/// A variable that is left over from other work is no matter to who measures no peer.
fn a_wrong_place_matters_to_experiments_with_peers_only() {
    let out = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(TWINRING);
        command.args(["lab", "run"]).args(arguments).arg("--out").arg(out.path());
        let output = command.env("TWINRING_PEERS", "/nowhere/at/all").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["peers"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("TWINRING_PEERS: /nowhere/at/all is not a directory"), "{said}");
    let short = "quick --pairs 1 --spares 0 --window 0.2 --protocol tcp --set connections=1 \
                 --set bytes=128 --subject one=epoll --no-prices";
    let (_, said) = run(&short.split_whitespace().collect::<Vec<_>>());
    assert!(!said.contains("TWINRING_PEERS"), "{said}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "{said}");
}
