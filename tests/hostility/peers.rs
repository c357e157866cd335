//! Many peers with the same behaviour.

use crate::support::{Server, patient, pattern, socket_from, wait_until, waited};
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Number of source addresses of the peers, so that they never run out of ports.
const ADDRESSES: usize = 200;

/// Rounds without a write after which the peers count as stuck, and the pause after each.
const STUCK_ROUNDS: u32 = 5;
const STUCK_PAUSE: Duration = Duration::from_millis(10);

/// How many connections an attack has at once: `TWINRING_ATTACKERS`, or 250.
pub(crate) fn attackers() -> usize {
    let descriptors = twinring_services::raise_descriptor_limit().expect("a limit");
    let asked = std::env::var("TWINRING_ATTACKERS").ok();
    let asked = asked.map_or(250, |text| text.parse().expect("TWINRING_ATTACKERS: a number"));
    // Both ends have as many, and others want to be served.
    asked.min(descriptors as usize - 500).max(20)
}

/// The address that attacker `number` comes from.
pub(crate) fn source(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 3, 0, 1 + (number % ADDRESSES) as u8)
}

/// A connection with room for as few bytes as the kernel lets it, and with the segments of a network:
/// with those of loopback, longer than that room, the kernel would wait between any two.
pub(crate) fn narrow_connection(local: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = socket_from(local);
    socket.set_tcp_mss(1400).expect("TCP_MAXSEG");
    socket.set_recv_buffer_size(1).expect("SO_RCVBUF");
    socket.set_send_buffer_size(16 * 1024).expect("SO_SNDBUF");
    socket.connect(&address.into()).expect("the server accepts");
    patient(socket.into())
}

/// One peer: a connection that never blocks.
pub(crate) struct Peer {
    stream: TcpStream,
    /// Its text, repeated up to `most` bytes.
    text: Arc<[u8]>,
    most: usize,
    written: usize,
    gone: bool,
}

impl Peer {
    /// Over an established connection, without a text.
    pub(crate) fn over(stream: TcpStream) -> Peer {
        stream.set_nonblocking(true).expect("a socket");
        Peer { stream, text: Arc::new([]), most: 0, written: 0, gone: false }
    }

    /// See [`narrow_connection`].
    pub(crate) fn narrow(local: Ipv4Addr, address: SocketAddr) -> Peer {
        Peer::over(narrow_connection(local, address))
    }

    pub(crate) fn saying(self, text: &Arc<[u8]>, most: usize) -> Peer {
        Peer { text: Arc::clone(text), most, ..self }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Writes what the connection takes, at most `most` bytes; how many it took.
    pub(crate) fn write(&mut self, most: usize) -> usize {
        let at = self.written % self.text.len().max(1);
        let end = self.text.len().min(at + most.min(self.most - self.written));
        if self.gone || at == end {
            return 0;
        }
        match self.stream.write(&self.text[at..end]) {
            Ok(bytes) => {
                self.written += bytes;
                bytes
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.gone = true;
                0
            }
        }
    }

    /// Reads available data, at most as much as fits; empty without data. After the end of the
    /// server's stream the peer stays: it may continue to write.
    pub(crate) fn read<'a>(&mut self, into: &'a mut [u8]) -> &'a [u8] {
        if self.gone {
            return &[];
        }
        match self.stream.read(into) {
            Ok(bytes) => return &into[..bytes],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.gone = true,
        }
        &[]
    }
}

/// Makes all of them write until none can any more, because the other end does not read, or the
/// text is complete, or the server has cut them.
pub(crate) fn write_until_stuck(peers: &mut [Peer]) {
    let mut stuck_rounds = 0;
    while stuck_rounds < STUCK_ROUNDS {
        let written: usize = peers.iter_mut().map(|peer| peer.write(usize::MAX)).sum();
        if written > 0 {
            stuck_rounds = 0;
        } else {
            stuck_rounds += 1;
            thread::sleep(STUCK_PAUSE);
        }
    }
}

/// Connections that the server must cut, in several rounds.
pub(crate) struct Cuts {
    /// Where it counts them.
    counters: &'static [&'static str],
    expected: Cell<u64>,
}

impl Cuts {
    pub(crate) fn counted_by(counters: &'static [&'static str]) -> Cuts {
        Cuts { counters, expected: Cell::new(0) }
    }

    /// Waits until the server has closed its end of all connections of a round; it must print
    /// statistics every second. `before` is its number of descriptors without them; another client
    /// may have connected, and files been opened.
    pub(crate) fn wait(&self, server: &Server, before: usize, peers: usize) {
        let expected = self.expected.get() + peers as u64;
        self.expected.set(expected);
        wait_until("the server cuts the attackers", || server.descriptors() <= before + 8);
        // Up to eight of them may be attackers, which are cut some sweeps later.
        let mut cut = 0;
        let all_are_cut = waited(|| {
            let statistics = server.statistics();
            let count = |name: &&str| statistics["service_counters"][name].as_u64().expect(name);
            cut = self.counters.iter().map(count).sum();
            cut >= expected
        });
        assert!(all_are_cut, "{cut} of {expected} connections were cut");
    }
}

/// Numbers that look random, the same each time.
pub(crate) fn dice(seed: u64) -> impl Iterator<Item = usize> {
    (0..).flat_map(move |more: u64| {
        let bytes = pattern(seed << 20 | more, 64);
        let numbers: Vec<usize> = bytes
            .chunks_exact(4)
            .map(|chunk| u32::from_le_bytes(*chunk.first_chunk().expect("four")) as usize)
            .collect();
        numbers
    })
}
