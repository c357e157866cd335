//! A suite of which one test passes, one lacks something, one fails and one is long, for the tests of the harness.

use testing::{Test, long_tests, needs, tests};

const TESTS: &[Test] = tests![passes, lacks, fails];
const LONG: &[Test] = long_tests![takes_long];

fn main() -> std::process::ExitCode {
    testing::run(&[TESTS, LONG])
}

fn passes() {}

fn lacks() {
    needs("a unicorn", "none is in sight");
}

fn fails() {
    assert!(std::env::var_os("FAILS").is_none(), "as asked");
}

fn takes_long() {}
