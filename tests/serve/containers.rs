//! Servers in containers: with the default profile, which forbids io_uring, and with the one that
//! `twinring seccomp` prints.

use crate::sandbox::PARTS;
use crate::support::*;
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    the_printed_profile_permits_no_process;
    engines:
    servers_run_in_containers_with_the_printed_profile,
    the_probe_names_the_container_that_refuses_and_its_remedy
];

/// podman passes signals on once it is attached, which may be after the first output, and dies of
/// them before.
const ATTACHED: Duration = Duration::from_secs(1);

/// A root directory whose programs and libraries are those of this machine, and the profile.
struct Root(TempDir);

impl Root {
    fn new() -> Root {
        testing::needs_root("it makes containers");
        testing::needs_program("podman");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        for name in ["proc", "sys", "dev", "etc", "run", "tmp", "usr"] {
            fs::create_dir(path.join(name)).expect("a directory");
        }
        for name in ["bin", "lib", "lib64"] {
            std::os::unix::fs::symlink(format!("usr/{name}"), path.join(name)).expect("a link");
        }
        for name in ["etc/passwd", "etc/group", "etc/ld.so.cache"] {
            fs::copy(format!("/{name}"), path.join(name)).expect("a file");
        }
        fs::write(path.join("etc/os-release"), "ID=test\n").expect("a file");
        fs::create_dir(path.join("site")).expect("a directory");
        fs::write(path.join("site/index.html"), "hello").expect("a file");
        fs::write(path.join("oci.json"), profile("oci")).expect("a file");
        Root(directory)
    }

    /// `podman run` with these options, on the network of this machine. runc, as it is also what
    /// Docker and containerd use.
    fn podman(&self, options: &[&str], program: &str) -> Command {
        let mut command = Command::new("podman");
        command.args(["--runtime", "runc", "run", "--rm", "--network", "host"]);
        // The defaults may be above what this machine allows.
        command.args(["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]);
        command.args(["-v", "/usr:/usr:ro", "-v", &format!("{TWINRING}:/twinring:ro")]);
        command.args(options).arg("--rootfs").arg(self.0.path()).arg(program);
        command
    }

    fn with_the_profile(&self, options: &[&str], program: &str) -> Command {
        let profile = self.0.path().join("oci.json");
        let option = format!("--security-opt=seccomp={}", profile.display());
        self.podman(&[&[option.as_str()], options].concat(), program)
    }

    fn nspawn(&self, filter: &str) -> Command {
        let mut command = Command::new("systemd-nspawn");
        command.args(["--quiet", "--register=no", "--keep-unit", "--bind-ro=/usr"]);
        command.arg(format!("--bind-ro={TWINRING}:/twinring"));
        command.arg(format!("--system-call-filter={filter}"));
        command.arg("--directory").arg(self.0.path()).arg("/twinring");
        command
    }
}

fn profile(format: &str) -> String {
    let (code, profile, stderr) = run(&["seccomp", format]);
    assert_eq!(code, Some(0), "{stderr}");
    profile
}

/// The line of `twinring probe --json` in that container.
fn probe(mut container: Command) -> Value {
    let (code, line, stderr) = run_to_its_end(container.args(["probe", "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&line).expect("a JSON line")
}

/// All parts of the sandbox are on that were on without the container.
fn assert_sandboxed(ready: &Value, outside: &Value) {
    for part in PARTS {
        let on = |line: &Value| line["sandbox"][part]["on"].as_bool();
        assert_eq!(on(ready), on(outside), "{part}: {ready}");
    }
}

fn servers_run_in_containers_with_the_printed_profile(engine: &str) {
    let root = Root::new();
    let outside = Server::echo(engine, &[]).ready.clone();
    let http = ["http", "--root", "/site", "--access-log", "/tmp/log", "--user", "nobody"];
    let echo = ["echo", "--workers", "2", "--admin", "127.0.0.1:0"];
    for (options, service) in [
        (&[][..], &echo[..]),
        (&["--security-opt=no-new-privileges"], &echo),
        (&["--user=65534:65534"], &echo),
        (&[], &http),
        (&[], &["udp", "--user", "nobody"]),
    ] {
        let command = root.with_the_profile(options, "/twinring");
        let arguments = [&["--listen", "127.0.0.1:0"], &service[1..]].concat();
        let server = Server::spawn(serving(command, service[0], engine, &arguments));
        assert_eq!(server.ready["engine"], engine);
        assert_sandboxed(&server.ready, &outside);
        if service == echo {
            ping(&connect(server.address()), b"hello");
        }
        thread::sleep(ATTACHED);
        let ended = server.terminate();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!ended.stderr.contains("refused the system call"), "{}", ended.stderr);
    }
}

fn the_printed_profile_permits_no_process() {
    let root = Root::new();
    let mut shell = root.with_the_profile(&[], "/bin/sh");
    let (code, _, told) = run_to_its_end(shell.args(["-c", "ls /; echo no process"]));
    assert!(told.contains("fork") && code != Some(0), "{code:?} {told}");
}

fn the_probe_names_the_container_that_refuses_and_its_remedy(engine: &str) {
    testing::needs_program("systemd-nspawn");
    let root = Root::new();
    let refused = probe(root.podman(&[], "/twinring"));
    assert_eq!(refused["environment"]["container"], "podman");
    // Some releases of podman allow io_uring by default.
    if refused["verdict"]["state"] == "refused" {
        assert_eq!(refused["refusal"]["layer"], "seccomp", "{refused}");
        let fix = refused["refusal"]["fix"].as_str().expect("a remedy");
        assert!(fix.contains("twinring seccomp oci > FILE"), "{fix}");
        assert!(fix.contains("podman run --security-opt seccomp=FILE"), "{fix}");
    }
    let allowed = probe(root.with_the_profile(&[], "/twinring"));
    assert_ne!(allowed["verdict"]["state"], "refused", "{allowed}");
    assert_eq!(allowed["epoll_pwait2"], true, "{allowed}");
    let refused = probe(root.nspawn("~io_uring_setup"));
    assert_eq!(refused["environment"]["container"], "nspawn");
    assert_eq!(refused["refusal"]["layer"], "seccomp", "{refused}");
    let fix = refused["refusal"]["fix"].as_str().expect("a remedy");
    assert!(fix.contains("twinring seccomp nspawn"), "{fix}");
    let lines = profile("nspawn");
    let lines = lines.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let allowed = lines.collect::<Vec<_>>().join(" ");
    assert_ne!(probe(root.nspawn(&allowed))["verdict"]["state"], "refused");
    let nspawn = root.nspawn(&allowed);
    let server = Server::spawn(serving(nspawn, "echo", engine, &["--listen", "127.0.0.1:0"]));
    assert_eq!(server.ready["engine"], engine);
    assert_sandboxed(&server.ready, &Server::echo(engine, &[]).ready);
    ping(&connect(server.address()), b"hello");
    // Killed, systemd-nspawn would leave it behind.
    server.terminate();
}
