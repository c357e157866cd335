//! What a suite prints and returns in each mode.

use std::process::Command;

/// Runs the example and returns whether it succeeded, and all that it printed.
fn suite(variables: &[(&str, &str)]) -> (bool, String) {
    let test = std::env::current_exe().expect("/proc is mounted");
    let examples = test.ancestors().nth(2).expect("target/debug/deps/harness").join("examples");
    let mut command = Command::new(examples.join("suite"));
    command.env_remove("TWINRING_TESTS").envs(variables.iter().copied());
    let output = command.output().expect("cargo builds examples for tests");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_test_that_lacks_something_is_ignored_with_the_reason_or_fails() {
    let (complete, fails) = (&[("TWINRING_TESTS", "complete")], &[("FAILS", "1")]);
    for (variables, success, counts, says) in [
        (&[][..], true, "ok. 2 passed; 0 failed; 2 ignored", "needs a unicorn: none is in sight"),
        (&[], true, "ok. 2 passed; 0 failed; 2 ignored", "not tested for lack of: a unicorn (1)"),
        (fails, false, "1 passed; 1 failed; 2 ignored", "as asked"),
        (complete, false, "2 passed; 1 failed; 1 ignored", "a unicorn"),
    ] {
        let (succeeds, said) = suite(variables);
        assert!(succeeds == success && said.contains(counts) && said.contains(says), "{said}");
    }
}

#[test]
fn two_runs_together_run_each_test_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("left out").display().to_string();
    let (success, said) = suite(&[("TWINRING_TESTS", &format!("note:{file}"))]);
    assert!(success && said.contains("2 passed; 0 failed; 2 ignored"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("the file was made"), "suite\tlacks\n");
    let (success, said) = suite(&[("TWINRING_TESTS", &format!("complete:{file}"))]);
    assert!(!success && said.contains("0 passed; 1 failed; 0 ignored"), "{said}");
}
