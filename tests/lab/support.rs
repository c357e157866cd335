//! Runs the program's `lab`, and reads what it wrote.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Ends the test where the lab gives up because other processes disturb what it measures.
pub(crate) fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinring"));
    let output = command.arg("lab").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if let Some(why) = said.lines().find(|line| line.contains("excluded blocks in a row")) {
        testing::needs("a quiet machine", why);
    }
    output
}

/// The bundle in a directory that had none before.
pub(crate) fn bundle_in(out: &Path) -> PathBuf {
    let mut bundles = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    bundles.next().expect("a bundle was written")
}

/// One short pair of everything in an experiment.
pub(crate) struct Measured {
    /// On standard output, and behind it on standard error.
    pub(crate) said: String,
    /// Of all that was run.
    pub(crate) runs: Vec<Value>,
    pub(crate) bundle: PathBuf,
    /// What the bundle is in.
    _out: TempDir,
}

impl Measured {
    /// Measures, checks that the bundle holds and that the files are gone that it was measured with.
    pub(crate) fn take(arguments: &[&str], window_s: &str) -> Measured {
        let out = tempfile::tempdir().unwrap();
        let short = ["--pairs", "1", "--spares", "0", "--window", window_s, "--warmup", "0.2"];
        let into = ["--no-prices", "--out", out.path().to_str().unwrap()];
        let output = lab(&[&["run"], arguments, &short, &into].concat());
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let bundle = bundle_in(out.path());
        let verified = lab(&["verify", bundle.to_str().unwrap()]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
        assert!(!bundle.join("work").exists());
        let text = std::fs::read_to_string(bundle.join("runs.jsonl")).unwrap();
        let runs = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Measured { said, runs, bundle, _out: out }
    }
}
