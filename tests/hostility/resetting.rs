//! Reset storms: thousands of connections that break off at any point, from before the first byte
//! to the middle of an answer, from several threads at once.

use crate::peers::{attackers, dice, source};
use crate::siege::{Others, Siege};
use crate::support::http::{Site, get};
use crate::support::{Server, pattern, reset, socket_from};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use testing::{Test, engine_tests, long_engine_tests};

pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![http_peers_that_reset_leave_nothing];
pub(crate) const LONG_TESTS: &[Test] = long_engine_tests![echo_peers_that_reset_leave_nothing];

/// Threads of a storm.
const THREADS: usize = 4;

/// Connections of a storm, for each attacker that other tests have at once.
const STORM: usize = 4;

/// What a storm may cost: the connections that are open at once are as many as its threads, and
/// the kernel holds a backlog of others.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// Begins a request, stops at any point, and resets.
fn break_off(
    address: SocketAddr,
    number: usize,
    text: &[u8],
    dice: &mut impl Iterator<Item = usize>,
) {
    let mut roll = |most: usize| dice.next().expect("no end") % most;
    let socket = socket_from(source(number));
    socket.connect(&address.into()).expect("the server accepts");
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(true).expect("a socket");
    // Nothing at all, a part, or all; perhaps with an end; perhaps with a part of the answer.
    let stage = roll(5);
    if stage > 0 {
        let part = &text[..1 + roll(text.len())];
        let _as_much_as_fits = stream.write(part);
    }
    if stage == 2 {
        let _gone_already = stream.shutdown(Shutdown::Write);
    }
    if stage > 2 {
        // The data that has arrived by now: none, or a part.
        let _part = stream.read(&mut vec![0; 1 + roll(20_000)]);
    }
    if stage == 4 {
        thread::yield_now();
    }
    reset(stream);
}

fn storm(address: SocketAddr, count: usize, text: &[u8]) {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut dice = dice(thread as u64);
                (thread..count).step_by(THREADS).for_each(|number| {
                    break_off(address, number, text, &mut dice);
                });
            });
        }
    });
}

fn besiege(attack: &'static str, server: Server, others: fn(SocketAddr) -> Others, text: &[u8]) {
    let (address, count) = (server.address(), STORM * attackers());
    let siege = Siege::new(attack, server, others, GROWTH_BYTES_MAX);
    let (ended, attacks) = siege.withstand(|_| storm(address, count, text));
    assert!(ended.count("accepted") >= attacks * count as u64, "{}", ended.last);
}

fn echo_peers_that_reset_leave_nothing(engine: &str) {
    let text = pattern(3, 200_000);
    let server = Server::echo(engine, &["--stats", "1"]);
    besiege("echo, resetting", server, Others::Echo, &text);
}

fn http_peers_that_reset_leave_nothing(engine: &str) {
    let site = Site::usual();
    // Answers from memory and from files, a body, and an error.
    let body = format!("Content-Length: 3000\r\n\r\n{}", "x".repeat(2998));
    let text = [get("/hello.txt", ""), get("/large.bin", ""), get("/", &body), get("/none", "")];
    let text = text.concat().repeat(3);
    let server = Server::http(engine, site.path(), &["--stats", "1"]);
    besiege("http, resetting", server, Others::Http, text.as_bytes());
}
