//! The batch script for Slurm on a real one: its daemons run here, with nodes that are all this
//! machine.

use crate::support::bundle_in;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testing::{Test, long_tests};

pub(crate) const LONG_TESTS: &[Test] =
    long_tests![a_job_measures_from_its_nodes_and_a_signal_ends_it_in_order];

const PATIENCE: Duration = Duration::from_secs(60);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/slurm/twinring.sbatch");

struct Cluster {
    nodes: usize,
    daemons: Vec<Child>,
    directory: TempDir,
}

impl Cluster {
    fn new(nodes: usize) -> Cluster {
        testing::needs_root("it runs the daemons of Slurm");
        let programs =
            ["munged", "slurmctld", "slurmd"].map(|name| Path::new("/usr/sbin").join(name));
        if let Some(absent) = programs.iter().find(|program| !program.exists()) {
            let absent = absent.display();
            testing::needs("slurm", format_args!("no {absent}; install slurm-wlm and munge"));
        }
        let directory = tempfile::tempdir().expect("a directory");
        let mut cluster = Cluster { nodes, daemons: Vec::new(), directory };
        let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        fs::write(cluster.path("slurm.conf"), cluster.configuration(hostname.trim())).unwrap();
        let key = cluster.path("munge.key");
        fs::write(&key, [7; 1024]).unwrap();
        fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let options = ["key-file", "socket", "pid-file", "log-file", "seed-file"];
        let files = ["munge.key", "socket", "munge.pid", "munge.log", "munge.seed"];
        let option = |(option, file)| format!("--{option}={}", cluster.path(file).display());
        let munge = options.into_iter().zip(files).map(option);
        let munge: Vec<String> =
            ["-F".to_owned(), "-f".to_owned()].into_iter().chain(munge).collect();
        cluster.start("munged", &munge);
        cluster.wait_until("munged listens", |it| it.path("socket").exists());
        cluster.start("slurmctld", &["-D".to_owned(), "-c".to_owned()]);
        for node in 1..=nodes {
            fs::create_dir(cluster.path(&format!("spool.n{node}"))).unwrap();
            cluster.start("slurmd", &["-D", "-c", "-N", &format!("n{node}")].map(str::to_owned));
        }
        cluster.wait_until("all nodes are idle", |it| {
            let idle = it.command("sinfo", &["-h", "-t", "idle", "-o", "%D"]);
            String::from_utf8_lossy(&idle.stdout).trim() == nodes.to_string()
        });
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configuration(&self, hostname: &str) -> String {
        let directory = self.directory.path().display();
        // Held until all are chosen, so that none is chosen twice.
        let ports: Vec<TcpListener> =
            (0..=self.nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = ports.iter().map(|it| it.local_addr().unwrap().port()).collect();
        let node = |(index, port): (usize, &u16)| {
            format!(
                "NodeName=n{} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port} CPUs=1\n",
                index + 1
            )
        };
        let nodes: String = ports[1..].iter().enumerate().map(node).collect();
        format!(
            "ClusterName=test\nSlurmctldHost={hostname}(127.0.0.1)\nSlurmctldPort={}\n\
             AuthType=auth/munge\nAuthInfo=socket={directory}/socket,cred_expire=10\nSlurmUser=root\n\
             StateSaveLocation={directory}/state\nSlurmdSpoolDir={directory}/spool.%n\n\
             SlurmctldPidFile={directory}/slurmctld.pid\nSlurmdPidFile={directory}/slurmd.%n.pid\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nMpiDefault=none\nSwitchType=switch/none\n{nodes}\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            ports[0]
        )
    }

    fn start(&mut self, program: &str, arguments: &[String]) {
        let log = fs::File::create(self.path(&format!("log.{}", self.daemons.len()))).unwrap();
        let daemon = Command::new(Path::new("/usr/sbin").join(program))
            .args(arguments)
            .env("SLURM_CONF", self.path("slurm.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.daemons.push(daemon.unwrap());
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.path("slurm.conf"));
        command.env("TWINRING", env!("CARGO_BIN_EXE_twinring")).env("OUT", self.path("bundles"));
        command.current_dir(self.directory.path()).output().unwrap()
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Cluster) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "not in time: {what}; {}", self.logs());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn logs(&self) -> String {
        let entries = fs::read_dir(self.directory.path()).unwrap().flatten();
        let logs = entries.filter(|it| it.file_name().to_string_lossy().starts_with("log."));
        logs.map(|it| fs::read_to_string(it.path()).unwrap_or_default()).collect()
    }

    /// Submits a short run on all nodes.
    fn submit(&self, window_s: &str) -> String {
        let nodes = self.nodes.to_string();
        let arguments = ["--parsable", "--export=ALL", "--nodes", &nodes, SCRIPT, "quick"];
        let axes = ["--set", "connections=16", "--set", "bytes=128", "--set", "load_percent=0"];
        let run = ["--protocol", "tcp", "--pairs", "1", "--spares", "0", "--no-prices"];
        let window = ["--window", window_s, "--warmup", "0.2"];
        let output = self.command("sbatch", &[&arguments[..], &axes, &run, &window].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// What a job said, once it has ended.
    fn end_of(&self, job: &str) -> String {
        self.wait_until("the job ends", |it| !it.is_under_way(job));
        fs::read_to_string(self.path(&format!("slurm-{job}.out"))).unwrap_or_default()
    }

    /// The bundle of a job.
    fn bundle(&self, job: &str) -> PathBuf {
        bundle_in(&self.path(&format!("bundles/job-{job}")))
    }

    fn is_under_way(&self, job: &str) -> bool {
        let state = self.command("squeue", &["-h", "-j", job, "-t", "all", "-o", "%T"]).stdout;
        let state = String::from_utf8_lossy(&state).trim().to_owned();
        ["PENDING", "RUNNING", "COMPLETING", "CONFIGURING"].contains(&&*state)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.command("scancel", &["--user=root"]);
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn state(bundle: &Path) -> Value {
    let stored = fs::read(bundle.join("bundle.json")).unwrap();
    serde_json::from_slice::<Value>(&stored).unwrap()["state"]["is"].take()
}

fn a_job_measures_from_its_nodes_and_a_signal_ends_it_in_order() {
    let cluster = Cluster::new(5);
    let job = cluster.submit("1");
    let said = cluster.end_of(&job);
    let bundle = cluster.bundle(&job);
    assert_eq!(state(&bundle), "complete", "{said}");
    let runs = fs::read_to_string(bundle.join("runs.jsonl")).unwrap();
    let runs = runs.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    for run in runs {
        assert_eq!(run["failures"], serde_json::json!([]), "{said}{run}");
        let loads = run["loads"].as_array().unwrap();
        let connections = loads.iter().map(|load| load["settings"]["connections"].as_u64());
        assert_eq!(connections.collect::<Vec<_>>(), [Some(4); 4], "{run}");
    }

    let job = cluster.submit("30");
    let bundle_is_there = |it: &Cluster| {
        let bundles = fs::read_dir(it.path(&format!("bundles/job-{job}")));
        bundles.is_ok_and(|mut bundles| bundles.next().is_some())
    };
    cluster.wait_until("it measures", bundle_is_there);
    assert!(cluster.command("scancel", &["--signal=INT", "--batch", &job]).status.success());
    let said = cluster.end_of(&job);
    assert_eq!(state(&cluster.bundle(&job)), "interrupted", "{said}");
}
