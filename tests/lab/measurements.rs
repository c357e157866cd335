//! Committed bundles hold: all their figures follow from their raw data.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Bundles that are verified at once.
const THREADS: usize = 4;

fn verify(bundle: &PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    let output = command.args(["lab", "verify"]).arg(bundle).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", bundle.display());
}

/// Verifies the bundles with names that are `chosen`; returns how many there were.
fn verify_all(chosen: impl Fn(&str) -> bool) -> usize {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/measurements");
    let entries = fs::read_dir(directory).expect("a directory");
    let bundles = entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir());
    let bundles: Vec<PathBuf> = bundles
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&chosen))
        .collect();
    assert!(!bundles.is_empty());
    thread::scope(|scope| {
        for some in bundles.chunks(bundles.len().div_ceil(THREADS)) {
            scope.spawn(|| some.iter().for_each(verify));
        }
    });
    println!("{} bundles verified", bundles.len());
    bundles.len()
}

#[test]
fn bundles_that_the_readme_quotes_verify() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(readme).expect("a file");
    let quoted = |name: &str| text.contains(&format!("measurements/{name}/"));
    assert!(verify_all(quoted) >= 4);
}

#[test]
#[ignore = "half a minute of CPU time"]
fn all_committed_bundles_verify() {
    verify_all(|_| true);
}
