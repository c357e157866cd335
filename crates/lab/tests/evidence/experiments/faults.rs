//! Each fault of a fake server or client is caught and named, and a clean one is left alone.

use crate::common::{Sketch, first_cell, summary, voids};
use testing::{Test, tests};
use twinring_lab::analysis::Check;

pub(crate) const TESTS: &[Test] = tests![
    clean_servers_pass_every_audit,
    a_server_that_loses_bytes_is_named,
    a_server_that_swallows_the_end_of_a_message_is_named,
    a_server_that_changes_bytes_is_named,
    a_server_that_dies_is_named_with_its_last_words,
    a_server_that_admits_64_connections_is_named,
    a_slow_server_is_measured,
    servers_that_do_not_start_are_named,
    a_server_that_does_not_stop_is_named_and_gone,
    a_client_that_is_not_truthful_is_named,
    a_client_that_never_ends_is_named_and_gone
];

/// Runs the clean server and one of `mode`, and returns what voided each.
fn voids_of(mode: &str, sketch: Sketch<'_>) -> [Vec<Check>; 2] {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { others: &[mode], ..sketch }.run(out.path()).unwrap();
    let cell = first_cell(&outcome);
    let [clean, faulty] = [voids(&cell, "echo"), voids(&cell, mode)];
    if clean.is_empty() && !faulty.is_empty() {
        let Some(why) = &cell.comparisons[0].void else {
            panic!("{mode}: {:?}", cell.comparisons[0])
        };
        let named = faulty.iter().any(|kind| why.contains(kind.title()));
        assert!(why.contains(mode) && named, "{why}");
        assert_eq!(outcome.exit_code(), 1, "nothing could be measured");
    }
    [clean, faulty]
}

/// Asserts that the clean server passes and the faulty one is named for this.
fn assert_caught(mode: &str, expected: Check) {
    assert_caught_in(Sketch::default, mode, &[expected]);
}

/// The same for one of several, in a sketch of its own.
fn assert_caught_in(sketch: fn() -> Sketch<'static>, mode: &str, expected: &[Check]) {
    let is_named = |faulty: &[Check]| faulty.iter().any(|kind| expected.contains(kind));
    let [clean, faulty] = voids_of(mode, sketch());
    assert_eq!(clean, [], "the clean server");
    assert!(is_named(&faulty), "{mode}: {faulty:?}");
}

fn clean_servers_pass_every_audit() {
    for mode in ["foreign", "burn"] {
        assert_eq!(voids_of(mode, Sketch::default()), [[], []], "{mode}");
    }
}

fn a_server_that_loses_bytes_is_named() {
    assert_caught("lossy", Check::Bytes);
}

fn a_server_that_swallows_the_end_of_a_message_is_named() {
    // The client cannot see a difference; it waits for ever. With little of a CPU it has few answers, and those in
    // flight outlast the window.
    let named = [Check::Stalled, Check::Answers, Check::LittlesLaw];
    assert_caught_in(Sketch::default, "swallow", &named);
}

fn a_server_that_changes_bytes_is_named() {
    assert_caught("garble", Check::Bytes);
}

fn a_server_that_dies_is_named_with_its_last_words() {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { others: &["dies"], ..Sketch::default() }.run(out.path()).unwrap();
    assert_eq!(voids(&first_cell(&outcome), "echo"), [], "the clean server");
    let mut findings = summary(&outcome).cells[0].findings.iter();
    let died = findings.find(|finding| finding.check == Check::ServerRuns).unwrap();
    assert!(died.what.contains("exit code 7") && died.what.contains("out of cheese"), "{died:?}");
}

fn a_server_that_admits_64_connections_is_named() {
    let hundred = || Sketch { connections: 100, window_s: 0.6, ..Sketch::default() };
    assert_caught_in(hundred, "admits-64", &[Check::Admission]);
}

fn a_slow_server_is_measured() {
    let sketch = Sketch { others: &["slow"], connections: 12, ..Sketch::default() };
    let out = tempfile::tempdir().unwrap();
    let cell = &first_cell(&sketch.run(out.path()).unwrap());
    assert_eq!(voids(cell, "slow"), []);
    let [echo, slow] = [0, 1].map(|index| cell.subjects[index].figures.as_ref().unwrap());
    assert!(
        slow.p50_us.unwrap() >= 20_000.0 && slow.throughput_per_s < echo.throughput_per_s,
        "{slow:?}"
    );
}

fn servers_that_do_not_start_are_named() {
    assert_caught("crashes", Check::ServerRuns);
    assert_caught("unready", Check::ServerRuns);
}

fn a_server_that_does_not_stop_is_named_and_gone() {
    assert_caught("deaf", Check::ServerRuns);
}

fn a_client_that_is_not_truthful_is_named() {
    for (fault, expected) in [("miscounts", Check::Balance), ("flatters", Check::LittlesLaw)] {
        let out = tempfile::tempdir().unwrap();
        let sketch = Sketch { client_fault: fault, others: &["foreign"], ..Sketch::default() };
        let cell = first_cell(&sketch.run(out.path()).unwrap());
        assert!(voids(&cell, "echo").contains(&expected), "{fault}: {:?}", cell.findings);
    }
}

fn a_client_that_never_ends_is_named_and_gone() {
    let out = tempfile::tempdir().unwrap();
    let outcome = Sketch { client_fault: "hangs", ..Sketch::default() }.run(out.path()).unwrap();
    let findings = &summary(&outcome).cells[0].findings;
    let failed = findings.iter().find(|finding| finding.check == Check::LoadRuns).unwrap();
    assert!(failed.what.contains("was not done after"), "{failed:?}");
}
