//! Many load generators, of which some are lost. Their agents run here, each behind a pipe of its own.

mod containers;

use crate::support::{assert_complete, bundle_in, lab, stored_runs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_twinring");
const PATIENCE: Duration = Duration::from_secs(120);

/// The load generator of the built-in experiments.
const LOAD: &str = r#""{twinring}", "load", "tcp", "{addr}", "{options}", "-c", "{connections}",
    "-s", "{message_bytes}", "--depth", "{depth}", "-d", "{window_ms}ms", "--warmup", "{warmup_ms}ms",
    "--threads", "1", "--pin", "{client_cpu}", "--engine", "epoll", "--json""#;

/// Hosts that are processes of this machine. What runs on them carries the name of the host and of this fleet.
struct Fleet {
    directory: TempDir,
    servers: Vec<&'static str>,
    clients: usize,
    /// Leads to a host.
    connect: String,
    /// Where this program is on each host.
    binary: &'static str,
}

impl Fleet {
    fn new(clients: usize) -> Fleet {
        let directory = tempfile::tempdir().unwrap();
        let connect = format!("env FLEET={} HOST={{node}}", directory.path().display());
        Fleet { directory, servers: vec!["server"], clients, connect, binary: BINARY }
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("bundles")
    }

    /// What a lab said that went on to its end, and its bundle.
    fn complete(&self, running: Child) -> (String, Value) {
        let output = running.wait_with_output().unwrap();
        let bundle = bundle_in(&self.out());
        assert_complete(&output, &bundle);
        self.assert_nothing_is_left();
        (said(&output), verified(&bundle))
    }

    /// Arguments that name the hosts and lead to them.
    fn hosts(&self) -> Vec<String> {
        let program = ["--remote-binary", self.binary, "--connect", &self.connect];
        let mut words: Vec<String> = program.map(str::to_owned).to_vec();
        for server in &self.servers {
            let server = ["--server-host", server, "--server-address", "127.0.0.1"];
            words.extend(server.map(str::to_owned));
        }
        for client in 0..self.clients {
            words.extend(["--client-host".to_owned(), format!("c{client:02}")]);
        }
        words
    }

    /// Starts `lab run` on all hosts, with few requests: they share the CPUs of this machine.
    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new(BINARY);
        command.args(["lab", "run"]).args(arguments).args(self.hosts());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts an experiment of one cell.
    fn begin(&self, arguments: &[&str]) -> Child {
        let out = self.out().display().to_string();
        let experiment = self.experiment();
        self.start(&[&[&*experiment, "--out", &out], arguments].concat())
    }

    /// The file of an experiment in which each load generator has one connection and asks 20 times a second.
    fn experiment(&self) -> String {
        let (connections, rate_per_s) = (self.clients, 20 * self.clients);
        let text = format!(
            "schema = \"twinring.lab.experiment/3\"\nname = \"fleet\"\npairs = 1\nspare_pairs = 0\n\
             warmup_s = 0.5\nwindow_s = 1.0\n[tcp]\nconnections = [{connections}]\n\
             message_bytes = [128]\nrate_per_s = [{rate_per_s}]\nload = [{LOAD}]\n\
             [[subjects]]\nname = \"epoll\"\nengine = \"epoll\"\n\
             [[subjects]]\nname = \"io_uring\"\nengine = \"io_uring\"\n"
        );
        let path = self.directory.path().join("fleet.toml");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Processes of these hosts, each with its host and its command line.
    fn running(&self) -> Vec<(i32, String, String)> {
        let mark = format!("FLEET={}", self.directory.path().display());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let of_ours = |pid: i32| {
            let bytes = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
            let environment = String::from_utf8_lossy(&bytes("environ")?).into_owned();
            let mut variables = environment.split('\0');
            variables.clone().find(|it| *it == mark)?;
            let host = variables.find_map(|it| it.strip_prefix("HOST="))?.to_owned();
            Some((pid, host, String::from_utf8_lossy(&bytes("cmdline")?).replace('\0', " ")))
        };
        pids.filter_map(of_ours).collect()
    }

    /// Kills the agent of a host, as if its node had lost its power.
    fn kill(&self, host: &str) {
        let is_agent =
            |it: &&(i32, String, String)| it.1 == host && it.2.contains("lab-helper agent");
        let running = self.running();
        let (pid, ..) = running.iter().find(is_agent).unwrap_or_else(|| panic!("{running:?}"));
        kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
    }

    /// The runs that are stored by now.
    fn runs(&self) -> Vec<Value> {
        let text = stored_runs(&self.out());
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until so many runs are stored and load generators run in a further one.
    fn wait_for_run(&self, lab: &mut Child, number: usize) {
        let is_on = || {
            let loads = self.running().into_iter().filter(|it| it.2.contains(" load tcp "));
            self.runs().len() == number && loads.count() > 0
        };
        wait_until("a run is on", || {
            assert!(lab.try_wait().unwrap().is_none(), "the lab has ended");
            is_on()
        });
    }

    fn assert_nothing_is_left(&self) {
        wait_until("all have ended", || self.running().is_empty());
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// The load generators of a run.
fn clients(run: &Value) -> BTreeSet<String> {
    let hosts = run["hosts"].as_array().unwrap().iter().skip(1);
    hosts.map(|host| host["host"].as_str().unwrap().to_owned()).collect()
}

/// Checks that both runs of each block had the same load generators, which shared the whole load. Returns the blocks
/// that came to their end.
fn whole_blocks(runs: &[Value], connections: u64) -> Vec<&[Value]> {
    let blocks: Vec<&[Value]> = runs.chunk_by(|a, b| a["block"] == b["block"]).collect();
    for block in &blocks {
        for run in *block {
            assert_eq!(clients(run), clients(&block[0]), "{run}");
            let parts = run["clients"].as_array().unwrap();
            assert_eq!(parts.len(), clients(run).len(), "{run}");
            let is_held =
                |part: &Value| part["command"].as_array().unwrap().contains(&"--hold".into());
            assert!(parts.iter().all(is_held), "{run}");
            let told = |part: &Value| part["load"]["settings"]["connections"].as_u64();
            let all: Option<Vec<u64>> = parts.iter().map(told).collect();
            assert!(all.is_none_or(|all| all.iter().sum::<u64>() == connections), "{run}");
        }
    }
    blocks.into_iter().filter(|block| block.len() == 2).collect()
}

fn verified(bundle: &Path) -> Value {
    let verified = lab(&["verify", bundle.to_str().unwrap()]);
    assert!(verified.status.success(), "{}", said(&verified));
    serde_json::from_slice(&fs::read(bundle.join("bundle.json")).unwrap()).unwrap()
}

/// Every load generator of a run with the address that it asks.
fn asked(run: &Value) -> Vec<&str> {
    let parts = run["clients"].as_array().unwrap().iter();
    parts.map(|part| part["command"][3].as_str().unwrap()).collect()
}

/// Different hosts each time, which a failed test names.
fn two_at_random(clients: usize) -> [String; 2] {
    let seed = std::process::id() as usize;
    let first = seed % clients;
    let second = (first + 1 + seed / clients % (clients - 1)) % clients;
    [first, second].map(|number| format!("c{number:02}"))
}

#[test]
fn of_sixteen_load_generators_two_are_killed_and_the_experiment_goes_on() {
    let fleet = Fleet::new(16);
    let mut running = fleet.begin(&["--pairs", "3", "--quorum", "80%"]);
    let killed = two_at_random(16);
    // The second run of the first block.
    fleet.wait_for_run(&mut running, 1);
    killed.iter().for_each(|host| fleet.kill(host));
    let (text, stored) = fleet.complete(running);
    let lost = stored["lost_hosts"].as_array().unwrap();
    let names: BTreeSet<&str> = lost.iter().map(|it| it["host"].as_str().unwrap()).collect();
    assert_eq!(names, killed.iter().map(String::as_str).collect(), "{text}");
    assert!(lost.iter().all(|it| it["from_run"] == 1), "{lost:?}");
    let runs = fleet.runs();
    let whole = whole_blocks(&runs, 16);
    assert_eq!(whole.len(), 3, "{text}");
    // The run before the loss has no partner and keeps its number.
    assert_eq!(
        (clients(&runs[0]).len(), &runs[0]["block"], &runs[1]["block"]),
        (16, &0.into(), &1.into())
    );
    for run in &runs[1..] {
        assert_eq!(clients(run).len(), 14, "{run}");
        assert!(killed.iter().all(|host| !clients(run).contains(host)), "{run}");
    }
    let report = fs::read_to_string(bundle_in(&fleet.out()).join("report.md")).unwrap();
    assert!(report.contains("from block 1 on 14 of 16 load generators"), "{report}");
}

#[test]
fn several_servers_have_load_generators_of_their_own_and_are_added() {
    let mut fleet = Fleet::new(5);
    fleet.servers = vec!["first", "second"];
    let mut running = fleet.begin(&["--pairs", "2", "--quorum", "4"]);
    // The second run of the first block.
    fleet.wait_for_run(&mut running, 1);
    fleet.kill("c00");
    let (text, stored) = fleet.complete(running);
    let roles: Vec<&str> =
        stored["hosts"].as_array().unwrap().iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["server", "server", "client", "client", "client", "client", "client"]);
    let runs = fleet.runs();
    assert_eq!(runs.len(), 5, "{text}");
    for (number, run) in runs.iter().enumerate() {
        let hosts = run["hosts"].as_array().unwrap();
        assert_eq!([&hosts[0]["host"], &hosts[1]["host"]], ["first", "second"], "{run}");
        let further = run["further_servers"].as_array().unwrap();
        assert!(further.len() == 1 && further[0]["host"] == "second", "{run}");
        let addresses = [&run["ready"], &further[0]["ready"]].map(|it| {
            let address = it["listen"][0].as_str();
            address.unwrap_or_else(|| panic!("{it}"))
        });
        assert_ne!(addresses[0], addresses[1]);
        // In turn, also when one was lost.
        let load_generators = if number == 0 { 5 } else { 4 };
        let in_turn: Vec<&str> = addresses.iter().copied().cycle().take(load_generators).collect();
        assert_eq!(asked(run), in_turn, "{run}");
        let servers = run["cpu"]["between_hosts"]["servers"].as_array().unwrap();
        assert_eq!(servers.len(), 2, "{run}");
        let busy_s: f64 = servers.iter().map(|it| it["cpu"]["busy_s"].as_f64().unwrap()).sum();
        assert!((busy_s - run["cpu"]["server_cpu"]["busy_s"].as_f64().unwrap()).abs() < 1e-6);
        // Both served: they counted all five connections together.
        let accepted = |line: &Value| {
            line["service_counters"]["accepted"].as_f64().unwrap_or_else(|| panic!("{line}"))
        };
        let served = [&run["server_final"], &further[0]["server_final"]].map(accepted);
        assert!(served.iter().all(|it| *it >= 2.0), "{served:?}");
        assert_eq!(served.iter().sum::<f64>(), 5.0, "{run}");
        assert!([&run["server_exit"], &further[0]["exit"]].iter().all(|it| it["code"] == 0));
    }
    let report = fs::read_to_string(bundle_in(&fleet.out()).join("report.md")).unwrap();
    assert!(report.contains("server second (127.0.0.1)"), "{report}");
    assert!(
        report.contains("2 servers, to which load generators are assigned in turn"),
        "{report}"
    );
}

#[test]
fn without_one_of_its_servers_an_experiment_ends() {
    let mut fleet = Fleet::new(2);
    fleet.servers = vec!["first", "second"];
    let mut running = fleet.begin(&["--pairs", "2", "--quorum", "1"]);
    fleet.wait_for_run(&mut running, 1);
    fleet.kill("second");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("host `second`"), "{}", said(&output));
    fleet.assert_nothing_is_left();
    let bundle = bundle_in(&fleet.out());
    assert_eq!(verified(&bundle)["state"]["is"], "failed");

    // With one server, later blocks would be of other work than those that are there.
    fleet.servers = vec!["first"];
    let resume = ["--resume", bundle.to_str().unwrap()];
    let output = fleet.start(&resume).wait_with_output().unwrap();
    assert!(said(&output).contains("with another number of servers"), "{}", said(&output));
    fleet.servers = vec!["first", "second"];
    let output = fleet.start(&resume).wait_with_output().unwrap();
    assert_complete(&output, &bundle);
    fleet.assert_nothing_is_left();
}

#[test]
fn below_the_quorum_the_experiment_ends_and_is_resumed_with_the_hosts_that_are_there() {
    let fleet = Fleet::new(3);
    let mut running = fleet.begin(&["--pairs", "2", "--quorum", "2"]);
    fleet.wait_for_run(&mut running, 1);
    fleet.kill("c00");
    // The first run of the second block.
    fleet.wait_for_run(&mut running, 3);
    fleet.kill("c02");
    let output = running.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("host `c02`") && text.contains("1 client host is left"), "{text}");
    assert!(text.contains("the quorum is 2"), "{text}");
    fleet.assert_nothing_is_left();
    let bundle = bundle_in(&fleet.out());
    assert_eq!(verified(&bundle)["state"]["is"], "failed");
    let before = fleet.runs();

    let resume = ["--resume", bundle.to_str().unwrap()];
    let alone = lab(&[&["run"], &resume[..]].concat());
    assert!(said(&alone).contains("it is between hosts; give --server-host"), "{}", said(&alone));
    let output = fleet.start(&resume).wait_with_output().unwrap();
    assert_complete(&output, &bundle);
    fleet.assert_nothing_is_left();
    let stored = verified(&bundle);
    assert_eq!(stored["resumed"][0]["from_run"], before.len(), "{stored}");
    assert_eq!(stored["resumed"][0]["before"]["is"], "failed", "{stored}");
    let runs = fleet.runs();
    assert_eq!(runs[..before.len()], before);
    // One block of three hosts that was cut, one of two, and one of three again.
    let generators: Vec<usize> = runs.iter().map(|run| clients(run).len()).collect();
    assert_eq!(generators, [3, 2, 2, 3, 3], "{}", said(&output));
    assert_eq!(whole_blocks(&runs, 3).len(), 2, "{}", said(&output));
    let of_cell = stored["summary"]["cells"][0]["load_generators"].as_array().unwrap();
    let counts: Vec<u64> = of_cell.iter().map(|it| it["count"].as_u64().unwrap()).collect();
    assert_eq!(counts, [3, 2, 3], "{stored}");
}

#[test]
fn hosts_that_are_not_there_from_the_start_are_lost_or_end_it() {
    let fleet = Fleet::new(3);
    // There is no such program on one of them.
    let broken = format!(
        "sh -c 'test {{node}} = c01 && exit 9; exec env FLEET={} HOST={{node}} \"$@\"' sh",
        fleet.directory.path().display()
    );
    let begin = |quorum: &[&str]| {
        let mut hosts = fleet.hosts();
        let at = hosts.iter().position(|word| word == "--connect").unwrap() + 1;
        hosts[at].clone_from(&broken);
        let out = fleet.out();
        let mut command = Command::new(BINARY);
        command.args(["lab", "run", &fleet.experiment()]).args(quorum).args(hosts);
        command.arg("--out").arg(out).output().unwrap()
    };
    for (quorum, part) in [(&[][..], "no way to it"), (&["--quorum", "3"], "the quorum is 3")] {
        let output = begin(quorum);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let text = said(&output);
        assert!(text.contains("host `c01`") && text.contains(part), "{text}");
        assert!(!fleet.out().exists());
    }
    let output = begin(&["--quorum", "60%"]);
    let bundle = bundle_in(&fleet.out());
    assert_complete(&output, &bundle);
    let stored = verified(&bundle);
    assert_eq!(stored["lost_hosts"][0]["host"], "c01", "{stored}");
    assert!(fleet.runs().iter().all(|run| clients(run).len() == 2));
    fleet.assert_nothing_is_left();
}

#[test]
fn a_quorum_that_cannot_be_met_is_a_bad_argument() {
    let hosts = ["--client-host", "a", "--client-host", "b"];
    for (arguments, part) in [
        (&["--quorum", "3"][..], "2 at most"),
        (&["--quorum", "0"], "80%"),
        (
            &["--server-host", "c", "--server-host", "d", "--server-host", "e"],
            "a load generator or more",
        ),
        (&["--server-host", "c", "--server-host", "a"], "given twice"),
        (&["--server-address", "10.0.0.1", "--server-address", "10.0.0.2"], "an address for each"),
        (&["--quorum", "101%"], "80%"),
        (&["--resume", "x", "--pairs", "3"], "cannot be used with"),
        (&["--resume", "x", "--add", "y"], "cannot be used with"),
    ] {
        let name = if arguments.contains(&"--resume") { vec![] } else { vec!["quick"] };
        let output = lab(&[&["run"], &name[..], arguments, &hosts].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{arguments:?}: {}", said(&output));
    }
    let output = lab(&["run", "quick", "--quorum", "3"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("are for other hosts"), "{}", said(&output));
}
