//! Too little memory, by RLIMIT_AS: resources that do not fit at the start are an error; memory
//! that connections need later is kept in reserve, and without it no new connection is accepted.

use crate::clients::{KINDS, Kind, OtherClient, Setup};
use crate::limits::{TESTS_DESCRIPTORS, Usage, clients_leave_nothing, limit};
use crate::support::datagrams::{client, reflected};
use crate::support::http::get;
use crate::support::{
    PATIENCE, Server, assert_same, connect, limited, pattern, ping, run_to_its_end, wait_until,
    write_until_stuck,
};
use rustix::process::Resource;
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    pools_that_do_not_fit_are_errors_at_the_start,
    connections_beyond_the_memory_wait,
    max_connections_bounds_memory,
    a_reflector_of_many_sources_keeps_within_its_memory
];

/// The memory that a service must leave for its existing connections.
const RESERVE_BYTES: u64 = 16 << 20;

/// As for descriptors.
const TOLERANCE_BYTES: u64 = 4 << 20;

fn pools_that_do_not_fit_are_errors_at_the_start(engine: &str) {
    let site = crate::support::http::Site::usual();
    let root = site.path().to_str().expect("UTF-8");
    let flag = if engine == "io_uring" { "--uring" } else { "--epoll" };
    let pool = [flag, "buffer_count=32768,buffer_bytes=1048576"];
    let datagrams = ["--buffers", "32768", "--max-datagram", "65535"];
    for (service, more, pool) in [
        ("echo", &[][..], &pool[..]),
        ("http", &["--root", root][..], &pool[..]),
        ("udp", &[][..], &datagrams[..]),
    ] {
        // 1 GiB.
        let mut command = limited("-v 1048576");
        command.args(["serve", service, "--listen", "127.0.0.1:0", "--engine", engine]);
        let (code, stdout, told) = run_to_its_end(command.args(more).args(pool));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{engine} {service}: {told}");
        let last = told.lines().last().expect("a reason");
        assert!(last.contains("no memory for 32768 receive buffers of"), "{told}");
        assert!(last.contains("ulimit -v"), "{told}");
        println!("{engine} {service}: {last}");
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
    let setup = Setup::start(kind, engine, &[]);
    let (server, target) = (&setup.server, &setup.target);
    let say = |number| opening(kind, number).0;
    let answer = |number| opening(kind, number).1;
    let other = OtherClient::of(target);
    let before_clients = server.descriptors();
    limit(server, Resource::As, Some(server.address_space_bytes() + RESERVE_BYTES + spare_bytes));
    let mut clients = Arrivals::new(target.address, count, say);
    wait_until("it says that memory runs short", || server.stderr().contains("memory"));
    std::thread::sleep(Duration::from_millis(200));
    clients.look(&answer);
    let at_first = clients.served.len();
    let open = server.descriptors() - before_clients;
    assert!(open > 0, "{engine} {kind:?}: no client was accepted");
    // With memory again, all are accepted.
    limit(server, Resource::As, None);
    if kind == Kind::Https {
        wait_until("all are let in", || server.descriptors() >= before_clients + count as usize);
    } else {
        let began = Instant::now();
        while !clients.waiting.is_empty() && began.elapsed() < PATIENCE {
            clients.look(&answer);
        }
        assert_eq!(clients.waiting.len(), 0, "{engine} {kind:?}: connections were lost");
    }
    drop(clients);
    let served = other.end();
    // Again without a limit: the memory left behind by clients that were all accepted.
    let growth = clients_leave_nothing(TOLERANCE_BYTES, || {
        let clients = Arrivals::new(target.address, count, say);
        wait_until("all are let in", || {
            server.descriptors() + 1 >= before_clients + count as usize
        });
        drop(clients);
        Usage::at_rest(server, setup.listeners)
    });
    let ended = setup.server.terminate();
    assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("accepting is paused").count(), 1, "{}", ended.stderr);
    println!(
        "{engine} {kind:?}: {count} connections and {} KiB beside the reserve: {open} accepted at \
         first, {at_first} of them answered, all in the end; {served}; {growth}",
        spare_bytes >> 10
    );
}

fn connections_beyond_the_memory_wait(engine: &str) {
    testing::needs_descriptors(TESTS_DESCRIPTORS);
    KINDS.into_iter().for_each(|kind| exhaust(kind, engine));
}

/// The maximum memory of a connection whose peer does not read: its unread and unsent data, the
/// buffer that arrived last, and the C library's share.
const CONNECTION_BYTES_MAX: u64 = 768 << 10;

fn max_connections_bounds_memory(engine: &str) {
    const CONNECTIONS: u64 = 40;
    let most = (CONNECTIONS + 1).to_string();
    let server = Server::echo(engine, &["--max-connections", &most]);
    let target = server.address();
    let own = connect(target);
    let other = OtherClient::new(move |number| {
        ping(&own, &pattern(number, 1000));
        true
    });
    let room = RESERVE_BYTES + CONNECTIONS * CONNECTION_BYTES_MAX;
    limit(&server, Resource::As, Some(server.address_space_bytes() + room));
    let before = server.memory_bytes();
    let block = pattern(9, 16 << 20);
    // They write as much as is accepted, and read nothing.
    let stuck: Vec<(TcpStream, usize)> = std::thread::scope(|scope| {
        let flood = || {
            let stream = connect(target);
            let written = write_until_stuck(&stream, &block);
            (stream, written)
        };
        let floods: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(flood)).collect();
        floods.into_iter().map(|flood| flood.join().expect("a flood")).collect()
    });
    let held = server.memory_bytes().saturating_sub(before);
    assert!(held <= CONNECTIONS * CONNECTION_BYTES_MAX, "{engine}: {held} bytes");
    // All accepted data comes back.
    std::thread::scope(|scope| {
        for (stream, written) in &stuck {
            let (mut reader, mut back) = (stream, vec![0; *written]);
            let block = &block;
            scope.spawn(move || {
                reader.read_exact(&mut back).expect("all of it");
                assert!(back == block[..back.len()], "bytes are lost or changed");
            });
        }
    });
    drop(stuck);
    let served = other.end();
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("open")), (Some(0), 0), "{}", ended.stderr);
    println!(
        "{engine}: {CONNECTIONS} that do not read hold {} KiB each, and get all in the end; \
         {served}",
        (held / CONNECTIONS) >> 10
    );
}

fn a_reflector_of_many_sources_keeps_within_its_memory(engine: &str) {
    const SOURCES: u32 = 20_000;
    let server = Server::udp(engine, &["--max-rate-per-source", "2000"]);
    let address = server.address();
    let own = client(address);
    reflected(&own, b"warm");
    let before = server.memory_bytes();
    limit(&server, Resource::As, Some(server.address_space_bytes() + RESERVE_BYTES));
    let other = OtherClient::new(move |number| {
        reflected(&own, &pattern(number, 100));
        true
    });
    for first in (0..SOURCES).step_by(250) {
        let sources: Vec<UdpSocket> = (first..first + 250).map(|n| source(n, address)).collect();
        for source in &sources {
            source.send(&pattern(1, 64)).expect("room");
        }
        for source in &sources {
            let mut bytes = [0; 100];
            assert_eq!(source.recv(&mut bytes).expect("an answer"), 64);
        }
    }
    let grown = server.memory_bytes().saturating_sub(before);
    let served = other.end();
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.count("sent") > u64::from(SOURCES), "{}", ended.last);
    println!("{engine}: {SOURCES} sources, {} KiB to remember them; {served}", grown >> 10);
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
