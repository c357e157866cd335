//! Verdicts and audits on records made by hand, where every figure is known.

use crate::common::records::{
    ANSWERED, WINDOW_S, experiment, histogram, judge, judge_by, pairs, read, record,
};
use serde_json::{Value, json};
use twinring_lab::Experiment;
use twinring_lab::audit::{Finding, Kind, Severity, audit};
use twinring_lab::summary::{
    Bottleneck, CellSummary, Judgement, Metric, Selection, Verdict, WouldChange,
};

#[test]
fn a_difference_is_found_whoever_has_the_advantage() {
    for (ratio, winner) in [(1.25, "io_uring"), (0.8, "epoll")] {
        let cell = judge(pairs(8, ratio));
        let comparison = &cell.comparisons[0];
        assert_eq!(
            comparison.verdict,
            Verdict::Ahead { winner: winner.to_owned(), by_less_than_percent: None }
        );
        let interval = comparison.ratio(Metric::ServerCpuNs).unwrap();
        let ends = interval.ends.unwrap();
        assert!(ends.low < ratio && ratio < ends.high, "{interval:?}");
        assert!(cell.findings.is_empty(), "{:?}", cell.findings);
        let figures = cell.subjects[0].figures.as_ref().unwrap();
        // 1.6 s of 200,000 requests.
        assert!((figures[Metric::ServerCpuNs] / 8000.0 - 1.0).abs() < 0.01, "{figures:?}");
        assert_eq!(figures.get(Metric::ServerSyscalls), Some(2.0));
        assert!(
            (figures[Metric::ServerOutsideNs] - (figures[Metric::ServerCpuNs] - 4500.0)).abs()
                < 1e-6
        );
    }
}

#[test]
fn without_a_difference_the_resolution_is_stated() {
    let experiment = Experiment { equivalence_percent: 0.1, ..experiment() };
    let Verdict::NoDifference { would_have_seen_percent } =
        judge_by(&experiment, pairs(10, 1.0)).comparisons[0].verdict
    else {
        panic!("a difference out of nothing")
    };
    assert!((0.3..3.0).contains(&would_have_seen_percent), "{would_have_seen_percent}");
}

#[test]
fn two_that_differ_by_less_than_matters_are_equivalent() {
    let comparison = judge(pairs(10, 1.0)).comparisons.remove(0);
    let Verdict::Equivalent { within_percent, .. } = comparison.verdict else {
        panic!("{:?}", comparison.verdict)
    };
    assert_eq!(comparison.verdict.to_string(), "equivalent within 3 %");
    let equivalence = comparison.equivalence.unwrap();
    let ends = equivalence.ends.unwrap();
    assert!(1.0 / 1.03 < ends.low && ends.high < 1.03, "{equivalence:?}");
    assert_eq!(within_percent, 3.0);
    // A difference may be certain, and below the bound.
    let small = judge(pairs(10, 1.015)).comparisons.remove(0);
    assert_eq!(small.verdict.to_string(), "io_uring ahead, by less than 3 %");
}

#[test]
fn what_would_change_a_verdict_is_stated() {
    let clear = judge(pairs(9, 1.25)).comparisons.remove(0);
    assert_eq!(clear.would_change, []);
    // Excluded blocks in which the other one is ahead, by far.
    let mut records = pairs(8, 1.25);
    for (at, mut record) in pairs(16, 0.5).split_off(16).into_iter().enumerate() {
        record["others"]["cpu_s"] = json!(1.0);
        record["index"] = json!(16 + at);
        records.push(record);
    }
    let comparison = judge(records).comparisons.remove(0);
    assert!(matches!(comparison.verdict, Verdict::Ahead { .. }));
    let all = comparison.all_pairs.unwrap();
    assert_eq!((all.pairs, all.left_out[0].pairs), (16, 8));
    assert!(all.ratio.unwrap() < 0.9 && all.ends.is_some(), "{all:?}");
    let changed: Vec<_> = comparison.would_change.iter().map(|it| it.with).collect();
    assert_eq!(changed, [Selection::AllBlocks]);
    // A single pair that decides: without it the seven others are significant.
    let mut records = pairs(8, 1.25);
    records[1]["cpu"]["server_cpu"]["busy_s"] = json!(1.99);
    records[0]["cpu"]["server_cpu"]["busy_s"] = json!(0.9);
    let comparison = judge(records).comparisons.remove(0);
    assert!(matches!(comparison.verdict, Verdict::NoDifference { .. }), "{:?}", comparison.verdict);
    let change = WouldChange { with: Selection::OnePairLess, to: Judgement::SubjectAhead };
    assert_eq!(comparison.would_change, [change]);
}

#[test]
fn five_pairs_have_a_ratio_and_no_interval() {
    let comparison = judge(pairs(5, 1.25)).comparisons.remove(0);
    assert_eq!(comparison.verdict, Verdict::TooFewPairs { pairs: 5 });
    let interval = comparison.ratio(Metric::ServerCpuNs).unwrap();
    assert!((interval.ratio - 1.25).abs() < 0.02 && interval.ends.is_none(), "{interval:?}");
    let json = serde_json::to_value(interval).unwrap();
    assert!(json.get("low").is_none() && json.get("high").is_none(), "{json}");
}

#[test]
fn seven_pairs_are_too_few() {
    let cell = judge(pairs(7, 1.5));
    assert_eq!(cell.comparisons[0].verdict, Verdict::TooFewPairs { pairs: 7 });
    // What there is is shown all the same.
    assert!(cell.comparisons[0].ratio(Metric::ServerCpuNs).is_some());
}

#[test]
fn a_disturbed_run_takes_its_block_out() {
    let mut records = pairs(9, 1.25);
    records[4]["others"]["cpu_s"] = json!(1.0);
    let cell = judge(records);
    assert_eq!(cell.comparisons[0].pairs, 8);
    assert!(matches!(cell.comparisons[0].verdict, Verdict::Ahead { .. }));
    assert_eq!([cell.subjects[0].counted, cell.subjects[1].counted], [8, 8]);
}

#[test]
fn a_void_run_takes_its_subject_out_of_the_cell() {
    let mut records = pairs(9, 1.25);
    records[5]["load"]["errors"]["mismatch"] = json!(1);
    let cell = judge(records);
    let why = "io_uring: payload mismatch".to_owned();
    assert_eq!(cell.comparisons[0].verdict, Verdict::Void { why });
}

#[test]
fn the_bottleneck_is_named_and_a_saturated_client_spoils_throughput() {
    let with = |server_s: f64, client_s: f64| {
        let mut records = pairs(8, 1.0);
        for record in &mut records {
            record["cpu"]["server_cpu"]["busy_s"] = json!(server_s);
            record["cpu"]["client_cpu"]["busy_s"] = json!(client_s);
        }
        let cell = judge(records);
        (cell.subjects[0].bottleneck.unwrap(), cell.comparisons[0].throughput_is_client_bound)
    };
    assert_eq!(with(1.99, 1.0), (Bottleneck::ServerCpu, false));
    assert_eq!(with(1.0, 1.99), (Bottleneck::ClientCpu, true));
    assert_eq!(with(1.99, 1.99), (Bottleneck::BothCpus, false));
    assert_eq!(with(1.0, 1.0), (Bottleneck::Neither, false));
}

/// What the audits say about a flawless run in which one thing was changed.
fn findings(change: impl FnOnce(&mut Value)) -> Vec<Finding> {
    let mut record = record(0, 0, "io_uring", 1.6);
    change(&mut record);
    audit(&read(record))
}

#[test]
fn a_flawless_run_passes() {
    assert_eq!(findings(|_| ()), []);
}

#[test]
fn each_audit_fires_on_its_own_fault_alone() {
    let cases: [(Kind, Severity, &str, Value); 15] = [
        (Kind::PayloadMismatch, Severity::Void, "/load/errors/mismatch", json!(3)),
        (Kind::ClientErrors, Severity::Void, "/load/errors/reset", json!(1)),
        (Kind::UnequalAdmission, Severity::Void, "/load/connections/served_at_once_max", json!(64)),
        (Kind::StarvedConnection, Severity::Void, "/load/connections/min_answered", json!(0)),
        (Kind::Unbalanced, Severity::Void, "/load/whole_run/abandoned", json!(1)),
        (Kind::BadResult, Severity::Void, "/load/requests/per_second", json!(101_000.0)),
        (Kind::BadResult, Severity::Void, "/load/latency_us/p99", json!(900.0)),
        (Kind::BadResult, Severity::Void, "/load/histogram/data", json!("bm9uc2Vuc2U=")),
        (Kind::LittlesLaw, Severity::Void, "/load/latency_us/mean", json!(700.0)),
        (Kind::UnverifiedPayload, Severity::Warning, "/load/settings/verify", json!(false)),
        (Kind::Steal, Severity::Noise, "/cpu/client_cpu/steal_coarse_s", json!(0.1)),
        (Kind::OtherProcesses, Severity::Noise, "/others/cpu_s", json!(0.3)),
        (Kind::LateSample, Severity::Noise, "/cpu/sample_delay_us/1", json!(50_000.0)),
        (
            Kind::CqOverflow,
            Severity::Warning,
            "/server_final/runtime_counters/cq_overflows",
            json!(2),
        ),
        (
            Kind::ClientFailed,
            Severity::Void,
            "/failures",
            json!([{"what": "client_failed", "why": "exit code 1"}]),
        ),
    ];
    for (kind, severity, pointer, value) in cases {
        let found = findings(|record| *record.pointer_mut(pointer).unwrap() = value);
        let found: Vec<_> = found.iter().map(|finding| (finding.kind, finding.severity)).collect();
        assert_eq!(found, [(kind, severity)], "{pointer}");
    }
}

#[test]
fn audits_of_load_that_waits_or_is_late() {
    let stalled = findings(|record| {
        record["load"]["requests"]["oldest_in_flight_us"] = json!(600_000.0);
    });
    assert_eq!(stalled[0].kind, Kind::StalledRequest);
    let late = findings(|record| {
        record["load"]["settings"]["mode"] = json!("open");
        record["load"]["schedule_lag_us"] = json!({"p50": 1.0, "p99": 2000.0, "max": 3000.0});
    });
    assert_eq!(late[0].kind, Kind::ScheduleLag);
    let waits = findings(|record| {
        record["cpu"]["server_cpu"]["busy_s"] = json!(0.2);
        record["cpu"]["client_cpu"]["busy_s"] = json!(0.2);
    });
    assert_eq!(waits[0].kind, Kind::SubjectWaits);
    let nothing = findings(|record| {
        record["load"]["requests"] = json!({"answered": 0, "per_second": 0.0});
    });
    assert!(nothing.iter().any(|finding| finding.kind == Kind::NothingAnswered));
}

#[test]
fn one_request_in_the_hands_of_a_busy_client_is_no_fault() {
    // One connection, 90 % of whose round the server sees; the client works on the rest.
    let found = findings(|record| {
        record["cell"]["connections"] = json!(1);
        record["load"]["settings"]["connections"] = json!(1);
        record["load"]["connections"]["served_at_once_max"] = json!(1);
        record["load"]["latency_us"]["mean"] = json!(8.0);
    });
    assert_eq!(found, []);
}

#[test]
fn a_foreign_server_that_ends_badly_is_only_said() {
    let found = findings(|record| {
        record["ready"] = Value::Null;
        record["failures"] = json!([{"what": "server_did_not_stop", "why": "exit code 2"}]);
    });
    assert_eq!((found[0].kind, found[0].severity), (Kind::ServerDidNotStop, Severity::Warning));
}

/// Requests on a schedule of 100,000 per second, of which `answered` were answered in the window.
fn on_schedule(mut record: Value, answered: u64, p99_late_us: f64) -> Value {
    record["cell"]["rate_per_s"] = json!(100_000);
    record["load"]["settings"]["mode"] = json!("open");
    record["load"]["schedule_lag_us"] = json!({"p50": 1.0, "p99": p99_late_us, "max": 9e5});
    record["load"]["requests"] =
        json!({"answered": answered, "per_second": answered as f64 / WINDOW_S});
    let missing = ANSWERED - answered;
    record["load"]["whole_run"] =
        json!({"sent": ANSWERED, "answered": answered, "failed": 0, "abandoned": missing});
    record["load"]["histogram"] = histogram(answered);
    record
}

fn judge_on_schedule(records: Vec<Value>) -> CellSummary {
    let text = twinring_lab::BUILT_IN.iter().find(|(name, _)| *name == "open-loop").unwrap().1;
    let experiment = twinring_lab::Experiment::from_toml(text, "open-loop").unwrap();
    let runs: Vec<_> = records.into_iter().map(read).collect();
    twinring_lab::summary::summarise(&experiment, 1, &runs).cells.remove(0)
}

#[test]
fn who_leaves_requests_unanswered_does_not_keep_up_and_is_not_cheaper_for_it() {
    // The baseline answers less than it is asked, late, and so needs less CPU.
    let pair = |block: usize| {
        let epoll = record(2 * block, block, "epoll", 1.0);
        let io_uring = record(2 * block + 1, block, "io_uring", 1.5);
        [on_schedule(epoll, ANSWERED / 10 * 9, 50_000.0), on_schedule(io_uring, ANSWERED, 20.0)]
    };
    let cell = judge_on_schedule((0..8).flat_map(pair).collect());
    assert_eq!(cell.subjects.iter().map(|it| it.kept_up).collect::<Vec<_>>(), [Some(0), Some(8)]);
    let winner = "io_uring".to_owned();
    assert_eq!(cell.comparisons[0].verdict, Verdict::OnlyOneKeepsRate { winner });
    assert!(cell.comparisons[0].ratio(Metric::ServerCpuNs).is_none());
    assert!(cell.findings.is_empty(), "{:?}", cell.findings);
    let figures = cell.subjects[0].figures.as_ref().unwrap();
    assert!((figures[Metric::OpenLoopMissingRatio] - 0.1).abs() < 1e-9);
}

/// Of the random arrivals in a window there are more or fewer than rate x window: at low rates more
/// than the 1 % that may be missing.
#[test]
fn what_was_due_is_what_the_load_generator_counted() {
    let judged = |due: Option<u64>, random: bool| {
        let pair = |block: usize| {
            ["epoll", "io_uring"].map(|subject| {
                let index = 2 * block + usize::from(subject == "io_uring");
                let mut made = on_schedule(record(index, block, subject, 1.0), ANSWERED, 20.0);
                made["rate_per_s"] = json!(101_600);
                made["load"]["requests"]["due"] = json!(due);
                made["load"]["settings"]["arrivals"] = json!(random.then_some("poisson"));
                made
            })
        };
        judge_on_schedule((0..8).flat_map(pair).collect())
    };
    // 203,200 by the rate, of which 200,000 were answered.
    assert_eq!(judged(None, true).subjects[0].kept_up, Some(0));
    let counted = judged(Some(ANSWERED), true);
    assert_eq!(counted.subjects[0].kept_up, Some(8));
    assert!(counted.findings.is_empty(), "{:?}", counted.findings);
    // Five standard deviations, 1 % and 100 connections: 4,385. Without the first: 2,132.
    for (due, random, is_void) in [
        (ANSWERED, false, true),
        (201_100, false, false),
        (198_900, true, false),
        (198_700, true, true),
        (0, true, true),
    ] {
        let found = judged(Some(due), random).findings;
        let void = found.iter().filter(|it| it.kind == Kind::BadResult);
        assert_eq!(void.count(), if is_void { 16 } else { 0 }, "{due} {random}: {found:?}");
    }
}

#[test]
fn a_load_generator_behind_its_schedule_is_told_from_a_slow_server() {
    let found = |saturated: bool, answered: u64| {
        let mut record = on_schedule(record(0, 0, "epoll", 1.0), answered, 5_000.0);
        record["load"]["cpu"]["saturated"] = json!(saturated);
        audit(&read(record)).iter().any(|it| it.kind == Kind::ScheduleLag)
    };
    assert!(found(true, ANSWERED) && found(false, ANSWERED));
    assert!(found(true, ANSWERED / 2));
    assert!(!found(false, ANSWERED / 2));
}
