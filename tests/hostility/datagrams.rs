//! Floods of datagrams: from many addresses, of every length from none to the longest, and
//! with forged sources. Nothing is ever answered with more than it was.

use crate::siege::{attackers, withstand};
use crate::support::datagrams::{assert_balanced, number_of, numbered};
use crate::support::namespace::in_a_namespace;
use crate::support::{Ended, Server};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use testing::{Test, engine_tests, long_engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![a_flood_from_many_addresses_is_answered_byte_for_byte_or_not_at_all];
pub(crate) const LONG_TESTS: &[Test] =
    long_engine_tests![forged_sources_are_answered_once_or_not_at_all_and_memory_has_a_bound];

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
    /// The number of the last answer.
    last: Option<u32>,
}

impl Source {
    fn new(number: usize, server: SocketAddr) -> Source {
        let local = Ipv4Addr::new(127, 4, (number / 250) as u8, 1 + (number % 250) as u8);
        let socket = UdpSocket::bind((local, 0)).expect("a free port");
        socket.connect(server).expect("a route");
        socket.set_nonblocking(true).expect("a socket");
        Source { name: number as u64, socket, sent: 0, last: None }
    }

    fn length(number: u32) -> usize {
        LENGTHS[number as usize % LENGTHS.len()]
    }

    /// The next datagram; one that finds no room is lost, as any other may be. What is in one that is too short
    /// for a number, or is not answered in any case, does not matter.
    fn send(&mut self, longest: &[u8]) {
        let _lost = match Source::length(self.sent) {
            length @ 4..=MAX_DATAGRAM => self.socket.send(&numbered(self.name, self.sent, length)),
            length => self.socket.send(&longest[..length]),
        };
        self.sent += 1;
    }

    /// Takes the answers that have come, and checks each: it is a datagram of this source, as long
    /// as that was, and no older than the answer before.
    fn receive(&mut self) {
        let mut bytes = [0; 2 * MAX_DATAGRAM];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            if length < 4 {
                assert!(LENGTHS.contains(&length), "{length}");
                continue;
            }
            let number = number_of(self.name, &bytes[..length]);
            assert_eq!(length, Source::length(number));
            assert!(self.last.is_none_or(|last| last < number), "{number} twice, or late");
            self.last = Some(number);
        }
    }
}

fn assert_no_amplifier(ended: &Ended) {
    assert_balanced(ended);
    assert!(ended.count("sent") <= ended.count("received"), "{}", ended.last);
    assert!(ended.count("sent_bytes") <= ended.count("received_bytes"), "{}", ended.last);
}

fn a_flood_from_many_addresses_is_answered_byte_for_byte_or_not_at_all(engine: &str) {
    let (count, longest) = (attackers(), vec![0xa5; 65_507]);
    let limit = MAX_DATAGRAM.to_string();
    let server = Server::udp(engine, &["--stats", "1", "--max-datagram", &limit]);
    let address = server.address();
    let (ended, _) = withstand("udp, flooding", server, GROWTH_BYTES_MAX, |_, _| {
        let mut sources: Vec<Source> = (0..count).map(|at| Source::new(at, address)).collect();
        // As fast as one thread can.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1200) {
            for source in &mut sources {
                source.send(&longest);
                source.receive();
            }
        }
        sources.iter_mut().for_each(Source::receive);
    });
    assert_no_amplifier(&ended);
    assert!(ended.count("truncated") > 0, "{}", ended.last);
}

/// Sends a datagram with any source address; needs CAP_NET_RAW.
fn forge(raw: &Socket, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
    let length = 28 + payload.len() as u16;
    // Version and length of the header; length, identification and checksum are the kernel's.
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    for number in [from.port(), to.port(), length - 20, 0] {
        packet.extend(number.to_be_bytes());
    }
    packet.extend(payload);
    raw.send_to(&packet, &SocketAddr::V4(to).into()).expect("room");
}

/// Of every ten forged datagrams seven claim to come from as many hosts of this machine, each of which
/// is answered; one from a host that is not to be answered, one from the reflector itself, and
/// one from nowhere.
fn forged_sources_are_answered_once_or_not_at_all_and_memory_has_a_bound(engine: &str) {
    // More than the reflector remembers (65,536).
    const FORGED: u32 = 100_000;
    in_a_namespace(|| {
        let server = Server::udp(engine, &["--stats", "1", "--max-rate-per-source", "1000"]);
        let SocketAddr::V4(address) = server.address() else { panic!("IPv4") };
        // With this protocol the caller writes the IP header (raw(7)).
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)));
        let raw = raw.expect("CAP_NET_RAW");
        let (ended, attacks) = withstand("udp, forging", server, GROWTH_BYTES_MAX, |_, _| {
            for number in 0..FORGED {
                let [_, a, b, c] = number.to_be_bytes();
                let from = match number % 10 {
                    7 => SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, c), 9),
                    8 => address,
                    9 => SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), 0),
                    _ => SocketAddrV4::new(Ipv4Addr::new(127, 100 + a, b, c), 9),
                };
                forge(&raw, from, address, &[c; 40]);
                // As many fit into the server's socket buffer, which it empties in the pause.
                if number % 1000 == 0 {
                    thread::sleep(Duration::from_millis(10));
                }
            }
        });
        assert_no_amplifier(&ended);
        let refused = ["not_allowed", "from_self", "bad_source"].map(|name| ended.count(name));
        // Datagrams that the kernel dropped were seen by no program.
        let drops = ended.count("kernel_drops");
        let each = attacks * u64::from(FORGED) / 10;
        assert!(refused.iter().all(|count| *count <= each), "{}", ended.last);
        assert!(refused.iter().sum::<u64>() + drops >= 3 * each, "{}", ended.last);
    });
}
