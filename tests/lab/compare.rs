//! `twinring lab diff` as people and workflows call it.

use std::path::Path;
use std::process::{Command, Output};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![options_and_exit_codes, the_example_workflow_runs];

const TWINRING: &str = env!("CARGO_BIN_EXE_twinring");

/// A copy of the stored bundle, with summary and reports.
fn stored() -> tempfile::TempDir {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/lab/tests/data/bundle");
    let copy = tempfile::tempdir().unwrap();
    for name in ["bundle.json", "runs.jsonl"] {
        std::fs::copy(stored.join(name), copy.path().join(name)).unwrap();
    }
    let rendered = Command::new(TWINRING).args(["lab", "report"]).arg(copy.path()).output();
    assert!(rendered.unwrap().status.success());
    copy
}

fn compare(options: &[&str]) -> Output {
    let stored = stored();
    let mut command = Command::new(TWINRING);
    let bundles = [stored.path(), stored.path()];
    command.args(["lab", "diff"]).args(bundles).args(options).output().unwrap()
}

fn options_and_exit_codes() {
    let output = compare(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = compare(&["--json"]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["schema"], "twinring.lab.diff/2");
    // Two runs of each are too few to judge.
    let output = compare(&["--markdown", "--fail-if", "server_cpu > 3%"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("cannot be judged"), "{output:?}");
    for (gate, said) in [("server_cpu > x%", "expected FIGURE"), ("speed > 3%", "is not a figure")]
    {
        let output = compare(&["--fail-if", gate]);
        assert_eq!(output.status.code(), Some(2), "{gate}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
    }
    assert_eq!(compare(&["--json", "--markdown"]).status.code(), Some(2));
}

/// The workflow's own commands, with shorter runs.
fn the_example_workflow_runs() {
    let workflow = include_str!("../../docs/examples/compare.yml");
    let line =
        workflow.lines().map(str::trim).find(|line| line.contains("bin/new compare")).unwrap();
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("bin")).unwrap();
    for build in ["bin/old", "bin/new"] {
        std::os::unix::fs::symlink(TWINRING, place.path().join(build)).unwrap();
    }
    let command = line
        .trim_start_matches("run: ")
        .replace("sudo ", "")
        .replace("--pairs 12", "--pairs 1 --net lo --load max")
        .replace("\"$GITHUB_STEP_SUMMARY\"", "summary.md");
    let output =
        Command::new("sh").args(["-c", &command]).current_dir(place.path()).output().unwrap();
    // One pair cannot be judged.
    assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
    let summary = std::fs::read_to_string(place.path().join("summary.md")).unwrap();
    assert!(summary.contains("cannot be judged") && summary.contains("new's CPU"), "{summary}");
}
