//! Verdicts on runs between hosts: figures of several load generators together, and what is found
//! wrong with one of them or with their hosts. That hosts can be reached is another test's.

use crate::common::records::{ANSWERED, CONNECTIONS, LATENCY_NS, WINDOW_S, judge, record};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use twinring_lab::audit::{Finding, Kind, Severity};
use twinring_lab::summary::{CellSummary, Metric};
use twinring_wire::EncodedHistogram;

/// The part of the first of two load generators; the second has as much.
const FIRST: u64 = CONNECTIONS / 2;

/// A latency for each of the two.
const LATENCIES_NS: [u64; 2] = [LATENCY_NS / 2, LATENCY_NS * 2];

/// A result line with so many connections and this latency; answers follow by Little's law.
fn line(record: &Value, connections: u64, latency_ns: u64) -> Value {
    let answered = (connections as f64 * WINDOW_S * 1e9 / latency_ns as f64).round() as u64;
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    latencies.record_n(latency_ns, answered).unwrap();
    let mut line = record["load"].clone();
    line["settings"]["connections"] = json!(connections);
    line["requests"] = json!({"answered": answered, "per_second": answered as f64 / WINDOW_S});
    line["whole_run"] =
        json!({"sent": answered, "answered": answered, "failed": 0, "abandoned": 0});
    let p99_us = latencies.value_at_quantile(0.99) as f64 / 1e3;
    line["latency_us"] = json!({"mean": latency_ns as f64 / 1e3, "p99": p99_us});
    line["histogram"] = json!(EncodedHistogram::of(&latencies));
    line["connections"] = json!({"served_at_once_max": connections, "min_answered": 1000});
    line
}

/// A flawless run from two client hosts.
fn between_hosts(index: usize, block: usize, subject: &str) -> Value {
    let mut run = record(index, block, subject, 1.6);
    run["cell"]["net"] = json!("hosts");
    let exit = run["client_exit"].clone();
    let client = |host: &str, connections: u64, latency_ns: u64| {
        let load = line(&run, connections, latency_ns);
        json!({"host": host, "command": ["client"], "load": load, "exit": exit})
    };
    let clients = [
        client("beta", FIRST, LATENCIES_NS[0]),
        client("gamma", CONNECTIONS - FIRST, LATENCIES_NS[1]),
    ];
    let host = |name: &str| {
        json!({"host": name, "clock": {"offset_ns": 0, "uncertainty_us": 50.0},
            "others": run["others"]})
    };
    let hosts = ["alpha", "beta", "gamma"].map(host);
    let use_of_client = json!({"window_s": WINDOW_S, "cpu": run["cpu"]["client_cpu"], "process": run["cpu"]["client"]});
    run["cpu"]["shared"] = json!(false);
    run["cpu"]["between_hosts"] = json!({"clock_uncertainty_us": 100.0,
        "windows_apart_us": [500.0, 400.0], "clients": [use_of_client, use_of_client]});
    run["cpu"]["client_cpu"]["busy_s"] = json!(3.0);
    for empty in ["load", "client_exit", "others"] {
        run[empty] = Value::Null;
    }
    run["hosts"] = json!(hosts);
    run["clients"] = json!(clients);
    run
}

fn judged(change: impl Fn(&mut Value)) -> CellSummary {
    let run = |index| {
        let mut run = between_hosts(index, index / 2, ["epoll", "io_uring"][index % 2]);
        change(&mut run);
        run
    };
    judge((0..4).map(run).collect())
}

fn only_finding(cell: &CellSummary) -> &Finding {
    let first = cell.findings.first().expect("a finding");
    assert!(cell.findings.iter().all(|other| other.kind == first.kind), "{:?}", cell.findings);
    first
}

#[test]
fn several_load_generators_are_one_load() {
    let cell = judged(|_| {});
    assert!(cell.findings.is_empty(), "{:?}", cell.findings);
    let figures = cell.subjects[0].figures.as_ref().unwrap();
    let rate = |connections: u64, latency_ns: u64| connections as f64 * 1e9 / latency_ns as f64;
    let rates = [rate(FIRST, LATENCIES_NS[0]), rate(CONNECTIONS - FIRST, LATENCIES_NS[1])];
    let close = |a: f64, b: f64| assert!((a - b).abs() < 0.002 * b, "{a} {b}");
    close(figures[Metric::RequestsPerS], rates[0] + rates[1]);
    // The mean by the answers of each, the tail that of the slower host.
    let sum_us = rates[0] * LATENCIES_NS[0] as f64 / 1e3 + rates[1] * LATENCIES_NS[1] as f64 / 1e3;
    close(figures[Metric::LatencyUsMean], sum_us / (rates[0] + rates[1]));
    close(figures[Metric::LatencyUsP99], LATENCIES_NS[1] as f64 / 1e3);
    close(figures[Metric::LatencyUsP50], LATENCIES_NS[0] as f64 / 1e3);
    close(figures[Metric::ServerCpuNs], 1.6e9 / ((rates[0] + rates[1]) * WINDOW_S));
    // The busier of their CPUs decides who was the bottleneck; what they cost is added.
    close(figures[Metric::ClientBusyShare], 1.5 / WINDOW_S);
    close(figures[Metric::ClientCpuNs], 3.0e9 / ((rates[0] + rates[1]) * WINDOW_S));
    assert!(ANSWERED > 0 && cell.subjects.iter().all(|subject| subject.counted == 2));
}

#[test]
fn what_is_wrong_with_one_load_generator_is_told_with_its_host() {
    let cell = judged(|run| {
        run["clients"][1]["load"]["errors"]["reset"] = json!(3);
    });
    let finding = only_finding(&cell);
    assert_eq!((finding.kind, finding.severity), (Kind::ClientErrors, Severity::Void));
    assert!(finding.what.starts_with("on gamma: 3 errors"), "{finding:?}");
    // It is not told of the sum again.
    assert_eq!(cell.findings.len(), 4, "{:?}", cell.findings);
    // Their sum looks right: one has what the other lacks.
    let cell = judged(|run| {
        for (client, connections) in [(0, FIRST - 10), (1, CONNECTIONS - FIRST + 10)] {
            run["clients"][client]["load"]["settings"]["connections"] = json!(connections);
        }
    });
    let finding = only_finding(&cell);
    assert_eq!((finding.kind, finding.severity), (Kind::UnequalAdmission, Severity::Void));
    assert!(finding.what.contains("on beta: 50 connections asked for, 40 set"), "{finding:?}");
}

#[test]
fn a_load_generator_without_a_result_leaves_no_figures() {
    let cell = judged(|run| run["clients"][0]["load"] = Value::Null);
    assert!(cell.subjects.iter().all(|subject| subject.figures.is_none()));
    let cell = judged(|run| {
        run["clients"][0]["load"]["histogram"]["data"] = json!("AAAA");
    });
    assert!(cell.subjects.iter().all(|subject| subject.figures.is_none()));
}

#[test]
fn windows_apart_late_samples_and_other_processes_are_noise() {
    // 5 % of the window of two seconds are 100 ms, 2 % are 40 ms.
    let noise = |change: &dyn Fn(&mut Value)| {
        let cell = judged(change);
        let finding = only_finding(&cell).clone();
        assert_eq!(finding.severity, Severity::Noise);
        assert!(cell.subjects.iter().all(|subject| subject.counted == 0));
        finding
    };
    let between = |run: &mut Value, field: &str, value: Value| {
        run["cpu"]["between_hosts"][field] = value;
    };
    let apart = noise(&|run| between(run, "windows_apart_us", json!([0.0, 100_001.0])));
    assert_eq!(apart.kind, Kind::WindowsApart);
    assert!(
        judged(|run| between(run, "windows_apart_us", json!([99_999.0, 0.0]))).findings.is_empty()
    );
    let late = noise(&|run| between(run, "clock_uncertainty_us", json!(40_000.0)));
    assert_eq!(late.kind, Kind::LateSample);
    assert!(late.what.contains("clocks are known to 40000 us"), "{late:?}");
    let others = noise(&|run| run["hosts"][2]["others"]["cpu_s"] = json!(1.0));
    assert_eq!(others.kind, Kind::OtherProcesses);
    assert!(others.what.contains("of a CPU on gamma"), "{others:?}");
}
