//! Committed bundles hold: all their figures follow from their raw data.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![every_committed_bundle_verifies];

/// Bundles that are verified at once.
const THREADS: usize = 4;

fn verify(bundle: &PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    let output = command.args(["lab", "verify"]).arg(bundle).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", bundle.display());
}

fn every_committed_bundle_verifies() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/measurements");
    let entries = fs::read_dir(directory).expect("a directory");
    let bundles = entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir());
    let bundles: Vec<PathBuf> = bundles.collect();
    assert!(!bundles.is_empty());
    thread::scope(|scope| {
        for some in bundles.chunks(bundles.len().div_ceil(THREADS)) {
            scope.spawn(|| some.iter().for_each(verify));
        }
    });
}
