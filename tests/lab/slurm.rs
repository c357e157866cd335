//! The batch script for Slurm on a real one: its daemons run here, with nodes that are all this
//! machine.

use crate::missing::{is_root, missing};
use crate::support::{bundle_in, lab, stored_runs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/slurm/twinring.sbatch");

struct Cluster {
    nodes: usize,
    /// Of a job, on the last of its nodes.
    servers: usize,
    daemons: Vec<Child>,
    directory: TempDir,
}

impl Cluster {
    fn new(nodes: usize) -> Option<Cluster> {
        if !is_root() {
            return None;
        }
        let programs =
            ["munged", "slurmctld", "slurmd"].map(|name| Path::new("/usr/sbin").join(name));
        if let Some(absent) = programs.iter().find(|program| !program.exists()) {
            missing("slurm", format!("no {}; install slurm-wlm and munge", absent.display()));
            return None;
        }
        let mut cluster = Cluster {
            servers: 1,
            nodes,
            daemons: Vec::new(),
            directory: tempfile::tempdir().expect("a directory"),
        };
        let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        fs::write(cluster.path("slurm.conf"), cluster.configuration(hostname.trim())).unwrap();
        let key = cluster.path("munge.key");
        fs::write(&key, [7; 1024]).unwrap();
        fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let files = ["munge.key", "socket", "munge.pid", "munge.log", "munge.seed"];
        let options = ["key-file", "socket", "pid-file", "log-file", "seed-file"];
        let option = |(option, file)| format!("--{option}={}", cluster.path(file).display());
        let munge: Vec<String> = options.into_iter().zip(files).map(option).collect();
        let munge = [&["--foreground", "--force"].map(str::to_owned)[..], &munge].concat();
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
        Some(cluster)
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
    fn submit(&self, window_s: &str, further: &[&str]) -> String {
        let arguments =
            ["--parsable", "--nodes", &self.nodes.to_string(), SCRIPT, "quick", "--protocol"];
        let run = ["tcp", "--connections", "16", "--sizes", "128", "--spares", "0"];
        let window = ["--no-prices", "--window", window_s, "--warmup", "0.2"];
        let exported = format!("--export=ALL,SERVERS={}", self.servers);
        let all = [&[&*exported][..], &arguments, &run, &window, further].concat();
        let output = self.command("sbatch", &all);
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

    /// Waits until a job has stored this many runs.
    fn wait_for_runs(&self, job: &str, count: usize) {
        self.wait_until("it measures", |it| {
            let text = || stored_runs(&it.path(&format!("bundles/job-{job}")));
            it.is_under_way(job) && text().lines().count() >= count
        });
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

fn stored(bundle: &Path) -> Value {
    let verified = lab(&["verify", bundle.to_str().unwrap()]);
    assert!(verified.status.success(), "{verified:?}");
    serde_json::from_slice(&fs::read(bundle.join("bundle.json")).unwrap()).unwrap()
}

#[test]
#[ignore = "needs Slurm"]
fn a_job_measures_on_its_nodes_and_a_signal_ends_it_in_order() {
    let Some(mut cluster) = Cluster::new(5) else { return };
    for (servers, order) in
        [(1, ["n5", "n1", "n2", "n3", "n4"]), (2, ["n4", "n5", "n1", "n2", "n3"])]
    {
        cluster.servers = servers;
        let job = cluster.submit("1", &["--pairs", "1"]);
        let said = cluster.end_of(&job);
        let bundle = stored(&cluster.bundle(&job));
        assert_eq!(bundle["state"]["is"], "complete", "{said}");
        let hosts = bundle["hosts"].as_array().unwrap();
        let names: Vec<&str> = hosts.iter().map(|host| host["name"].as_str().unwrap()).collect();
        assert_eq!(names, order, "{said}");
    }

    let job = cluster.submit("30", &["--pairs", "1"]);
    cluster.wait_for_runs(&job, 0);
    assert!(cluster.command("scancel", &["--signal=INT", "--batch", &job]).status.success());
    let said = cluster.end_of(&job);
    assert_eq!(stored(&cluster.bundle(&job))["state"]["is"], "interrupted", "{said}");
}

#[test]
#[ignore = "needs Slurm"]
fn a_job_that_is_requeued_resumes_its_bundle() {
    let Some(cluster) = Cluster::new(5) else { return };
    let job = cluster.submit("1", &["--pairs", "1"]);
    cluster.wait_for_runs(&job, 1);
    assert!(cluster.command("scontrol", &["requeue", &job]).status.success());
    // It is held back until its old credential has expired: cred_expire.
    let said = cluster.end_of(&job);
    let bundle = stored(&cluster.bundle(&job));
    assert_eq!(bundle["state"]["is"], "complete", "{said}");
    assert_eq!(bundle["resumed"].as_array().map(Vec::len), Some(1), "{said}");
    assert_ne!(bundle["resumed"][0]["from_run"], 0, "{said}");
}

/// The agent of a job on a node.
fn agent(job: &str, node: &str) -> Option<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let text = |name: &str| {
            let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let environment = text("environ");
        let has = |variable: String| environment.split('\0').any(|it| it == variable);
        text("cmdline").contains("\0lab-helper\0agent\0")
            && has(format!("SLURM_JOB_ID={job}"))
            && has(format!("SLURMD_NODENAME={node}"))
    })
}

#[test]
#[ignore = "needs Slurm"]
fn a_job_of_sixteen_load_generators_goes_on_without_two() {
    let Some(cluster) = Cluster::new(17) else { return };
    let job = cluster.submit("2", &["--pairs", "2", "--load-percent", "0", "--quorum", "14"]);
    cluster.wait_for_runs(&job, 1);
    let killed = ["n3", "n11"];
    for node in killed {
        let pid = agent(&job, node).expect("the agent of the node");
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
    let said = cluster.end_of(&job);
    let bundle = stored(&cluster.bundle(&job));
    assert_eq!(bundle["state"]["is"], "complete", "{said}");
    let lost = bundle["lost_hosts"].as_array().unwrap();
    let mut lost: Vec<&str> = lost.iter().map(|it| it["host"].as_str().unwrap()).collect();
    lost.sort_unstable();
    assert_eq!(lost, ["n11", "n3"], "{said}");
    let generators = bundle["summary"]["cells"][0]["load_generators"].as_array().unwrap();
    let counts: Vec<u64> = generators.iter().map(|it| it["count"].as_u64().unwrap()).collect();
    assert_eq!(counts, [16, 14], "{said}");
}
