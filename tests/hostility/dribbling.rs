//! Slowloris: heads, bodies and handshakes that come a byte at a time and never end, hundreds of
//! them at once; none goes away before it is thrown out.

use crate::peers::{Peer, attackers, source};
use crate::siege::{Others, Siege};
use crate::support::http::{Site, set};
use crate::support::tls::{self, Identity};
use crate::support::{socket_from, wait_until};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;
use testing::{Test, engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] =
    engine_tests![requests_and_handshakes_that_never_end_are_cut_and_leave_nothing];

/// The pause between two bytes.
const PAUSE: Duration = Duration::from_millis(20);

/// The head of a request may have 16 KiB, its body 64, and a handshake one record of 512 bytes
/// here; the keys of TLS are the largest part.
const EACH_BYTES_MAX: u64 = 96 << 10;

/// The part of a request that a slow peer does not finish.
#[derive(Clone, Copy)]
enum Unfinished {
    Head,
    Body,
    Handshake,
}

impl Unfinished {
    fn of(number: usize) -> Unfinished {
        [Unfinished::Head, Unfinished::Body, Unfinished::Handshake][number % 3]
    }

    /// Its text: sent at once up to an offset, and then byte by byte.
    fn text(self) -> (Vec<u8>, usize) {
        match self {
            Unfinished::Head => {
                (b"GET / HTTP/1.1\r\nHost: h\r\nX: xxxxxxxxxxxxxxxxxxxxxxxx".into(), 1)
            }
            Unfinished::Body => {
                let head = b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n";
                (head.into(), head.len())
            }
            // A record of 512 bytes, and in it a ClientHello that is as long as that.
            Unfinished::Handshake => {
                let beginning = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
                (beginning.into_iter().chain([0; 500]).collect(), 5)
            }
        }
    }
}

/// A slow client.
struct Slow {
    peer: Peer,
    unfinished: Unfinished,
    answer: Vec<u8>,
}

impl Slow {
    fn new(number: usize, plain: SocketAddr, encrypted: SocketAddr) -> Slow {
        let unfinished = Unfinished::of(number);
        let address = match unfinished {
            Unfinished::Handshake => encrypted,
            Unfinished::Head | Unfinished::Body => plain,
        };
        let socket = socket_from(source(number));
        socket.set_tcp_nodelay(true).expect("a TCP socket");
        socket.connect(&address.into()).expect("the server accepts");
        let (text, at_once) = unfinished.text();
        let mut peer = Peer::over(socket.into()).saying(&text.into(), usize::MAX);
        peer.write(at_once);
        Slow { peer, unfinished, answer: Vec::new() }
    }

    /// One byte more. What comes back is kept, and does not keep this one from going on.
    fn dribble(&mut self) {
        self.peer.write(1);
        let mut chunk = [0; 1000];
        self.answer.extend_from_slice(self.peer.read(&mut chunk));
    }

    fn assert_was_told(&self) {
        match self.unfinished {
            Unfinished::Head | Unfinished::Body => {
                assert!(self.answer.starts_with(b"HTTP/1.1 408 "), "{:?}", self.answer);
            }
            Unfinished::Handshake => assert_eq!(self.answer, b""),
        }
    }
}

fn requests_and_handshakes_that_never_end_are_cut_and_leave_nothing(engine: &str) {
    let count = attackers() / 3 * 3;
    let (site, identity) = (Site::usual(), Identity::new());
    let limits = ["header-timeout", "body-timeout", "tls-handshake-timeout"];
    let limits = limits.map(|key| set(key, "1s"));
    let arguments = [&["--stats", "1"], &limits.each_ref().map(String::as_str)[..]].concat();
    let server = tls::serve(engine, site.path(), &identity, &arguments);
    let (plain, encrypted) = (server.address(), tls::encrypted(&server));
    let growth_bytes_max = count as u64 * EACH_BYTES_MAX;
    let siege = Siege::new("http and https, dribbling", server, Others::Http, growth_bytes_max);
    let (ended, attacks) = siege.withstand(|_| {
        let slow = |number| Slow::new(number, plain, encrypted);
        let mut peers: Vec<Slow> = (0..count).map(slow).collect();
        wait_until("all are thrown out", || {
            peers.iter_mut().for_each(Slow::dribble);
            thread::sleep(PAUSE);
            peers.iter().all(|slow| slow.peer.is_gone())
        });
        peers.iter().for_each(Slow::assert_was_told);
    });
    let each = attacks * count as u64 / 3;
    let timeouts = ["header_timeouts", "body_timeouts", "handshake_timeouts"];
    assert_eq!(timeouts.map(|name| ended.count(name)), [each; 3], "{}", ended.last);
}
