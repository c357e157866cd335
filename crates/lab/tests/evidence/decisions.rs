//! What is decided from known runs.

use std::fs;

use serde_json::{Value, json};
use twinring_lab::analysis::{CellSummary, Comparison, Scope};
use twinring_lab::{Gated, Outcome, diff, first_page, rerender};

use crate::records::{bundle, experiment, judge, judge_by, pairs};
use testing::{Test, tests};

pub(crate) const TESTS: &[Test] = tests![
    less_cpu_is_found_in_either_direction_and_not_between_equals,
    the_columns_are_of_the_pairs_of_the_change,
    what_is_left_out_is_said_with_its_side_and_the_ratio_over_all_runs_is_beside,
    a_decision_that_is_gone_over_all_runs_is_fragile,
    placements_are_strata,
    sessions_are_never_pooled_as_pairs,
    more_comparisons_make_wider_intervals,
    a_subject_compared_with_itself_is_an_aa_test,
    no_decision_is_finer_than_the_clock,
    who_alone_meets_the_slo_is_said_and_cpu_is_not_compared,
    a_gate_on_a_void_subject_cannot_be_judged,
    the_same_runs_give_the_same_summary
];

fn only(cell: CellSummary) -> Comparison {
    cell.comparisons.into_iter().next().unwrap()
}

/// The runs of `pairs`, as those of another session.
fn session(number: usize, records: Vec<Value>) -> Vec<Value> {
    let moved = |mut record: Value| {
        for field in ["index", "block"] {
            record[field] = json!(record[field].as_u64().unwrap() + 1000 * number as u64);
        }
        record["occasion"] = json!(number);
        record
    };
    records.into_iter().map(moved).collect()
}

fn less_cpu_is_found_in_either_direction_and_not_between_equals() {
    for (ratio, less) in [(1.25, Some("io_uring")), (0.8, Some("epoll")), (1.0, None)] {
        let found = only(judge(pairs(8, ratio)));
        assert_eq!(found.less.as_deref(), less, "{found:?}");
        let estimate = found.ratio.unwrap();
        // Of the subject to the baseline: less is less than 1. Nothing is left out, so both estimates are one.
        assert!(
            (estimate.ratio - 1.0 / ratio).abs() < 0.01 && found.all_runs == Some(estimate),
            "{found:?}"
        );
        assert_eq!(estimate.ends.unwrap().excludes_one(), less.is_some());
        assert_eq!((found.pairs, found.left_out.len(), found.is_fragile), (8, 0, false));
    }
    assert_eq!(only(judge(pairs(8, 1.0))).because.as_deref(), Some("no difference found"));
    let few = only(judge(pairs(5, 1.25)));
    assert_eq!((few.less, few.because.as_deref()), (None, Some("5 pairs, 6 needed")));
}

/// Beside the change stood the figures of all runs that count: also of those whose partner a check had excluded.
fn the_columns_are_of_the_pairs_of_the_change() {
    let mut records = pairs(9, 1.25);
    let before = first_page(&bundle(experiment(), records[2..].to_vec()), "b");
    records[0]["cpu"]["server_cpu"]["busy_s"] = json!(1.98);
    records[1]["failures"] = json!([{"what": "no_accounting", "why": "so"}]);
    let page = first_page(&bundle(experiment(), records), "b");
    let row = |page: &str| page.lines().find(|line| line.contains("TCP 128 B")).unwrap().to_owned();
    assert_eq!(row(&page), row(&before));
    assert!(page.contains("8.00 us   6.40 us  -20%"), "{page}");
}

/// Excluded blocks changed a ratio from 1.11 to 1.24, and no report said so.
fn what_is_left_out_is_said_with_its_side_and_the_ratio_over_all_runs_is_beside() {
    let mut records = pairs(10, 1.25);
    records[4]["others"]["cpu_s"] = json!(0.2);
    records[5]["cpu"]["server_cpu"]["busy_s"] = json!(1.9);
    records[13]["distance"] = json!({"before_ns": 80.0, "after_ns": 370.0});
    let found = only(judge(records.clone()));
    let left_out: Vec<_> =
        found.left_out.iter().map(|it| (&*it.why, &*it.side, it.pairs)).collect();
    assert_eq!(left_out, [("other processes", "epoll", 1), ("virtual CPUs moved", "io_uring", 1)]);
    assert_eq!((found.pairs, found.counted(), found.all_runs.unwrap().pairs), (10, 8, 10));
    assert!(found.all_runs.unwrap().ratio > found.ratio.unwrap().ratio + 0.01, "{found:?}");
    assert_eq!(found.less.as_deref(), Some("io_uring"));
    // A subject that sends wrong bytes is void, whatever it saves.
    records[13]["loads"][0]["errors"]["mismatch"] = json!(1);
    let found = only(judge(records));
    assert!(
        found.void.as_deref().unwrap().contains("wrong bytes") && found.less.is_none(),
        "{found:?}"
    );
}

fn a_decision_that_is_gone_over_all_runs_is_fragile() {
    let mut records = pairs(8, 1.05);
    for extra in 0..4 {
        let mut more = session(0, pairs(4, 0.8));
        for record in &mut more[2 * extra..2 * extra + 2] {
            let index = records.len();
            record["index"] = json!(index);
            record["block"] = json!(100 + extra);
            record["others"]["cpu_s"] = json!(0.5);
            records.push(record.clone());
        }
    }
    // Two sessions have no interval: what each shows was not looked at over all runs.
    let both = [records.clone(), session(1, pairs(8, 1.05))].concat();
    for records in [records, both] {
        let found = only(judge(records));
        assert!(found.less.as_deref() == Some("io_uring") && found.is_fragile, "{found:?}");
    }
}

fn placements_are_strata() {
    let mut records = pairs(8, 1.25);
    for (number, record) in records.iter_mut().enumerate() {
        let is_apart = (number / 2) % 2 == 1;
        let ns = if is_apart { 370.0 } else { 80.0 };
        record["distance"] = json!({"before_ns": ns, "after_ns": ns});
        if is_apart && record["subject"] == "io_uring" {
            let busy_s = record["cpu"]["server_cpu"]["busy_s"].as_f64().unwrap();
            record["cpu"]["server_cpu"]["busy_s"] = json!(busy_s * 0.7);
        }
    }
    let found = only(judge(records));
    let ends = found.ratio.unwrap().ends.unwrap();
    assert!(ends.high / ends.low < 1.05, "{found:?}");
}

fn sessions_are_never_pooled_as_pairs() {
    let of = |sessions: &[(f64, usize)]| {
        let each = sessions
            .iter()
            .enumerate()
            .map(|(number, (ratio, count))| session(number, pairs(*count, *ratio)));
        only(judge(each.flatten().collect()))
    };
    for (sessions, less, scope) in [
        // Two sessions have to show the same.
        (&[(1.2, 8), (1.3, 8)][..], Some("io_uring"), Scope { sessions: 2, machines: 1 }),
        (&[(1.2, 8), (1.0, 8)], None, Scope { sessions: 2, machines: 1 }),
        (&[(1.2, 8), (1.25, 8), (1.3, 8)], Some("io_uring"), Scope { sessions: 3, machines: 1 }),
        // 24 pairs that all agree say less than three sessions that do not.
        (&[(1.02, 8), (1.3, 8), (1.9, 8)], None, Scope { sessions: 3, machines: 1 }),
        // A session of four pairs does not count, and its pairs do not either. The others were said to differ from it.
        (&[(1.2, 8), (1.9, 4)], Some("io_uring"), Scope { sessions: 1, machines: 1 }),
        (&[(1.2, 8), (0.9, 4), (1.3, 8)], Some("io_uring"), Scope { sessions: 2, machines: 1 }),
    ] {
        let found = of(sessions);
        assert_eq!((found.less.as_deref(), found.scope), (less, scope), "{sessions:?} {found:?}");
        let counted: usize = sessions.iter().map(|it| it.1).filter(|count| *count >= 6).sum();
        assert_eq!(found.counted(), counted);
    }
    // Sessions that agree that nothing is shown were said to differ.
    let found = of(&[(1.0, 8), (1.0, 8)]);
    assert_eq!(found.because.as_deref(), Some("not shown in every session"));
}

fn more_comparisons_make_wider_intervals() {
    let width = |it: &Comparison| {
        let ends = it.ratio.unwrap().ends.unwrap();
        ends.high / ends.low
    };
    let one = only(judge(pairs(9, 1.25)));
    let mut several = experiment();
    several.subjects.push(several.subjects[1].clone());
    several.subjects[2].name = "third".to_owned();
    several.subjects[2].features = Some("multishot=off".to_owned());
    let with_third = pairs(9, 1.25).into_iter().flat_map(|record| {
        let mut third = record.clone();
        third["subject"] = json!("third");
        if record["subject"] == "io_uring" { vec![record, third] } else { vec![record] }
    });
    let found = judge_by(&several, with_third.collect());
    assert_eq!(found.comparisons.len(), 2);
    assert!(width(&found.comparisons[0]) > width(&one));
}

fn a_subject_compared_with_itself_is_an_aa_test() {
    let mut same = experiment();
    same.subjects[1].engine = same.subjects[0].engine.clone();
    assert!(only(judge_by(&same, pairs(8, 1.0))).aa);
    assert!(!only(judge(pairs(8, 1.0))).aa);
}

/// A clock of ticks cannot show what is smaller than a tick.
fn no_decision_is_finer_than_the_clock() {
    let mut records = pairs(8, 1.08);
    for record in &mut records {
        record["cpu"]["idle_clock"] = json!("proc_stat");
        record["cpu"]["server_cpu"]["busy_unsure_s"] = json!(0.2);
    }
    let found = only(judge(records.clone()));
    assert!(found.because.as_deref().unwrap().starts_with("finer than the clock"), "{found:?}");
    // Beside an interval without 0 stood that no difference was found.
    assert!(first_page(&bundle(experiment(), records), "b").contains("unclear"));
    assert_eq!(only(judge(pairs(8, 1.08))).less.as_deref(), Some("io_uring"));
}

fn who_alone_meets_the_slo_is_said_and_cpu_is_not_compared() {
    let mut records = pairs(8, 1.25);
    for record in &mut records {
        let misses = record["subject"] == "epoll";
        let due = if misses { 300_000 } else { 200_000 };
        record["rate_per_s"] = json!(due / 2);
        record["loads"][0]["settings"]["mode"] = json!("open");
        record["loads"][0]["requests"]["due"] = json!(due);
        record["loads"][0]["schedule_lag_us"] = json!({"p50": 1.0, "p99": 2.0, "max": 3.0});
    }
    let two = [records.clone(), session(1, pairs(8, 1.25))].concat();
    // Pairs of two sessions were one sign test.
    assert_eq!(only(judge(two.clone())).less.as_deref(), Some("io_uring"));
    // The pairs in which both did were compared all the same.
    let both = two.into_iter().map(|mut it| {
        it["occasion"] = json!(0);
        it
    });
    for (records, met) in [(records, [0, 8]), (both.collect(), [8, 16])] {
        let found = only(judge(records));
        assert_eq!(found.met_slo, Some(met));
        assert!(
            found.because.as_deref().unwrap().starts_with("epoll meets the SLO in"),
            "{found:?}"
        );
        assert_eq!((found.less, found.ratio), (None, None));
    }
}

/// A build whose bytes were wrong passed every gate: nothing of it was left to compare.
fn a_gate_on_a_void_subject_cannot_be_judged() {
    let stored = |records: &[Value]| {
        let directory = tempfile::tempdir().unwrap();
        let bundle = bundle(experiment(), records.to_vec());
        let runs: String = records.iter().map(|it| format!("{it}\n")).collect();
        fs::write(directory.path().join("runs.jsonl"), runs).unwrap();
        fs::write(directory.path().join("bundle.json"), json!(bundle).to_string()).unwrap();
        rerender(directory.path()).unwrap();
        directory
    };
    let gates = ["server_cpu > 50%".parse().unwrap()];
    let (before, mut records) = (stored(&pairs(8, 1.25)), pairs(8, 1.25));
    for expected in [Some(Gated::Holds), None] {
        let after = stored(&records);
        let found = diff(before.path(), after.path(), &gates, true).unwrap();
        assert_eq!(found.gates[0].is, expected, "{found:?}");
        for record in records.iter_mut().filter(|it| it["subject"] == "io_uring") {
            record["loads"][0]["errors"]["mismatch"] = json!(1);
        }
    }
    // So did one that could not be started.
    let bundle = bundle(experiment(), pairs(8, 1.25));
    let mut outcome = Outcome { directory: before.path().to_owned(), bundle };
    for expected in [Some(Gated::Holds), None] {
        assert_eq!(outcome.judged(&gates)[0].is, expected);
        let missing = json!({"subject": "tokio", "why": "not found"});
        outcome.bundle.not_run.push(serde_json::from_value(missing).unwrap());
    }
}

fn the_same_runs_give_the_same_summary() {
    let [a, b] = [(); 2].map(|()| bundle(experiment(), pairs(20, 1.02)).summary);
    assert_eq!(a, b);
}
