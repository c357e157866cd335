//! How long a harmless client waits while others ask for what is expensive: figures for a quiet machine, which print
//! with `-- --ignored --nocapture bystanders`. Every answer to it has to be right; how long it waited is not judged.

use crate::siege::{Experience, Others};
use crate::support::http::{Site, get, read_response};
use crate::support::{AtTheEnd, Server, connect};
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testing::{Test, long_engine_tests};

pub(crate) const LONG_TESTS: &[Test] = long_engine_tests![
    beside_wrong_passwords,
    beside_listings,
    beside_scans,
    beside_compression,
    beside_large_datagrams
];

/// Attackers, each with a connection and a thread.
const ATTACKERS: usize = 50;

/// How long the client is watched, alone and beside the attackers.
const WATCHED: Duration = Duration::from_secs(5);

/// A password of bcrypt's cost 10, and another one.
const USERS: &str = "ann:$2b$10$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
const WRONG: &str = "Authorization: Basic YW5uOm90aGVy\r\n";

fn watch(others: Others, attack: impl Fn(usize, &AtomicBool) + Sync) -> Experience {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let at_the_end = AtTheEnd(&done);
        for number in 0..ATTACKERS {
            let (attack, done) = (&attack, &done);
            scope.spawn(move || attack(number, done));
        }
        let experience = scope.spawn(|| others.experience_until(&done));
        thread::sleep(WATCHED);
        drop(at_the_end);
        experience.join().expect("no wrong answer")
    })
}

/// Prints what the other client of this server waited, alone and beside the attackers.
fn report(
    what: &str,
    engine: &str,
    server: Server,
    others: Others,
    attack: impl Fn(usize, &AtomicBool) + Sync,
) {
    for (when, found) in [("alone", watch(others, |_, _| {})), ("attacked", watch(others, &attack))]
    {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|it| found.quantile(it).as_secs_f64() * 1e3);
        let (count, again) = (found.count(), found.sent_again());
        println!(
            "{what:<16} {engine:<8} {when:<8} p50 {p50:8.2} ms, p99 {p99:8.2} ms, max {max:8.2} ms, of {count}, \
             {again} sent again"
        );
    }
    assert_eq!(server.terminate().code, Some(0));
}

/// Each attacker asks for one target after the other, on one connection.
fn asking(
    address: SocketAddr,
    fields: &str,
    target: impl Fn(usize) -> String,
) -> impl Fn(usize, &AtomicBool) {
    move |number, done| {
        let mut stream = connect(address);
        for round in 0.. {
            if done.load(Ordering::Relaxed) {
                return;
            }
            let request = get(&target(number * 37 + round), fields);
            stream.write_all(request.as_bytes()).expect("the server reads");
            let answer = read_response(&mut stream, false);
            if answer.field("connection") == Some("close") {
                stream = connect(address);
            }
        }
    }
}

fn http(
    what: &str,
    engine: &str,
    site: &Site,
    arguments: &[&str],
    fields: &str,
    target: fn(usize) -> String,
) {
    let server = Server::http(engine, site.path(), arguments);
    let address = server.address();
    report(what, engine, server, Others::Http(address), asking(address, fields, target));
}

fn beside_wrong_passwords(engine: &str) {
    let (site, etc) = (Site::usual(), Site::new());
    let users = etc.write("users", USERS.as_bytes());
    let rule = "default.rule = [{ match = '/private/**', auth = '";
    let arguments = [&*format!("{rule}{}' }}]", users.display())];
    http("wrong passwords", engine, &site, &arguments, WRONG, |_| "/private/x".to_owned());
}

fn beside_listings(engine: &str) {
    let site = Site::usual();
    for number in 0..10_000 {
        site.write(&format!("many/{number}"), b"");
    }
    http("listings", engine, &site, &["default.rule = [{ listing = 'html' }]"], "", |_| {
        "/many/".to_owned()
    });
}

fn beside_scans(engine: &str) {
    let site = Site::usual();
    for number in 0..2_000 {
        site.write(&format!("scan/{number}"), &[b'x'; 20_000]);
    }
    http("scans", engine, &site, &["server.cache-bytes = '0'"], "", |n| {
        format!("/scan/{}", n % 2_000)
    });
}

fn beside_compression(engine: &str) {
    let site = Site::usual();
    let text = "a line of text that compresses well\n".repeat(10_000);
    for number in 0..200 {
        site.write(&format!("text/{number}.txt"), text.as_bytes());
    }
    site.settle();
    let arguments = ["default.compress = ['br']", "server.cache-bytes = '1000000'"];
    let target = |number| format!("/text/{}.txt", number % 200);
    http("compression", engine, &site, &arguments, "Accept-Encoding: br\r\n", target);
}

fn beside_large_datagrams(engine: &str) {
    let server = Server::udp(engine, &[]);
    let address = server.address();
    let flood = move |_, done: &AtomicBool| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(address).expect("a route");
        let bytes = vec![0xa5; 60_000];
        while !done.load(Ordering::Relaxed) {
            // One that finds no room is lost, as any other may be.
            let _lost = socket.send(&bytes);
        }
    };
    report("large datagrams", engine, server, Others::Udp(address), flood);
}
