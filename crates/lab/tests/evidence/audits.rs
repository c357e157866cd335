//! Every audit fires on a run made to trigger it, whether something disturbed the run or not.

use crate::common::records::{judge, pairs, read, record};
use serde_json::{Value, json};
use twinring_lab::Wanted;
use twinring_lab::audit::{Finding, Kind, Severity, audit, audit_in_block};
use twinring_lab::summary::{Metric, Verdict};

fn set(pointer: &str, value: Value) -> impl FnOnce(&mut Value) {
    move |record| *record.pointer_mut(pointer).expect(pointer) = value
}

fn failed(what: &str) -> impl FnOnce(&mut Value) {
    set("/failures", json!([{"what": what, "why": "so"}]))
}

/// What is changed in a record.
type Change = Box<dyn FnOnce(&mut Value)>;

/// Makes a flawless run of TCP one that this rule is about.
fn flaw(kind: Kind) -> Option<Change> {
    let distance = |before_ns: f64, after_ns: f64| {
        move |record: &mut Value| {
            record["distance"] = json!({"before_ns": before_ns, "after_ns": after_ns});
        }
    };
    Some(match kind {
        Kind::ServerNotReady => Box::new(failed("server_not_ready")),
        Kind::ServerDied => Box::new(failed("server_died")),
        Kind::ServerDidNotStop => Box::new(failed("server_did_not_stop")),
        Kind::ClientFailed => Box::new(failed("client_failed")),
        Kind::NoAccounting => Box::new(failed("no_accounting")),
        Kind::BadResult => Box::new(failed("bad_line")),
        Kind::PayloadMismatch => Box::new(set("/load/errors/mismatch", json!(1))),
        Kind::ClientErrors => Box::new(set("/load/errors/reset", json!(1))),
        Kind::UnequalAdmission => Box::new(set("/load/connections/served_at_once_max", json!(64))),
        Kind::StarvedConnection => Box::new(set("/load/connections/min_answered", json!(0))),
        Kind::StalledRequest => Box::new(|record: &mut Value| {
            record["load"]["requests"]["oldest_in_flight_us"] = json!(600_000.0);
        }),
        Kind::Unbalanced => Box::new(set("/load/whole_run/abandoned", json!(1))),
        Kind::NothingAnswered => {
            Box::new(set("/load/requests", json!({"answered": 0, "per_second": 0.0})))
        }
        Kind::LittlesLaw => Box::new(set("/load/latency_us/mean", json!(700.0))),
        Kind::ScheduleLag => Box::new(|record: &mut Value| {
            record["cell"]["rate_per_s"] = json!(100_000);
            record["load"]["settings"]["mode"] = json!("open");
            record["load"]["requests"]["due"] = json!(200_000);
            record["load"]["schedule_lag_us"] = json!({"p50": 1.0, "p99": 2000.0, "max": 3000.0});
        }),
        Kind::Steal => Box::new(set("/cpu/server_cpu/steal_coarse_s", json!(0.1))),
        Kind::OtherProcesses => Box::new(set("/others/cpu_s", json!(1.0))),
        Kind::LateSample => Box::new(set("/cpu/sample_delay_us/0", json!(50_000.0))),
        Kind::WindowsApart => Box::new(|record: &mut Value| {
            record["cpu"]["between_hosts"] =
                json!({"clock_uncertainty_us": 50.0, "windows_apart_us": [0.0, 200_000.0]});
        }),
        Kind::Moved => Box::new(distance(80.0, 370.0)),
        Kind::Misplaced => Box::new(distance(370.0, 370.0)),
        Kind::UnverifiedPayload => Box::new(set("/load/settings/verify", json!(false))),
        Kind::CqOverflow => Box::new(set("/server_final/runtime_counters/cq_overflows", json!(2))),
        Kind::BacklogDrops => Box::new(set("/cpu/client_cpu/backlog_drops", json!(3))),
        Kind::NetworkMismatch => Box::new(|record: &mut Value| {
            for side in ["server_cpu", "client_cpu"] {
                record["cpu"][side]["counts"] = json!({"function_call_interrupts": 9, "reschedule_interrupts": 1,
                    "steered": 0});
            }
        }),
        Kind::PacketsLost => Box::new(|record: &mut Value| {
            for side in ["server_cpu", "client_cpu"] {
                record["cpu"][side]["counts"] = json!({"tcp_retransmits": 11, "device_drops": 8});
            }
        }),
        Kind::SubjectWaits => Box::new(|record: &mut Value| {
            record["cpu"]["server_cpu"]["busy_s"] = json!(0.2);
            record["cpu"]["client_cpu"]["busy_s"] = json!(0.2);
        }),
        // Of datagrams only: udp_verdicts.rs and experiments/udp_faults.rs.
        Kind::ForeignPackets | Kind::KernelDrops => return None,
    })
}

/// All findings about a run with this flaw, in an experiment that wants close CPUs.
fn findings(kinds: &[Kind]) -> Vec<Finding> {
    let mut made = record(0, 0, "io_uring", 1.6);
    for flaw in kinds.iter().filter_map(|kind| flaw(*kind)) {
        flaw(&mut made);
    }
    let run = read(made);
    audit_in_block(Wanted::Close, &run, &run)
}

#[test]
fn every_rule_fires_on_a_run_made_for_it_and_not_on_a_clean_one() {
    assert_eq!(findings(&[]), []);
    for kind in Kind::ALL {
        if flaw(kind).is_some() {
            let found = findings(&[kind]);
            assert!(found.iter().any(|finding| finding.kind == kind), "{kind:?}: {found:?}");
        }
    }
}

/// Rules about what programs that do not get the CPU may do as well.
const STARVED: [Kind; 5] = [
    Kind::LittlesLaw,
    Kind::UnequalAdmission,
    Kind::StarvedConnection,
    Kind::StalledRequest,
    Kind::NothingAnswered,
];

const DISTURBED: [Kind; 4] = [Kind::OtherProcesses, Kind::Steal, Kind::Moved, Kind::LateSample];

fn severity(found: &[Finding], kind: Kind) -> Option<Severity> {
    found.iter().find(|finding| finding.kind == kind).map(|finding| finding.severity)
}

/// Voids of disturbed runs were noise, so that a faulty subject lost its worst runs.
#[test]
fn what_is_void_is_so_in_a_disturbed_run_too() {
    for starved in STARVED {
        for disturbed in [None].into_iter().chain(DISTURBED.map(Some)) {
            let mut made = record(0, 0, "io_uring", 1.6);
            for kind in [Some(starved), disturbed].into_iter().flatten() {
                flaw(kind).unwrap()(&mut made);
            }
            // More than the disturbance explains.
            made["others"]["cpu_s"] = json!(made["others"]["cpu_s"].as_f64().unwrap() * 0.2);
            match starved {
                Kind::StalledRequest => {
                    made["load"]["requests"]["oldest_in_flight_us"] = json!(1.9e6);
                }
                Kind::LittlesLaw => made["load"]["latency_us"]["mean"] = json!(300.0),
                _ => {}
            }
            let run = read(made);
            let found = audit_in_block(Wanted::Close, &run, &run);
            assert_eq!(severity(&found, starved), Some(Severity::Void), "{starved:?} {found:?}");
            let noise = disturbed.map(|kind| severity(&found, kind));
            assert!(noise.is_none_or(|it| it == Some(Severity::Noise)), "{disturbed:?} {found:?}");
        }
    }
}

/// A rule allows for the time that others had the CPUs, and for no more.
#[test]
fn the_time_that_others_took_is_in_the_tolerance_of_each_rule() {
    for (kind, taken_s, expected) in [
        // 600 ms are 100 ms more than a request may wait in a window of 2 s.
        (Kind::StalledRequest, 0.09, Some(Severity::Void)),
        (Kind::StalledRequest, 0.11, None),
        // 70 of 100 requests were in flight, and 89 is the least.
        (Kind::LittlesLaw, 0.3, Some(Severity::Void)),
        (Kind::LittlesLaw, 0.5, None),
        (Kind::ScheduleLag, 0.0005, Some(Severity::Noise)),
        (Kind::ScheduleLag, 0.0011, None),
        (Kind::UnequalAdmission, 1.4, Some(Severity::Void)),
        (Kind::UnequalAdmission, 1.6, Some(Severity::Noise)),
        (Kind::StarvedConnection, 1.4, Some(Severity::Void)),
        (Kind::StarvedConnection, 1.6, Some(Severity::Noise)),
        (Kind::NothingAnswered, 1.4, Some(Severity::Void)),
        (Kind::NothingAnswered, 1.6, Some(Severity::Noise)),
    ] {
        let mut made = record(0, 0, "io_uring", 1.6);
        flaw(kind).unwrap()(&mut made);
        made["others"]["cpu_s"] = json!(taken_s);
        made["cpu"]["sample_delay_us"] = json!([0.0, 0.0]);
        assert_eq!(severity(&audit(&read(made)), kind), expected, "{kind:?}, {taken_s} s");
    }
}

#[test]
fn wrong_bytes_and_dead_servers_are_no_noise_on_any_machine() {
    for kind in [Kind::PayloadMismatch, Kind::Unbalanced, Kind::ServerDied, Kind::ClientErrors] {
        let found = findings(&[kind, Kind::OtherProcesses]);
        assert_eq!(severity(&found, kind), Some(Severity::Void), "{kind:?}");
    }
}

/// Their sum overflowed, which ended a debug build.
#[test]
fn counts_of_any_size_are_judged() {
    let mut made = record(0, 0, "io_uring", 1.6);
    made["load"]["whole_run"]["answered"] = json!(u64::MAX);
    made["load"]["whole_run"]["failed"] = json!(u64::MAX);
    assert_eq!(severity(&audit(&read(made)), Kind::Unbalanced), Some(Severity::Void));
}

#[test]
fn a_void_run_in_a_disturbed_block_is_reported_as_void() {
    let mut records = pairs(9, 1.25);
    records[4]["others"]["cpu_s"] = json!(0.2);
    let cell = judge(records.clone());
    assert!(matches!(cell.comparisons[0].verdict, Verdict::Ahead { .. }));
    assert_eq!((cell.blocks, cell.excluded_blocks, cell.comparisons[0].pairs), (9, 1, 8));
    records[4]["load"]["connections"]["served_at_once_max"] = json!(64);
    let cell = judge(records.clone());
    assert!(matches!(cell.comparisons[0].verdict, Verdict::Void { .. }));
    // Version 3 excused it.
    for record in &mut records {
        record["schema"] = json!("twinring.lab.run/3");
    }
    assert!(matches!(judge(records).comparisons[0].verdict, Verdict::Ahead { .. }));
}

/// One late run of nine voided a cell, and with it the other sixteen runs.
#[test]
fn a_late_load_generator_is_noise_unless_most_runs_are_late() {
    let mut records = pairs(9, 1.25);
    let original = records.clone();
    let late = |records: &mut [Value], pair: usize| {
        let run = &mut records[2 * pair + 1];
        run["load"]["schedule_lag_us"] = json!({"p50": 1.0, "p99": 2000.0, "max": 3000.0});
    };
    for record in &mut records {
        record["rate_per_s"] = json!(100_000);
        record["load"]["settings"]["mode"] = json!("open");
        record["load"]["requests"]["due"] = json!(200_000);
        record["load"]["schedule_lag_us"] = json!({"p50": 1.0, "p99": 20.0, "max": 300.0});
    }
    late(&mut records, 0);
    let cell = judge(records.clone());
    let comparison = &cell.comparisons[0];
    assert!(matches!(comparison.verdict, Verdict::Ahead { .. }), "{:?}", comparison.verdict);
    assert_eq!((cell.excluded_blocks, comparison.pairs), (1, 8));
    let left_out = &comparison.all_pairs.as_ref().unwrap().left_out;
    assert_eq!(left_out.iter().map(|it| it.why).collect::<Vec<_>>(), [Kind::ScheduleLag]);
    // Four of nine are not most, five are.
    (1..4).for_each(|pair| late(&mut records, pair));
    let cell = judge(records.clone());
    assert!(!matches!(cell.comparisons[0].verdict, Verdict::Void { .. }));
    assert_eq!((cell.excluded_blocks, cell.comparisons[0].pairs), (4, 5));
    late(&mut records, 4);
    let cell = judge(records.clone());
    let Verdict::Void { why } = &cell.comparisons[0].verdict else { panic!("{cell:?}") };
    assert_eq!(why, "io_uring: late schedule");
    assert!(cell.findings.iter().all(|it| it.severity == Severity::Void), "{:?}", cell.findings);
    // The other subject's runs were as asked for.
    assert_eq!(cell.subjects.iter().map(|it| it.counted).collect::<Vec<_>>(), [9, 4]);
    // Results without the number due are of before: one late run voids its subject.
    let mut records = original;
    records[1]["load"]["settings"]["mode"] = json!("open");
    late(&mut records, 0);
    assert!(matches!(judge(records).comparisons[0].verdict, Verdict::Void { .. }));
}

/// Excluded blocks changed a ratio from 1.11 to 1.24, and no report said so.
#[test]
fn the_ratio_of_all_pairs_and_what_is_left_out_stand_beside_the_verdict() {
    let mut records = pairs(9, 1.25);
    let cell = judge(records.clone());
    let all = cell.comparisons[0].all_pairs.clone().unwrap();
    assert_eq!((all.pairs, all.left_out.len()), (9, 0));
    assert_eq!(all.ratio, Some(cell.comparisons[0].ratio(Metric::ServerCpuNs).unwrap().ratio));
    // Of a disturbed block, and of a void run.
    records[4]["others"]["cpu_s"] = json!(0.2);
    records[5]["cpu"]["server_cpu"]["busy_s"] = json!(1.9);
    records[12]["load"]["errors"]["mismatch"] = json!(1);
    let cell = judge(records);
    let all = cell.comparisons[0].all_pairs.clone().unwrap();
    let counted = cell.comparisons[0].ratio(Metric::ServerCpuNs).unwrap();
    assert!(all.ratio.unwrap() < counted.ratio - 0.01, "{all:?} {counted:?}");
    let left_out: Vec<_> = all.left_out.iter().map(|it| (it.why, it.pairs)).collect();
    assert_eq!(left_out, [(Kind::PayloadMismatch, 1), (Kind::OtherProcesses, 1)]);
    assert_eq!((all.pairs, cell.comparisons[0].pairs), (9, 7));
}

/// Its block was run again and counted all the same.
#[test]
fn a_run_that_was_disturbed_and_is_void_spoils_its_block_too() {
    let mut records = pairs(9, 1.25);
    records[4]["others"]["cpu_s"] = json!(1.0);
    records[4]["load"]["errors"]["mismatch"] = json!(1);
    let counted = |records: &[Value]| {
        let cell = judge(records.to_vec());
        let void = cell.findings.iter().find(|it| it.severity == Severity::Void).unwrap();
        let other = cell.subjects.iter().find(|it| it.name != void.subject).unwrap();
        (cell.excluded_blocks, other.counted)
    };
    assert_eq!(counted(&records), (1, 8));
}
