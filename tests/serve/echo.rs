//! `twinring serve echo` over real sockets: the same bytes on both engines, with any behaviour of
//! peers.

use crate::support::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use testing::{Test, engine_tests, tests};

pub(crate) const TESTS: &[Test] = tests![
    both_engines_answer_with_the_same_bytes_and_the_same_counts,
    degraded_features_echo_the_same_bytes
];
pub(crate) const ENGINE_TESTS: &[Test] = engine_tests![
    half_close_delivers_everything_then_fin,
    a_slow_reader_loses_nothing_and_is_bounded_while_others_are_served,
    many_slow_readers_are_bounded_too,
    a_flooding_client_does_not_starve_fifty_others,
    several_addresses_of_both_families_and_several_workers,
    the_port_can_be_bound_again_at_once
];

/// The results of a fixed set of connections on one engine: every byte that came back, and the server's
/// counters.
fn transcript(engine: &str) -> (Vec<Vec<u8>>, serde_json::Value) {
    let server = Server::echo(engine, &[]);
    let mut came_back = Vec::new();
    // One byte, around the buffer sizes of both engines, and far above them.
    for (number, length) in
        [1, 2, 127, 2047, 2048, 2049, 65_535, 65_536, 65_537, 1_000_003].into_iter().enumerate()
    {
        let stream = connect(server.address());
        let writer = write_and_finish(&stream, pattern(number as u64, length));
        came_back.push(read_to_end(&stream).expect("a clean end"));
        writer.join().unwrap().expect("everything was written");
    }
    // Many chunks of uneven size on one connection, three of them on their way at any time.
    let stream = connect(server.address());
    let chunks: Vec<Vec<u8>> =
        (0..300).map(|number| pattern(1000 + number, 1 + (number as usize * 37) % 3000)).collect();
    for (number, chunk) in chunks.iter().enumerate() {
        (&stream).write_all(chunk).unwrap();
        if let Some(earlier) = number.checked_sub(2) {
            let mut back = vec![0; chunks[earlier].len()];
            (&stream).read_exact(&mut back).unwrap();
            came_back.push(back);
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
    came_back.push(read_to_end(&stream).unwrap());
    // Nothing at all: FIN is answered by FIN.
    let stream = connect(server.address());
    stream.shutdown(Shutdown::Write).unwrap();
    came_back.push(read_to_end(&stream).unwrap());
    drop(stream);
    let ended = server.terminate();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    (came_back, ended.last["service_counters"].clone())
}

fn both_engines_answer_with_the_same_bytes_and_the_same_counts() {
    let (ring, ring_counters) = transcript("io_uring");
    let (epoll, epoll_counters) = transcript("epoll");
    assert!(ring == epoll, "the transcripts differ");
    assert_eq!(ring_counters, epoll_counters);
    assert_eq!(ring_counters["received_bytes"], ring_counters["sent_bytes"]);
    assert_eq!(ring_counters["accepted"], 12);
    assert_eq!(ring_counters["open"], 0);
    let bytes: usize = ring.iter().map(Vec::len).sum();
    println!("{} transcripts of {bytes} bytes are equal on both engines", ring.len());
}

fn half_close_delivers_everything_then_fin(engine: &str) {
    let server = Server::echo(engine, &[]);
    for length in [5, 300_000, 8 << 20] {
        let sent = pattern(length as u64, length);
        let stream = connect(server.address());
        let writer = write_and_finish(&stream, sent.clone());
        let received = read_to_end(&stream).expect("a clean end");
        assert_same(&received, &sent);
        writer.join().unwrap().unwrap();
    }
    println!("{engine}: 3 half-closed connections got everything");
}

fn a_slow_reader_loses_nothing_and_is_bounded_while_others_are_served(engine: &str) {
    let server = Server::echo(engine, &[]);
    ping(&connect(server.address()), &pattern(1, 70_000));
    let before = server.memory_bytes();
    let sent = pattern(2, 48 << 20);
    let slow = connect(server.address());
    let written = write_until_stuck(&slow, &sent);
    assert!(written < sent.len(), "the server takes without bound");
    let growth = server.memory_bytes().saturating_sub(before);
    let bound = ONCE_BYTES + (512 << 10) + server.pool_bytes();
    assert!(growth < bound, "{engine}: one slow reader costs {growth} bytes");
    for number in 0..20 {
        ping(&connect(server.address()), &pattern(number, 10_000));
    }
    let writer = write_and_finish(&slow, sent[written..].to_vec());
    assert_same(&read_to_end(&slow).expect("a clean end"), &sent);
    writer.join().unwrap().unwrap();
    println!("{engine}: stuck after {written} bytes, server memory grew by {growth}");
}

fn many_slow_readers_are_bounded_too(engine: &str) {
    let server = Server::echo(engine, &[]);
    let before = server.memory_bytes();
    let sent = pattern(3, 24 << 20);
    let slow: Vec<TcpStream> = (0..10).map(|_| connect(server.address())).collect();
    std::thread::scope(|scope| {
        for stream in &slow {
            scope.spawn(|| assert!(write_until_stuck(stream, &sent) < sent.len()));
        }
    });
    let growth = server.memory_bytes().saturating_sub(before);
    // 256 KiB queued, 128 KiB unread and a buffer in hand, for each.
    let bound = ONCE_BYTES + 10 * (512 << 10) + server.pool_bytes();
    assert!(growth < bound, "{engine}: ten slow readers cost {growth} bytes");
    ping(&connect(server.address()), &pattern(4, 100_000));
    println!("{engine}: ten slow readers cost {growth} bytes");
}

fn a_flooding_client_does_not_starve_fifty_others(engine: &str) {
    let server = Server::echo(engine, &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let moved = Arc::new(AtomicU64::new(0));
    let firehose = connect(server.address());
    let (mut writer, reader) = (firehose.try_clone().unwrap(), firehose);
    let stopping = Arc::clone(&stop);
    let writing = std::thread::spawn(move || {
        let block = pattern(5, 256 << 10);
        while !stopping.load(Ordering::Relaxed) {
            writer.write_all(&block).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let counting = Arc::clone(&moved);
    let reading = std::thread::spawn(move || {
        let mut block = vec![0; 256 << 10];
        while let Ok(bytes @ 1..) = (&reader).read(&mut block) {
            counting.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    });
    wait_until("the firehose flows", || moved.load(Ordering::Relaxed) > 1 << 20);
    let others: Vec<TcpStream> = (0..50).map(|_| connect(server.address())).collect();
    let at_start = moved.load(Ordering::Relaxed);
    let stands_still = || moved.load(Ordering::Relaxed) == at_start;
    let (began, mut round) = (Instant::now(), 0);
    // Its threads may be kept from the CPU for longer than twenty rounds take.
    while round < 20 || (stands_still() && began.elapsed() < PATIENCE) {
        others.iter().for_each(|other| ping(other, &pattern(round, 64)));
        round += 1;
    }
    let meanwhile = moved.load(Ordering::Relaxed) - at_start;
    stop.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    reading.join().unwrap();
    assert!(meanwhile > 0, "the firehose stood still");
    println!("{engine}: 50 x {round} round trips beside {meanwhile} bytes of firehose");
}

fn several_addresses_of_both_families_and_several_workers(engine: &str) {
    testing::needs_ipv6();
    testing::needs_cpus(2);
    let arguments = ["--listen", "[::1]:0", "--workers", "2", "--pin", "0-1"];
    let server = Server::echo(engine, &arguments);
    let addresses = server.ready["listen"].as_array().unwrap().clone();
    assert_eq!(addresses.len(), 2);
    assert_eq!(server.ready["workers"], 2);
    for address in &addresses {
        let address = address.as_str().unwrap().parse().unwrap();
        let streams: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
        streams.iter().for_each(|stream| ping(stream, b"to whichever worker"));
    }
    let ended = server.terminate();
    assert_eq!((ended.code, ended.count("accepted")), (Some(0), 40));
    println!("{engine}: 40 connections over 2 workers and 2 addresses");
}

fn degraded_features_echo_the_same_bytes() {
    let degraded = [
        ["--uring", "multishot=off"],
        ["--uring", "buffer_count=4,buffer_bytes=256"],
        ["--uring", "gather=off"],
        ["--epoll", "buffer_count=4,buffer_bytes=64"],
    ];
    let sent = pattern(6, 2 << 20);
    for arguments in degraded {
        let engine = if arguments[0] == "--uring" { "io_uring" } else { "epoll" };
        let server = Server::echo(engine, &arguments);
        let streams: Vec<TcpStream> = (0..4).map(|_| connect(server.address())).collect();
        let writers: Vec<_> =
            streams.iter().map(|stream| write_and_finish(stream, sent.clone())).collect();
        let readers: Vec<_> = streams
            .into_iter()
            .map(|stream| std::thread::spawn(move || read_to_end(&stream)))
            .collect();
        readers.into_iter().for_each(|reader| {
            assert_same(&reader.join().unwrap().expect("a clean end"), &sent);
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
        assert_eq!(server.terminate().code, Some(0), "{arguments:?}");
        println!("{} {}: 4 x {} bytes", arguments[0], arguments[1], sent.len());
    }
}

fn the_port_can_be_bound_again_at_once(engine: &str) {
    // On an address of its own: no other program gets the port in between.
    let first = Server::echo_on("127.0.0.9:0", engine, &[]);
    let address = first.address();
    let peers: Vec<TcpStream> = (0..10).map(|_| connect(address)).collect();
    peers.iter().for_each(|peer| ping(peer, b"first"));
    assert_eq!(first.terminate().code, Some(0));
    let second = Server::echo_on(&address.to_string(), engine, &[]);
    let peer = connect(address);
    ping(&peer, b"second");
    second.kill();
    let third = Server::echo_on(&address.to_string(), engine, &["--workers", "2"]);
    ping(&connect(address), b"third");
    drop(third);
    println!("{engine}: {address} was bound three times in a row");
}
