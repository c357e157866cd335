//! More connections than memory (by RLIMIT_AS): those that fit are served, the others wait in the backlog, and all are
//! served when there is room again. What does not fit at the start is an error.

use crate::support::http::{Site, ask_on, get};
use crate::support::load::{command_by, finished};
use crate::support::tls::{Identity, encrypted};
use crate::support::*;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const TESTS: &[Test] = tests![
    too_few_descriptors_to_start_with_are_an_error,
    a_load_reports_missing_descriptors;
    engines:
    connections_beyond_the_memory_wait,
    pools_that_do_not_fit_are_errors_at_the_start
];

/// The memory that a service must leave for its existing connections.
const RESERVE_BYTES: u64 = 16 << 20;

/// Whether a client has the beginning of its answer.
fn is_served(client: &TcpStream, answer: &[u8]) -> bool {
    let mut bytes = vec![0; answer.len()];
    let length = match client.peek(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        length => length.expect("it is open").max(1).min(answer.len()),
    };
    assert_eq!(bytes[..length], answer[..length], "a connection was closed");
    length == answer.len()
}

/// While `test` runs, another client that was connected before asks every 2 ms, and is answered.
fn beside_another(server: &Server, test: impl FnOnce()) {
    let mut stream = connect(server.address());
    let is_echo = server.ready["service"] == "echo";
    let mut ask = |number| match is_echo {
        true => ping(&stream, &pattern(number, 1000)),
        false => assert_eq!(ask_on(&mut stream, &get("/hello.txt", "")).status, 200),
    };
    ask(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _at_the_end = AtTheEnd(&done);
        scope.spawn(|| {
            for number in (1..).take_while(|number| *number == 1 || !done.load(Relaxed)) {
                ask(number);
                thread::sleep(Duration::from_millis(2));
            }
        });
        test();
    });
}

fn connections_beyond_the_memory_wait(engine: &str) {
    testing::needs_descriptors(5_000);
    const CLIENTS: usize = 3000;
    let (site, identity) = (Site::usual(), Identity::new());
    let request = get("/large.bin", "");
    for (kind, opening, answer) in [
        ("echo", &b"echo"[..], &b"echo"[..]),
        ("http", request.as_bytes(), b"HTTP/1.1 200"),
        // Not even a whole record: a handshake that has begun.
        ("https", &[22, 3, 1, 2, 0, 1], b""),
    ] {
        let server = match kind {
            "echo" => Server::echo(engine, &[]),
            _ => Server::http(engine, site.path(), &identity.arguments()),
        };
        let address = if kind == "https" { encrypted(&server) } else { server.address() };
        let (before, memory_before) = (server.sockets(), server.memory_bytes());
        let all_are_let_in = || server.sockets() > before + CLIENTS;
        let maximum = getrlimit(Resource::As).maximum;
        let limit = |current| {
            let server = Pid::from_raw(server.pid() as i32);
            prlimit(server, Resource::As, Rlimit { current, maximum }).expect("our own server");
        };
        let mut memory_bytes = 0;
        beside_another(&server, || {
            // What RLIMIT_AS limits: everything that is mapped, used or not.
            let mapped = server.status("VmSize:");
            let mapped = mapped.trim_end_matches(" kB").parse::<u64>().expect("KiB") << 10;
            limit(Some(mapped + RESERVE_BYTES + (256 << 10)));
            let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| begin(address, opening)).collect();
            clients.iter().for_each(|it| it.set_nonblocking(true).expect("a socket"));
            wait_until("it says that memory runs short", || server.stderr().contains("memory"));
            thread::sleep(Duration::from_millis(200));
            assert!(server.sockets() > before + 1, "{engine} {kind}: nobody is let in");
            // Memory that it borrows for the answers to these requests comes back: then all may get in.
            let is_enough = kind != "http" && all_are_let_in();
            assert!(!is_enough, "{engine} {kind}: memory was enough for all");
            limit(maximum);
            wait_until("all are served", || clients.iter().all(|it| is_served(it, answer)));
            wait_until("all are let in", all_are_let_in);
            // What a worker takes once for its first connections with much to do.
            let kept = memory_before + server.pool_bytes() + (1 << 20);
            memory_bytes = server.memory_bytes().saturating_sub(kept);
        });
        if kind == "echo" {
            let each = memory_bytes / CLIENTS as u64;
            assert!(each <= 1536, "{engine}: {each} bytes of user memory per idle connection");
        }
        server.wait_for_sockets(before);
        let ended = server.end();
        assert_eq!(ended.stderr.matches("accepting is paused").count(), 1, "{}", ended.stderr);
    }
}

fn too_few_descriptors_to_start_with_are_an_error() {
    for service in ["echo", "udp"] {
        for descriptors in [4, 8, 9, 10, 11, 12] {
            let few = limited(&format!("-n {descriptors}"));
            let mut command = serving(few, service, "auto", &["--listen", "127.0.0.1:0"]);
            // If it does start, this ends it.
            let (code, _, told) = run_to_its_end(command.arg("--sandbox-check"));
            assert!(matches!(code, Some(0 | 1)), "{service}: {code:?} {told}");
            let is_named = told.contains("ulimit -n") || told.contains("open files");
            assert!(!told.contains("panicked") && (code == Some(0) || is_named), "{told}");
        }
    }
}

fn a_load_reports_missing_descriptors() {
    let server = Server::echo("epoll", &[]);
    let (target, few) = (server.address().to_string(), limited("-n 48"));
    let load = command_by(few, "auto", "tcp", &target, "-c 100 -d 300ms --warmup 100ms");
    let outcome = finished(load);
    let errors = outcome.errors();
    let said = outcome.result["first_error"].as_str().expect("a reason").to_owned();
    assert!(said.contains("Too many open files"), "{said}");
    assert!(matches!(&errors[..], [(kind, 1..100)] if kind == "connect"), "{errors:?}");
}

fn pools_that_do_not_fit_are_errors_at_the_start(engine: &str) {
    let flag = if engine == "io_uring" { "--uring" } else { "--epoll" };
    let pool = [flag, "buffer_count=32768,buffer_bytes=1048576"];
    let datagrams = ["--buffers", "32768", "--max-datagram", "65535"];
    for (service, pool) in [("echo", &pool[..]), ("udp", &datagrams[..])] {
        // 1 GiB.
        let listen = ["--listen", "127.0.0.1:0"];
        let mut command = serving(limited("-v 1048576"), service, engine, &listen);
        let words = ["no memory for 32768 receive buffers of", "ulimit -v"];
        assert_ended(command.args(pool), 1, &words);
    }
}
