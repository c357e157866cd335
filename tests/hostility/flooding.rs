//! Floods of datagrams: from many addresses, of every length from none to the longest, and
//! with forged sources. Nothing is ever answered with more than it was.

use crate::peers::attackers;
use crate::siege::{Others, Siege};
use crate::support::datagrams::{assert_balanced, number_of, numbered};
use crate::support::namespace::in_a_namespace;
use crate::support::{AtTheEnd, Ended, Server, reset, wait_until};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testing::{Test, engine_tests, long_engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![a_flood_from_many_addresses_is_answered_byte_for_byte_or_not_at_all];
pub(crate) const LONG_TESTS: &[Test] = long_engine_tests![
    a_flood_does_not_delay_the_end_of_a_server,
    forged_sources_are_answered_once_or_not_at_all_and_memory_has_a_bound
];

/// How long a flood lasts.
const FLOOD: Duration = Duration::from_millis(1200);

/// The longest datagram that the server answers in these tests.
const MAX_DATAGRAM: usize = 1500;

/// Lengths of a flood, one after the other: empty, too short for a number, garbage where the header
/// of RTP would be, whole packets, one byte too many, and the longest that UDP carries.
const LENGTHS: [usize; 10] = [0, 3, 12, 13, 172, 500, 1499, 1500, 1501, 65_507];

/// Buffers of the server are there from the begin; a flood adds what a drain of the socket holds.
const GROWTH_BYTES_MAX: u64 = 48 << 20;

/// One source of a flood.
struct Source {
    name: u64,
    socket: UdpSocket,
    sent: u32,
    /// The number of the last answer, and what came in all.
    last: Option<u32>,
    answers: u64,
    answered_bytes: u64,
    sent_bytes: u64,
}

impl Source {
    fn new(number: usize, server: SocketAddr) -> Source {
        let local = Ipv4Addr::new(127, 4, (number / 250) as u8, 1 + (number % 250) as u8);
        let socket = UdpSocket::bind((local, 0)).expect("a free port");
        socket.connect(server).expect("a route");
        socket.set_nonblocking(true).expect("a socket");
        let name = number as u64;
        Source { name, socket, sent: 0, last: None, answers: 0, answered_bytes: 0, sent_bytes: 0 }
    }

    fn length(number: u32) -> usize {
        LENGTHS[number as usize % LENGTHS.len()]
    }

    /// The next datagram; one that finds no room is lost, as any other may be.
    fn send(&mut self, longest: &[u8]) {
        let length = Source::length(self.sent);
        let sent = match length {
            0..4 => self.socket.send(&longest[..length]),
            4..=MAX_DATAGRAM => self.socket.send(&numbered(self.name, self.sent, length)),
            // Not answered in any case: what is in it does not matter.
            _ => self.socket.send(&longest[..length]),
        };
        self.sent_bytes += sent.unwrap_or(0) as u64;
        self.sent += 1;
    }

    /// Takes the answers that have come, and checks each: it is a datagram of this source, as long
    /// as that was, and no older than the answer before.
    fn receive(&mut self) {
        let mut bytes = [0; 2 * MAX_DATAGRAM];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            self.answers += 1;
            self.answered_bytes += length as u64;
            if length < 4 {
                assert!(LENGTHS.contains(&length), "{length}");
                continue;
            }
            let number = number_of(self.name, &bytes[..length]);
            assert_eq!(length, Source::length(number));
            assert!(self.last.is_none_or(|last| last < number), "{number} twice, or late");
            self.last = Some(number);
        }
        assert!(self.answered_bytes <= self.sent_bytes && self.answers <= u64::from(self.sent));
    }
}

/// Floods for a while, as fast as one thread can.
fn flood(sources: &mut [Source]) {
    let longest = vec![0xa5; 65_507];
    let began = Instant::now();
    while began.elapsed() < FLOOD {
        for source in sources.iter_mut() {
            source.send(&longest);
            source.receive();
            if began.elapsed() >= FLOOD {
                break;
            }
        }
    }
}

fn assert_no_amplifier(ended: &Ended) {
    assert_balanced(ended);
    assert!(ended.count("sent") <= ended.count("received"), "{}", ended.last);
    assert!(ended.count("sent_bytes") <= ended.count("received_bytes"), "{}", ended.last);
}

fn a_flood_from_many_addresses_is_answered_byte_for_byte_or_not_at_all(engine: &str) {
    let count = attackers();
    let longest = MAX_DATAGRAM.to_string();
    let server = Server::udp(engine, &["--stats", "1", "--max-datagram", &longest]);
    let address = server.address();
    let siege = Siege::new("udp, flooding", server, Others::Udp, GROWTH_BYTES_MAX);
    let (ended, _) = siege.withstand(|_| {
        let mut sources: Vec<Source> = (0..count).map(|at| Source::new(at, address)).collect();
        flood(&mut sources);
        sources.iter_mut().for_each(Source::receive);
    });
    assert_no_amplifier(&ended);
    assert!(ended.count("truncated") > 0, "{}", ended.last);
}

/// A flood cannot keep a server from ending: neither of datagrams nor of connections.
fn a_flood_does_not_delay_the_end_of_a_server(engine: &str) {
    let server = Server::udp(engine, &["--drain-timeout", "1s"]);
    let address = server.address();
    end_in_a_flood(server, |number| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(address).expect("a route");
        (0..200).for_each(|_| drop(socket.send(&numbered(number, 0, 200))));
    });
    let server = Server::echo(engine, &["--drain-timeout", "1s"]);
    let address = server.address();
    // Refused from the moment that the server listens no more.
    end_in_a_flood(server, |_| TcpStream::connect(address).into_iter().for_each(reset));
}

/// Ends the server while another thread repeats something.
fn end_in_a_flood(server: Server, repeat: impl Fn(u64) + Sync) {
    let (done, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let _at_the_end = AtTheEnd(&done);
        scope.spawn(|| {
            for number in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                repeat(number);
                begun.store(number > 100, Ordering::Relaxed);
            }
        });
        wait_until("the flood has begun", || begun.load(Ordering::Relaxed));
        assert_eq!(server.terminate().code, Some(0));
    });
}

/// Sends datagrams with any source address.
struct Forger(Socket);

impl Forger {
    const HEADERS: usize = 28;

    /// Needs CAP_NET_RAW.
    fn new() -> Forger {
        // With this protocol the caller writes the IP header (raw(7)).
        let raw = Protocol::from(255);
        Forger(Socket::new(Domain::IPV4, Type::RAW, Some(raw)).expect("CAP_NET_RAW"))
    }

    fn send(&self, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
        let length = (Forger::HEADERS + payload.len()) as u16;
        let mut packet = Vec::with_capacity(length.into());
        // Version and length of the header; length, identification and checksum are the kernel's.
        packet.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend(from.ip().octets());
        packet.extend(to.ip().octets());
        packet.extend(from.port().to_be_bytes());
        packet.extend(to.port().to_be_bytes());
        packet.extend((length - 20).to_be_bytes());
        // No checksum.
        packet.extend([0, 0]);
        packet.extend(payload);
        self.0.send_to(&packet, &SocketAddr::V4(to).into()).expect("room");
    }
}

/// Sources that are forged in one attack: more than the reflector remembers (65,536).
const FORGED: u32 = 100_000;

/// Datagrams that fit into the server's socket buffer, and the pause in which it empties that.
const BURST: u32 = 1000;
const BURST_PAUSE: Duration = Duration::from_millis(10);

/// Of every ten forged datagrams seven claim to come from as many hosts of this machine, each of which
/// is answered; one from a host that is not to be answered, one from the reflector itself, and
/// one from nowhere.
fn forge(forger: &Forger, server: SocketAddrV4) {
    for number in 0..FORGED {
        let [_, a, b, c] = number.to_be_bytes();
        let from = match number % 10 {
            7 => SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, c), 9),
            8 => server,
            9 => SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), 0),
            _ => SocketAddrV4::new(Ipv4Addr::new(127, 100 + a, b, c), 9),
        };
        forger.send(from, server, &[c; 40]);
        if number % BURST == 0 {
            thread::sleep(BURST_PAUSE);
        }
    }
}

fn forged_sources_are_answered_once_or_not_at_all_and_memory_has_a_bound(engine: &str) {
    in_a_namespace(|| {
        let limits = ["--stats", "1", "--max-rate-per-source", "1000"];
        let server = Server::udp(engine, &limits);
        let SocketAddr::V4(address) = server.address() else { panic!("IPv4") };
        let siege = Siege::new("udp, forging sources", server, Others::Udp, GROWTH_BYTES_MAX);
        let forger = Forger::new();
        let (ended, attacks) = siege.withstand(|_| forge(&forger, address));
        assert_no_amplifier(&ended);
        let refused = ["not_allowed", "from_self", "bad_source"].map(|name| ended.count(name));
        // Datagrams that the kernel dropped were seen by no program.
        let drops = ended.count("kernel_drops");
        let each = attacks * u64::from(FORGED) / 10;
        assert!(refused.iter().all(|count| *count <= each), "{}", ended.last);
        assert!(refused.iter().sum::<u64>() + drops >= 3 * each, "{}", ended.last);
    });
}
