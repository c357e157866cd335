//! Hundreds of connections at once whose peers do not read, dribble, reset, or ask for what is expensive.

use crate::siege::{attackers, withstand};
use crate::support::http::{Site, get, set};
use crate::support::tls::{self, Identity, VERSIONS};
use crate::support::*;

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    echo_peers_that_never_read_are_cut_and_leave_nothing,
    http_peers_that_never_read_are_cut_and_leave_nothing,
    requests_and_handshakes_that_never_end_are_cut_and_leave_nothing,
    peers_that_reset_leave_nothing
];

/// What one peer that never reads may cost in memory: 256 KiB may be queued for it, 128 KiB unread from it, and
/// 64 KiB be in between.
const UNREAD_BYTES_MAX: u64 = 448 << 10;

/// A connection of attacker `number`, from one of 200 addresses, so that they never run out of ports.
fn attacker(number: usize, address: SocketAddr, is_narrow: bool) -> TcpStream {
    let socket = socket_from(Ipv4Addr::new(127, 3, 0, 1 + (number % 200) as u8));
    if is_narrow {
        // Room for as few bytes as the kernel lets it, and with the segments of a network: with those of
        // loopback, longer than that room, the kernel would wait between any two.
        socket.set_tcp_mss(1400).expect("TCP_MAXSEG");
        socket.set_recv_buffer_size(1).expect("SO_RCVBUF");
        socket.set_send_buffer_size(16 * 1024).expect("SO_SNDBUF");
    }
    socket.connect(&address.into()).expect("the server accepts");
    patient(socket.into())
}

fn echo_peers_that_never_read_are_cut_and_leave_nothing(engine: &str) {
    let count = attackers();
    let server = Server::echo(engine, &["--stats", "1", "--idle-timeout", "2s"]);
    let address = server.address();
    // One in four sends more than may be queued for it, the others less. (All of that has to be copied by a debug
    // build, beside which others want to be served.)
    let text = pattern(1, 320 << 10);
    let most = count as u64 * UNREAD_BYTES_MAX;
    let (ended, attacks) = withstand("echo, never reading", server, most, |server, attack| {
        let peer = |number| {
            let stream = attacker(number, address, true);
            stream.set_nonblocking(true).expect("a socket");
            (stream, &text[..if number % 4 == 0 { text.len() } else { 16 << 10 }])
        };
        let mut peers: Vec<(TcpStream, &[u8])> = (0..count).map(peer).collect();
        // Until none can any more, because the other end does not read, or has cut it.
        let mut stuck_rounds = 0;
        while stuck_rounds < 5 {
            stuck_rounds += 1;
            for (stream, rest) in &mut peers {
                if let Ok(bytes @ 1..) = stream.write(rest) {
                    *rest = &rest[bytes..];
                    stuck_rounds = 0;
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        server.wait_for_count("idle_closed", attack * count as u64);
    });
    ended.expect(0, &[("idle_closed", attacks * count as u64)]);
}

/// Half of them want a large file, half a hundred answers from memory, and half of each over TLS. They are fewer, as
/// shaking hands takes most of the time, but enough that their memory is returned.
fn http_peers_that_never_read_are_cut_and_leave_nothing(engine: &str) {
    let count = (attackers() / 5).max(100);
    let (site, identity) = (Site::usual(), Identity::new());
    site.write("huge.bin", &vec![b'x'; 16 << 20]);
    site.write("cached.bin", &vec![b'y'; 40_000]);
    let config = Arc::new(identity.trust(&VERSIONS));
    let timeouts =
        ["--stats", "1", "server.send-timeout = '1s'", "server.tls-handshake-timeout = '30s'"];
    let server = tls::serve(engine, site.path(), &identity, &timeouts);
    let addresses = server.addresses();
    // The keys and records of a connection come on top.
    let most = count as u64 * (UNREAD_BYTES_MAX + (64 << 10));
    let (ended, attacks) = withstand("http, never reading", server, most, |server, attack| {
        let peer = |number| -> Box<dyn Write> {
            let stream = attacker(number, addresses[number % 2], true);
            let mut peer: Box<dyn Write> = match number % 2 {
                0 => Box::new(stream),
                _ => Box::new(tls::secure_for("localhost", stream, &config).expect("a handshake")),
            };
            let many = get("/cached.bin", "").repeat(100);
            say(&mut peer, if number % 4 < 2 { get("/huge.bin", "") } else { many });
            peer
        };
        let _peers: Vec<Box<dyn Write>> = (0..count).map(peer).collect();
        server.wait_for_count("send_timeouts", attack * count as u64);
    });
    ended.expect(0, &[("send_timeouts", attacks * count as u64)]);
}

/// A client that sends its text a byte at a time, over and over.
struct Slow {
    stream: TcpStream,
    text: Vec<u8>,
    written: usize,
    answer: Vec<u8>,
    is_gone: bool,
}

impl Slow {
    /// One byte more. What comes back is kept, and does not keep this one from going on.
    fn dribble(&mut self) {
        let at = self.written % self.text.len();
        match self.stream.write(&self.text[at..=at]) {
            Ok(bytes) => self.written += bytes,
            Err(error) => self.is_gone |= error.kind() != ErrorKind::WouldBlock,
        }
        let mut chunk = [0; 1000];
        if let Ok(bytes) = self.stream.read(&mut chunk) {
            self.answer.extend_from_slice(&chunk[..bytes]);
        }
    }
}

/// Slowloris: heads, bodies and handshakes; none goes away before it is thrown out.
fn requests_and_handshakes_that_never_end_are_cut_and_leave_nothing(engine: &str) {
    // The head of a request may have 16 KiB, its body 64, and a handshake one record of 512 bytes
    // here; the keys of TLS are the largest part.
    const EACH_BYTES_MAX: u64 = 96 << 10;
    let count = attackers() / 3 * 3;
    let (site, identity) = (Site::usual(), Identity::new());
    let limits = ["header-timeout", "body-timeout", "tls-handshake-timeout"];
    let limits = limits.map(|key| set(key, "1s"));
    let arguments = [&["--stats", "1"], &limits.each_ref().map(String::as_str)[..]].concat();
    let server = tls::serve(engine, site.path(), &identity, &arguments);
    let (plain, encrypted) = (server.address(), tls::encrypted(&server));
    // A record of 512 bytes, and in it a ClientHello that is as long as that.
    let hello = [&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0; 500]].concat();
    let head = b"GET / HTTP/1.1\r\nHost: h\r\nX: xxxxxxxxxxxxxxxxxxxxxxxx".to_vec();
    let body = b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n".to_vec();
    let most = count as u64 * EACH_BYTES_MAX;
    let (ended, attacks) = withstand("http and https, dribbling", server, most, |_, _| {
        let slow = |number| {
            let (address, text, at_once) = match number % 3 {
                0 => (plain, &head, 1),
                1 => (plain, &body, body.len()),
                _ => (encrypted, &hello, 5),
            };
            let mut stream = attacker(number, address, false);
            say(&mut stream, &text[..at_once]);
            stream.set_nonblocking(true).expect("a socket");
            let text = text.clone();
            Slow { stream, text, written: at_once, answer: Vec::new(), is_gone: false }
        };
        let mut peers: Vec<Slow> = (0..count).map(slow).collect();
        wait_until("all are thrown out", || {
            peers.iter_mut().for_each(Slow::dribble);
            thread::sleep(Duration::from_millis(20));
            peers.iter().all(|slow| slow.is_gone)
        });
        for (number, slow) in peers.iter().enumerate() {
            let is_told = match number % 3 {
                2 => slow.answer.is_empty(),
                _ => slow.answer.starts_with(b"HTTP/1.1 408 "),
            };
            assert!(is_told, "{:?}", slow.answer);
        }
    });
    let each = attacks * count as u64 / 3;
    let timeouts = ["header_timeouts", "body_timeouts", "handshake_timeouts"];
    ended.expect(0, &timeouts.map(|name| (name, each)));
}

/// Begins a request, stops at any point, and resets.
fn break_off(address: SocketAddr, number: usize, text: &[u8]) {
    let mut dice = pattern(number as u64, 16).into_iter().map(usize::from);
    let mut roll = |most: usize| (dice.next().unwrap() << 8 | dice.next().unwrap()) % most;
    let mut stream = attacker(number, address, false);
    stream.set_nonblocking(true).expect("a socket");
    // Nothing at all, a part, or all; perhaps with an end; perhaps with a part of the answer.
    let stage = roll(4);
    if stage > 0 {
        let _as_much_as_fits = stream.write(&text[..1 + roll(text.len())]);
    }
    if stage == 2 {
        let _gone_already = stream.shutdown(Shutdown::Write);
    }
    if stage == 3 {
        let _part = stream.read(&mut vec![0; 1 + roll(20_000)]);
    }
    reset(stream);
}

/// Thousands of connections that break off, from several threads at once.
fn peers_that_reset_leave_nothing(engine: &str) {
    const THREADS: usize = 4;
    let site = Site::usual();
    // Answers from memory and from files, a body, and an error.
    let body = format!("Content-Length: 3000\r\n\r\n{}", "x".repeat(2998));
    let text = [get("/hello.txt", ""), get("/large.bin", ""), get("/", &body), get("/none", "")];
    let text = text.concat().repeat(3).into_bytes();
    let stats = ["--stats", "1"];
    for (what, server) in [
        ("http, resetting", Server::http(engine, site.path(), &stats)),
        ("echo, resetting", Server::echo(engine, &stats)),
    ] {
        let (address, count) = (server.address(), THREADS * attackers());
        let (ended, attacks) = withstand(what, server, 64 << 20, |_, _| {
            thread::scope(|scope| {
                for first in 0..THREADS {
                    let numbers = (first..count).step_by(THREADS);
                    scope.spawn(|| numbers.for_each(|number| break_off(address, number, &text)));
                }
            });
        });
        assert!(ended.count("accepted") >= attacks * count as u64, "{}", ended.last);
    }
}
