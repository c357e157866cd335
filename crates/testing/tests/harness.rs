//! What a suite prints and returns in each mode.

use std::process::Command;

/// Runs the example and returns whether it succeeded, its counts and all that it printed.
fn suite(mode: Option<&str>, variables: &[(&str, &str)]) -> (bool, String, String) {
    let test = std::env::current_exe().expect("/proc is mounted");
    let examples = test.ancestors().nth(2).expect("target/debug/deps/harness").join("examples");
    let mut command = Command::new(examples.join("suite"));
    command.env_remove("TWINRING_TESTS").envs(variables.iter().copied());
    if let Some(mode) = mode {
        command.env("TWINRING_TESTS", mode);
    }
    let output = command.output().expect("cargo builds examples for tests");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts = said.split("test result: ").nth(1).unwrap_or_default();
    let counts = counts.split("; 0 measured").next().unwrap_or_default().to_owned();
    (output.status.success(), counts, said)
}

#[test]
fn a_test_that_lacks_something_is_ignored_with_the_reason() {
    let (success, counts, said) = suite(None, &[]);
    assert!(success, "{said}");
    assert_eq!(counts, "ok. 2 passed; 0 failed; 2 ignored");
    assert!(said.contains("needs a unicorn: none is in sight"), "{said}");
    assert!(said.contains("not tested for lack of: a unicorn (1)"), "{said}");
}

#[test]
fn a_failure_is_a_failure_in_each_mode() {
    let (success, counts, said) = suite(None, &[("FAILS", "1")]);
    assert!(!success && counts.contains("1 failed") && said.contains("as asked"), "{said}");
}

#[test]
fn a_complete_run_leaves_nothing_out() {
    let (success, counts, said) = suite(Some("complete"), &[]);
    assert!(!success && counts.contains("2 passed; 1 failed; 1 ignored"), "{said}");
}

#[test]
fn two_runs_together_run_each_test_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("left out").display().to_string();
    let (success, counts, said) = suite(Some(&format!("note:{file}")), &[]);
    assert!(success && counts.contains("2 passed; 0 failed; 2 ignored"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("the file was made"), "suite\tlacks\n");
    let (success, counts, said) = suite(Some(&format!("complete:{file}")), &[]);
    assert!(!success && counts.contains("0 passed; 1 failed; 0 ignored"), "{said}");
}
