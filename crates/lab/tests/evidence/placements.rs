//! What is made of runs between which the hypervisor moved the CPUs.

use crate::common::records::{experiment, judge, pairs, read};
use serde_json::{Value, json};
use twinring_lab::audit::{Kind, Severity, audit_placement};
use twinring_lab::summary::{Verdict, summarise};
use twinring_lab::{Placement, Wanted};

fn placed(mut record: Value, before_ns: f64, after_ns: f64) -> Value {
    record["distance"] = json!({"before_ns": before_ns, "after_ns": after_ns});
    record
}

fn all_placed(records: Vec<Value>, ns: f64) -> Vec<Value> {
    records.into_iter().map(|record| placed(record, ns, ns + 3.0)).collect()
}

#[test]
fn one_placement_is_told_and_changes_nothing() {
    let cell = judge(all_placed(pairs(8, 1.25), 80.0));
    assert!(cell.findings.is_empty(), "{:?}", cell.findings);
    assert!(matches!(cell.comparisons[0].verdict, Verdict::Ahead { .. }));
    assert!(cell.comparisons[0].all_pairs.as_ref().unwrap().placed.is_empty());
    let [placement] = &cell.placements[..] else { panic!("{:?}", cell.placements) };
    assert_eq!((placement.placement, placement.blocks), (Placement::Close, 8));
    assert!((80.0..83.5).contains(&placement.round_trip_ns));
}

#[test]
fn a_move_within_a_run_or_a_block_takes_the_block_out() {
    let mut records = all_placed(pairs(10, 1.25), 80.0);
    records[4] = placed(records[4].clone(), 82.0, 371.0);
    records[9] = placed(records[9].clone(), 371.0, 369.0);
    let cell = judge(records);
    assert_eq!(cell.comparisons[0].pairs, 8);
    let moved: Vec<_> = cell.findings.iter().map(|it| (it.kind, it.severity, it.run)).collect();
    let noise = |run| (Kind::Moved, Severity::Noise, Some(run));
    assert_eq!(moved, [noise(4), noise(9)]);
}

#[test]
fn pairs_of_several_placements_are_told_apart() {
    let mut records = all_placed(pairs(9, 1.3), 80.0);
    let apart = pairs(18, 1.05).split_off(18);
    records.extend(all_placed(apart, 370.0));
    let cell = judge(records);
    let blocks: Vec<_> = cell.placements.iter().map(|it| (it.placement, it.blocks)).collect();
    assert_eq!(blocks, [(Placement::Close, 9), (Placement::Apart, 9)]);
    let all = cell.comparisons[0].all_pairs.as_ref().unwrap();
    let ratios: Vec<f64> = all.placed.iter().map(|it| it.ratio.ratio).collect();
    assert!((ratios[0] - 1.3).abs() < 0.02 && (ratios[1] - 1.05).abs() < 0.02, "{ratios:?}");
}

#[test]
fn a_wanted_placement_is_insisted_on_and_an_unknown_one_will_do() {
    let runs: Vec<_> = all_placed(pairs(8, 1.25), 370.0).into_iter().map(read).collect();
    let experiment = twinring_lab::Experiment { placement: Wanted::Close, ..experiment() };
    let summary = summarise(&experiment, 1, &runs);
    assert_eq!(summary.cells[0].comparisons[0].verdict, Verdict::TooFewPairs { pairs: 0 });
    let finding = audit_placement(Wanted::Close, &runs[0], &runs[0]).unwrap();
    assert_eq!((finding.kind, finding.severity), (Kind::Misplaced, Severity::Noise));
    assert_eq!(audit_placement(Wanted::Apart, &runs[0], &runs[0]), None);

    let unknown: Vec<_> = pairs(8, 1.25).into_iter().map(read).collect();
    let summary = summarise(&experiment, 1, &unknown);
    assert!(matches!(summary.cells[0].comparisons[0].verdict, Verdict::Ahead { .. }));
    assert!(summary.cells[0].placements.is_empty());
}
