//! What is counted of a run, and the networks that the counts tell from each other.

use serde_json::{Value, json};
use twinring_lab::audit::{Kind, Severity, audit};
use twinring_lab::record::RunRecord;
use twinring_lab::summary::{Figures, Metric};
use twinring_lab::{Style, markdown, table};

use crate::common::records::{ANSWERED, bundle, experiment, judge, read, record};

const QUARTER: u64 = ANSWERED / 4;

/// A run on this network whose sides have these counts.
fn counted(net: &str, server: Value, client: Value) -> RunRecord {
    read(counted_as(0, 0, "io_uring", net, &server, &client))
}

fn figures(run: RunRecord) -> Figures {
    let cell = judge(vec![serde_json::to_value(run).unwrap()]);
    let subject = cell.subjects.iter().find(|it| it.name == "io_uring").unwrap();
    subject.figures.clone().unwrap_or_else(|| panic!("{cell:#?}"))
}

fn counted_as(
    index: usize,
    block: usize,
    subject: &str,
    net: &str,
    server: &Value,
    client: &Value,
) -> Value {
    let mut run = record(index, block, subject, if subject == "epoll" { 1.6 } else { 1.0 });
    run["cell"]["net"] = json!(net);
    run["cpu"]["server_cpu"]["counts"] = server.clone();
    run["cpu"]["client_cpu"]["counts"] = client.clone();
    run["cpu"]["server"]["minor_faults"] = json!(ANSWERED / 100);
    run
}

fn interrupts(calls: u64, reschedules: u64) -> Value {
    json!({"function_call_interrupts": calls, "reschedule_interrupts": reschedules,
        "net_rx_runs": calls, "steered": calls, "tcp_retransmits": 3, "device_drops": 2,
        "listen_drops": 1})
}

/// A CPU that polls while it is idle is told without an interrupt.
fn told_by_polling() -> Value {
    json!({"function_call_interrupts": 0, "reschedule_interrupts": 0, "steered": QUARTER})
}

fn polled(thread_ns: u64) -> Value {
    json!({"function_call_interrupts": 5, "reschedule_interrupts": 5, "napi_threads_ns": thread_ns})
}

fn mismatch(run: &RunRecord) -> Option<String> {
    let mut found = audit(run).into_iter();
    let of_network = found.find(|finding| finding.kind == Kind::NetworkMismatch)?;
    assert_eq!(of_network.severity, Severity::Void);
    Some(of_network.what)
}

#[test]
fn both_sides_are_counted_once_each() {
    let on_rps = figures(counted("rps", interrupts(QUARTER, 100), interrupts(2 * QUARTER, 100)));
    let on_lo = figures(counted("lo", interrupts(9, 9), interrupts(9, 9)));
    let lost = [Metric::Retransmits, Metric::Drops];
    assert_eq!(on_rps[Metric::Notifications], 0.75 + 200.0 / ANSWERED as f64);
    assert_eq!((on_rps[Metric::NetRxRuns], on_rps[Metric::ServerPageFaults]), (0.75, 0.01));
    assert_eq!(lost.map(|it| on_rps[it]), [6.0, 4.0]);
    // Of the server's listeners only.
    assert_eq!(on_rps[Metric::ListenDrops], 1.0);
    // Both sides are in one network namespace there.
    assert_eq!(lost.map(|it| on_lo[it]), [3.0, 2.0]);
}

/// Rows that a kernel does not have, as on aarch64, were no interrupts at all.
#[test]
fn what_is_not_counted_is_not_there() {
    let no_interrupts = json!({"net_rx_runs": 4, "tcp_retransmits": 0});
    let run = counted("rps", no_interrupts.clone(), no_interrupts);
    assert_eq!(mismatch(&run), None);
    let figures = figures(run);
    assert_eq!([Metric::Notifications, Metric::Drops].map(|it| figures.get(it)), [None; 2]);
    assert_eq!(figures[Metric::Retransmits], 0.0);
}

#[test]
fn a_network_that_is_not_what_it_says_is_void() {
    for (net, server, client, said) in [
        ("rps", interrupts(QUARTER, 0), interrupts(QUARTER, 0), None),
        ("rps", interrupts(50, 0), interrupts(40, 0), Some("receive steering does not work")),
        ("rps", told_by_polling(), told_by_polling(), Some("a CPU that is idle polls")),
        // Tasks that are woken on the other CPU take interrupts there, too.
        ("lo", interrupts(400, ANSWERED), interrupts(400, ANSWERED), None),
        ("lo", interrupts(ANSWERED, 0), interrupts(50, 0), Some("steered to another CPU")),
        ("napi", polled(10 * ANSWERED * 20), polled(ANSWERED * 400), None),
        ("napi", polled(0), polled(ANSWERED * 400), Some("the server's device worked 0 ns")),
        ("napi", polled(ANSWERED * 400), polled(5), Some("the client's device worked 5 ns")),
        ("napi", json!({}), json!({}), None),
    ] {
        let found = mismatch(&counted(net, server, client));
        assert_eq!(found.is_some(), said.is_some(), "{net}: {found:?}");
        assert!(said.is_none_or(|said| found.unwrap().contains(said)), "{net}");
    }
    // On one CPU nobody has to be told.
    let mut shared = counted("napi", polled(0), polled(0));
    shared.cpu.as_mut().unwrap().shared = Some(true);
    assert_eq!(mismatch(&shared), None);
}

/// Sixteen runs in eight pairs on each of these networks.
fn runs(nets: &[(&str, Value)]) -> Vec<Value> {
    let mut runs = Vec::new();
    for (net, counts) in nets {
        for block in 0..8 {
            for subject in ["epoll", "io_uring"] {
                runs.push(counted_as(runs.len(), block, subject, net, counts, counts));
            }
        }
    }
    runs
}

/// A burst that a veth had no room for made everybody's 99th percentile 205 ms.
#[test]
fn where_packets_were_lost_there_is_no_verdict_on_latency() {
    let comparison = |lost: u64| {
        let counts = json!({"tcp_retransmits": lost, "device_drops": 0});
        judge(runs(&[("rps", counts)])).comparisons.remove(0)
    };
    // Two sides: one in 20,000 answers, and one in 8,000.
    let (some, many) = (comparison(5), comparison(13));
    assert!(some.ratio(Metric::LatencyUsP99).is_some() && !some.packets_lost);
    assert!(
        many.ratio(Metric::LatencyUsP99).is_none()
            && many.packets_lost
            && many.ratio(Metric::ServerCpuNs).is_some()
    );
    assert_eq!(some.verdict, many.verdict);
    let counts = json!({"tcp_retransmits": 13, "device_drops": 0});
    let bundle = bundle(experiment(), runs(&[("rps", counts)]));
    let text = table(&bundle, Style { colour: false });
    let count = "26 TCP segments were sent again and 0 packets were dropped";
    for said in ["packets lost", count] {
        let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain.contains(said), "{said}: {text}");
        assert!(markdown(&bundle).contains(said), "{said}");
    }
}

/// With 1,000 connections on `napi` every server was void, because TCP had not yet sent again what the
/// network had dropped.
#[test]
fn what_waits_for_lost_packets_is_no_fault_of_a_server() {
    let stalled = |lost: u64| {
        let counts = json!({"tcp_retransmits": lost, "device_drops": lost});
        let mut run = counted_as(0, 0, "io_uring", "rps", &counts, &counts);
        run["load"]["requests"]["oldest_in_flight_us"] = json!(1_300_000.0);
        let found = audit(&read(run));
        found.into_iter().find(|it| it.kind == Kind::StalledRequest).unwrap()
    };
    assert_eq!(stalled(0).severity, Severity::Void);
    let excused = stalled(1000);
    assert_eq!(excused.severity, Severity::Warning);
    assert!(excused.what.ends_with("and packets were lost"), "{excused:?}");
}

#[test]
fn networks_stand_side_by_side_with_their_notifications() {
    let nets = [
        ("lo", interrupts(100, 0)),
        ("rps", interrupts(QUARTER, 0)),
        ("napi", polled(ANSWERED * 1000)),
    ];
    let bundle = bundle(experiment(), runs(&nets));
    let text = table(&bundle, Style { colour: false });
    let row =
        |begins: &str| text.lines().find(|line| line.trim_start().starts_with(begins)).unwrap();
    assert!(row("io_uring : epoll").ends_with("on napi"), "{text}");
    let verdicts = row("100 x 128 B     ");
    assert_eq!(verdicts.matches("1.60 [1.60, 1.60] ▲").count(), 3, "{text}");
    let counts = row("100 x 128 B, io_uring  ");
    let counts: Vec<&str> = counts.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect();
    assert_eq!(counts, ["100 x 128 B, io_uring", "0.500", "0.001", "< 0.001"]);
    assert!(row("per request").contains("notifications") && text.contains("whole life"));
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let text = markdown(&bundle);
    assert!(text.contains("| 100 x 128 B | 1.60 [1.60, 1.60] ▲ |"), "{text}");
    assert!(text.contains("notifications, both CPUs") && text.contains("resent, /run"), "{text}");
}
