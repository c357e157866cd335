//! More connections than descriptors or memory (by RLIMIT_AS): those that fit are served, the others wait in the
//! backlog, and all are served when there is room again. What does not fit at the start is an error.

use crate::support::http::{Site, ask_on, get};
use crate::support::load::{command, finished};
use crate::support::tls::Identity;
use crate::support::*;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const TESTS: &[Test] =
    tests![too_few_descriptors_to_start_with_are_an_error, a_load_reports_missing_descriptors];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    connections_without_a_descriptor_wait,
    connections_beyond_the_memory_wait,
    pools_that_do_not_fit_are_errors_at_the_start,
];

const DESCRIPTORS: u64 = 48;

/// The memory that a service must leave for its existing connections.
const RESERVE_BYTES: u64 = 16 << 20;

/// Sets limits of a running server; false without CAP_SYS_RESOURCE, if the hard one is raised.
fn limit(server: &Server, resource: Resource, current: Option<u64>, maximum: Option<u64>) -> bool {
    prlimit(Pid::from_raw(server.pid() as i32), resource, Rlimit { current, maximum }).is_ok()
}

/// What RLIMIT_AS limits: everything that is mapped, used or not.
fn address_space_bytes(server: &Server) -> u64 {
    server.status("VmSize:").trim_end_matches(" kB").parse::<u64>().expect("KiB") << 10
}

/// A server, and what its clients say first.
struct Setup {
    server: Server,
    /// Where clients connect to, and another one that is there before them.
    addresses: [SocketAddr; 2],
    opening: Vec<u8>,
    /// The beginning of the answer to that.
    answer: &'static [u8],
    _site: Site,
}

impl Setup {
    fn new(kind: &str, command: Command, engine: &str) -> Setup {
        let (site, identity) = (Site::usual(), Identity::new());
        let server = match kind {
            "echo" => Server::spawn(serving(command, kind, engine, &["--listen", "127.0.0.1:0"])),
            _ => Server::http_by(command, engine, site.path(), &identity.arguments()),
        };
        let (opening, answer, at) = match kind {
            "echo" => (b"echo".to_vec(), &b"echo"[..], 0),
            // 200 or, without a descriptor for the file, 503.
            "http" => (get("/large.bin", "").into_bytes(), &b"HTTP/1.1 "[..], 0),
            // Not even a whole record: a handshake that has begun.
            _ => (vec![22, 3, 1, 2, 0, 1], &b""[..], 1),
        };
        let addresses = [server.addresses()[at], server.address()];
        Setup { server, addresses, opening, answer, _site: site }
    }

    /// Clients that connect and send their request, and wait for the answer.
    fn arrive(&self, count: usize) -> Vec<TcpStream> {
        let arrive = |_| {
            let stream = begin(self.addresses[0], &self.opening);
            stream.set_nonblocking(true).expect("a socket");
            stream
        };
        (0..count).map(arrive).collect()
    }

    /// Of these clients, those that still wait, and those that are served.
    fn sort(&self, waiting: Vec<TcpStream>) -> (Vec<TcpStream>, Vec<TcpStream>) {
        waiting.into_iter().partition(|stream| {
            let mut bytes = vec![0; self.answer.len()];
            let length = match stream.peek(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                length => length.expect("it is open").max(1),
            };
            let length = length.min(bytes.len());
            assert_eq!(bytes[..length], self.answer[..length], "a connection was closed");
            length < bytes.len()
        })
    }

    /// Waits until all of these are served at the same time.
    fn wait_for_all(&self, mut waiting: Vec<TcpStream>) -> Vec<TcpStream> {
        let mut all = Vec::new();
        wait_until("all are served", || {
            let (others, served) = self.sort(std::mem::take(&mut waiting));
            waiting = others;
            all.extend(served);
            waiting.is_empty()
        });
        all
    }

    fn wait_for_the_end_of_all(&self) {
        let listeners = self.server.addresses().len();
        self.server.wait_for_sockets(SOCKETS_WITHOUT_CONNECTIONS - 1 + listeners);
    }

    /// While `test` runs, another client that was connected before asks every 2 ms, and is answered.
    fn beside_another(&self, test: impl FnOnce()) {
        let mut stream = connect(self.addresses[1]);
        let mut ask = |number| match self.answer {
            b"echo" => ping(&stream, &pattern(number, 1000)),
            _ => {
                let status = ask_on(&mut stream, &get("/hello.txt", "")).status;
                assert!(number > 0 && status == 503 || status == 200, "{status}");
            }
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
}

fn connections_without_a_descriptor_wait(engine: &str) {
    testing::needs_descriptors(500);
    const CLIENTS: usize = 120;
    for kind in ["echo", "http"] {
        let setup = Setup::new(kind, limited(&format!("-n {DESCRIPTORS}")), engine);
        let server = &setup.server;
        let has_run_out = || server.descriptors() as u64 >= DESCRIPTORS - 2;
        setup.beside_another(|| {
            let clients = setup.arrive(CLIENTS);
            wait_until("it says so", || server.stderr().contains("ulimit -n"));
            wait_until("it has taken what it can", has_run_out);
            let (mut waiting, served) = setup.sort(clients);
            assert!(!waiting.is_empty(), "descriptors were enough for all");
            // Descriptors return because clients disconnect.
            drop(served);
            wait_until("all are served, some at a time", || {
                waiting = setup.sort(std::mem::take(&mut waiting)).0;
                waiting.is_empty()
            });
            // Descriptors return because the limit is raised: all clients are connected at once.
            let waiting = setup.arrive(CLIENTS);
            wait_until("it has run out again", has_run_out);
            // Root of a container often lacks CAP_SYS_RESOURCE; the rest needs no privilege.
            if limit(server, Resource::Nofile, Some(4096), Some(4096)) {
                setup.wait_for_all(waiting);
            }
        });
        setup.wait_for_the_end_of_all();
        let ended = setup.server.end();
        let stalls = ended.last["runtime_counters"]["accept_stalls"].as_u64().expect("a counter");
        assert!(stalls > 0 && ended.stderr.matches("ulimit -n").count() == 1, "{}", ended.stderr);
    }
}

fn connections_beyond_the_memory_wait(engine: &str) {
    testing::needs_descriptors(5_000);
    const CLIENTS: usize = 3000;
    for kind in ["echo", "http", "https"] {
        let setup = Setup::new(kind, twinring(), engine);
        let server = &setup.server;
        let (before, memory_before) = (server.sockets(), server.memory_bytes());
        let memory_bytes = std::cell::Cell::new(0);
        let all_are_let_in = || server.sockets() > before + CLIENTS;
        setup.beside_another(|| {
            let most = address_space_bytes(server) + RESERVE_BYTES + (256 << 10);
            let maximum = getrlimit(Resource::As).maximum;
            assert!(limit(server, Resource::As, Some(most), maximum));
            let waiting = setup.arrive(CLIENTS);
            wait_until("it says that memory runs short", || server.stderr().contains("memory"));
            thread::sleep(Duration::from_millis(200));
            assert!(server.sockets() > before + 1, "{engine} {kind}: nobody is let in");
            // Memory that it borrows for the answers to these requests comes back: then all may get in.
            assert!(
                kind == "http" || !all_are_let_in(),
                "{engine} {kind}: memory was enough for all"
            );
            // With memory again, all are accepted.
            assert!(limit(server, Resource::As, maximum, maximum));
            let _all = setup.wait_for_all(waiting);
            wait_until("all are let in", all_are_let_in);
            let kept = memory_before + server.pool_bytes() + ONCE_BYTES;
            memory_bytes.set(server.memory_bytes().saturating_sub(kept));
        });
        if kind == "echo" {
            let each = memory_bytes.get() / CLIENTS as u64;
            assert!(each <= 1536, "{engine}: {each} bytes of user memory per idle connection");
        }
        setup.wait_for_the_end_of_all();
        let ended = setup.server.end();
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
            if told.contains("error while loading shared libraries") {
                // The parent left a descriptor open to this process, and so to the server.
                continue;
            }
            assert!(matches!(code, Some(0 | 1)), "{service}: {code:?} {told}");
            let is_named = told.contains("ulimit -n") || told.contains("open files");
            assert!(!told.contains("panicked") && (code == Some(0) || is_named), "{told}");
        }
    }
}

fn a_load_reports_missing_descriptors() {
    let server = Server::echo("epoll", &[]);
    let target = server.address().to_string();
    let load = command("auto", "tcp", &target, "-c 100 -d 300ms --warmup 100ms");
    let mut command = limited(&format!("-n {DESCRIPTORS}"));
    command.args(load.get_args()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finished(command);
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
        let (code, stdout, told) = run_to_its_end(command.args(pool));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{engine} {service}: {told}");
        let last = told.lines().last().expect("a reason");
        assert!(last.contains("no memory for 32768 receive buffers of"), "{told}");
        assert!(last.contains("ulimit -v"), "{told}");
    }
}
