//! Connections that come, ask once, and go, one after the other without end: thousands here, a million
//! in the long test.

use crate::peers::source;
use crate::siege::{Others, Siege};
use crate::support::http::{Site, get, read_response};
use crate::support::{ENGINES, Server, connect_from, ping, reset};
use std::io::{BufReader, Write};
use std::net::SocketAddr;
use std::thread;
use testing::{Test, long_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    thousands_of_short_connections_to_echo_leave_nothing,
    thousands_of_short_connections_to_http_leave_nothing
];
pub(crate) const LONG_TESTS: &[Test] = long_tests![
    a_million_short_connections_to_echo_leave_nothing,
    a_million_short_connections_to_http_leave_nothing
];

/// Threads that connect.
const THREADS: usize = 2;

/// Those that are open at once are as many as the threads that make them.
const GROWTH_BYTES_MAX: u64 = 4 << 20;

/// One of this number of connections closes in good order; all of them would leave their ports in
/// TIME-WAIT.
const IN_ORDER: usize = 16;

fn come_and_go(count: usize, address: SocketAddr, ask: impl Fn(usize, SocketAddr) + Sync) {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let ask = &ask;
            scope.spawn(move || {
                (thread..count).step_by(THREADS).for_each(|number| ask(number, address));
            });
        }
    });
}

fn echo_once(number: usize, address: SocketAddr) {
    let stream = connect_from(source(number), address);
    ping(&stream, &number.to_le_bytes());
    if !number.is_multiple_of(IN_ORDER) {
        reset(stream);
    }
}

fn fetch_once(number: usize, address: SocketAddr) {
    let mut stream = BufReader::new(connect_from(source(number), address));
    stream.get_mut().write_all(get("/hello.txt", "").as_bytes()).expect("the server reads");
    assert_eq!(read_response(&mut stream, false).body.len(), 36);
    if !number.is_multiple_of(IN_ORDER) {
        reset(stream.into_inner());
    }
}

fn echo(count: usize) {
    for engine in ENGINES {
        let server = Server::echo(engine, &["--stats", "1"]);
        let address = server.address();
        let siege = Siege::new("echo, short-lived", server, Others::Echo, GROWTH_BYTES_MAX);
        let (ended, attacks) = siege.withstand(|_| come_and_go(count, address, echo_once));
        assert!(ended.count("accepted") > attacks * count as u64, "{}", ended.last);
    }
}

fn http(count: usize) {
    let site = Site::usual();
    for engine in ENGINES {
        let server = Server::http(engine, site.path(), &["--stats", "1"]);
        let address = server.address();
        let siege = Siege::new("http, short-lived", server, Others::Http, GROWTH_BYTES_MAX);
        let (ended, attacks) = siege.withstand(|_| come_and_go(count, address, fetch_once));
        assert!(ended.count("requests") > attacks * count as u64, "{}", ended.last);
    }
}

fn thousands_of_short_connections_to_echo_leave_nothing() {
    echo(4_000);
}

fn thousands_of_short_connections_to_http_leave_nothing() {
    http(4_000);
}

/// Half a million twice.
fn a_million_short_connections_to_echo_leave_nothing() {
    echo(500_000);
}

fn a_million_short_connections_to_http_leave_nothing() {
    http(500_000);
}
