//! Bundles: what is in them, and that edits are detected.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{HttpSketch, Sketch, UdpSketch, fakes, files, run_as_it_is};
use testing::{Test, tests};
use twinring_lab::{LabError, Stop, add_to, rerender, verify};

pub(crate) const TESTS: &[Test] = tests![
    a_bundle_holds_until_any_of_it_is_edited,
    a_bundle_of_datagrams_holds_until_any_of_it_is_edited,
    a_bundle_of_http_holds_until_any_of_it_is_edited_and_its_files_are_gone,
    every_file_is_read_back_as_it_was_written,
    what_is_not_a_bundle_is_refused,
    progress_goes_to_standard_error_only
];

fn a_bundle_holds_until_any_of_it_is_edited() {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { others: &["foreign"], ..Sketch::default() }.run(out.path()).unwrap();
    let directory = &outcome.directory;
    let all = ["bundle.json", "manifest.sha256", "report.html", "report.md", "runs.jsonl"];
    assert_eq!(files(directory), all);
    let verification = verify(directory).unwrap();
    assert!(verification.holds() && verification.figures > 10, "{verification}");
    assert_eq!((verification.runs, verification.exit_code()), (2, 0));
    // Everybody has a program that reads the manifest.
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "manifest.sha256"]).current_dir(directory);
    let check = check.output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));

    let edit = |name: &str, from: &str, to: &str| {
        let path = directory.join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} in {name}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let found = verify(directory).unwrap();
        fs::write(&path, text).unwrap();
        assert!(!found.holds() && found.exit_code() == 1, "{name}: {from} -> {to}");
        found.problems.join("\n")
    };
    edit("report.md", "sketch", "Sketch");
    edit("report.html", "sketch", "Sketch");
    assert!(edit("bundle.json", "\"counted\": ", "\"counted\": 9").contains("summary."));
    // The raw data themselves, with the manifest brought into line.
    let found = edit("runs.jsonl", "\"answered\":", "\"answered\":1");
    assert!(found.contains("runs.jsonl was changed") && found.contains("raw data give"), "{found}");
    assert!(verify(directory).unwrap().holds());
}

/// Changes each of these fields of the first run that has it; what follows from it is then not what stands
/// in the bundle.
fn assert_edits_are_found(bundle: &Path, fields: &[&str]) {
    let path = bundle.join("runs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    for field in fields {
        let edited = text.replacen(&format!("\"{field}\":"), &format!("\"{field}\":1"), 1);
        assert_ne!(text, edited);
        fs::write(&path, edited).unwrap();
        let found = verify(bundle).unwrap();
        let recomputed = found.problems.iter().any(|problem| problem.contains("raw data give"));
        assert!(recomputed, "{field}: {found}");
    }
    fs::write(&path, text).unwrap();
}

fn a_bundle_of_datagrams_holds_until_any_of_it_is_edited() {
    let out = tempfile::tempdir().unwrap();
    let sketch = UdpSketch { others: &["foreign"], pairs: 2, ..UdpSketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let directory = &outcome.directory;
    let verification = verify(directory).unwrap();
    assert!(verification.holds() && verification.figures > 10, "{verification}");
    assert_edits_are_found(directory, &["lost", "due", "received_per_second", "kernel_drops"]);
    assert!(verify(directory).unwrap().holds());
    let html = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(html.contains("20 streams x 50/s x 172 B"));
    assert!(html.contains("lateness_p999_us"));
    assert!(!html.contains("http://") && !html.contains("https://"), "it must open offline");
}

fn a_bundle_of_http_holds_until_any_of_it_is_edited_and_its_files_are_gone() {
    let out = tempfile::tempdir().unwrap();
    let sketch = HttpSketch { others: &["foreign"], pairs: 2, ..HttpSketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let directory = &outcome.directory;
    let all = ["bundle.json", "manifest.sha256", "report.html", "report.md", "runs.jsonl"];
    assert_eq!(files(directory), all);
    let verification = verify(directory).unwrap();
    assert!(verification.holds() && verification.figures > 10, "{verification}");
    assert_edits_are_found(directory, &["bodies", "answered", "status"]);
    rerender(directory).unwrap();
    assert!(verify(directory).unwrap().holds());
    let html = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(html.contains("4 connections x 1000 B over HTTP on lo"));
}

fn every_file_is_read_back_as_it_was_written() {
    let others: &[&str] = &["foreign"];
    let text = |which: usize| match which {
        0 => Sketch { others, pairs: 5, net: "auto", ..Sketch::default() }.text(),
        1 => UdpSketch { others, ..UdpSketch::default() }.text(),
        _ => HttpSketch { others, ..HttpSketch::default() }.text(),
    };
    for which in 0..3 {
        let out = tempfile::tempdir().unwrap();
        let outcome = run_as_it_is(&text(which), out.path(), &Stop::new()).unwrap();
        let read = |name: &str| fs::read_to_string(outcome.directory.join(name)).unwrap();
        let value: serde_json::Value = serde_json::from_str(&read("bundle.json")).unwrap();
        let bundle: twinring_lab::result::Bundle = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(bundle, outcome.bundle);
        assert_eq!(serde_json::to_value(&bundle).unwrap(), value);
        for line in read("runs.jsonl").lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            let run: twinring_lab::record::RunRecord =
                serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&run).unwrap(), value);
        }
    }
}

fn what_is_not_a_bundle_is_refused() {
    let out = tempfile::tempdir().unwrap();
    // The directory is named as it was given.
    let absent = out.path().join("absent");
    for (place, why) in [(out.path(), "has no bundle.json"), (&*absent, "no such directory")] {
        for error in [verify(place).unwrap_err(), add_to(place).unwrap_err()] {
            let LabError::NotABundle { path, .. } = &error else { panic!("{error}") };
            assert!(*path == place && error.to_string().contains(why), "{error}");
        }
    }
    fs::write(out.path().join("bundle.json"), "{\"schema\":\"other/1\"}").unwrap();
    let error = verify(out.path()).unwrap_err();
    assert!(error.to_string().contains("other/1"), "{error}");
}

fn progress_goes_to_standard_error_only() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("short.toml");
    fs::write(&file, Sketch::default().text()).unwrap();
    let output = Command::new(fakes()).arg("lab").arg(&file).arg(out.path()).output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.lines().any(|line| line.starts_with("sketch: ")) && !said.contains(" runs, about"),
        "{said}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 runs"));
}
