//! The lab between hosts: server and load generators behind a real sshd each, in network
//! namespaces of their own.

mod network;

use crate::support::assert_complete;
use network::{HOSTS, Network};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_twinring");

/// One short pair of each cell.
const SHORT: [&str; 8] = ["--pairs", "1", "--spares", "0", "--window", "1", "--warmup", "0.2"];

/// The program is there already: the hosts share this file system.
const THERE: [&str; 2] = ["--remote-binary", BINARY];

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Measures with these arguments, to the end; what was said. Again, a few times, if all runs of a cell were
/// starved: that says nothing about the lab.
fn measured(network: &Network, arguments: &[&str]) -> String {
    let mut attempts = 0;
    loop {
        let output = network.lab(arguments);
        let text = said(&output);
        assert!(network.path("bundles").exists(), "{text}");
        assert_complete(&output, &network.bundle());
        attempts += 1;
        let runs = runs(&network.bundle());
        let in_each_cell = |run: &Value| {
            runs.iter().any(|other| other["cell"] == run["cell"] && !is_starved(other))
        };
        if runs.iter().all(in_each_cell) || attempts == 3 {
            return text;
        }
        println!("measured again: {text}");
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn runs(bundle: &Path) -> Vec<Value> {
    let text = fs::read_to_string(bundle.join("runs.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_holds(bundle: &Path) {
    let verified = Command::new(BINARY).args(["lab", "verify"]).arg(bundle).output().unwrap();
    assert!(verified.status.success(), "{}", said(&verified));
}

/// Somebody got no CPU for as long as the short window: nothing was answered in it, the load generators were
/// not at work together, or the lab looked when it was over.
fn is_starved(run: &Value) -> bool {
    let failures = run["failures"].as_array().unwrap();
    let comes_of_it = |failure: &Value| match failure["what"].as_str() {
        Some("client_failed") => failure["why"].as_str().unwrap().contains("inside the window"),
        Some("no_accounting") => failure["why"].as_str().unwrap().contains("at the same time"),
        _ => false,
    };
    let delays = run["cpu"]["sample_delay_us"].as_array().into_iter().flatten();
    let late = delays.filter_map(Value::as_f64).any(|delay_us| delay_us > 250_000.0);
    failures.iter().all(comes_of_it) && (late || !failures.is_empty())
}

/// The runs in which no process was starved, which are some of each cell.
fn fed(runs: &[Value]) -> Vec<&Value> {
    let (starved, fed): (Vec<_>, Vec<_>) = runs.iter().partition(|run| is_starved(run));
    for run in starved {
        println!("somebody got no CPU in run {}", run["index"]);
        assert!(fed.iter().any(|other| other["cell"] == run["cell"]), "{run}");
    }
    fed
}

/// A run in which everything that was promised was said and measured.
fn assert_whole(run: &Value, hosts: &[&str]) {
    assert_eq!(run["failures"], serde_json::json!([]), "{run}");
    assert_eq!(run["cell"]["net"], "hosts");
    let names: Vec<&str> =
        run["hosts"].as_array().unwrap().iter().map(|it| it["host"].as_str().unwrap()).collect();
    assert_eq!(names, hosts);
    for host in run["hosts"].as_array().unwrap() {
        assert!(host["others"]["span_s"].as_f64().unwrap() > 0.5, "{host}");
        // The hosts of these tests have one clock.
        let offset_us = host["clock"]["offset_ns"].as_f64().unwrap() / 1e3;
        let uncertainty_us = host["clock"]["uncertainty_us"].as_f64().unwrap();
        assert!(offset_us.abs() <= uncertainty_us + 1.0, "{host}");
    }
    let cpu = &run["cpu"];
    for busy in ["server_cpu", "client_cpu"] {
        assert!(cpu[busy]["busy_s"].as_f64().unwrap() > 0.0, "{cpu}");
    }
    assert!(cpu["server"]["cpu_s"].as_f64().unwrap() > 0.0, "{cpu}");
    assert!(cpu["between_hosts"]["clock_uncertainty_us"].is_number(), "{cpu}");
    assert!(run.get("distance").is_none(), "{run}");
}

#[test]
fn every_protocol_is_measured_between_two_hosts_and_the_program_is_copied_once() {
    let Some(network) = Network::new() else { return };
    let hosts = ["--server-host", "alpha", "--client-host", "beta"];
    let grid =
        ["quick", "--connections", "10", "--streams", "20", "--sizes", "128", "--rates", "500"];
    let text = measured(&network, &[&grid[..], &hosts, &SHORT].concat());
    assert_eq!(text.matches("copying ").count(), 2, "{text}");
    assert!(text.contains("10 x 128 B at 500/s between hosts"), "{text}");
    assert!(text.contains("server alpha (10.79.0.2)"), "{text}");
    assert!(text.contains("client beta (10.79.0.3)"), "{text}");
    network.assert_nothing_is_left();

    let bundle = network.bundle();
    assert_holds(&bundle);
    let runs = runs(&bundle);
    // TCP, UDP and HTTP, each with two subjects.
    assert!(runs.len() >= 6, "{text}");
    for run in fed(&runs) {
        assert_whole(run, &["alpha", "beta"]);
        let server = run["server_command"].to_string();
        assert!(server.contains("10.79.0.2") && server.contains("cache_alpha"), "{server}");
        assert!(run["client_command"].to_string().contains("cache_beta"), "{run}");
        assert!(run.get("clients").is_none(), "{run}");
    }
    // Both hosts made the same files: the load generator compared them.
    let is_http = |run: &&Value| run["load"]["schema"] == "twinring.load.http/1";
    let http = fed(&runs).into_iter().find(is_http).unwrap();
    assert_eq!(http["load"]["settings"]["verify_body"], "file", "{http}");
    assert!(http["load"]["requests"]["answered"].as_u64().unwrap() > 0, "{http}");

    let stored = json(&bundle.join("bundle.json"));
    assert_eq!(stored["networks"][0]["kind"], "hosts");
    for (host, role) in stored["hosts"].as_array().unwrap().iter().zip(["server", "client"]) {
        assert_eq!(host["role"], role, "{host}");
        assert_eq!(host["interface"]["name"], "eth0", "{host}");
        assert_eq!(host["machine"]["kernel"], stored["machine"]["kernel"], "{host}");
        assert_eq!(host["binary"]["sha256"].as_str().unwrap().len(), 64, "{host}");
    }
    // They are namespaces of one machine, and get different CPUs if there are.
    assert_eq!(stored["hosts"][1]["same_machine_as"], "alpha");
    for report in ["report.md", "report.html"] {
        let report = fs::read_to_string(bundle.join(report)).unwrap();
        assert!(report.contains("server alpha") && report.contains("client beta"), "{report}");
    }

    a_copied_program_is_found_again_and_a_changed_one_is_refused(&network);
}

/// Second half of the test above, which has copied the program.
fn a_copied_program_is_found_again_and_a_changed_one_is_refused(network: &Network) {
    let short = [&["quick", "--protocol", "udp", "--streams", "5"][..], &SHORT].concat();
    let short = [&short[..], &["--server-host", "alpha"]].concat();
    let text = measured(network, &short);
    assert!(!text.contains("copying"), "{text}");
    let versions = fs::read_dir(network.cache("alpha").join("twinring")).unwrap();
    let versions: Vec<_> = versions.map(|entry| entry.unwrap().path()).collect();
    let [version] = &versions[..] else { panic!("{versions:?}") };
    let mut program = fs::OpenOptions::new().append(true).open(version.join("twinring")).unwrap();
    program.write_all(b"\n").unwrap();
    drop(program);
    let output = network.lab(&short);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("host `alpha`") && text.contains("its SHA-256 is"), "{text}");
    network.assert_nothing_is_left();
}

#[test]
fn two_client_hosts_share_the_load_and_their_results_are_added() {
    let Some(network) = Network::new() else { return };
    let hosts = ["--server-host", "alpha", "--client-host", "beta", "--client-host", "gamma"];
    let grid =
        ["quick", "--connections", "11", "--streams", "21", "--sizes", "1024", "--rates", "500"];
    let text = measured(&network, &[&grid[..], &hosts, &SHORT, &THERE].concat());
    // Neither of one load generator nor of their sum, on TCP, UDP and HTTP.
    assert!(!text.contains("bad result") && !text.contains("unaccounted"), "{text}");
    network.assert_nothing_is_left();
    let bundle = network.bundle();
    assert_holds(&bundle);
    let runs = runs(&bundle);
    assert!(runs.len() >= 6, "{text}");
    for run in fed(&runs) {
        assert_whole(run, &HOSTS);
        assert!(run["load"].is_null(), "{run}");
        let clients = run["clients"].as_array().unwrap();
        let of = |field: &str| -> Vec<u64> {
            let setting = |client: &Value| client["load"]["settings"][field].as_u64();
            clients.iter().filter_map(setting).collect()
        };
        match run["cell"]["streams"].is_number() {
            true => assert_eq!(of("streams"), [11, 10], "{run}"),
            false => assert_eq!(of("connections"), [6, 5], "{run}"),
        }
        let each = run["cpu"]["between_hosts"]["clients"].as_array().unwrap();
        let busy = |cpu: &Value| cpu["busy_s"].as_f64().unwrap();
        let sum: f64 = each.iter().map(|client| busy(&client["cpu"])).sum();
        assert!((sum - busy(&run["cpu"]["client_cpu"])).abs() < 1e-9, "{run}");
    }
    // What the report says is what both did together.
    let stored = json(&bundle.join("bundle.json"));
    let cell = &stored["summary"]["cells"][0];
    let first = runs.iter().find(|run| run["cell"] == cell["cell"]).unwrap();
    let rate: f64 = first["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|client| client["load"]["requests"]["per_second"].as_f64().unwrap())
        .sum();
    let of_subject = cell["subjects"].as_array().unwrap().iter();
    let told = of_subject.filter(|it| it["name"] == first["subject"]);
    for told in told.filter(|told| told["figures"].is_object()) {
        let told = told["figures"]["requests_per_s"].as_f64().unwrap();
        assert!((told - rate).abs() < 0.01 * rate, "{told} {rate}");
    }
}

/// As with `ip netns exec` or `srun`: no sshd and no shell in between, and the SSH_CONNECTION of the
/// lab's own login is inherited, whose addresses are of another network.
#[test]
fn any_command_that_runs_a_program_on_a_host_connects_to_it() {
    let Some(network) = Network::new() else { return };
    let [alpha, beta] = [0, 1].map(|index| network.process_on(index).to_string());
    // Of the login that the lab itself was started from, in another network.
    let inherited = "SSH_CONNECTION='192.0.2.1 40000 192.0.2.2 22'";
    let environment = network.environment("alpha");
    let connect = format!("env {inherited} {environment} nsenter --net -t {{node}}");
    let hosts = ["--server-host", &alpha, "--client-host", &beta, "--connect", &connect];
    let tcp =
        ["quick", "--protocol", "tcp", "--connections", "4", "--sizes", "128", "--rates", "500"];
    measured(&network, &[&tcp[..], &SHORT, &hosts].concat());
    network.assert_nothing_is_left();
    let bundle = network.bundle();
    assert_holds(&bundle);
    for run in fed(&runs(&bundle)) {
        assert_whole(run, &[&alpha, &beta]);
        assert!(run["server_command"].to_string().contains("10.79.0.2:"), "{run}");
    }
    let stored = json(&bundle.join("bundle.json"));
    assert_eq!(stored["hosts"][1]["address"], "10.79.0.3");
    let nowhere = ["--server-host", "1", "--connect", "/no/such/command {node}"];
    let text = said(&network.lab(&[&tcp[..], &SHORT, &nowhere].concat()));
    assert!(text.contains("/no/such/command") && text.contains("--connect"), "{text}");
}

#[test]
fn either_side_may_stay_on_the_host_of_the_lab() {
    let Some(network) = Network::new() else { return };
    let tcp =
        ["quick", "--protocol", "tcp", "--connections", "4", "--sizes", "128", "--rates", "500"];
    let short = [&tcp[..], &SHORT, &THERE].concat();
    measured(&network, &[&short[..], &["--server-host", "alpha"]].concat());
    let bundle = network.bundle();
    assert_holds(&bundle);
    fed(&runs(&bundle)).into_iter().for_each(|run| assert_whole(run, &["alpha", "local"]));
    let clients = ["--client-host", "beta", "--client-host", "local"];
    measured(&network, &[&short[..], &clients, &["--server-host", "alpha"]].concat());
    let bundle = network.bundle();
    assert_holds(&bundle);
    let whole = |run| assert_whole(run, &["alpha", "beta", "local"]);
    fed(&runs(&bundle)).into_iter().for_each(whole);
    measured(&network, &[&short[..], &["--client-host", "beta"]].concat());
    let bundle = network.bundle();
    assert_holds(&bundle);
    for run in fed(&runs(&bundle)) {
        assert_whole(run, &["local", "beta"]);
        assert!(run["server_command"].to_string().contains("10.79.0.1:"), "{run}");
    }
    network.assert_nothing_is_left();
}

/// An HTTP experiment that takes longer than any test: its files are there while it runs.
const LONG: [&str; 11] = [
    "quick",
    "--protocol",
    "http",
    "--pairs",
    "8",
    "--window",
    "20",
    "--connections",
    "4",
    "--server-host",
    "alpha",
];

#[test]
fn a_lost_connection_leaves_a_partial_bundle_and_nothing_on_any_host() {
    let Some(network) = Network::new() else { return };
    let lab = network.start(&[&LONG[..], &["--client-host", "beta"], &THERE].concat());
    network.wait_for(" load http ");
    let ssh = child_of(lab.id(), " beta ");
    kill(Pid::from_raw(ssh), Signal::SIGKILL).unwrap();
    let output = lab.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("host `beta`") && text.contains("connection was lost"), "{text}");
    network.assert_nothing_is_left();
    let bundle = network.bundle();
    assert_holds(&bundle);
    let stored = json(&bundle.join("bundle.json"));
    assert_eq!(stored["state"]["is"], "failed", "{}", stored["state"]);
    assert!(stored["state"]["error"].as_str().unwrap().contains("beta"), "{}", stored["state"]);
}

/// Neither end gets an error: each notices that the other has gone silent.
#[test]
fn a_cut_cable_ends_both_the_experiment_and_what_runs_behind_it() {
    let Some(network) = Network::new() else { return };
    let lab = network.start(&[&LONG[..], &["--client-host", "beta"], &THERE].concat());
    network.wait_for(" load http ");
    network.cut("beta");
    let output = lab.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("host `beta`"), "{text}");
    network.assert_nothing_is_left();
    assert_holds(&network.bundle());
}

#[test]
fn an_interrupted_experiment_leaves_nothing_on_any_host() {
    let Some(network) = Network::new() else { return };
    let lab = network.start(&[&LONG[..], &["--client-host", "beta"], &THERE].concat());
    network.wait_for(" load http ");
    kill(Pid::from_raw(lab.id() as i32), Signal::SIGINT).unwrap();
    let output = lab.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    // It waits for the agents, so nothing is left from the moment that it has ended.
    assert!(network.running().is_empty(), "{:?}", network.running());
    network.assert_nothing_is_left();
    let stored = json(&network.bundle().join("bundle.json"));
    assert_eq!(stored["state"]["is"], "interrupted", "{}", stored["state"]);
    assert_holds(&network.bundle());
}

#[test]
fn a_killed_lab_leaves_nothing_on_any_host() {
    let Some(network) = Network::new() else { return };
    let mut lab = network.start(&[&LONG[..], &["--client-host", "beta"], &THERE].concat());
    network.wait_for(" load http ");
    lab.kill().unwrap();
    lab.wait().unwrap();
    network.assert_nothing_is_left();
}

#[test]
fn a_host_that_cannot_be_used_is_an_error_that_says_why() {
    let Some(network) = Network::new() else { return };
    let short = [&["quick", "--protocol", "tcp"][..], &SHORT].concat();
    let fails = |arguments: &[&str], parts: &[&str]| {
        let output = network.lab(&[&short[..], arguments].concat());
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        network.assert_nothing_is_left();
    };
    let refused = ["host `stranger`", "there is no way to it", "Permission denied"];
    fails(&["--server-host", "stranger"], &refused);
    fails(&["--server-host", "no-such-host.invalid"], &["host `no-such-host.invalid`", "resolve"]);
    let missing = ["--server-host", "alpha", "--remote-binary", "/no/such/twinring"];
    fails(&missing, &["host `alpha`", "no program /no/such/twinring"]);
    let other = ["--server-host", "alpha", "--remote-binary", "/bin/false"];
    fails(&other, &["host `alpha`", "the agent did not start"]);
    let old = network.script(r#"echo '{"hello":{"protocol":"twinring.lab.agent/0"}}'"#);
    let old = ["--server-host", "alpha", "--remote-binary", &old];
    fails(&old, &["host `alpha`", "speaks twinring.lab.agent/0", "the same version"]);
    // Addresses: one that the server's host has not, and one that a client host cannot reach.
    let elsewhere = ["--server-host", "alpha", "--client-host", "beta", "--server-address"];
    let [foreign, own] =
        ["10.79.0.9", "127.0.0.1"].map(|ip| [&elsewhere[..], &[ip], &THERE].concat());
    fails(&foreign, &["host `alpha`", "cannot listen on 10.79.0.9", "--server-address"]);
    fails(&own, &["host `beta`", "cannot connect to the server's host at 127.0.0.1"]);
    // The user's options come before those of the lab.
    let ssh = format!("ssh -F {} -o Port=23 {{node}}", network.path("ssh_config").display());
    let port = ["--server-host", "alpha", "--connect", &ssh];
    fails(&port, &["host `alpha`", "Connection refused"]);
    assert!(!network.path("bundles").exists());
}

#[test]
fn what_cannot_be_measured_between_hosts_is_a_bad_argument() {
    for (arguments, part) in [
        (&["--server-host", "a", "--net", "rps"][..], "--net"),
        (&["--server-host", "a", "--client-host", "a"], "given twice"),
        (&["--client-host", "a", "--client-host", "b", "--connections", "1"], "1 x 128 B"),
        (&["--server-host", "a", "--placement", "close"], "--placement any"),
        (&["--server-address", "10.0.0.1"], "--server-host"),
        (&["--server-host", "a", "--connect", "ssh '{node}"], "--connect"),
        (&["--server-host", "a", "--connect", "ssh a"], "{node}"),
    ] {
        let run = ["lab", "run", "quick", "--protocol", "tcp"];
        let output = Command::new(BINARY).args(run).args(arguments).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}

/// The child of this process whose command line has these words.
fn child_of(parent: u32, words: &str) -> i32 {
    let children =
        fs::read_dir(format!("/proc/{parent}/task")).unwrap().flatten().flat_map(|task| {
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            list.split(' ').flat_map(str::parse::<i32>).collect::<Vec<_>>()
        });
    let has_words = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
    };
    children.into_iter().find(has_words).expect("the process")
}
