//! The runtime's own counters, on which the system calls of every comparison rest, beside those of the kernel.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![our_counters_agree_with_the_kernels];

const TWINRING: &str = env!("CARGO_BIN_EXE_twinring");

/// How often the program may enter the kernel before its runtime counts: it tries out what the
/// kernel allows, with rings of their own. And after it: it ends.
const PROBED: u64 = 64;

fn needs_perf(events: &str) {
    let output = Command::new("perf").args(["stat", "-x,", "-e", events, "--", "true"]).output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => testing::needs("perf", String::from_utf8_lossy(&output.stderr)),
        Err(error) => testing::needs("perf", error),
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

fn our_counters_agree_with_the_kernels(engine: &str) {
    let events = "raw_syscalls:sys_enter,syscalls:sys_enter_io_uring_enter,\
                  io_uring:io_uring_complete,syscalls:sys_enter_epoll_pwait2,\
                  syscalls:sys_enter_recvfrom,syscalls:sys_enter_sendto";
    needs_perf(events);
    let directory = tempfile::tempdir().unwrap();
    let (last, text) = echo_under_perf(engine, events, directory.path());
    let own = |name: &str| last["runtime_counters"][name].as_u64().unwrap();
    assert_eq!(last["engine"], engine);
    // Beside the runtime, the program loads itself, reads its arguments, starts its threads.
    let all = counted(&text, "raw_syscalls:sys_enter");
    let (least, most) = (own("syscalls"), own("syscalls") + 600);
    assert!((least..=most).contains(&all), "{all} calls, {least} by own count");
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
