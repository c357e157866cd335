//! What the kernel counts of a server: no thread of an idle one runs, and its own counters, on which the system calls of
//! every comparison rest, agree with the kernel's.

use crate::support::datagrams::{client, reflected};
use crate::support::http::{Site, ask_on, get};
use crate::support::tls::Identity;
use crate::support::*;

pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![a_server_without_traffic_sleeps, our_counters_agree_with_the_kernels];

/// What happened last has its echoes: a worker ticks for a moment, idle sockets are checked once for a lost
/// reset, and once for what their peers took.
const SETTLING: Duration = Duration::from_secs(4);
const WATCHED: Duration = Duration::from_secs(4);
const WINDOWS: usize = 3;
const RUNS_MAX: u64 = 2;
const CONNECTIONS: usize = 100;

/// How often threads of a server were given a CPU so far.
fn runs(server: &Server) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    let runs = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("schedstat")).expect("CONFIG_SCHED_INFO");
        let count = stat.split_whitespace().nth(2).expect("time slices");
        count.parse::<u64>().expect("a number")
    };
    tasks.flatten().map(runs).sum()
}

/// `serve udp` woke 1,000 times a second for its ticks, `serve http` once a second to sweep over its
/// connections, also without any.
fn a_server_without_traffic_sleeps(engine: &str) {
    let site = Site::usual();
    let (log, identity) = (site.file("access.log"), Identity::new());
    let all = ["--admin", "127.0.0.1:0", "--access-log", &log];
    let all = [&all[..], &identity.arguments()].concat();
    let mut servers = vec![
        ("udp", Server::udp(engine, &["--workers", "2"])),
        ("echo", Server::echo(engine, &["--workers", "2"])),
        ("echo with a timeout", Server::echo(engine, &["--idle-timeout", "1s"])),
        ("http", Server::http(engine, site.path(), &["--workers", "2"])),
        ("http with all", Server::http(engine, site.path(), &all)),
        ("echo with connections", Server::echo(engine, &[])),
        ("http with connections", Server::http(engine, site.path(), &all)),
    ];
    let address = |name: &str| servers.iter().find(|it| it.0 == name).expect(name).1.address();
    let (udp, echo, http) =
        (address("udp"), address("echo with connections"), address("http with connections"));
    let open = |_| {
        let [echo, mut http] = [echo, http].map(connect);
        ping(&echo, b"once");
        assert_eq!(ask_on(&mut http, &get("/", "")).status, 200);
        [echo, http]
    };
    let _connections: Vec<_> = (0..CONNECTIONS).map(open).collect();
    reflected(&client(udp), b"once");
    thread::sleep(SETTLING);
    // Preempted once more, a thread counts as run; on a busy machine that says nothing. What wakes up
    // by itself does so in every window.
    for _ in 0..WINDOWS {
        let before: Vec<u64> = servers.iter().map(|(_, server)| runs(server)).collect();
        thread::sleep(WATCHED);
        let mut before = before.into_iter();
        servers.retain(|(_, server)| runs(server) - before.next().expect("one each") > RUNS_MAX);
        if servers.is_empty() {
            return;
        }
    }
    let awake: Vec<_> = servers.iter().map(|(service, _)| service).collect();
    panic!("{engine}: threads ran in each window: {awake:?}");
}

/// How often the program may enter the kernel before its runtime counts: it tries out what the
/// kernel allows, with rings of their own. And after it: it ends.
const PROBED: u64 = 64;

fn needs_perf(events: &str) {
    testing::needs_program("perf");
    let mut perf = Command::new("perf");
    let (code, _, told) = run_to_its_end(perf.args(["stat", "-x,", "-e", events, "--", "true"]));
    if code != Some(0) {
        testing::needs("perf", told);
    }
}

/// A counter as `perf stat -x,` wrote it.
fn counted(text: &str, event: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(event)).expect("an event that was asked for");
    line.split(',').next().unwrap().parse().expect(line)
}

/// Serves an echo under perf from its first to its last system call, and returns its last line and
/// what perf counted.
fn echo_under_perf(engine: &str, events: &str, file: &Path) -> (Value, String) {
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x,", "-e", events, "-o"]).arg(file);
    perf.args(["--", env!("CARGO_BIN_EXE_twinring")]);
    let server = Server::spawn(serving(perf, "echo", engine, &["--listen", "127.0.0.1:0"]));
    let address = server.address().to_string();
    let load = ["load", "tcp", &address, "-c", "20", "-s", "128", "-d", "1s", "--warmup", "50ms"];
    let (code, _, told) = run(&load);
    assert_eq!(code, Some(0), "{told}");
    let pid = server.ready["pid"].as_i64().unwrap() as i32;
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    (server.wait().last, fs::read_to_string(file).unwrap())
}

fn our_counters_agree_with_the_kernels(engine: &str) {
    let events = "raw_syscalls:sys_enter,syscalls:sys_enter_io_uring_enter,\
                  io_uring:io_uring_complete,syscalls:sys_enter_epoll_pwait2,\
                  syscalls:sys_enter_epoll_pwait,syscalls:sys_enter_recvfrom,syscalls:sys_enter_sendto";
    needs_perf(events);
    let directory = tempfile::tempdir().unwrap();
    let (last, text) = echo_under_perf(engine, events, &directory.path().join("counts"));
    let own = |name: &str| last["runtime_counters"][name].as_u64().unwrap();
    assert_eq!(last["engine"], engine);
    // Beside the runtime, the program loads itself, reads its arguments, starts its threads.
    let all = counted(&text, "raw_syscalls:sys_enter");
    let (least, most) = (own("syscalls"), own("syscalls") + 600);
    assert!((least..=most).contains(&all), "{all} calls, {least} by own count");
    let agree = |events: &[&str], name: &str| {
        let kernel = events.iter().map(|event| counted(&text, event)).sum::<u64>();
        let own = own(name);
        // Beside other tests it may wait seldom.
        assert!(own > 20 && kernel.abs_diff(own) <= PROBED, "{events:?} {kernel}, {name} {own}");
    };
    if engine == "io_uring" {
        agree(&["sys_enter_io_uring_enter"], "enters");
        agree(&["io_uring:io_uring_complete"], "completions");
    } else {
        agree(&["sys_enter_epoll_pwait2", "sys_enter_epoll_pwait,"], "waits");
        assert_eq!(own("enters"), 0);
    }
}
