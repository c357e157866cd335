//! Each fault of a fake reflector or simulator is caught and named, and a clean one is left alone.

use crate::common::{UdpSketch, first_cell, voids};
use testing::{Test, tests};
use twinring_lab::analysis::{Bottleneck, CellSummary, Check, Effect, SATURATED_SHARE};

pub(crate) const TESTS: &[Test] = tests![
    clean_reflectors_pass_every_audit_and_their_packets_are_all_back,
    loss_is_an_outcome_and_not_a_fault,
    a_reflector_that_changes_bytes_is_named,
    a_reflector_that_dies_is_named,
    a_reflector_that_never_answers_is_named_and_does_not_keep_up,
    packets_of_nobody_and_full_queues_are_warned_of,
    a_reflector_that_never_listens_is_named,
    a_simulator_that_is_not_truthful_is_named,
    a_simulator_that_falls_behind_is_measured_and_does_not_count_as_equal_work,
    a_simulator_that_uses_all_of_its_cpu_is_named_as_the_bottleneck
];

/// What came out; the clean reflector is flawless.
fn cell(sketch: &UdpSketch<'_>) -> CellSummary {
    let cell = once(sketch);
    assert_eq!(voids(&cell, "clean"), [], "the clean reflector: {:?}", cell.findings);
    cell
}

fn once(sketch: &UdpSketch<'_>) -> CellSummary {
    let out = tempfile::tempdir().unwrap();
    first_cell(&sketch.run(out.path()).unwrap())
}

/// Asserts that the clean reflector passes and the other one is named for this.
fn assert_caught(mode: &str, client_fault: &str, expected: Check) {
    let name = format!("other-{mode}");
    let is_caught = |cell: &CellSummary| voids(cell, &name).contains(&expected);
    let sketch = UdpSketch { others: &[mode], client_fault, ..UdpSketch::default() };
    let cell = cell(&sketch);
    assert!(is_caught(&cell), "{mode} {client_fault}: {:?}", cell.findings);
    let Some(why) = &cell.comparisons[0].void else { panic!("{mode}: {:?}", cell.comparisons[0]) };
    assert!(why.contains(&name), "{why}");
}

/// Asserts that this is said of the other reflector, which counts all the same; returns what came out.
fn assert_warned(mode: &str, expected: &[Check]) -> CellSummary {
    let name = format!("other-{mode}");
    let severity = |cell: &CellSummary, kind: Check| {
        let mut found = cell.findings.iter().filter(|finding| finding.subject == name);
        found.find(|finding| finding.check == kind).map(|finding| finding.effect)
    };
    let is_warned = |cell: &CellSummary| {
        let is_said = |kind: &Check| severity(cell, *kind) == Some(Effect::Note);
        voids(cell, &name).is_empty() && expected.iter().all(is_said)
    };
    let cell = cell(&UdpSketch { others: &[mode], ..UdpSketch::default() });
    assert!(is_warned(&cell), "{expected:?}: {:?}", cell.findings);
    cell
}

fn clean_reflectors_pass_every_audit_and_their_packets_are_all_back() {
    for mode in ["foreign", "burn"] {
        let name = format!("other-{mode}");
        let sketch = UdpSketch { others: &[mode], ..UdpSketch::default() };
        let cell = cell(&sketch);
        assert_eq!(voids(&cell, &name), [], "{mode}: {:?}", cell.findings);
        assert_eq!(cell.cell.to_string(), "20 streams x 50/s x 172 B on lo");
        for subject in &cell.subjects {
            // On a busy machine packets may leave too late to count.
            let Some(figures) = &subject.figures else {
                assert_eq!(subject.met_slo, Some(0));
                continue;
            };
            assert!(
                figures.lateness_p999_us.is_some() && figures.throughput_per_s.unwrap() > 500.0,
                "{figures:?}"
            );
        }
        // One receive and one send a packet, over the whole life of the reflector.
        assert!(cell.subjects[0].figures.is_none_or(|ours| ours.syscalls == Some(2.0)));
    }
}

fn loss_is_an_outcome_and_not_a_fault() {
    let cell = cell(&UdpSketch { others: &["lossy"], ..UdpSketch::default() });
    assert_eq!(voids(&cell, "other-lossy"), [], "{:?}", cell.findings);
    let lossy = &cell.subjects[1];
    assert_eq!(lossy.met_slo, Some(0));
    // What it saves by dropping packets is no merit: there is nothing to compare.
    assert_eq!(cell.comparisons[0].ratio, None);
}

fn a_reflector_that_changes_bytes_is_named() {
    assert_caught("garble", "", Check::Bytes);
}

fn a_reflector_that_dies_is_named() {
    assert_caught("dies", "", Check::ServerRuns);
}

/// It is the worst of losses: once it was taken for a broken measurement, and the cell was void.
fn a_reflector_that_never_answers_is_named_and_does_not_keep_up() {
    let cell = assert_warned("mute", &[Check::Answers]);
    let mute = &cell.subjects[1];
    assert_eq!((mute.counted, mute.figures, mute.met_slo), (1, None, Some(0)));
    assert_eq!((cell.comparisons[0].met_slo.unwrap()[1], cell.comparisons[0].ratio), (0, None));
}

fn packets_of_nobody_and_full_queues_are_warned_of() {
    assert_warned("stray", &[Check::Verified]);
    assert_warned("spills", &[Check::Packets]);
}

fn a_reflector_that_never_listens_is_named() {
    assert_caught("unbound", "", Check::ServerRuns);
}

fn a_simulator_that_is_not_truthful_is_named() {
    assert_caught("foreign", "miscounts", Check::Balance);
    assert_caught("foreign", "flatters", Check::Result);
    assert_caught("foreign", "lazy", Check::Load);
}

fn a_simulator_that_falls_behind_is_measured_and_does_not_count_as_equal_work() {
    let sketch = UdpSketch { others: &["foreign"], client_fault: "late", ..UdpSketch::default() };
    let cell = cell(&sketch);
    assert_eq!(voids(&cell, "other-foreign"), [], "{:?}", cell.findings);
    assert_eq!(cell.subjects[1].met_slo, Some(0));
    assert_eq!(cell.comparisons[0].met_slo.unwrap()[1], 0);
}

fn a_simulator_that_uses_all_of_its_cpu_is_named_as_the_bottleneck() {
    let sketch = UdpSketch { others: &["foreign"], client_fault: "spins", ..UdpSketch::default() };
    let cell = cell(&sketch);
    let spinning = &cell.subjects[1];
    let figures = spinning.figures.as_ref();
    let Some(busy_share) = figures.and_then(|figures| figures.client_busy_share) else {
        testing::needs(
            "a quiet machine",
            "the share of the generator's CPU was not measured in any run",
        );
    };
    // Other processes may have had a part of its CPU, which is then busy all the same.
    assert!(busy_share > 0.9, "{figures:?}");
    if busy_share >= SATURATED_SHARE {
        let expected = [Bottleneck::ClientCpu, Bottleneck::BothCpus, Bottleneck::SharedCpu];
        assert!(expected.contains(&spinning.bottleneck.unwrap()), "{:?}", spinning.bottleneck);
    }
}
