//! `twinring lab compare` as people and workflows call it.

use std::path::Path;
use std::process::{Command, Output};

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
    command.args(["lab", "compare"]).args(bundles).args(options).output().unwrap()
}

#[test]
fn options_and_exit_codes() {
    let output = compare(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = compare(&["--json"]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["schema"], "twinring.lab.compare/1");
    // Two runs of each are too few to judge.
    let output = compare(&["--markdown", "--fail-if", "server_cpu > 3%"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("cannot be judged"), "{output:?}");
    for (gate, said) in [
        ("server_cpu > x%", "expected a number"),
        ("server_cpu > 3% of nobody", "expected subjects among"),
    ] {
        let output = compare(&["--fail-if", gate]);
        assert_eq!(output.status.code(), Some(2), "{gate}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
    }
    assert_eq!(compare(&["--json", "--markdown"]).status.code(), Some(2));
}

/// The workflow's own commands, with shorter runs, on stored bundles where it has none yet.
#[test]
fn the_example_workflow_runs() {
    let workflow = include_str!("../../docs/examples/compare.yml");
    let commands: Vec<&str> = workflow
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("sudo bin/new ") || line.starts_with("bin/new "))
        .collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    let place = tempfile::tempdir().unwrap();
    let stored = stored();
    for command in commands {
        let command = command
            .trim_start_matches("sudo ")
            .replace(
                "--pairs 12 --window 2",
                "--pairs 1 --window 0.1 --warmup 0.05 --spares 0 --no-prices",
            )
            .replace("bin/old", TWINRING)
            .replace("bin/new", TWINRING)
            .replace("head/baseline", &stored.path().to_string_lossy())
            .replace("\"$GITHUB_STEP_SUMMARY\"", "summary.md");
        let output =
            Command::new("sh").args(["-c", &command]).current_dir(place.path()).output().unwrap();
        // Runs as short as these cannot be judged, and on a busy machine not even count.
        let code = output.status.code();
        let expected: &[i32] = if command.contains("lab verify") { &[0] } else { &[0, 1] };
        assert!(code.is_some_and(|code| expected.contains(&code)), "{command}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("error:") && !said.contains("twinring lab:"), "{command}: {said}");
    }
    let summary = std::fs::read_to_string(place.path().join("summary.md")).unwrap();
    assert!(summary.contains("### B against A"), "{summary}");
    let change = std::fs::read_to_string(place.path().join("change.json")).unwrap();
    assert!(change.contains("\"verdict\""), "{change}");
}
