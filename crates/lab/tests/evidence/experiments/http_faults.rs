//! Each fault of a fake server of files or of its load generator is caught and named, and a clean
//! one is left alone.

use std::process::Command;

use crate::common::{HttpSketch, fakes, first_cell, voids};
use testing::{Test, tests};
use twinring_lab::analysis::{CellSummary, Check, Effect, Finding};

pub(crate) const TESTS: &[Test] = tests![
    clean_servers_pass_every_audit,
    pipelined_requests_are_measured_too,
    wrong_answers_are_named_by_what_is_wrong,
    servers_that_break_off_or_die_are_named,
    a_server_that_admits_64_connections_is_named,
    a_load_generator_that_is_not_truthful_is_named,
    a_load_generator_that_does_not_look_at_content_is_warned_of,
    without_nginx_the_others_are_measured_and_the_report_says_what_to_do,
    nginx_takes_part_if_it_is_installed_and_is_left_out_otherwise
];

/// What came out; the clean server is flawless.
fn cell(sketch: &HttpSketch<'_>) -> CellSummary {
    let cell = once(sketch);
    assert_eq!(voids(&cell, "files"), [], "the clean server: {:?}", cell.findings);
    cell
}

fn once(sketch: &HttpSketch<'_>) -> CellSummary {
    let out = tempfile::tempdir().unwrap();
    first_cell(&sketch.run(out.path()).unwrap())
}

/// Asserts that the clean server passes and the other one is named for this.
fn assert_caught(mode: &str, expected: Check, said: &str) {
    let is_it = |finding: &Finding| {
        let of_it = finding.check == expected && finding.subject == mode;
        of_it && finding.effect == Effect::Void && finding.what.contains(said)
    };
    let is_caught = |cell: &CellSummary| cell.findings.iter().any(is_it);
    let cell = cell(&HttpSketch { others: &[mode], ..HttpSketch::default() });
    assert!(is_caught(&cell), "{mode}: {:?}", cell.findings);
    let Some(why) = &cell.comparisons[0].void else { panic!("{mode}: {:?}", cell.comparisons[0]) };
    assert!(why.contains(mode), "{why}");
}

fn clean_servers_pass_every_audit() {
    for mode in ["foreign", "burn"] {
        let sketch = HttpSketch { others: &[mode], ..HttpSketch::default() };
        let cell = cell(&sketch);
        assert_eq!(voids(&cell, mode), [], "{mode}: {:?}", cell.findings);
        assert_eq!(cell.cell.to_string(), "4 connections x 1000 B over HTTP on lo");
    }
}

fn pipelined_requests_are_measured_too() {
    let cell = cell(&HttpSketch { grid: "depth = [3]", ..HttpSketch::default() });
    assert_eq!(cell.cell.to_string(), "4 connections x 1000 B x depth 3 over HTTP on lo");
}

fn wrong_answers_are_named_by_what_is_wrong() {
    assert_caught("status", Check::Bytes, "status 4");
    assert_caught("short", Check::Bytes, "length 4");
    assert_caught("garble", Check::Bytes, "hash 4");
    assert_caught("malformed", Check::Bytes, "malformed 4");
}

fn servers_that_break_off_or_die_are_named() {
    assert_caught("breaks", Check::Errors, "closed early 4");
    assert_caught("dies", Check::ServerRuns, "out of cheese");
}

fn a_server_that_admits_64_connections_is_named() {
    let sketch = HttpSketch {
        others: &["admits-64"],
        connections: 100,
        window_s: 0.6,
        ..HttpSketch::default()
    };
    let is_caught = |cell: &CellSummary| voids(cell, "admits-64").contains(&Check::Admission);
    let cell = cell(&sketch);
    assert!(is_caught(&cell), "{:?}", cell.findings);
}

fn a_load_generator_that_is_not_truthful_is_named() {
    for (client_fault, expected) in [
        ("miscounts", Check::Balance),
        ("flatters", Check::LittlesLaw),
        ("plain", Check::Load),
        ("shrinks", Check::Bytes),
    ] {
        let sketch = HttpSketch { client_fault, others: &["foreign"], ..HttpSketch::default() };
        let is_caught = |cell: &CellSummary| voids(cell, "files").contains(&expected);
        let cell = once(&sketch);
        assert!(is_caught(&cell), "{client_fault}: {:?}", cell.findings);
    }
}

fn a_load_generator_that_does_not_look_at_content_is_warned_of() {
    let cell = cell(&HttpSketch { client_fault: "blind", ..HttpSketch::default() });
    let kinds: Vec<_> = cell.findings.iter().map(|finding| finding.check).collect();
    assert!(kinds.contains(&Check::Verified), "{:?}", cell.findings);
}

fn without_nginx_the_others_are_measured_and_the_report_says_what_to_do() {
    let out = tempfile::tempdir().unwrap();
    let more = "[[subjects]]\nname = \"theirs\"\npeer = \"nginx\"\n";
    let file = out.path().join("sketch.toml");
    let sketch = HttpSketch { others: &["foreign"], more, ..HttpSketch::default() };
    std::fs::write(&file, sketch.text()).unwrap();
    let mut lab = Command::new(fakes());
    lab.arg("lab").arg(&file).arg(out.path()).env("PATH", out.path());
    let output = lab.output().unwrap();
    let [said, table] = [&output.stderr, &output.stdout].map(|it| String::from_utf8_lossy(it));
    assert!(said.contains("theirs is left out") && said.contains("apt install nginx"), "{said}");
    assert!(table.contains("theirs was not run") && table.contains("foreign"), "{table}");
    let directory = table.lines().last().unwrap();
    let verification = twinring_lab::verify(directory.as_ref()).unwrap();
    assert!(verification.holds() && verification.runs >= 2, "{verification}");
}

fn nginx_takes_part_if_it_is_installed_and_is_left_out_otherwise() {
    let more = "[[subjects]]\nname = \"theirs\"\npeer = \"nginx\"\n\
                against = [\"other\"]\n\
                [[subjects]]\nname = \"other\"\npeer = \"nginx-read\"\n";
    let out = tempfile::tempdir().unwrap();
    let sketch = HttpSketch { more, ..HttpSketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let report = std::fs::read_to_string(outcome.directory.join("report.md")).unwrap();
    let names: Vec<_> =
        outcome.bundle.experiment.subjects.iter().map(|it| it.name.as_str()).collect();
    let runs = std::fs::read_to_string(outcome.directory.join("runs.jsonl")).unwrap();
    if let [not_run, _] = &outcome.bundle.not_run[..] {
        assert_eq!((not_run.subject.as_str(), names), ("theirs", vec!["files"]));
        assert!(
            report.contains("theirs was not run") && report.contains("apt install"),
            "{report}"
        );
        testing::needs("nginx", &not_run.why);
    }
    assert_eq!(names, ["files", "theirs", "other"]);
    assert!(runs.contains("sendfile on;") && runs.contains("sendfile off;"), "{runs}");
    assert!(!runs.contains("server_not_ready") && !runs.contains("server_died"), "{runs}");
    let cell = first_cell(&outcome);
    let compared: Vec<_> = cell
        .comparisons
        .iter()
        .map(|comparison| (comparison.subject.as_str(), comparison.baseline.as_str()))
        .collect();
    assert_eq!(compared, [("theirs", "files"), ("other", "files"), ("theirs", "other")]);
    // Its end after SIGTERM is clean: one process, with code 0.
    assert!(!cell.findings.iter().any(|it| it.check == Check::ServerRuns), "{:?}", cell.findings);
}
