//! `twinring compare` and `twinring advise`, from the command line to the page.

use std::process::{Command, Output};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    words_that_make_no_sense_are_refused_before_anything_runs,
    two_commands_are_compared_and_a_gate_that_cannot_be_judged_fails
];

fn twinring(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_twinring")).args(arguments).output().unwrap()
}

fn words_that_make_no_sense_are_refused_before_anything_runs() {
    for (arguments, expected) in [
        (&["advise", "echo", "-c", "0"][..], "connections"),
        (&["advise", "gopher"], "gopher"),
        (&["advise", "echo", "--rate", "12KB"], "12KB"),
        (&["compare", "echo", "nobody", "epoll"], "nobody"),
        (&["compare", "echo", "mine=./a"], "{addr}"),
        (&["compare", "--load", "120%"], "25%"),
        (&["compare", "--fail-if", "speed > 3%"], "server_cpu_ns"),
    ] {
        let output = twinring(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

/// Two builds of one program, given as commands, on loopback; so few pairs decide nothing, and a gate says so.
fn two_commands_are_compared_and_a_gate_that_cannot_be_judged_fails() {
    let out = tempfile::tempdir().unwrap();
    let build = |name: &str| {
        format!(
            "{name}='{}' serve echo --listen {{addr}} --allow any --workers 1",
            env!("CARGO_BIN_EXE_twinring")
        )
    };
    let output = twinring(&[
        "compare",
        "echo",
        &build("old"),
        &build("new"),
        "--net=lo",
        "--load=max",
        "--pairs=2",
        "-c=10",
        "--fail-if=server_cpu > 3%",
        "--out",
        out.path().to_str().unwrap(),
    ]);
    let page = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(page.contains("new's CPU per request against old's"), "{page}{said}");
    assert!(page.contains("ANSWER Saturated:") && page.lines().count() <= 30, "{page}{said}");
    assert!(page.contains("GATE   server_cpu_ns > 3 %: cannot be judged"), "{page}");
    assert!(said.contains("can give no decision"), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}
