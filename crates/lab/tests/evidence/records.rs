//! Run records made by hand, where every figure is known.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use twinring_lab::analysis::{CellSummary, summarise};
use twinring_lab::record::{RUN_SCHEMA, RunRecord};
use twinring_lab::result::{BUNDLE_SCHEMA, Bundle, State};
use twinring_lab::{CpuList, Cpus, Experiment, Fingerprint, Protocol};
use twinring_wire::tcp::SCHEMA;
use twinring_wire::{EncodedHistogram, TcpResult};

const CONNECTIONS: u64 = 100;
const ANSWERED: u64 = 200_000;
const WINDOW_S: f64 = 2.0;
/// Little's law: connections / rate.
const LATENCY_NS: u64 = 1_000_000;

pub(crate) fn experiment() -> Experiment {
    let mut experiment = Experiment::find("quick").unwrap();
    experiment.keep_protocols(|it| it == Protocol::Tcp);
    experiment.set_axis("bytes", &[128]).unwrap();
    experiment.set_axis("load_percent", &[0]).unwrap();
    experiment
}

/// What the load generator of a flawless run reports.
fn load() -> TcpResult {
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    latencies.record_n(LATENCY_NS, ANSWERED).unwrap();
    let mut load = TcpResult::default();
    load.head.schema = SCHEMA.to_owned();
    let settings = &mut load.settings;
    (settings.connections, settings.depth, settings.verify) = (CONNECTIONS, 1, true);
    settings.message_bytes = 128;
    settings.mode = "closed".to_owned();
    (load.all.window.end_monotonic_ns, load.all.window.seconds) = (2_000_000_000, WINDOW_S);
    load.all.requests.answered = ANSWERED;
    load.all.requests.per_second = ANSWERED as f64 / WINDOW_S;
    (load.all.whole_run.sent, load.all.whole_run.answered) = (ANSWERED, ANSWERED);
    load.all.latency_us.mean = LATENCY_NS as f64 / 1e3;
    load.all.latency_us.p99 = latencies.value_at_quantile(0.99) as f64 / 1e3;
    load.all.histogram = EncodedHistogram::of(&latencies);
    load.all.connections.served_at_once_max = CONNECTIONS;
    load.all.connections.min_answered = 1900;
    load.all.cpu.busiest_thread_share = 0.7;
    load
}

/// A flawless run whose server CPU was busy for `server_busy_s` of the two seconds.
pub(crate) fn record(index: usize, block: usize, subject: &str, server_busy_s: f64) -> Value {
    let busy = |cpu: usize, busy_s: f64| {
        json!({"cpu": cpu, "busy_s": busy_s,
            "steal_coarse_s": 0.0, "backlog_drops": 0})
    };
    let process = json!({"cpu_s": 0.9, "user_s": 0.3, "system_s": 0.6, "threads": [],
        "voluntary_switches": 10, "involuntary_switches": 0});
    let exit = json!({"code": 0, "signal": null, "unasked": false, "killed": false});
    json!({
        "schema": RUN_SCHEMA, "index": index, "block": block, "subject": subject,
        "cell": {"net": "rps", "connections": CONNECTIONS, "message_bytes": 128, "depth": 1},
        "at_s": 1.0, "server_command": ["server"], "client_command": ["client"],
        "ready": {"event": "ready"}, "failures": [], "server_exit": exit, "client_exit": exit,
        "server_final": {"runtime_counters": {"cq_overflows": 0, "syscalls": 2 * ANSWERED}},
        "others": {"span_s": 2.5, "cpus": 2, "cpu_s": 0.0, "largest": null},
        "cpu": {"window_s": WINDOW_S, "server_cpu": busy(0, server_busy_s),
            "client_cpu": busy(1, 1.5), "server": process, "client": process,
            "sample_delay_us": [50.0, 60.0]},
        "loads": [load()],
    })
}

pub(crate) fn read(record: Value) -> RunRecord {
    serde_json::from_value(record).unwrap()
}

/// Pairs in which io_uring needs `ratio` times less than epoll, with a scatter of a percent.
pub(crate) fn pairs(count: usize, ratio: f64) -> Vec<Value> {
    let scatter = [0.0, 0.01, -0.01, 0.004, -0.006, 0.008, -0.003, 0.002, -0.009, 0.005];
    let pair = |block: usize| {
        let busy_s = 1.6 * (1.0 + scatter[block % scatter.len()]);
        let other = 1.0 + scatter[(block * 3 + 1) % scatter.len()];
        [
            record(2 * block, block, "epoll", busy_s),
            record(2 * block + 1, block, "io_uring", 1.6 * other / ratio),
        ]
    };
    (0..count).flat_map(pair).collect()
}

pub(crate) fn judge(records: Vec<Value>) -> CellSummary {
    judge_by(&experiment(), records)
}

pub(crate) fn judge_by(experiment: &Experiment, records: Vec<Value>) -> CellSummary {
    let mut summary = bundle(experiment.clone(), records).summary.unwrap();
    assert_eq!(summary.cells.len(), 1);
    summary.cells.remove(0)
}

/// A bundle of these runs, all of one session.
pub(crate) fn bundle(experiment: Experiment, records: Vec<Value>) -> Bundle {
    let runs: Vec<RunRecord> = records.into_iter().map(read).collect();
    let mut bundle = Bundle {
        schema: BUNDLE_SCHEMA.to_owned(),
        lab_version: "0".to_owned(),
        started: "2026-01-31T12:00:00Z".to_owned(),
        state: State::Complete,
        experiment,
        command: vec!["twinring".to_owned()],
        seed: 1,
        programs: Vec::new(),
        cpus: Cpus {
            server: CpuList::one(0),
            client: CpuList::one(1),
            shared: false,
            siblings: false,
            others: vec![2],
        },
        networks: Vec::new(),
        network_fallback: None,
        not_run: Vec::new(),
        machine: Fingerprint::default(),
        occasions: Vec::new(),
        summary: None,
        prices: None,
    };
    bundle.summary = Some(summarise(&bundle, &runs));
    bundle
}
