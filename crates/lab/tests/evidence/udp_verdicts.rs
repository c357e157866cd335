//! Verdicts and audits of UDP on records made by hand, where every figure is known.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use twinring_lab::audit::{Finding, Kind, Severity, audit};
use twinring_lab::record::RunRecord;
use twinring_lab::summary::{CellSummary, Claim, Metric, Record, Verdict, summarise};
use twinring_lab::{Experiment, UnderTest};
use twinring_wire::EncodedHistogram;

const STREAMS: u64 = 1000;
const SENT: u64 = 100_000;
const WINDOW_S: f64 = 2.0;

fn encoded(values: &Histogram<u64>) -> Value {
    json!(EncodedHistogram::of(values))
}

/// `count` times this many nanoseconds.
fn histogram(nanos: u64, count: u64) -> Histogram<u64> {
    let mut values = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    values.record_n(nanos, count).unwrap();
    values
}

/// What a run is made of.
#[derive(Clone, Copy)]
struct Made {
    server_busy_s: f64,
    client_busy_s: f64,
    lost: u64,
    late_ns: u64,
}

const FLAWLESS: Made = Made { server_busy_s: 0.5, client_busy_s: 1.0, lost: 0, late_ns: 500_000 };

fn record(index: usize, block: usize, subject: &str, made: Made) -> Value {
    let received = SENT - made.lost;
    let round_trips = histogram(200_000, received);
    let lateness = histogram(made.late_ns, SENT);
    let us = |values: &Histogram<u64>, share| values.value_at_quantile(share) as f64 / 1e3;
    let busy = |cpu: usize, busy_s: f64| {
        json!({"cpu": cpu, "busy_s": busy_s,
            "softirq_coarse_s": 0.1, "irq_coarse_s": 0.0, "steal_coarse_s": 0.0})
    };
    let process = json!({"cpu_s": 0.4, "user_s": 0.1, "system_s": 0.3, "threads": [],
        "voluntary_switches": 10, "involuntary_switches": 0});
    let exit = json!({"code": 0, "signal": null, "unasked": false, "killed": false});
    json!({
        "schema": "twinring.lab.run/5", "index": index, "block": block, "subject": subject,
        "cell": {"net": "rps", "streams": STREAMS, "packets_per_s": 50, "message_bytes": 172},
        "at_s": 1.0, "server_command": ["server"], "client_command": ["client"],
        "ready": {"event": "ready"}, "failures": [], "server_exit": exit, "client_exit": exit,
        "server_final": {"runtime_counters": {"cq_overflows": 0, "syscalls": 3 * SENT},
            "service_counters": {"received": 2 * SENT, "kernel_drops": 0}},
        "others": {"span_s": 2.5, "cpus": 2, "cpu_s": 0.0, "largest": null},
        "cpu": {"window_s": WINDOW_S, "server_cpu": busy(0, made.server_busy_s),
            "client_cpu": busy(1, made.client_busy_s), "server": process, "client": process,
            "sample_delay_us": [50.0, 60.0]},
        "load": {
            "event": "result", "schema": "twinring.load.udp/1",
            "settings": {"streams": STREAMS, "packets_per_s": 50.0, "packet_bytes": 172,
                "verify": true},
            "window": {"start_monotonic_ns": 0, "end_monotonic_ns": 2_000_000_000_u64,
                "seconds": WINDOW_S},
            "packets": {"due": SENT, "sent": SENT, "unsent": 0, "refused": 0,
                "received": received, "lost": made.lost, "duplicated": 0, "reordered": 0,
                "mismatched": 0, "foreign": 0,
                "received_per_second": received as f64 / WINDOW_S},
            "loss_ratio": made.lost as f64 / SENT as f64,
            "jitter_us": {"p50": 100.0, "p99": 300.0},
            "round_trip_us": {"p99": us(&round_trips, 0.99), "p99_9": us(&round_trips, 0.999)},
            "send_lateness_us": {"p99": us(&lateness, 0.99), "p99_9": us(&lateness, 0.999)},
            "histograms": {"round_trip": encoded(&round_trips),
                "send_lateness": encoded(&lateness), "wait_overrun": encoded(&histogram(1, 1))},
            "kernel_drops": 0,
            "streams": {"asked": STREAMS, "opened": STREAMS, "answered": STREAMS},
            "calls": [{"call": "io_uring_enter", "count": 4000, "time_s": 1.0, "run_share": 0.5,
                "mean_us": 250.0, "max_us": 900.0}],
            "errors": {"icmp_refused": 0, "send": 0, "receive": 0}, "first_error": null,
            "cpu": {"busiest_thread_share": 0.4, "saturated": false}},
    })
}

fn read(record: Value) -> RunRecord {
    serde_json::from_value(record).unwrap()
}

/// Pairs of epoll as `baseline` and io_uring as `subject` make it, with a scatter of a percent.
fn pairs(
    count: usize,
    baseline: impl Fn(usize) -> Made,
    subject: impl Fn(usize) -> Made,
) -> Vec<Value> {
    let scatter = [0.0, 0.01, -0.01, 0.004, -0.006, 0.008, -0.003, 0.002, -0.009, 0.005];
    let scattered = |made: Made, position: usize| {
        let factor = 1.0 + scatter[position % scatter.len()];
        Made {
            server_busy_s: made.server_busy_s * factor,
            client_busy_s: made.client_busy_s * factor,
            ..made
        }
    };
    let pair = |block: usize| {
        [
            record(2 * block, block, "epoll", scattered(baseline(block), block)),
            record(2 * block + 1, block, "io_uring", scattered(subject(block), 3 * block + 1)),
        ]
    };
    (0..count).flat_map(pair).collect()
}

fn judge_as(under_test: UnderTest, records: Vec<Value>) -> CellSummary {
    let mut experiment = Experiment::find("quick").unwrap();
    experiment.udp.as_mut().unwrap().under_test = under_test;
    let runs: Vec<RunRecord> = records.into_iter().map(read).collect();
    let mut summary = summarise(&experiment, 1, &runs);
    assert_eq!(summary.cells.len(), 1);
    summary.cells.remove(0)
}

fn judge(records: Vec<Value>) -> CellSummary {
    judge_as(UnderTest::Both, records)
}

#[test]
fn the_verdict_is_about_both_sides_and_each_has_its_interval() {
    // The same server, a client that needs 1.5 times less: 1.5 s against 1.1667 s.
    let better = |_| Made { client_busy_s: 1.0 / 1.5, ..FLAWLESS };
    let cell = judge(pairs(8, |_| FLAWLESS, better));
    assert_eq!(cell.findings, []);
    let comparison = &cell.comparisons[0];
    assert_eq!(
        comparison.verdict,
        Verdict::Ahead { winner: "io_uring".to_owned(), by_less_than_percent: None }
    );
    assert_eq!(comparison.record, Record::BothCpus);
    for (interval, ratio) in [
        (comparison.ratio(Metric::BothCpusNs), 1.5 / (0.5 + 1.0 / 1.5)),
        (comparison.ratio(Metric::ClientCpuNs), 1.5),
        (comparison.ratio(Metric::ServerCpuNs), 1.0),
    ] {
        let interval = interval.unwrap();
        let ends = interval.ends.unwrap();
        assert!(ends.low <= ratio && ratio <= ends.high, "{ratio}: {interval:?}");
    }
    let figures = cell.subjects[0].figures.as_ref().unwrap();
    // 0.5 s and 1 s of 100,000 packets.
    assert!((figures[Metric::ServerCpuNs] / 5_000.0 - 1.0).abs() < 0.01, "{figures:?}");
    assert!((figures[Metric::ClientCpuNs] / 10_000.0 - 1.0).abs() < 0.01, "{figures:?}");
    // Over the server's whole life, warm-up included.
    assert_eq!(figures.get(Metric::ServerSyscalls), Some(1.5));
    assert_eq!(cell.subjects[0].kept_up, Some(8));
    let call = &cell.subjects[0].calls[0];
    assert_eq!(
        (call.call.as_str(), call.per_second, call.max_us),
        ("io_uring_enter", 2000.0, 900.0)
    );
}

#[test]
fn with_a_fixed_client_the_verdict_is_about_the_server() {
    let better = |_| Made { server_busy_s: 0.4, client_busy_s: 1.5, ..FLAWLESS };
    let cell = judge_as(UnderTest::Server, pairs(8, |_| FLAWLESS, better));
    let comparison = &cell.comparisons[0];
    assert_eq!(
        comparison.verdict,
        Verdict::Ahead { winner: "io_uring".to_owned(), by_less_than_percent: None }
    );
    assert_eq!(comparison.record, Record::ServerCpu);
}

#[test]
fn who_keeps_the_schedule_comes_before_who_is_cheaper() {
    // The baseline is cheap, because it drops and comes late.
    for behind in [
        Made { server_busy_s: 0.1, lost: 3000, ..FLAWLESS },
        Made { server_busy_s: 0.1, late_ns: 56_000_000, ..FLAWLESS },
    ] {
        let cell = judge(pairs(8, |_| behind, |_| FLAWLESS));
        let comparison = &cell.comparisons[0];
        assert_eq!(comparison.verdict, Verdict::OnlyOneKeepsRate { winner: "io_uring".to_owned() });
        assert!(
            comparison.pair_ratios.is_empty() && comparison.ratio(Metric::BothCpusNs).is_none()
        );
        assert_eq!([cell.subjects[0].kept_up, cell.subjects[1].kept_up], [Some(0), Some(8)]);
        // And the other way round.
        let cell = judge(pairs(8, |_| FLAWLESS, |_| behind));
        let winner = "epoll".to_owned();
        assert_eq!(cell.comparisons[0].verdict, Verdict::OnlyOneKeepsRate { winner });
    }
}

/// AsyncUdpTests' way with 2,000 pending receives got nothing back in some runs, and its cell was
/// void. `twinring load udp` ends with 1 then.
fn silent(mut record: Value) -> Value {
    record["client_exit"]["code"] = json!(1);
    record["failures"] = json!([{"what": "client_failed", "why": "exit code 1"}]);
    record["load"]["streams"]["answered"] = json!(0);
    record
}

#[test]
fn who_gets_nothing_back_does_not_keep_up() {
    let nothing = Made { lost: SENT, ..FLAWLESS };
    for silence in [&(|_| true) as &dyn Fn(usize) -> bool, &|block| block.is_multiple_of(2)] {
        let made = |block: usize| if silence(block) { nothing } else { FLAWLESS };
        let mut records = pairs(14, |_| FLAWLESS, made);
        for record in records.iter_mut().filter(|it| it["load"]["packets"]["received"] == 0) {
            *record = silent(record.clone());
        }
        let cell = judge(records);
        let silent = (0..14).filter(|block| silence(*block)).count();
        let subject = &cell.subjects[1];
        assert_eq!((subject.counted, subject.unanswered), (14, silent));
        assert_eq!(subject.kept_up, Some(14 - silent));
        assert!(cell.findings.iter().all(|it| it.severity == Severity::Warning));
        let winner = "epoll".to_owned();
        assert_eq!(cell.comparisons[0].verdict, Verdict::OnlyOneKeepsRate { winner });
    }
    let neither = pairs(8, |_| nothing, |_| nothing).into_iter().map(silent).collect();
    assert_eq!(judge(neither).comparisons[0].verdict, Verdict::UnequalWork { pairs: 0 });
    // Who did not even send says nothing about anybody.
    let unsent = findings(|record| {
        let packets = &mut record["load"]["packets"];
        packets["sent"] = json!(0);
        packets["unsent"] = json!(SENT);
        packets["received"] = json!(0);
    });
    assert!(
        unsent.iter().any(|it| (it.kind, it.severity) == (Kind::NothingAnswered, Severity::Void))
    );
}

/// Two tests have two chances: each alone would have given 5 %.
#[test]
fn who_keeps_up_and_who_is_cheaper_are_corrected_for_being_two_questions() {
    let late = Made { late_ns: 56_000_000, ..FLAWLESS };
    let sometimes = move |block: usize| if block < 6 { late } else { FLAWLESS };
    let all = judge(pairs(13, sometimes, |_| FLAWLESS));
    let winner = "io_uring".to_owned();
    // Six pairs of thirteen, and seven left: only the first question can be answered.
    assert_eq!(all.comparisons[0].verdict, Verdict::OnlyOneKeepsRate { winner: winner.clone() });
    let cell = judge(pairs(14, sometimes, |_| FLAWLESS));
    let comparison = &cell.comparisons[0];
    let claim = Claim::OnlyOneKeepsRate;
    assert_eq!(comparison.verdict, Verdict::NotAfterCorrection { claim, winner, comparisons: 1 });
    assert!((comparison.q_value.unwrap() - 4.0 / 64.0).abs() < 1e-9);
}

#[test]
fn when_neither_keeps_up_nothing_is_compared() {
    let lossy = Made { lost: 3000, ..FLAWLESS };
    let cell = judge(pairs(8, |_| lossy, |_| lossy));
    assert_eq!(cell.comparisons[0].verdict, Verdict::UnequalWork { pairs: 0 });
}

#[test]
fn a_few_late_runs_are_no_verdict_and_their_pairs_are_left_out() {
    // Three of eleven are within chance (the sign test gives 25 %), and eight remain.
    let late = Made { late_ns: 56_000_000, ..FLAWLESS };
    let sometimes = move |block: usize| if block.is_multiple_of(4) { late } else { FLAWLESS };
    let cell = judge(pairs(11, sometimes, |_| Made { client_busy_s: 0.5, ..FLAWLESS }));
    let comparison = &cell.comparisons[0];
    assert_eq!(comparison.kept_up.unwrap().both, 8);
    assert_eq!((comparison.pairs, comparison.pair_ratios.len()), (11, 8));
    assert_eq!(
        comparison.verdict,
        Verdict::Ahead { winner: "io_uring".to_owned(), by_less_than_percent: None }
    );
}

#[test]
fn seven_pairs_are_too_few() {
    let lossy = Made { lost: 3000, ..FLAWLESS };
    let cell = judge(pairs(7, |_| lossy, |_| FLAWLESS));
    assert_eq!(cell.comparisons[0].verdict, Verdict::TooFewPairs { pairs: 7 });
}

#[test]
fn a_saturated_load_generator_that_is_not_under_test_hides_what_it_limits() {
    let saturated = |_| Made { client_busy_s: 1.95, ..FLAWLESS };
    for (under_test, hidden) in [(UnderTest::Server, true), (UnderTest::Both, false)] {
        let cell = judge_as(under_test, pairs(8, saturated, saturated));
        assert_eq!(cell.comparisons[0].throughput_is_client_bound, hidden);
    }
}

/// What the audits say about a flawless run in which one thing was changed.
fn findings(change: impl FnOnce(&mut Value)) -> Vec<Finding> {
    let mut record = record(0, 0, "io_uring", FLAWLESS);
    change(&mut record);
    audit(&read(record))
}

#[test]
fn a_flawless_run_passes_and_so_does_a_lossy_and_late_one() {
    assert_eq!(findings(|_| ()), []);
    let behind = Made { lost: 30_000, late_ns: 350_000_000, ..FLAWLESS };
    assert_eq!(audit(&read(record(0, 0, "io_uring", behind))), []);
}

#[test]
fn each_audit_fires_on_its_own_fault_alone() {
    let cases: [(Kind, Severity, &str, Value); 17] = [
        (Kind::PayloadMismatch, Severity::Void, "/load/packets/mismatched", json!(3)),
        (Kind::Unbalanced, Severity::Void, "/load/packets/unsent", json!(1)),
        (Kind::Unbalanced, Severity::Void, "/load/packets/refused", json!(1)),
        (Kind::BadResult, Severity::Void, "/load/loss_ratio", json!(0.01)),
        (Kind::BadResult, Severity::Void, "/load/packets/received_per_second", json!(60_000.0)),
        (Kind::BadResult, Severity::Void, "/load/round_trip_us/p99", json!(100.0)),
        (Kind::BadResult, Severity::Void, "/load/send_lateness_us/p99_9", json!(100.0)),
        (Kind::BadResult, Severity::Void, "/load/histograms/wait_overrun/data", json!("bm9u")),
        (Kind::BadResult, Severity::Void, "/load/settings/packet_bytes", json!(100)),
        (
            Kind::BadResult,
            Severity::Void,
            "/load/window/end_monotonic_ns",
            json!(3_000_000_000_u64),
        ),
        (Kind::UnequalAdmission, Severity::Void, "/load/streams/opened", json!(999)),
        (Kind::StarvedConnection, Severity::Warning, "/load/streams/answered", json!(999)),
        (Kind::ClientErrors, Severity::Void, "/load/errors/icmp_refused", json!(1)),
        (Kind::ForeignPackets, Severity::Warning, "/load/packets/foreign", json!(1)),
        (Kind::KernelDrops, Severity::Warning, "/load/kernel_drops", json!(5)),
        (
            Kind::KernelDrops,
            Severity::Warning,
            "/server_final/service_counters/kernel_drops",
            json!(5),
        ),
        (Kind::UnverifiedPayload, Severity::Warning, "/load/settings/verify", json!(false)),
    ];
    for (kind, severity, pointer, value) in cases {
        let found = findings(|record| *record.pointer_mut(pointer).unwrap() = value);
        let found: Vec<_> = found.iter().map(|finding| (finding.kind, finding.severity)).collect();
        assert_eq!(found, [(kind, severity)], "{pointer}");
    }
}

#[test]
fn a_load_that_leaves_packets_out_of_its_schedule_is_named() {
    let found = findings(|record| {
        // It says the truth about half of the packets and keeps silent about the others.
        let received = SENT / 2;
        let packets = &mut record["load"]["packets"];
        packets["due"] = json!(received);
        packets["sent"] = json!(received);
        packets["received"] = json!(received);
        packets["received_per_second"] = json!(received as f64 / WINDOW_S);
        let histograms = &mut record["load"]["histograms"];
        histograms["round_trip"] = encoded(&histogram(200_000, received));
        histograms["send_lateness"] = encoded(&histogram(500_000, received));
    });
    let kinds: Vec<_> = found.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::ScheduleLag]);
}

#[test]
fn a_result_of_the_wrong_protocol_or_version_is_bad() {
    let wrong = findings(|record| {
        record["cell"] = json!({"net": "rps", "connections": 1, "message_bytes": 172, "depth": 1});
    });
    assert_eq!(wrong[0].kind, Kind::BadResult);
    let cell = judge({
        let mut records = pairs(8, |_| FLAWLESS, |_| FLAWLESS);
        records[3]["load"]["schema"] = json!("twinring.load.udp/9");
        records
    });
    // Its figures are not taken.
    assert_eq!(cell.subjects[1].counted, 7);
}
