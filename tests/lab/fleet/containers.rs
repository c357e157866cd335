//! Hosts that are containers of podman, all on the network of this machine.

use super::{BINARY, Fleet, clients, said, whole_blocks};
use crate::missing::{is_root, missing};
use crate::rootfs;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Where this program is in a container.
const INSIDE: &str = "/twinring";

/// Running containers, removed when dropped.
struct Containers {
    names: Vec<String>,
    root: TempDir,
}

fn podman(arguments: &[&str]) -> Output {
    Command::new("podman").args(["--runtime", "runc"]).args(arguments).output().expect("podman")
}

impl Containers {
    /// Starts one for each name; `None` if the test is skipped.
    fn start(names: Vec<String>) -> Option<Containers> {
        if !is_root() {
            return None;
        }
        if let Err(error) = Command::new("podman").arg("--version").output() {
            missing("podman", error);
            return None;
        }
        let containers = Containers { names, root: rootfs::make() };
        let program = format!("{BINARY}:{INSIDE}:ro");
        let root = containers.root.path().to_str().expect("a path");
        for name in &containers.names {
            let run = ["run", "--rm", "--detach", "--network", "host", "--name", name];
            // The defaults may be above what this machine allows, and the default profile refuses io_uring.
            let limits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"];
            let system = ["--security-opt", "seccomp=unconfined", "-v", "/usr:/usr:ro"];
            let rest = ["-v", &program, "--rootfs", root, "/bin/sleep", "600"];
            let output = podman(&[&run[..], &limits, &system, &rest].concat());
            assert!(output.status.success(), "{}", said(&output));
        }
        Some(containers)
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        podman(&[&["rm", "--force", "--ignore", "--time", "0"], &names[..]].concat());
    }
}

#[test]
fn of_eight_containers_one_is_killed_and_the_experiment_goes_on() {
    let mut fleet = Fleet::new(7);
    // Other tests may have containers of their own.
    let prefix = format!("twinring-{}", std::process::id());
    let hosts = (0..7).map(|client| format!("c{client:02}")).chain(["server".to_owned()]);
    let names = hosts.map(|host| format!("{prefix}-{host}")).collect();
    let Some(_containers) = Containers::start(names) else { return };
    fleet.binary = INSIDE;
    fleet.connect = format!(
        "podman exec -i --env FLEET={} --env HOST={{node}} {prefix}-{{node}}",
        fleet.directory.path().display()
    );
    let mut running = fleet.begin(&["--pairs", "2", "--quorum", "80%"]);
    // The second run of the first block.
    fleet.wait_for_run(&mut running, 1);
    let killed = podman(&["kill", &format!("{prefix}-c03")]);
    assert!(killed.status.success(), "{}", said(&killed));
    let (text, stored) = fleet.complete(running);
    let lost = stored["lost_hosts"].as_array().unwrap();
    assert!(lost.len() == 1 && lost[0]["host"] == "c03", "{text}");
    let runs = fleet.runs();
    // podman may take longer than a run to kill.
    let counts: Vec<usize> = runs.iter().map(|run| clients(run).len()).collect();
    assert!(counts.starts_with(&[7]) && counts.ends_with(&[6]), "{counts:?} {text}");
    assert!(counts.is_sorted_by(|before, after| before >= after), "{counts:?} {text}");
    assert_eq!(whole_blocks(&runs, 7).len(), 2, "{text}");
    // Each load generator was in a container of its own.
    let programs = stored["hosts"].as_array().unwrap().iter();
    let paths: Vec<&str> = programs.map(|it| it["binary"]["path"].as_str().unwrap()).collect();
    assert_eq!(paths, [INSIDE; 8], "{stored}");
}
