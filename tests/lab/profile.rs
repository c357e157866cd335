//! `lab run --profile` with our own servers, and our own counters against the kernel's.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::missing::missing;
use crate::support::assert_complete;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const TWINRING: &str = env!("CARGO_BIN_EXE_twinring");

/// How often the program may enter the kernel before its runtime counts: it tries out what the
/// kernel allows, with rings of their own. And after it: it ends.
const PROBED: u64 = 64;

/// Whether perf may count what is to be counted here; says why not.
fn perf_counts(events: &str) -> bool {
    let output = Command::new("perf").args(["stat", "-x,", "-e", events, "--", "true"]).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            missing("perf", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            missing("perf", error);
            false
        }
    }
}

/// A counter as `perf stat -x,` wrote it.
fn counted(text: &str, event: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(event)).expect("an event that was asked for");
    line.split(',').next().unwrap().parse().expect(line)
}

/// Serves an echo under perf from its first to its last system call, and returns its last line and
/// what perf counted.
fn echo_under_perf(engine: &str, events: &str, directory: &Path) -> (Value, String) {
    let file = directory.join("counts.csv");
    let mut perf = Command::new("perf")
        .args(["stat", "-x,", "-e", events, "-o"])
        .arg(&file)
        .args(["--", TWINRING, "serve", "echo", "--listen", "127.0.0.1:0", "--workers", "1"])
        .args(["--engine", engine, "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(perf.stdout.take().unwrap()).lines();
    let mut line = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let ready = line();
    let address = ready["listen"][0].as_str().unwrap();
    let load = || {
        let mut load = Command::new(TWINRING);
        load.args(["load", "tcp", address, "-c", "20", "-s", "128", "-d", "1s"]);
        load.args(["--warmup", "50ms", "--json"]).output().unwrap()
    };
    let load = load();
    assert!(load.status.success(), "{load:?}");
    let pid = ready["pid"].as_i64().unwrap() as i32;
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    let last = line();
    assert!(perf.wait().unwrap().success());
    (last, fs::read_to_string(file).unwrap())
}

/// Our own counters are what the syscall columns of all reports rest on.
#[test]
fn our_counters_agree_with_the_kernels() {
    let events = "raw_syscalls:sys_enter,syscalls:sys_enter_io_uring_enter,\
                  io_uring:io_uring_complete,syscalls:sys_enter_epoll_pwait2,\
                  syscalls:sys_enter_recvfrom,syscalls:sys_enter_sendto";
    if !perf_counts(events) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for engine in ["io_uring", "epoll"] {
        let (last, text) = echo_under_perf(engine, events, directory.path());
        let own = |name: &str| last["runtime_counters"][name].as_u64().unwrap();
        if last["engine"] != engine {
            missing("io_uring", format!("{last}"));
            continue;
        }
        // Beside the runtime, the program loads itself, reads its arguments, starts its threads.
        let all = counted(&text, "raw_syscalls:sys_enter");
        let (least, most) = (own("syscalls"), own("syscalls") + 600);
        assert!((least..=most).contains(&all), "{engine}: {all} calls, {least} by own count");
        let agree = |event: &str, name: &str| {
            let (kernel, own) = (counted(&text, event), own(name));
            // Beside other tests it may wait seldom.
            assert!(own > 20 && kernel.abs_diff(own) <= PROBED, "{event} {kernel}, {name} {own}");
        };
        if engine == "io_uring" {
            agree("sys_enter_io_uring_enter", "enters");
            agree("io_uring:io_uring_complete", "completions");
        } else {
            agree("sys_enter_epoll_pwait2", "waits");
            assert_eq!(own("enters"), 0);
        }
    }
}

/// The run of a server with a polling thread, and what was said.
fn polled() -> (Value, Output) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(TWINRING);
    command.args(["lab", "run", "quick", "--protocol", "tcp", "--sizes", "128", "--pairs", "1"]);
    command.args(["--spares", "0", "--window", "1", "--warmup", "0.1", "--no-prices", "--out"]);
    command.arg(directory.path()).args(["--rates", "1000", "--subject", "plain=io_uring"]);
    let output = command.args(["--subject", "polled=io_uring:sqpoll_idle_ms=50"]).output().unwrap();
    let bundle = fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
    let runs = fs::read_to_string(bundle.join("runs.jsonl")).unwrap();
    let runs: Vec<Value> = runs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let polled = runs.into_iter().find(|run| run["subject"] == "polled").unwrap();
    (polled, output)
}

/// Work of a polling thread is the server's, and is listed separately.
#[test]
fn the_polling_thread_of_io_uring_is_a_part_of_its_own() {
    let cpu_s = |thread: &Value| thread["cpu_s"].as_f64().unwrap();
    let polling_s = |polled: &Value| {
        let mut threads = polled["cpu"]["server"]["threads"].as_array()?.iter();
        Some(cpu_s(threads.find(|thread| thread["name"] == "iou-sqp")?))
    };
    let worked = |polled: &Value| polling_s(polled) > Some(0.0);
    let (polled, output) = polled();
    assert!(!polled["cpu"].is_null(), "{} {output:?}", polled["failures"]);
    let server = &polled["cpu"]["server"];
    assert!(worked(&polled), "{server}");
    // The process's clock has the time of every thread; all run on while the lab looks at one after the other.
    let threads = server["threads"].as_array().unwrap();
    let sum: f64 = threads.iter().map(cpu_s).sum();
    let looks = polled["cpu"]["server_cpu"]["look_us"].as_array().unwrap().iter();
    let looked_s = looks.map(|us| us.as_f64().unwrap() / 1e6).sum::<f64>();
    let apart = (sum - cpu_s(server)).abs();
    assert!(apart < 0.02 + 0.1 * sum + threads.len() as f64 * looked_s, "{server} {looked_s}");
}

/// An experiment of one short pair.
fn experiment(directory: &Path) -> PathBuf {
    let shown = Command::new(TWINRING).args(["lab", "show", "quick"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    let path = directory.join("short.toml");
    fs::write(&path, text).unwrap();
    path
}

fn profiled(directory: &Path, more: &[&str], path: Option<&str>) -> (Output, PathBuf) {
    let file = experiment(directory);
    let out = directory.join("bundles");
    let mut command = Command::new(TWINRING);
    command.args(["lab", "run"]).arg(file).arg("--profile").arg("--out").arg(&out);
    command.args(["--protocol", "tcp", "--sizes", "128", "--connections", "20", "--pairs", "1"]);
    command.args(["--spares", "0", "--window", "0.7", "--warmup", "0.2", "--no-prices"]);
    command.args(more);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().unwrap();
    let bundle = fs::read_dir(out).unwrap().next().unwrap().unwrap().path();
    (output, bundle)
}

#[test]
fn both_engines_are_profiled_and_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let (output, bundle) = profiled(directory.path(), &[], None);
    assert_complete(&output, &bundle);
    let text = fs::read_to_string(bundle.join("bundle.json")).unwrap();
    let profile = &serde_json::from_str::<Value>(&text).unwrap()["profile"];
    if profile["problems"].as_array().is_some_and(|problems| !problems.is_empty()) {
        missing("perf", &profile["problems"]);
        return;
    }
    let mut counted = 0;
    for run in profile["runs"].as_array().unwrap() {
        let subject = run["subject"].as_str().unwrap();
        let classes = &run["server"]["classes"];
        let of = |class: &str| classes[class].as_u64().unwrap_or(0);
        let (own, other) =
            if subject == "epoll" { ("epoll", "io_uring") } else { ("io_uring", "epoll") };
        // Beside other tests the server may hardly be seen, and theirs on its CPU.
        let crowded = of("other_processes") > of("network_stack");
        let too_few = of(own) + of(other) < 10 || crowded;
        assert!(of(own) >= of(other) || too_few, "{subject}: {classes}");
        assert!(of("network_stack") > 0 || too_few, "{subject}: {classes}");
        let events = &run["counts"]["events"];
        if events.is_null() {
            println!("nothing was answered where calls were counted: {run}");
            continue;
        }
        assert_eq!(events["io_uring_enter"].is_u64(), subject == "io_uring", "{events}");
        assert_eq!(events["epoll_pwait2"].is_u64(), subject == "epoll", "{events}");
        counted += 1;
    }
    assert!(counted > 0, "{profile}");
    let verified = Command::new(TWINRING).args(["lab", "verify"]).arg(&bundle).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let html = fs::read_to_string(bundle.join("report.html")).unwrap();
    assert!(html.contains("Profile: where the time goes"));
}

#[test]
fn without_perf_the_experiment_goes_on_and_says_what_to_install() {
    let directory = tempfile::tempdir().unwrap();
    let (output, bundle) = profiled(directory.path(), &["--rates", "100"], Some("/nonexistent"));
    assert_complete(&output, &bundle);
    for report in ["report.md", "report.html"] {
        let text = fs::read_to_string(bundle.join(report)).unwrap();
        assert!(text.contains("perf is not there") && text.contains("install"), "{text}");
    }
}
