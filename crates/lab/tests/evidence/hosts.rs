//! Verdicts on runs between hosts: figures of several load generators together, and what is found
//! wrong with one of them or with their hosts. That hosts can be reached is another test's.

use crate::common::records::{
    ANSWERED, CONNECTIONS, LATENCY_NS, WINDOW_S, bundle, experiment, judge, record,
};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use twinring_lab::audit::{Finding, Kind, Severity};
use twinring_lab::summary::{CellSummary, Metric};
use twinring_lab::warnings::{Warning, WarningKind, warnings};
use twinring_lab::{markdown, rerender, verify};
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

/// Pairs from two client hosts, and from block 2 on from one.
fn after_a_loss() -> Vec<Value> {
    let run = |index: usize| {
        let mut run = between_hosts(index, index / 2, ["epoll", "io_uring"][index % 2]);
        if index >= 4 {
            let alone = record(index, index / 2, ["epoll", "io_uring"][index % 2], 1.6);
            for field in ["load", "client_exit", "cpu"] {
                run[field] = alone[field].clone();
            }
            run["clients"] = json!([]);
            run["hosts"].as_array_mut().unwrap().pop();
        }
        run
    };
    (0..8).map(run).collect()
}

#[test]
fn reports_say_from_which_block_on_load_generators_were_missing() {
    let mut bundle = bundle(experiment(), after_a_loss());
    let lost = json!([{"host": "gamma", "why": "the connection was lost", "from_run": 4,
        "at": "2026-01-31T12:03:00Z"}]);
    bundle.lost_hosts = serde_json::from_value(lost).unwrap();
    bundle.warnings = warnings(&bundle);
    let of_kind = |it: &&Warning| it.kind == WarningKind::FewerGenerators;
    let told: Vec<&Warning> = bundle.warnings.iter().filter(of_kind).collect();
    let [warning] = &told[..] else { panic!("{:?}", bundle.warnings) };
    assert_eq!(
        warning.what,
        "from block 2 on 1 of 2 load generators: gamma lost at 2026-01-31T12:03:00Z (the connection \
         was lost)"
    );
    let cell = &bundle.summary.as_ref().unwrap().cells[0];
    assert!(cell.subjects.iter().all(|subject| subject.counted == 4), "{:?}", cell.findings);
    assert!(markdown(&bundle).contains("from block 2 on 1 of 2 load generators"));
    // Who knows only the runs knows this as well.
    bundle.lost_hosts.clear();
    assert!(warnings(&bundle).iter().any(|it| it.what == "from block 2 on 1 of 2 load generators"));
}

#[test]
fn a_pair_between_several_sets_of_hosts_and_a_host_after_its_loss_are_problems() {
    let problems = |from_run: usize, change: &dyn Fn(&mut Vec<Value>)| {
        let place = tempfile::tempdir().unwrap();
        let mut runs = after_a_loss();
        change(&mut runs);
        let mut stored = serde_json::to_value(bundle(experiment(), runs.clone())).unwrap();
        stored["summary"] = Value::Null;
        stored["networks"] = json!([{"kind": "hosts", "server_ip": "10.0.0.1", "server_rps": "",
            "client_rps": "", "settings": []}]);
        stored["lost_hosts"] =
            json!([{"host": "gamma", "why": "it was", "at": "", "from_run": from_run}]);
        std::fs::write(place.path().join("bundle.json"), stored.to_string()).unwrap();
        let lines: String = runs.iter().map(|run| format!("{run}\n")).collect();
        std::fs::write(place.path().join("runs.jsonl"), lines).unwrap();
        rerender(place.path()).unwrap();
        verify(place.path()).unwrap().problems
    };
    assert!(problems(4, &|_| ()).is_empty(), "{:?}", problems(4, &|_| ()));
    let several = problems(4, &|runs| runs[5]["hosts"][1]["host"] = json!("gamma"));
    assert!(
        several[0].contains("run 5: block 2 of") && several[0].contains("several sets of hosts")
    );
    let before = problems(3, &|_| ());
    assert_eq!(before, ["run 3: gamma was lost before it"]);
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
