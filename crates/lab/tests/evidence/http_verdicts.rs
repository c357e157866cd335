//! Verdicts and audits of HTTP on records made by hand, where every figure is known.

use crate::common::records::{ANSWERED, CONNECTIONS, WINDOW_S, read, record};
use serde_json::{Value, json};
use twinring_lab::audit::{Finding, Kind, Severity, audit};
use twinring_lab::summary::{CellSummary, Metric, Verdict, summarise};
use twinring_lab::{Experiment, Overrides, Protocol};

const FILE_BYTES: u64 = 1024;

/// A flawless run of HTTP.
fn http(index: usize, block: usize, subject: &str, server_busy_s: f64) -> Value {
    let mut run = record(index, block, subject, server_busy_s);
    run["schema"] = json!("twinring.lab.run/5");
    run["cell"] = json!({"net": "rps", "connections": CONNECTIONS, "file_bytes": FILE_BYTES,
        "files": 1, "depth": 1, "keepalive": true, "tls": false});
    let load = &mut run["load"];
    load["schema"] = json!("twinring.load.http/1");
    load["settings"] = json!({"urls": 1, "connections": CONNECTIONS, "pipeline": 1,
        "keepalive": true, "mode": "closed", "verify_body": "file", "tls": null});
    load["bytes"] = json!({"bodies": ANSWERED * FILE_BYTES});
    load["connections"]["served"] = json!(CONNECTIONS);
    load["ttfb_us"] = json!({"p50": 900.0, "p99": 950.0});
    load["connect_us"] = json!({"p50": 40.0, "p99": 90.0});
    load["errors"] = json!({"connect": 0, "tls": 0, "reset": 0, "closed_early": 0, "timeout": 0,
        "malformed": 0, "status": 0, "length": 0, "hash": 0, "other": 0});
    run
}

fn findings(change: impl FnOnce(&mut Value)) -> Vec<Finding> {
    let mut run = http(0, 0, "io_uring", 1.6);
    change(&mut run);
    audit(&read(run))
}

fn judge(records: Vec<Value>, more: &str) -> CellSummary {
    let (protocol, load_percent) = (Some(Protocol::Http), Some(vec![0]));
    let overrides = Overrides { protocol, load_percent, ..Overrides::default() };
    let text = twinring_lab::BUILT_IN[0].1.to_owned() + more;
    let experiment = Experiment::from_toml(&text, "quick").unwrap().with(&overrides).unwrap();
    let runs: Vec<_> = records.into_iter().map(read).collect();
    summarise(&experiment, 1, &runs).cells.remove(0)
}

#[test]
fn a_flawless_run_passes() {
    assert_eq!(findings(|_| ()), []);
}

#[test]
fn each_audit_fires_on_its_own_fault_alone() {
    let cases: [(Kind, Severity, &str, Value); 20] = [
        (Kind::PayloadMismatch, Severity::Void, "/load/errors/status", json!(1)),
        (Kind::PayloadMismatch, Severity::Void, "/load/errors/length", json!(1)),
        (Kind::PayloadMismatch, Severity::Void, "/load/errors/hash", json!(1)),
        (Kind::PayloadMismatch, Severity::Void, "/load/errors/malformed", json!(1)),
        (Kind::PayloadMismatch, Severity::Void, "/load/bytes/bodies", json!(ANSWERED * 1023)),
        (Kind::ClientErrors, Severity::Void, "/load/errors/closed_early", json!(1)),
        (Kind::ClientErrors, Severity::Void, "/load/errors/tls", json!(1)),
        (Kind::UnverifiedPayload, Severity::Warning, "/load/settings/verify_body", json!(null)),
        (Kind::BadResult, Severity::Void, "/load/settings/urls", json!(2)),
        (Kind::BadResult, Severity::Void, "/load/settings/tls", json!({"protocol": "TLSv1.3"})),
        (Kind::BadResult, Severity::Void, "/load/settings/keepalive", json!(false)),
        (Kind::UnequalAdmission, Severity::Void, "/load/connections/served_at_once_max", json!(64)),
        (Kind::StarvedConnection, Severity::Void, "/load/connections/min_answered", json!(0)),
        (Kind::Unbalanced, Severity::Void, "/load/whole_run/abandoned", json!(1)),
        (Kind::BadResult, Severity::Void, "/load/requests/per_second", json!(101_000.0)),
        (Kind::BadResult, Severity::Void, "/load/latency_us/p99", json!(900.0)),
        (Kind::LittlesLaw, Severity::Void, "/load/latency_us/mean", json!(700.0)),
        (Kind::BadResult, Severity::Void, "/load/schema", json!("twinring.load.tcp/1")),
        (Kind::Steal, Severity::Noise, "/cpu/client_cpu/steal_coarse_s", json!(0.1)),
        (
            Kind::ServerDied,
            Severity::Void,
            "/failures",
            json!([{"what": "server_died", "why": "exit code 7"}]),
        ),
    ];
    for (kind, severity, pointer, value) in cases {
        let found = findings(|run| {
            if pointer == "/load/schema" {
                let tcp = record(0, 0, "io_uring", 1.6);
                run["load"] = tcp["load"].clone();
            }
            run["load"]["schema"] = json!("twinring.load.http/1");
            *run.pointer_mut(pointer).unwrap() = value;
        });
        let found: Vec<_> = found.iter().map(|finding| (finding.kind, finding.severity)).collect();
        assert_eq!(found, [(kind, severity)], "{pointer}");
    }
}

#[test]
fn with_a_connection_per_request_places_count_and_pauses_between_connections_are_the_servers() {
    let churn = |change: fn(&mut Value)| {
        findings(|run| {
            run["cell"]["keepalive"] = json!(false);
            run["load"]["settings"]["keepalive"] = json!(false);
            // Hardly two of them had an answer and were still open at the same time.
            run["load"]["connections"]["served_at_once_max"] = json!(2);
            change(run);
        })
    };
    assert_eq!(churn(|_| ()), []);
    // Half of the time each place waited for the server to close.
    assert_eq!(churn(|run| run["load"]["latency_us"]["mean"] = json!(500.0)), []);
    let too_many = churn(|run| run["load"]["latency_us"]["mean"] = json!(1500.0));
    assert_eq!(too_many[0].kind, Kind::LittlesLaw);
    let some = churn(|run| run["load"]["connections"]["served"] = json!(64));
    assert_eq!(some[0].kind, Kind::UnequalAdmission);
}

#[test]
fn a_difference_is_found_and_further_comparisons_are_made() {
    let busy = |block: usize| 1.6 * (1.0 + [0.0, 0.01, -0.01, 0.004][block % 4]);
    let block = |block: usize| {
        [("epoll", busy(block)), ("io_uring", busy(block + 1) / 1.25), ("third", busy(block + 2))]
            .map(|(name, busy_s)| http(0, block, name, busy_s))
    };
    let more = "[[subjects]]\nname = \"third\"\nengine = \"epoll\"\nfeatures = \"batch=1\"\n\
                against = [\"io_uring\", \"epoll\"]\n";
    let cell = judge((0..8).flat_map(block).collect(), more);
    assert_eq!(cell.findings, []);
    let said: Vec<_> = cell
        .comparisons
        .iter()
        .map(|it| (it.subject.as_str(), it.baseline.as_str(), it.verdict.clone()))
        .collect();
    let ahead = Verdict::Ahead { winner: "io_uring".to_owned(), by_less_than_percent: None };
    assert_eq!(said[0], ("io_uring", "epoll", ahead.clone()));
    assert!(matches!(said[1], ("third", "epoll", Verdict::Equivalent { .. })), "{said:?}");
    assert_eq!(said[2], ("third", "io_uring", ahead));
    assert_eq!(said.len(), 3);
    let figures = cell.subjects[0].figures.as_ref().unwrap();
    assert_eq!(figures.get(Metric::ServerSyscalls), Some(2.0));
    assert_eq!(figures[Metric::ContentBytesPerS], (ANSWERED * FILE_BYTES) as f64 / WINDOW_S);
    assert_eq!(figures[Metric::FirstByteUsP99], 950.0);
    assert_eq!(figures[Metric::ConnectUsP50], 40.0);
}
