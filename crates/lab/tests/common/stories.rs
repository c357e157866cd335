//! Bundles made by hand, with figures like those of real machines: one for each shape that a report
//! can have. Nothing is measured, so that they are the same everywhere and at all times.

use std::path::Path;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use statrs::distribution::{ContinuousCDF, Normal};
use twinring_lab::result::Bundle;
use twinring_lab::{Axis, Cell, Experiment, NetKind, Protocol};
use twinring_wire::EncodedHistogram;

/// Every story, by name.
pub(crate) const STORIES: [&str; 10] =
    ["map", "scale", "open-loop", "ablation", "udp", "http", "workers", "aa", "partial", "nothing"];

const WINDOW_S: f64 = 2.0;

/// The most workers of a story.
const WORKERS_MOST: usize = 8;

/// What one subject does in one cell.
#[derive(Clone, Copy)]
struct Work {
    /// CPU of the server's CPU per unit.
    server_ns: f64,
    /// CPU of the client's CPU per unit.
    client_ns: f64,
    /// Units per second that it can do, with both CPUs on it.
    most_per_s: f64,
}

/// Writes the bundle of a story into a directory and renders its reports.
pub(crate) fn write(name: &str, directory: &Path) -> Bundle {
    let experiment = Experiment::from_toml(&experiment_of(name), name).unwrap();
    let mut runs = runs_of(name, &experiment);
    let mut bundle = bundle_of(&experiment);
    match name {
        "partial" => make_partial(&mut bundle, &mut runs),
        "nothing" => runs.iter_mut().for_each(fail),
        "map" => make_flawed(&mut runs),
        "workers" => {
            let [server, client] =
                [0, WORKERS_MOST].map(|it| (it..it + WORKERS_MOST).collect::<Vec<_>>());
            (bundle["cpus"]["server"], bundle["cpus"]["client"]) = (json!(server), json!(client));
        }
        _ => {}
    }
    for (index, run) in runs.iter_mut().enumerate() {
        run["index"] = json!(index);
        run["at_s"] = json!(3.0 * index as f64);
    }
    let lines: String = runs.iter().map(|run| format!("{run}\n")).collect();
    std::fs::write(directory.join("runs.jsonl"), lines).unwrap();
    std::fs::write(directory.join("bundle.json"), bundle.to_string()).unwrap();
    twinring_lab::rerender(directory).unwrap()
}

/// The experiment file of a story.
fn experiment_of(name: &str) -> String {
    let two = "[[subjects]]\nname = \"epoll\"\nengine = \"epoll\"\n\
               [[subjects]]\nname = \"io_uring\"\nengine = \"io_uring\"\n";
    let tcp = |axes: &str| format!("[tcp]\n{axes}\n");
    let (about, pairs, rest) = match name {
        "map" => (
            "io_uring against epoll over TCP: 64 B to 64 KB x 1 to 1,000 connections",
            8,
            tcp("connections = [1, 10, 100, 300, 1000]\nmessage_bytes = [64, 4096, 65536]") + two,
        ),
        "many" => (
            "Eight sizes x six numbers of connections, once each",
            1,
            tcp("connections = [1, 2, 4, 8, 16, 32]\n\
                 message_bytes = [1, 2, 4, 8, 16, 32, 64, 128]")
                + two,
        ),
        "scale" => (
            "How CPU per request grows with the number of connections",
            8,
            tcp("connections = [1, 10, 100, 1000, 5000, 15000]\nmessage_bytes = [128]")
                + two
                + "[[subjects]]\nname = \"io_uring-plain\"\nengine = \"io_uring\"\n\
                   features = \"multishot=off,buffers=none\"\n",
        ),
        "open-loop" => (
            "Latency against the rate of requests, up to the knee",
            8,
            tcp("connections = [100]\nmessage_bytes = [128]\n\
                 rate_per_s = [50000, 100000, 200000, 300000, 360000, 410000, 430000, 500000]")
                + two,
        ),
        "ablation" => ("What each feature of the engine is worth", 10, ablation(&tcp)),
        "udp" => (
            "UDP: streams x packets per second, both sides on the subject's engine",
            8,
            "[udp]\nstreams = [100, 1000, 4000]\npackets_per_s = [10, 50, 100]\n\
             message_bytes = [172]\nunder_test = \"both\"\n"
                .to_owned()
                + two,
        ),
        "http" => (
            "Files over HTTP: io_uring, epoll and nginx",
            8,
            "[http]\nconnections = [100, 500]\nfile_bytes = [1024, 10240, 102400]\n".to_owned()
                + two
                + "[[subjects]]\nname = \"nginx\"\npeer = \"nginx\"\n",
        ),
        "workers" => (
            "What more workers bring",
            8,
            tcp("connections = [100]\nmessage_bytes = [128]\nworkers = [1, 2, 4, 8]") + two,
        ),
        "aa" => (
            "epoll against itself: what this machine can resolve",
            16,
            tcp("connections = [100]\nmessage_bytes = [128, 16384]")
                + "[[subjects]]\nname = \"a\"\nengine = \"epoll\"\n\
                   [[subjects]]\nname = \"b\"\nengine = \"epoll\"\n",
        ),
        _ => (
            "io_uring against epoll: <b>small</b> & large messages",
            8,
            tcp("connections = [100]\nmessage_bytes = [128, 16384]") + two,
        ),
    };
    format!(
        "schema = \"twinring.lab.experiment/4\"\nname = \"{name}\"\nabout = \"{about}\"\n\
         pairs = {pairs}\nwarmup_s = 0.5\nwindow_s = {WINDOW_S:.1}\n{rest}"
    )
}

fn ablation(tcp: &dyn Fn(&str) -> String) -> String {
    let changes: String = CHANGES
        .iter()
        .map(|(name, change, _)| {
            format!(
                "[[subjects]]\nname = \"{name}\"\nengine = \"io_uring\"\n\
                 features = \"{change}\"\nagainst = [\"best\"]\n"
            )
        })
        .collect();
    tcp("connections = [100, 1000]\nmessage_bytes = [128]")
        + "[[subjects]]\nname = \"epoll\"\nengine = \"epoll\"\n\
           [[subjects]]\nname = \"best\"\nengine = \"io_uring\"\n"
        + &changes
}

/// Changes of the best features: name, features, how many times the CPU.
const CHANGES: [(&str, &str, f64); 7] = [
    ("without-multishot", "multishot=off", 1.12),
    ("without-buffer-ring", "buffers=none", 1.07),
    ("without-defer-taskrun", "taskrun=none", 1.21),
    ("without-registered-ring", "registered_ring=off", 1.004),
    ("without-direct", "direct=off", 1.03),
    ("without-no-sqarray", "no_sqarray=off", 0.999),
    ("with-sqpoll", "sqpoll=on", 0.88),
];

/// What a subject does in a cell of a story.
fn work(story: &str, subject: &str, cell: &Cell) -> Work {
    let of = |server_ns: f64, client_ns: f64| Work {
        server_ns,
        client_ns,
        most_per_s: 1e9 / server_ns.max(client_ns) * 0.985,
    };
    let point = cell.point;
    let size = f64::from(point.get(Axis::Bytes));
    match cell.protocol() {
        Protocol::Tcp => {
            let connections = f64::from(point.get(Axis::Connections));
            let epoll = 2600.0 + 0.35 * size + 90.0 * connections.ln();
            // Batches grow with connections; copies hide that.
            let gain = 0.93 + 0.07 * connections.log10() * (1.0 - (size / 65_536.0).sqrt() * 1.25);
            let change = CHANGES.iter().find(|(name, ..)| *name == subject).map(|it| it.2);
            let server_ns = match subject {
                "io_uring" | "best" => epoll / gain,
                "io_uring-plain" => epoll / (1.0 + 0.4 * (gain - 1.0)) * 1.04,
                _ => change.map_or(epoll, |times| epoll / gain * times),
            };
            let factor = if story == "open-loop" { 0.8 } else { 1.0 };
            let mut work = of(server_ns * factor, 1900.0 + 0.3 * size);
            // Each worker more makes all of them a little slower; the load generator has CPUs to spare.
            let workers = f64::from(point.get(Axis::Workers));
            work.server_ns *= 1.0 + 0.02 * (workers - 1.0);
            if story == "workers" {
                work.most_per_s = 1e9 / work.server_ns * workers * 0.95;
            }
            work
        }
        Protocol::Udp => {
            let wait = f64::from(point.get(Axis::Streams)).log10();
            if subject == "epoll" { of(1500.0, 1950.0 + 250.0 * wait) } else { of(1490.0, 2150.0) }
        }
        Protocol::Http => {
            let base = 5200.0 + 0.16 * size;
            let times = match subject {
                "nginx" => 1.35 - 0.1 * (size / 1024.0).log10(),
                "io_uring" => 0.9 + 0.08 * (size / 1024.0).log10(),
                _ => 1.0,
            };
            of(base * times, 4000.0 + 0.2 * size)
        }
    }
}

/// Scatter that is the same for the same place: a normal number.
fn scatter(place: &str) -> f64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in place.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let share = ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    Normal::standard().inverse_cdf(share)
}

fn runs_of(story: &str, experiment: &Experiment) -> Vec<Value> {
    let mut runs = Vec::new();
    for cell in experiment.cells(&[NetKind::Rps]) {
        for block in 0..experiment.pairs {
            let shared = 1.0 + 0.02 * scatter(&format!("{story} {cell} {block}"));
            for position in experiment.subjects_of(cell.protocol()) {
                let subject = &experiment.subjects[position].name;
                let own = 1.0 + 0.006 * scatter(&format!("{story} {cell} {block} {subject}"));
                let mut work = work(story, subject, &cell);
                work.server_ns *= shared * own;
                work.client_ns *= shared;
                work.most_per_s /= shared * own;
                runs.push(run(story, &cell, block, subject, work));
            }
        }
    }
    runs
}

/// Values that are spread as latencies are, with the mean asked for, and exactly so many.
fn latencies(mean_ns: f64, count: u64, tail: f64) -> Histogram<u64> {
    let normal = Normal::standard();
    let mut shares: Vec<(f64, u64)> = Vec::new();
    let mut left = count;
    // Ever finer steps towards the tail.
    let mut above = 1.0_f64;
    while left > 0 {
        let next = above * 0.8;
        let weight = ((above - next) * count as f64).ceil() as u64;
        let middle = 1.0 - (above + next) / 2.0;
        let weight = weight.clamp(1, left);
        shares.push((
            (0.25 * normal.inverse_cdf(middle)).exp() * (1.0 + tail * middle.powi(60)),
            weight,
        ));
        left -= weight;
        above = next;
    }
    let whole: f64 = shares.iter().map(|(value, weight)| value * *weight as f64).sum();
    let scale = mean_ns * count as f64 / whole;
    let mut values = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    for (value, weight) in shares {
        values.record_n((value * scale).max(1.0) as u64, weight).unwrap();
    }
    values
}

fn encoded(values: &Histogram<u64>) -> Value {
    json!(EncodedHistogram::of(values))
}

fn us(values: &Histogram<u64>, share: f64) -> f64 {
    values.value_at_quantile(share) as f64 / 1e3
}

/// The CPUs of the server, as many as it has workers, and of the load generator.
fn cpus(story: &str, cell: &Cell) -> (Vec<usize>, Vec<usize>) {
    match story {
        "workers" => (
            (0..cell.point.get(Axis::Workers) as usize).collect(),
            (WORKERS_MOST..2 * WORKERS_MOST).collect(),
        ),
        _ => (vec![0], vec![1]),
    }
}

/// One flawless run.
fn run(story: &str, cell: &Cell, block: usize, subject: &str, work: Work) -> Value {
    let of = |axis| f64::from(cell.point.get(axis));
    let offered = match cell.protocol() {
        Protocol::Udp => Some(of(Axis::Streams) * of(Axis::PacketsPerS)),
        _ => Some(of(Axis::RatePerS)).filter(|rate| *rate > 0.0),
    };
    let rate = offered.map_or(work.most_per_s, |offered| offered.min(work.most_per_s));
    let done = (rate * WINDOW_S) as u64;
    let busy = |cpus: &[usize], ns: f64| {
        let most_s = 0.999 * WINDOW_S * cpus.len() as f64;
        let busy_s = (ns * done as f64 / 1e9).min(most_s);
        let mut busy = json!({"cpu": cpus[0], "busy_s": busy_s,
            "softirq_coarse_s": 0.1, "irq_coarse_s": 0.0, "steal_coarse_s": 0.0});
        if cpus.len() > 1 {
            let mut each = vec![busy_s / cpus.len() as f64; cpus.len()];
            each[0] *= 1.04;
            each[1] *= 0.96;
            busy["cpu"] = json!(cpus);
            busy["busy_each_s"] = json!(each);
        }
        busy
    };
    let (of_server, of_client) = cpus(story, cell);
    let process = |ns: f64| {
        let cpu_s = 0.68 * ns * done as f64 / 1e9;
        json!({"cpu_s": cpu_s, "user_s": 0.2 * cpu_s, "system_s": 0.8 * cpu_s, "threads": [],
            "voluntary_switches": done / 40, "involuntary_switches": 12})
    };
    let exit = json!({"code": 0, "signal": null, "unasked": false, "killed": false});
    let engine = if subject.contains("epoll") { "epoll" } else { "io_uring" };
    let calls = if engine == "epoll" { 2.1 } else { 0.31 };
    json!({
        "schema": "twinring.lab.run/6", "index": 0, "block": block, "subject": subject,
        "cell": cell, "at_s": 0.0,
        "server_command": ["/usr/local/bin/twinring", "serve", story, "--listen", "10.0.0.1:20000",
            "--engine", engine, "--workers", "1", "--pin", "0", "--json"],
        "client_command": ["/usr/local/bin/twinring", "load", "10.0.0.1:20000", "--json"],
        "ready": {"event": "ready"}, "failures": [], "server_exit": exit, "client_exit": exit,
        "server_final": {"runtime_counters": {"cq_overflows": 0,
            "syscalls": (calls * done as f64) as u64},
            "service_counters": {"received": done, "kernel_drops": 0}},
        "others": {"span_s": 2.5, "cpus": 2, "cpu_s": 0.0, "largest": null},
        "cpu": {"window_s": WINDOW_S, "server_cpu": busy(&of_server, work.server_ns),
            "client_cpu": busy(&of_client, work.client_ns), "server": process(work.server_ns),
            "client": process(work.client_ns), "sample_delay_us": [50.0, 60.0]},
        "loads": [load(cell, done, offered, work)],
    })
}

fn load(cell: &Cell, done: u64, offered: Option<f64>, work: Work) -> Value {
    let window = json!({"start_monotonic_ns": 0, "end_monotonic_ns": 2_000_000_000_u64,
        "seconds": WINDOW_S});
    let rate = done as f64 / WINDOW_S;
    let cpu = json!({"busiest_thread_share": 0.7, "saturated": false});
    if cell.protocol() == Protocol::Udp {
        return udp_load(cell, done, &window, &cpu, work);
    }
    let of = |axis| u64::from(cell.point.get(axis));
    let (connections, depth) = (of(Axis::Connections), of(Axis::Depth));
    let utilisation = offered.map_or(1.0, |offered| offered / work.most_per_s);
    let mean_ns = match offered {
        None => connections as f64 / rate * 1e9,
        Some(_) if utilisation >= 1.0 => 4e8 * (utilisation - 0.98),
        Some(_) => 18_000.0 / (1.0 - utilisation).max(0.01),
    };
    let values = latencies(mean_ns, done, 3.0);
    let failures = json!({"connect": 0, "tls": 0, "reset": 0, "closed_early": 0, "timeout": 0,
        "malformed": 0, "status": 0, "length": 0, "hash": 0, "mismatch": 0, "other": 0});
    let lag = offered.map(|_| json!({"p50": 2.0, "p99": 20.0, "max": 90.0}));
    let mut load = json!({
        "schema": "twinring.load.tcp/1",
        "settings": {"connections": connections, "depth": depth, "verify": true,
            "mode": if offered.is_some() { "open" } else { "closed" }},
        "window": window, "cpu": cpu, "errors": failures, "first_error": null,
        "requests": {"answered": done, "per_second": rate},
        "whole_run": {"sent": done, "answered": done, "failed": 0, "abandoned": 0},
        "latency_us": {"mean": values.mean() / 1e3, "p99": us(&values, 0.99)},
        "schedule_lag_us": lag,
        "histogram": encoded(&values),
        "connections": {"served_at_once_max": connections, "served": connections,
            "min_answered": (done / connections).max(1)},
    });
    if cell.protocol() == Protocol::Http {
        load["schema"] = json!("twinring.load.http/1");
        load["settings"] = json!({"urls": 1, "connections": connections, "pipeline": depth,
            "keepalive": true, "mode": "closed", "verify_body": "file", "tls": null});
        load["bytes"] = json!({"bodies": done * of(Axis::Bytes)});
        load["ttfb_us"] = json!({"p50": us(&values, 0.45), "p99": us(&values, 0.98)});
        load["connect_us"] = json!({"p50": 40.0, "p99": 90.0});
    }
    load
}

fn udp_load(cell: &Cell, done: u64, window: &Value, cpu: &Value, work: Work) -> Value {
    let [streams, packets_per_s, message_bytes] =
        [Axis::Streams, Axis::PacketsPerS, Axis::Bytes].map(|axis| cell.point.get(axis));
    let due = (f64::from(streams) * f64::from(packets_per_s) * WINDOW_S) as u64;
    let utilisation = due as f64 / WINDOW_S / work.most_per_s;
    let trips = latencies(160_000.0 / (1.0 - utilisation).max(0.05), done, 2.0);
    let late = latencies(90_000.0 / (1.0 - utilisation).max(0.01), due, 2.0);
    json!({
        "schema": "twinring.load.udp/1",
        "settings": {"streams": streams, "packets_per_s": packets_per_s,
            "packet_bytes": message_bytes, "verify": true},
        "window": window, "cpu": cpu, "first_error": null,
        "packets": {"due": due, "sent": due, "unsent": 0, "refused": 0, "received": done,
            "lost": due - done, "duplicated": 0, "reordered": 0, "mismatched": 0, "foreign": 0,
            "received_per_second": done as f64 / WINDOW_S},
        "loss_ratio": (due - done) as f64 / due as f64,
        "jitter_us": {"p50": 100.0, "p99": 300.0},
        "round_trip_us": {"p99": us(&trips, 0.99), "p99_9": us(&trips, 0.999)},
        "send_lateness_us": {"p99": us(&late, 0.99), "p99_9": us(&late, 0.999)},
        "histograms": {"round_trip": encoded(&trips), "send_lateness": encoded(&late),
            "wait_overrun": encoded(&latencies(1000.0, 100, 0.0))},
        "kernel_drops": 0,
        "streams": {"asked": streams, "opened": streams, "answered": streams},
        "calls": null,
        "errors": {"icmp_refused": 0, "send": 0, "receive": 0},
    })
}

/// A cell with a wrong payload, one with too few pairs that count, and a warning.
fn make_flawed(runs: &mut [Value]) {
    let is = |run: &Value, connections: u32, bytes: u32| {
        run["cell"]["connections"] == connections && run["cell"]["message_bytes"] == bytes
    };
    for run in runs {
        let io_uring = run["subject"] == "io_uring";
        if is(run, 300, 65_536) && io_uring && run["block"] == 2 {
            run["loads"][0]["errors"]["mismatch"] = json!(3);
        }
        if is(run, 1000, 65_536) && run["block"].as_u64() < Some(4) {
            run["others"]["cpu_s"] = json!(1.2);
            run["others"]["largest"] = json!("cc1plus");
        }
        if is(run, 10, 64) && io_uring {
            run["loads"][0]["settings"]["verify"] = json!(false);
        }
    }
}

/// The server never got ready, and said why in words that must not become a page.
fn fail(run: &mut Value) {
    let why = "exit code 1; it said: <script>alert('stderr')</script> | `rm` **now**";
    run["failures"] = json!([{"what": "server_not_ready", "why": why}]);
    for key in ["ready", "server_final", "cpu", "client_exit"] {
        run[key] = Value::Null;
    }
}

/// Interrupted in its second cell, on a machine with hostile names.
fn make_partial(bundle: &mut Value, runs: &mut Vec<Value>) {
    let second = runs.iter().position(|run| run["cell"]["message_bytes"] == 16_384).unwrap();
    runs.truncate(second + 6);
    fail(&mut runs[second + 5]);
    runs[0]["server_command"][5] = json!("</pre><script>alert('command')</script>");
    runs[0]["client_command"][2] = json!("' onmouseover='alert(1)");
    bundle["state"] = json!({"is": "interrupted", "signal": 2});
    bundle["machine"]["cpu_model"] = json!("<script>alert('cpu')</script>");
    bundle["machine"]["sysctls"] = json!({"kernel.hostname": "\"><img src=x onerror=alert(2)>"});
    bundle["command"] = json!(["twinring", "lab", "run", "</pre><script>alert('words')</script>"]);
    bundle["network_fallback"] = json!("no <script>namespaces</script> here: EPERM");
    bundle["not_run"] =
        json!([{"subject": "nginx", "why": "it is not in PATH: install nginx-light"}]);
}

fn bundle_of(experiment: &Experiment) -> Value {
    json!({
        "schema": "twinring.lab.bundle/6", "lab_version": "0.1.0",
        "started": "2026-11-22T06:00:00Z", "state": {"is": "complete"}, "experiment": experiment,
        "command": ["twinring", "lab", "run", experiment.name], "seed": 7,
        "programs": [{"path": "/usr/local/bin/twinring", "sha256": "9680aaa19df57a5284913190dcbd2ebd85a3c24c86f8ef6aed49927f47d6ff98"}],
        "cpus": {"server": 0, "client": 1, "shared": false, "siblings": false, "others": []},
        "networks": [{"kind": "rps", "server_ip": "10.0.0.1", "server_rps": "1",
            "client_rps": "2", "mtu_bytes": 1500,
            "settings": [["net.ipv4.tcp_congestion_control", "bbr"],
                ["net.ipv4.tcp_rmem", "4096\t131072\t33554432"]]}],
        "network_fallback": null,
        "machine": {"cpu_model": "AMD EPYC 9B14", "cpus_online": 2,
            "caches": ["L1 Data: 32K", "L2 Unified: 1024K", "L3 Unified: 32768K"],
            "kernel": "6.12.8 #1 SMP", "kernel_command_line": "root=/dev/vda ro",
            "virtualisation": "KVM", "clocksource": "kvm-clock", "governor": null, "boost": null,
            "memory_kib": 8_000_000, "load_average": "0.10 0.20 0.15",
            "mitigations": {"spectre_v2": "Mitigation: Retpolines"},
            "sysctls": {"kernel.io_uring_disabled": "0"}, "limits": {"open files": "1048576, 1048576"}},
        "summary": null,
    })
}
