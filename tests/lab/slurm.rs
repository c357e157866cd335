//! The batch script for Slurm on a real one: its daemons run here, with nodes that are all this
//! machine.

use crate::measured::bundle_in;
use crate::support::*;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

pub(crate) const LONG_TESTS: &[Test] =
    long_tests![a_job_measures_from_its_nodes_and_a_signal_ends_it_in_order];

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/slurm/twinring.sbatch");

struct Cluster {
    nodes: usize,
    daemons: Vec<Child>,
    directory: TempDir,
}

impl Cluster {
    fn new(nodes: usize) -> Cluster {
        testing::needs_root("it runs the daemons of Slurm");
        ["munged", "slurmctld", "slurmd"].into_iter().for_each(testing::needs_program);
        let directory = tempfile::tempdir().expect("a directory");
        let mut cluster = Cluster { nodes, daemons: Vec::new(), directory };
        fs::write(cluster.path("slurm.conf"), cluster.configuration()).unwrap();
        let key = cluster.path("key-file");
        fs::write(&key, [7; 1024]).unwrap();
        fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let options = ["key-file", "socket", "pid-file", "log-file", "seed-file"];
        let options = options.map(|it| format!("--{it}={}", cluster.path(it).display()));
        cluster.start("munged", &[&["-F", "-f"], &options.each_ref().map(|it| &**it)[..]].concat());
        cluster.wait_until("munged listens", |it| it.path("socket").exists());
        cluster.start("slurmctld", &["-D", "-c"]);
        for node in 1..=nodes {
            fs::create_dir(cluster.path(&format!("spool.n{node}"))).unwrap();
            cluster.start("slurmd", &["-D", "-c", "-N", &format!("n{node}")]);
        }
        cluster.wait_until("all nodes are idle", |it| {
            it.said_by("sinfo", &["-h", "-t", "idle", "-o", "%D"]) == nodes.to_string()
        });
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configuration(&self) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        // Held until all are chosen, so that none is chosen twice.
        let ports = (0..=self.nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports: Vec<TcpListener> = ports.collect();
        let ports: Vec<u16> = ports.iter().map(|it| it.local_addr().unwrap().port()).collect();
        let node = |(number, port): (usize, &u16)| {
            let name = format!("NodeName=n{number} NodeHostname=HOST NodeAddr=127.0.0.1");
            format!("{name} Port={port} CPUs=1\n")
        };
        let nodes: String = (1..).zip(&ports[1..]).map(node).collect();
        let text = include_str!("slurm.conf").replace("PORT", &ports[0].to_string()) + &nodes;
        let directory = self.directory.path().display().to_string();
        text.replace("DIR", &directory).replace("HOST", host.trim())
    }

    fn start(&mut self, program: &str, arguments: &[&str]) {
        let log = fs::File::create(self.path(&format!("log.{}", self.daemons.len()))).unwrap();
        let mut daemon = Command::new(program);
        daemon.args(arguments).env("SLURM_CONF", self.path("slurm.conf"));
        daemon.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(daemon.spawn().unwrap());
    }

    /// What a command says, which has to succeed.
    fn said_by(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.path("slurm.conf"));
        command.env("TWINRING", TWINRING).env("OUT", self.path("bundles"));
        let output = command.current_dir(self.directory.path()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Cluster) -> bool) {
        let deadline = Instant::now() + 2 * PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "not in time: {what}; {}", self.logs());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn logs(&self) -> String {
        let logs = (0..self.daemons.len()).map(|number| self.path(&format!("log.{number}")));
        logs.map(|it| fs::read_to_string(it).unwrap_or_default()).collect()
    }

    /// Submits a short run on all nodes.
    fn submit(&self, window_s: &str) -> String {
        let nodes = self.nodes.to_string();
        let job = ["--parsable", "--export=ALL", "--nodes", &nodes, SCRIPT, "quick"];
        let run = "--set connections=16 --set bytes=128 --set load_percent=0 --protocol tcp \
                   --pairs 1 --spares 0 --no-prices --warmup 0.2 --window";
        let run: Vec<&str> = run.split_whitespace().chain([window_s]).collect();
        let job = self.said_by("sbatch", &[&job[..], &run].concat());
        assert!(!job.is_empty(), "nothing was submitted; {}", self.logs());
        job
    }

    /// What a job said, once it has ended.
    fn end_of(&self, job: &str) -> String {
        self.wait_until("the job ends", |it| {
            let state = it.said_by("squeue", &["-h", "-j", job, "-t", "all", "-o", "%T"]);
            !["PENDING", "RUNNING", "COMPLETING", "CONFIGURING"].contains(&&*state)
        });
        fs::read_to_string(self.path(&format!("slurm-{job}.out"))).unwrap_or_default()
    }

    /// The bundle of a job.
    fn bundle(&self, job: &str) -> PathBuf {
        bundle_in(&self.path(&format!("bundles/job-{job}")))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.said_by("scancel", &["--user=root"]);
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
    cluster.said_by("scancel", &["--signal=INT", "--batch", &job]);
    let said = cluster.end_of(&job);
    assert_eq!(state(&cluster.bundle(&job)), "interrupted", "{said}");
}
