//! Subjects that are peers: found, fitted to the cell and recorded, or left out with the reason.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{fakes, options};
use testing::{Test, tests};
use twinring_lab::record::RunRecord;
use twinring_lab::{Experiment, LabError, Outcome, Stop, markdown, verify};

pub(crate) const TESTS: &[Test] = tests![
    a_peer_is_started_as_it_wants_it_and_a_missing_one_is_left_out,
    when_nobody_is_left_it_is_an_error_that_says_what_to_do
];

/// A program that runs the clean echo server of the fakes, which says nothing.
fn program(directory: &Path, name: &str, address: &str) {
    let file = directory.join(name);
    let script = format!("#!/bin/sh\nexec '{}' server foreign {address}\n", fakes().display());
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
}

fn run(out: &Path, directory: &Path, subjects: &str) -> Result<Outcome, LabError> {
    let text = format!(
        "schema = \"twinring.lab.experiment/4\"\nname = \"peers\"\npairs = 1\nnet = \"auto\"\n\
         warmup_s = 0.1\nwindow_s = 0.4\n[tcp]\nconnections = [4]\nmessage_bytes = [8192]\n\
         load = [\"{{twinring}}\", \"client\", \"{{addr}}\", \"{{connections}}\", \
         \"{{message_bytes}}\", \"{{depth}}\", \"{{warmup_ms}}\", \"{{window_ms}}\", \"\"]\n{subjects}"
    );
    let experiment = Experiment::from_toml(&text, "peers").unwrap();
    let mut options = options(experiment, out);
    options.peers = Some(directory.to_owned());
    twinring_lab::run(&options, &Stop::new())
}

fn runs(outcome: &Outcome) -> Vec<RunRecord> {
    let text = fs::read_to_string(outcome.directory.join("runs.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const ECHO: &str = "[[subjects]]\nname = \"echo\"\ncommand = [\"{twinring}\", \"server\", \"echo\", \
                    \"{addr}\"]\nready = \"json\"\n";

fn a_peer_is_started_as_it_wants_it_and_a_missing_one_is_left_out() {
    let (out, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    program(directory.path(), "floor-uring", "\"$2\"");
    program(directory.path(), "joakimthun-epoll-echo", "0.0.0.0:6379");
    let subjects = [
        ECHO,
        "[[subjects]]\nname = \"floor\"\npeer = \"floor-uring\"\narguments = [\"--direct\"]\n\
         against = [\"frevib\"]\n",
        "[[subjects]]\nname = \"fixed\"\npeer = \"joakimthun-epoll\"\n",
        "[[subjects]]\nname = \"frevib\"\npeer = \"frevib-uring\"\n",
    ];
    let outcome = run(out.path(), directory.path(), &subjects.concat()).unwrap();
    let bundle = &outcome.bundle;
    let [left_out] = &bundle.not_run[..] else { panic!("{:?}", bundle.not_run) };
    assert_eq!(left_out.subject, "frevib");
    assert!(left_out.why.contains("frevib-uring-echo"), "{}", left_out.why);
    assert!(left_out.why.contains("twinring lab peers"), "{}", left_out.why);
    assert!(markdown(bundle).contains("frevib was not run"));

    let runs = runs(&outcome);
    let of = |subject: &str| runs.iter().find(|run| run.subject == subject).unwrap();
    let floor = of("floor");
    let file = directory.path().join("floor-uring").display().to_string();
    let address = floor.server_command[2].clone();
    let cpu = bundle.cpus.server.to_string();
    // 8 KB are more than its small buffers take; the cell's options come before the subject's own.
    let expected = [&*file, "--listen", &address, "--pin", &cpu, "--inc", "--split", "--direct"];
    assert_eq!(floor.server_command, expected);
    let fixed = of("fixed");
    assert!(fixed.client_command.iter().any(|word| word.ends_with(":6379")), "{fixed:?}");
    for run in &runs {
        let unready = run.failures.iter().any(|failure| format!("{failure:?}").contains("Server"));
        assert!(!unready, "{:?}", run.failures);
    }
    let program = bundle.programs.iter().find(|it| it.peer.as_deref() == Some("floor-uring"));
    let program = program.unwrap_or_else(|| panic!("{:?}", bundle.programs));
    assert_eq!((program.path.as_str(), program.sha256.as_ref().unwrap().len()), (&*file, 64));
    // The bundle holds without the peers.
    drop(directory);
    assert!(verify(&outcome.directory).unwrap().holds());
}

fn when_nobody_is_left_it_is_an_error_that_says_what_to_do() {
    let (out, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(directory.path().join("go-uring-echo"), "not a program").unwrap();
    let subject = "[[subjects]]\nname = \"go\"\npeer = \"go-uring\"\n";
    let error = run(out.path(), directory.path(), subject).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("not executable") && said.contains("go-uring-echo"), "{said}");
    assert_eq!(error.exit_code(), 1);
    let error = run(out.path(), &out.path().join("nowhere"), ECHO).unwrap_err();
    assert!(error.to_string().contains("is not a directory"), "{error}");
    assert_eq!(error.exit_code(), 2);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "a bundle of nothing");
}
