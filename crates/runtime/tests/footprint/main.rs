//! What an echoed message costs in user space, counted by valgrind and not timed: a nearly idle server starts each
//! request cold, so each line of code and of data that a message touches is a miss of a cache.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use testing::{Test, long_engine_tests};

const TESTS: &[Test] = long_engine_tests![a_message_touches_little];

/// At most so many instructions, lines of code, pages of code and lines of data, with one connection; and instructions
/// with a hundred in bursts. A few per cent above what was counted when this was written: rustc and the C library
/// have their share.
const IO_URING: (&str, &str) = ("973,96,9,56", "698,69,9");
const EPOLL: (&str, &str) = ("763,82,9,47", "731,75,9");

fn main() -> ExitCode {
    testing::run(&[TESTS])
}

fn a_message_touches_little(engine: &str) {
    testing::needs_program("valgrind");
    testing::needs_program("python3");
    let echo = example();
    let (one, burst) = if engine == "epoll" { EPOLL } else { IO_URING };
    count(&echo, engine, &["--data", "--most", one]);
    count(&echo, engine, &["-c", "100", "-r", "20", "--most", burst]);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The example as a release is built.
fn example() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let target = std::env::current_exe().expect("the path of this test");
    let target = target.ancestors().nth(3).expect("TARGET/PROFILE/deps/NAME");
    let built = Command::new(cargo)
        .args(["build", "-q", "-p", "twinring", "--profile", "dist", "--example", "echo"])
        .arg("--target-dir")
        .arg(target)
        .current_dir(root())
        .status()
        .expect("cargo runs");
    assert!(built.success(), "the example was not built");
    target.join("dist/examples/echo")
}

fn count(echo: &Path, engine: &str, options: &[&str]) {
    let output = Command::new("python3")
        .arg(root().join("peers/count-echo"))
        .args(options)
        .arg("--")
        .arg(echo)
        .args(["{addr}", engine])
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{engine}, {options:?}:\n{said}{complained}");
    println!("{engine}: {said}");
}
