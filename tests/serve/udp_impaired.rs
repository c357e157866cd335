//! `twinring serve udp` with impairments: the client's counts match the server's.

use crate::support::datagrams::*;
use crate::support::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testing::{Test, engine_tests, tests};
use twinring_services::udp::SWAP_PATIENCE;

pub(crate) const TESTS: &[Test] = tests![a_seed_determines_the_impairments_on_both_engines];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    loss_duplicates_and_swaps_match_the_server_counts,
    no_answer_comes_before_its_delay,
    everything_and_nothing_are_shares_too,
    a_successor_that_never_comes_is_not_waited_for,
    a_drain_answers_or_counts_delayed_datagrams
];

/// The observations of a client.
#[derive(Debug, PartialEq)]
struct Found {
    lost: Vec<u32>,
    duplicated: Vec<u32>,
    /// Pairs of neighbours that had changed places.
    exchanged: u64,
}

/// How the client sees the numbers that came. Fails if anything but neighbours changed places.
fn found(came: &[u32], sent: u32) -> Found {
    let mut times = BTreeMap::new();
    came.iter().for_each(|number| *times.entry(*number).or_insert(0) += 1);
    let lost = (0..sent).filter(|number| !times.contains_key(number)).collect();
    let duplicated = times.iter().filter(|(_, times)| **times == 2).map(|(number, _)| *number);
    let duplicated = duplicated.collect();
    assert!(times.values().all(|times| *times <= 2));
    let mut numbers = came.to_vec();
    numbers.dedup();
    assert_eq!(numbers.len(), times.len(), "copies are neighbours");
    let mut exchanged = 0;
    let mut at = 1;
    while at < numbers.len() {
        if numbers[at] < numbers[at - 1] {
            numbers.swap(at - 1, at);
            exchanged += 1;
            at += 1;
        }
        at += 1;
    }
    assert!(numbers.is_sorted(), "{numbers:?}");
    Found { lost, duplicated, exchanged }
}

/// A client's counts after a burst to a server with these impairments, which must match the
/// server's.
fn outcome(engine: &str, arguments: &[&str]) -> Found {
    let server = Server::udp(engine, arguments);
    let client = roomy_client(server.address());
    burst(&client);
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let came = numbers(&client);
    assert_eq!(assert_balanced(&ended), came.len() as u64, "the client lost some itself");
    assert_eq!((ended.count("received"), ended.count("waiting")), (u64::from(BURST), 0));
    let found = found(&came, BURST);
    assert_eq!(found.lost.len() as u64, ended.count("impaired_lost"));
    assert_eq!(found.duplicated.len() as u64, ended.count("impaired_duplicated"));
    assert_eq!(found.exchanged, ended.count("impaired_swapped"));
    found
}

fn loss_duplicates_and_swaps_match_the_server_counts(engine: &str) {
    for arguments in [
        &["--loss", "10"][..],
        &["--duplicate", "10%"],
        &["--swap", "10"],
        &["--swap", "100"],
        &["--loss", "5", "--duplicate", "5", "--swap", "20", "--delay", "5ms:3ms"],
        &["--loss", "5", "--duplicate", "5", "--swap", "20", "--gro", "on"],
    ] {
        let found = outcome(engine, arguments);
        let (lost, duplicated) = (found.lost.len(), found.duplicated.len());
        assert!(lost > 0 || !arguments.contains(&"--loss"));
        assert!(duplicated > 0 || !arguments.contains(&"--duplicate"));
        assert!(found.exchanged > 0 || !arguments.contains(&"--swap"));
        println!(
            "{engine} {arguments:?}: {lost} lost, {duplicated} twice, {} exchanged, of {BURST}",
            found.exchanged
        );
    }
}

fn a_seed_determines_the_impairments_on_both_engines() {
    let lost_and_duplicated = |engine: &str, seed: &str, more: &[&str]| {
        let arguments = ["--loss", "10", "--duplicate", "10", "--seed", seed];
        let Found { lost, duplicated, .. } = outcome(engine, &[&arguments, more].concat());
        (lost, duplicated)
    };
    let first = lost_and_duplicated("io_uring", "7", &[]);
    for (engine, more) in [
        ("io_uring", &[][..]),
        ("epoll", &[]),
        // Decisions of one kind do not depend on what else is switched on.
        ("epoll", &["--swap", "30", "--delay", "2ms:2ms"]),
    ] {
        assert_eq!(lost_and_duplicated(engine, "7", more), first);
    }
    assert_ne!(lost_and_duplicated("epoll", "8", &[]), first);
    println!("the same {} lost and {} twice in four runs", first.0.len(), first.1.len());
}

fn no_answer_comes_before_its_delay(engine: &str) {
    for (delay, earliest) in [("30ms", 30), ("30ms:10ms", 20)] {
        let server = Server::udp(engine, &["--delay", delay]);
        let client = roomy_client(server.address());
        let left = burst(&client);
        for (expected, left) in (0..).zip(&left) {
            let number = number_of(1, &next(&client));
            let waited = Instant::now() - *left;
            assert_eq!(number, expected);
            assert!(waited >= Duration::from_millis(earliest), "{number}: {waited:?}");
        }
        let ended = server.terminate();
        assert_eq!(ended.count("impaired_delayed"), assert_balanced(&ended));
        println!("{engine} {delay}: all {BURST} were delayed, none came early");
    }
}

fn everything_and_nothing_are_shares_too(engine: &str) {
    assert_eq!(outcome(engine, &["--loss", "100"]).lost.len() as u32, BURST);
    assert_eq!(outcome(engine, &["--duplicate", "100"]).duplicated.len() as u32, BURST);
    let nothing = Found { lost: vec![], duplicated: vec![], exchanged: 0 };
    assert!(outcome(engine, &["--loss", "0", "--swap", "0", "--delay", "0s"]) == nothing);
    println!("{engine}: all lost, all twice, and nothing at all");
}

/// Two sources swap only their own datagrams, and a lone one does not wait for ever.
fn a_successor_that_never_comes_is_not_waited_for(engine: &str) {
    let server = Server::udp(engine, &["--swap", "100"]);
    let (one, other) = (client(server.address()), client(server.address()));
    one.send(b"alone").expect("room");
    let mut pairs = 0;
    // A sender that is kept from the CPU for that long has no successor, either.
    wait_until("an exchange", || {
        pairs += 1;
        let began = Instant::now();
        other.send(b"first").expect("room");
        other.send(b"second").expect("room");
        let came = [next(&other), next(&other)];
        let is_exchange = came == [&b"second"[..], b"first"];
        assert!(is_exchange || began.elapsed() >= SWAP_PATIENCE, "{engine}: no exchange");
        assert!(is_exchange || came == [&b"first"[..], b"second"], "{engine}: {came:?}");
        is_exchange
    });
    assert_eq!(next(&one), b"alone");
    let ended = server.terminate();
    assert_eq!((ended.count("impaired_swapped"), assert_balanced(&ended)), (1, 1 + 2 * pairs));
    println!("{engine}: one exchange, and one that went alone");
}

fn a_drain_answers_or_counts_delayed_datagrams(engine: &str) {
    for (timeout, answered) in [("60s", BURST), ("100ms", 0)] {
        let server = Server::udp(engine, &["--delay", "2s", "--drain-timeout", timeout]);
        let client = roomy_client(server.address());
        burst(&client);
        let ended = server.terminate();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(assert_balanced(&ended), u64::from(answered));
        assert_eq!(ended.count("waiting"), u64::from(BURST - answered));
        assert_eq!(numbers(&client), (0..answered).collect::<Vec<_>>());
        println!("{engine}: {answered} of {BURST} were answered within {timeout}");
    }
}
