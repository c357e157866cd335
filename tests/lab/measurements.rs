//! The bundles that the README quotes hold: all their figures follow from their raw data.

use std::path::Path;
use std::process::Command;

#[test]
fn committed_bundles_verify() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/measurements");
    let entries = std::fs::read_dir(directory).expect("a directory");
    let bundles = entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir());
    let verified = bundles.map(|bundle| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
        let output = command.args(["lab", "verify"]).arg(&bundle).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {said}", bundle.display());
    });
    let count = verified.count();
    assert!(count > 0);
    println!("{count} bundles verified");
}
