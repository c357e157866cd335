//! Hosts for a test: network namespaces on a bridge, with a real sshd in each. They share the file
//! system and the process ids of this machine, so whatever is left behind can be seen.

use crate::missing::{is_root, missing};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const BINARY: &str = env!("CARGO_BIN_EXE_twinring");

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, with its own /sys and /run.
struct Namespace(Sender<Job>);

impl Namespace {
    fn new() -> Result<Namespace, String> {
        let (jobs, inbox) = channel::<Job>();
        let (ready, entered) = channel();
        thread::spawn(move || {
            ready.send(enter()).unwrap();
            inbox.into_iter().for_each(|job| job());
        });
        entered.recv().unwrap().map(|()| Namespace(jobs))
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.0.send(Box::new(move || done.send(job()).unwrap())).unwrap();
        result.recv().unwrap()
    }

    /// Runs a command of iproute2 there.
    fn ip(&self, arguments: &str) -> Result<(), String> {
        let words: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        let output = self.run(move || Command::new("ip").args(words).output());
        let output = output.map_err(|error| format!("ip: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

fn enter() -> Result<(), String> {
    let why = |what: &'static str| move |errno: nix::Error| format!("{what}: {errno}");
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).map_err(why("unshare"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing).map_err(why("private mounts"))?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), nothing).map_err(why("/sys"))?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), nothing).map_err(why("/run"))?;
    // Where sshd puts the process that has not logged in yet.
    fs::create_dir("/run/sshd").map_err(|error| format!("/run/sshd: {error}"))
}

/// The hosts `alpha`, `beta` and `gamma`, and a place for the lab that reaches them.
pub(crate) struct Network {
    hub: Namespace,
    _hosts: Vec<Namespace>,
    sshd: Vec<Child>,
    directory: TempDir,
}

pub(crate) const HOSTS: [&str; 3] = ["alpha", "beta", "gamma"];

impl Network {
    /// Makes the hosts, or says why that cannot be done here.
    pub(crate) fn new() -> Option<Network> {
        if !is_root() {
            return None;
        }
        match Network::make() {
            Ok(network) => Some(network),
            Err(why) => {
                missing("sshd", why);
                None
            }
        }
    }

    fn make() -> Result<Network, String> {
        let sshd = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
        let sshd = sshd.into_iter().find(|path| Path::new(path).exists());
        let sshd = sshd.ok_or("no sshd; install openssh-server")?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let hub = Namespace::new()?;
        let mut network = Network { hub, _hosts: Vec::new(), sshd: Vec::new(), directory };
        for name in ["key", "stranger", "host_key"] {
            network.make_key(name)?;
        }
        network.write("authorized", &fs::read_to_string(network.path("key.pub")).unwrap());
        network.hub.ip("link set lo up")?;
        network.hub.ip("link add hub0 type bridge")?;
        network.hub.ip("addr add 10.79.0.1/24 dev hub0")?;
        network.hub.ip("link set hub0 up")?;
        for (index, name) in HOSTS.iter().enumerate() {
            network.add_host(sshd, name, index + 2)?;
        }
        network.write_client_configuration();
        Ok(network)
    }

    fn make_key(&self, name: &str) -> Result<(), String> {
        let path = self.path(name);
        let mut command = Command::new("ssh-keygen");
        let made = command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
        let made = made.map_err(|error| format!("ssh-keygen: {error}"))?;
        made.success().then_some(()).ok_or_else(|| "ssh-keygen failed".to_owned())
    }

    fn add_host(&mut self, sshd: &'static str, name: &str, number: usize) -> Result<(), String> {
        let host = Namespace::new()?;
        for directory in [self.cache(name), self.temporary(name)] {
            fs::create_dir(directory).unwrap();
        }
        let of = |name: &str| self.path(name).display().to_string();
        let configuration = self.write(
            &format!("sshd_{name}"),
            &format!(
                "Port 22\nListenAddress 0.0.0.0\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
                 ClientAliveInterval 5\nClientAliveCountMax 2\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\nLogLevel ERROR\n\
                 SetEnv {}\n",
                of("host_key"),
                of("authorized"),
                self.environment(name)
            ),
        );
        let log = self.path(&format!("log_{name}"));
        let child = host.run(move || {
            let mut command = Command::new(sshd);
            command.args(["-D", "-f"]).arg(configuration).arg("-E").arg(log);
            // What outlives a test must not hold the pipes of the test's own output.
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        });
        let child = child.map_err(|error| format!("sshd: {error}"))?;
        let pid = child.id();
        self.sshd.push(child);
        let device = format!("to{number}");
        self.hub.ip(&format!("link add {device} type veth peer name eth0 netns {pid}"))?;
        self.hub.ip(&format!("link set {device} master hub0 up"))?;
        host.ip("link set lo up")?;
        host.ip(&format!("addr add 10.79.0.{number}/24 dev eth0"))?;
        host.ip("link set eth0 up")?;
        self._hosts.push(host);
        let deadline = Instant::now() + PATIENCE;
        let address = ([10, 79, 0, number as u8], 22).into();
        let is_up =
            move || std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
        while !self.hub.run(is_up) {
            if Instant::now() > deadline {
                return Err(format!("the sshd of {name} does not answer"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn write_client_configuration(&self) {
        let of = |name: &str| self.path(name).display().to_string();
        let hosts: String = HOSTS
            .iter()
            .enumerate()
            .map(|(index, name)| format!("Host {name}\n  HostName 10.79.0.{}\n", index + 2))
            .collect();
        self.write(
            "ssh_config",
            &format!(
                "{hosts}Host stranger\n  HostName 10.79.0.2\n  IdentityFile {}\n\
                 Host {}\n  IdentityFile {}\n\
                 Host *\n  User root\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  \
                 GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking accept-new\n  \
                 LogLevel ERROR\n",
                of("stranger"),
                HOSTS.join(" "),
                of("key"),
                of("known_hosts")
            ),
        );
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// A program made of this line.
    pub(crate) fn script(&self, line: &str) -> String {
        let path = self.write("script", &format!("#!/bin/sh\n{line}\n"));
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        path.display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where a host keeps copied programs.
    pub(crate) fn cache(&self, host: &str) -> PathBuf {
        self.path(&format!("cache_{host}"))
    }

    /// A process in the namespace of a host.
    pub(crate) fn process_on(&self, index: usize) -> u32 {
        self.sshd[index].id()
    }

    /// What sshd sets for those who log in on a host.
    pub(crate) fn environment(&self, host: &str) -> String {
        let (cache, temporary) = (self.cache(host), self.temporary(host));
        format!("XDG_CACHE_HOME={} TMPDIR={}", cache.display(), temporary.display())
    }

    fn temporary(&self, host: &str) -> PathBuf {
        self.path(&format!("tmp_{host}"))
    }

    /// Cuts the cable of a host: nothing is closed, nothing comes through any more.
    pub(crate) fn cut(&self, host: &str) {
        let index = HOSTS.iter().position(|name| *name == host).unwrap();
        self.hub.ip(&format!("link set to{} down", index + 2)).unwrap();
    }

    /// Starts `lab run` with these arguments; its bundles go to a directory of this network.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let ssh = format!("ssh -F {} {{node}}", self.path("ssh_config").display());
        let mut command = Command::new(BINARY);
        command.args(["lab", "run"]).args(arguments);
        if !arguments.contains(&"--connect") {
            command.args(["--connect", &ssh]);
        }
        command.arg("--out");
        command.arg(self.path("bundles")).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.hub.run(move || command.spawn()).unwrap()
    }

    /// Runs `lab run` to its end.
    pub(crate) fn lab(&self, arguments: &[&str]) -> Output {
        self.start(arguments).wait_with_output().unwrap()
    }

    /// The bundle that was written last.
    pub(crate) fn bundle(&self) -> PathBuf {
        let mut bundles: Vec<PathBuf> = fs::read_dir(self.path("bundles"))
            .expect("bundles")
            .map(|entry| entry.unwrap().path())
            .collect();
        bundles.sort_by_key(|path| fs::metadata(path).unwrap().created().unwrap());
        bundles.pop().expect("a bundle was written")
    }

    /// Command lines of all that runs on the hosts, except for sshd itself.
    pub(crate) fn running(&self) -> Vec<(i32, String)> {
        let mark = self.directory.path().display().to_string();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let of_ours = |pid: i32| {
            let text = |name: &str| {
                let bytes = fs::read(format!("/proc/{pid}/{name}")).ok()?;
                Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
            };
            let command = text("cmdline")?;
            let on_a_host = text("environ")?.contains(&format!("TMPDIR={mark}"));
            on_a_host.then_some((pid, command))
        };
        pids.filter_map(of_ours).collect()
    }

    /// Waits until something of these words runs on a host.
    pub(crate) fn wait_for(&self, words: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.running().iter().any(|(_, command)| command.contains(words)) {
            assert!(Instant::now() < deadline, "no {words} in {:?}", self.running());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Nothing runs on any host any more, and the agents' files are gone.
    pub(crate) fn assert_nothing_is_left(&self) {
        let files = || {
            let list = |host: &&str| fs::read_dir(self.temporary(host)).unwrap().flatten();
            HOSTS.iter().flat_map(list).map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let deadline = Instant::now() + PATIENCE;
        while !self.running().is_empty() || !files().is_empty() {
            assert!(Instant::now() < deadline, "left: {:?} {:?}", self.running(), files());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for sshd in &mut self.sshd {
            let _ = sshd.kill();
            let _ = sshd.wait();
        }
    }
}
