//! Each fault of a fake server or client is caught and named, and a clean one is left alone.

use crate::common::{Sketch, calmed, summary, undisturbed, voids};
use twinring_lab::audit::{Kind, Severity};
use twinring_lab::summary::Verdict;

/// Runs the clean server and one of `mode`, and returns what voided each.
fn voids_of(mode: &str, sketch: Sketch<'_>) -> [Vec<Kind>; 2] {
    let out = tempfile::tempdir().unwrap();
    let mut outcome = Sketch { others: &[mode], ..sketch }.run(out.path()).unwrap();
    // In a disturbed run a stalled request is noise, and this is about the programs.
    let cell = calmed(&outcome);
    let faulty = voids(&cell, mode);
    if !faulty.is_empty() {
        let Verdict::Void { why } = &cell.comparisons[0].verdict else {
            panic!("{mode}: {:?}", cell.comparisons[0].verdict)
        };
        let named = faulty.iter().any(|kind| why.contains(kind.title()));
        assert!(why.contains(mode) && named, "{why}");
        for summary in outcome.bundle.summary.iter_mut() {
            summary.cells = vec![cell.clone()];
        }
        assert_eq!(outcome.exit_code(), 1, "nothing could be measured");
    }
    [voids(&cell, "echo"), faulty]
}

/// Asserts that the clean server passes and the faulty one is named for this.
fn assert_caught(mode: &str, expected: Kind) {
    let [clean, faulty] = voids_of(mode, Sketch::default());
    assert_eq!(clean, [], "the clean server");
    assert!(faulty.contains(&expected), "{mode}: {faulty:?}");
}

#[test]
fn clean_servers_pass_every_audit() {
    for mode in ["foreign", "burn"] {
        let [clean, other] = voids_of(mode, Sketch::default());
        assert_eq!([clean, other], [[], []], "{mode}");
    }
}

#[test]
fn a_server_that_loses_bytes_is_named() {
    assert_caught("lossy", Kind::PayloadMismatch);
}

#[test]
fn a_server_that_swallows_the_end_of_a_message_is_named() {
    // The client cannot see a difference; it waits for ever.
    let long = Sketch { window_s: 1.5, ..Sketch::default() };
    let [clean, faulty] = voids_of("swallow", long);
    assert_eq!(clean, []);
    let named = [Kind::StalledRequest, Kind::StarvedConnection, Kind::NothingAnswered];
    assert!(faulty.iter().any(|kind| named.contains(kind)), "{faulty:?}");
}

#[test]
fn a_server_that_changes_bytes_is_named() {
    assert_caught("garble", Kind::PayloadMismatch);
}

#[test]
fn a_server_that_dies_is_named_with_its_last_words() {
    assert_caught("dies", Kind::ServerDied);
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { others: &["dies"], ..Sketch::default() }.run(out.path()).unwrap();
    let findings = &summary(&outcome).cells[0].findings;
    let died = findings.iter().find(|finding| finding.kind == Kind::ServerDied).unwrap();
    assert!(died.what.contains("exit code 7") && died.what.contains("out of cheese"), "{died:?}");
}

#[test]
fn a_server_that_admits_64_connections_is_named() {
    let hundred = Sketch { connections: 100, window_s: 0.6, ..Sketch::default() };
    let [clean, faulty] = voids_of("admits-64", hundred);
    assert_eq!(clean, []);
    assert!(faulty.contains(&Kind::UnequalAdmission), "{faulty:?}");
}

#[test]
fn a_slow_server_is_measured_and_named() {
    let sketch = Sketch { others: &["slow"], connections: 12, ..Sketch::default() };
    let Some(outcome) = undisturbed(&sketch) else { return };
    let cell = &summary(&outcome).cells[0];
    assert_eq!(voids(cell, "slow"), []);
    let [echo, slow] = [0, 1].map(|index| cell.subjects[index].figures.as_ref().unwrap());
    match cell.findings.iter().find(|finding| finding.kind == Kind::SubjectWaits) {
        Some(waits) => {
            assert_eq!((waits.severity, &*waits.subject), (Severity::Warning, "slow"));
        }
        // Processes that came and went between the lab's looks used the CPU.
        None => assert!(slow.server_busy_share.max(slow.client_busy_share) >= 0.5, "{slow:?}"),
    }
    assert!(slow.latency_us_p50 >= 20_000.0 && slow.requests_per_s < echo.requests_per_s);
}

#[test]
fn servers_that_do_not_start_are_named() {
    assert_caught("crashes", Kind::ServerNotReady);
    assert_caught("unready", Kind::ServerNotReady);
}

#[test]
fn a_server_that_does_not_stop_is_named_and_gone() {
    assert_caught("deaf", Kind::ServerDidNotStop);
}

#[test]
fn a_client_that_is_not_truthful_is_named() {
    for (fault, expected) in [("miscounts", Kind::Unbalanced), ("flatters", Kind::LittlesLaw)] {
        let out = tempfile::tempdir().unwrap();
        let sketch = Sketch { client_fault: fault, others: &["foreign"], ..Sketch::default() };
        let cell = calmed(&sketch.run(out.path()).unwrap());
        assert!(voids(&cell, "echo").contains(&expected), "{fault}: {:?}", cell.findings);
    }
}

#[test]
fn a_client_that_never_ends_is_named_and_gone() {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { client_fault: "hangs", ..Sketch::default() }.run(out.path()).unwrap();
    let findings = &summary(&outcome).cells[0].findings;
    let failed = findings.iter().find(|finding| finding.kind == Kind::ClientFailed).unwrap();
    assert!(failed.what.contains("not finished after"), "{failed:?}");
}

#[test]
fn a_void_subject_is_not_run_again_and_the_others_are() {
    let out = tempfile::tempdir().unwrap();
    let sketch = Sketch { others: &["lossy", "foreign"], pairs: 2, ..Sketch::default() };
    let outcome = sketch.run(out.path()).unwrap();
    let cell = &summary(&outcome).cells[0];
    let runs: Vec<_> = cell.subjects.iter().map(|subject| subject.runs).collect();
    assert_eq!(runs, [2, 1, 2]);
    assert!(matches!(cell.comparisons[0].verdict, Verdict::Void { .. }));
    assert!(matches!(cell.comparisons[1].verdict, Verdict::TooFewPairs { .. }));
    assert_eq!(outcome.exit_code(), 0);
}
