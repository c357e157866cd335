//! Runs the program's `lab`, and reads what it wrote.

use crate::support::*;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use twinring_lab::recomputed;
use twinring_lab::result::Bundle;

/// Runs the command: exit code, and what it said on standard output, and behind it on standard error.
pub(crate) fn twinring(arguments: &[&str]) -> (Option<i32>, String) {
    let (code, stdout, stderr) = run(arguments);
    (code, stdout + &stderr)
}

/// The bundle in a directory that had none before, which holds.
pub(crate) fn bundle_in(out: &Path) -> PathBuf {
    let mut bundles = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    let bundle = bundles.next().expect("a bundle was written");
    let (code, said) = twinring(&["lab", "verify", bundle.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    bundle
}

/// One short pair of everything in an experiment, which goes on beside other tests.
pub(crate) struct Measured {
    pub(crate) said: String,
    pub(crate) bundle: Bundle,
    /// Of all that was run.
    pub(crate) runs: Vec<Value>,
}

impl Measured {
    /// Measures, and checks that the bundle holds and that the files are gone that it was measured with. Once more if a
    /// run failed: others on the machine may take the CPU for longer than a window.
    pub(crate) fn take(arguments: &[&str], window_s: &str) -> Measured {
        let is_whole = |it: &Measured| it.runs.iter().all(|it| it["failures"] == json!([]));
        let mut attempts = std::iter::repeat_with(|| Measured::once(arguments, window_s)).take(5);
        attempts.find(is_whole).unwrap_or_else(|| Measured::once(arguments, window_s))
    }

    /// The same, also if runs fail.
    pub(crate) fn once(arguments: &[&str], window_s: &str) -> Measured {
        let out = tempfile::tempdir().unwrap();
        let short = ["--pairs", "1", "--spares", "0", "--window", window_s, "--warmup", "0.2"];
        let into = ["--busy", "--no-prices", "--out", out.path().to_str().unwrap()];
        let (_, said) = twinring(&[&["lab", "run"], arguments, &short, &into].concat());
        let place = bundle_in(out.path());
        assert!(!place.join("work").exists());
        let text = fs::read_to_string(place.join("runs.jsonl")).unwrap();
        let runs: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!runs.is_empty(), "{said}");
        Measured { said, bundle: recomputed(&place).unwrap(), runs }
    }
}

/// An executable script of a shell, in a directory that need not be there yet.
pub(crate) fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    let file = directory.join(name);
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    file
}
