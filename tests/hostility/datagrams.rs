//! Floods of datagrams: from many addresses, of every length from none to the longest. Nothing is ever answered with
//! more than it was.

use crate::siege::{attackers, withstand};
use crate::support::datagrams::{assert_balanced, client_from, number_of, numbered};
use crate::support::*;

pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![a_flood_from_many_addresses_is_answered_byte_for_byte_or_not_at_all];

/// The longest datagram that the server answers in these tests.
const MAX_DATAGRAM: usize = 1500;

/// Lengths of a flood, one after the other: empty, too short for a number, garbage where the header
/// of RTP would be, whole packets, one byte too many, and the longest that UDP carries.
const LENGTHS: [usize; 10] = [0, 3, 12, 13, 172, 500, 1499, 1500, 1501, 65_507];

/// Buffers of the server are there from the start; a flood adds what a drain of the socket holds.
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
        let socket = client_from(local.into(), server);
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
    assert!(assert_balanced(&ended) <= ended.count("received"), "{}", ended.last);
    assert!(ended.count("sent_bytes") <= ended.count("received_bytes"), "{}", ended.last);
    assert!(ended.count("truncated") > 0, "{}", ended.last);
}
