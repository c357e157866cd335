//! Too little memory, by RLIMIT_AS: resources that do not fit at the start are an error; memory
//! that connections need later is kept in reserve, and without it no new connection is accepted.

use crate::clients::{KINDS, Kind, Setup, beside_another};
use crate::limits::{TESTS_DESCRIPTORS, Usage, clients_leave_nothing, limit};
use crate::support::datagrams::{client, reflected};
use crate::support::http::get;
use crate::support::{
    PATIENCE, Server, assert_same, connect, limited, pattern, run_to_its_end, serving, twinring,
    wait_until,
};
use rustix::process::Resource;
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    pools_that_do_not_fit_are_errors_at_the_start,
    connections_beyond_the_memory_wait,
    a_reflector_of_many_sources_keeps_within_its_memory
];

/// The memory that a service must leave for its existing connections.
const RESERVE_BYTES: u64 = 16 << 20;

/// As for descriptors.
const TOLERANCE_BYTES: u64 = 4 << 20;

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

/// Clients that have connected and sent a request: those that wait for the answer, and those that
/// have it.
struct Arrivals {
    waiting: Vec<(u64, TcpStream)>,
    served: Vec<TcpStream>,
}

impl Arrivals {
    fn new(address: SocketAddr, count: u64, say: impl Fn(u64) -> Vec<u8>) -> Arrivals {
        let arrive = |number| {
            let mut stream = connect(address);
            stream.write_all(&say(number)).expect("room in a socket");
            stream.set_nonblocking(true).expect("a socket");
            (number, stream)
        };
        Arrivals { waiting: (0..count).map(arrive).collect(), served: Vec::new() }
    }

    /// Checks all waiting clients once.
    fn look(&mut self, expected: &impl Fn(u64) -> Vec<u8>) {
        for (number, mut stream) in std::mem::take(&mut self.waiting) {
            let mut bytes = vec![0; expected(number).len()];
            match stream.peek(&mut bytes) {
                Ok(length) if length == bytes.len() => {
                    assert_same(&bytes, &expected(number));
                    stream.read_exact(&mut bytes).expect("it was there");
                    self.served.push(stream);
                }
                Ok(0) => panic!("connection {number} was closed"),
                Ok(_) => self.waiting.push((number, stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.waiting.push((number, stream));
                }
                Err(error) => panic!("connection {number}: {error}"),
            }
        }
    }
}

/// The first request of a client of this kind, and the beginning of its answer.
fn opening(kind: Kind, number: u64) -> (Vec<u8>, Vec<u8>) {
    match kind {
        Kind::Echo => (pattern(number, 300), pattern(number, 300)),
        Kind::Http => (get("/hello.txt", "").into_bytes(), b"HTTP/1.1 200 OK\r\n".to_vec()),
        // Not even a whole record: a handshake that has begun.
        Kind::Https => (vec![22, 3, 1, 2, 0, 1], Vec::new()),
    }
}

fn exhaust(kind: Kind, engine: &str) {
    let (count, spare_bytes) = (3000, 256 << 10);
    let setup = Setup::start(twinring(), kind, engine, &[]);
    let (server, target) = (&setup.server, &setup.target);
    let say = |number| opening(kind, number).0;
    let answer = |number| opening(kind, number).1;
    let mut other = target.connect();
    assert!(other.ask(0));
    let before_clients = server.descriptors();
    let all_are_let_in = || server.descriptors() + 1 >= before_clients + count as usize;
    beside_another(
        move |number| other.ask(number),
        || {
            let most = server.address_space_bytes() + RESERVE_BYTES + spare_bytes;
            limit(server, Resource::As, Some(most));
            let mut clients = Arrivals::new(target.address, count, say);
            wait_until("it says that memory runs short", || server.stderr().contains("memory"));
            std::thread::sleep(Duration::from_millis(200));
            clients.look(&answer);
            assert!(server.descriptors() > before_clients, "{engine} {kind:?}: nobody is let in");
            assert!(!all_are_let_in(), "{engine} {kind:?}: memory was enough for all");
            // With memory again, all are accepted.
            limit(server, Resource::As, None);
            wait_until("all are served", || {
                clients.look(&answer);
                clients.waiting.is_empty() || kind == Kind::Https && all_are_let_in()
            });
        },
    );
    // Again without a limit: the memory left behind by clients that were all accepted.
    clients_leave_nothing(TOLERANCE_BYTES, || {
        let clients = Arrivals::new(target.address, count, say);
        wait_until("all are let in", all_are_let_in);
        drop(clients);
        Usage::at_rest(server, setup.listeners)
    });
    let ended = setup.server.end();
    assert_eq!(ended.stderr.matches("accepting is paused").count(), 1, "{}", ended.stderr);
}

fn connections_beyond_the_memory_wait(engine: &str) {
    testing::needs_descriptors(TESTS_DESCRIPTORS);
    KINDS.into_iter().for_each(|kind| exhaust(kind, engine));
}

fn a_reflector_of_many_sources_keeps_within_its_memory(engine: &str) {
    const SOURCES: u32 = 20_000;
    let server = Server::udp(engine, &["--max-rate-per-source", "2000"]);
    let address = server.address();
    let own = client(address);
    reflected(&own, b"warm");
    limit(&server, Resource::As, Some(server.address_space_bytes() + RESERVE_BYTES));
    let ask = move |number| {
        reflected(&own, &pattern(number, 100));
        true
    };
    beside_another(ask, || {
        for first in (0..SOURCES).step_by(250) {
            let sources: Vec<UdpSocket> =
                (first..first + 250).map(|n| source(n, address)).collect();
            for source in &sources {
                source.send(&pattern(1, 64)).expect("room");
            }
            for source in &sources {
                assert_eq!(source.recv(&mut [0; 100]).expect("an answer"), 64);
            }
        }
    });
    assert!(server.end().count("sent") > u64::from(SOURCES));
}

/// A client with an address of its own in 127.0.0.0/8.
fn source(number: u32, server: SocketAddr) -> UdpSocket {
    let [_, high, middle, low] = (number + 1).to_be_bytes();
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a descriptor");
    let local = SocketAddr::from(([127, high + 1, middle, low], 0));
    socket.bind(&local.into()).expect("an address of this machine");
    let socket = UdpSocket::from(socket);
    socket.connect(server).expect("a route");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket
}
