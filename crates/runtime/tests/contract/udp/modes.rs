//! Kinds of receives, tickers, and submitting at once.

use super::peers::*;
use crate::support::*;
use std::time::{Duration, Instant};
use twinring::{Datagram, net::UdpOptions, time::Interval};

pub(crate) const RULES: &[Rule] = rules![
    single_shot_receives_stay_in_flight,
    calls_per_datagram_are_counted,
    a_ticker_keeps_its_moments_and_reports_missed_ones,
    submit_sends_at_once,
];

const MS: Duration = Duration::from_millis(1);

/// The multishot receive is submitted once; single-shot ones for every datagram. However many are asked for, they
/// all come back to the kernel, and the socket can be closed and made again with all of them in flight. Only
/// io_uring submits anything.
fn single_shot_receives_stay_in_flight(configuration: Configuration) {
    for pending in [1, 2, 100, 4096] {
        configuration.run_with_handle(|handle| async move {
            for pktinfo in [false, true] {
                let recv_buffer_bytes = Some(4 << 20);
                let options =
                    UdpOptions { pending, pktinfo, recv_buffer_bytes, ..UdpOptions::default() };
                let (socket, peer) = (bind(&options), peer());
                assert!(poll_once(socket.recv_from()).await.is_none());
                settle().await;
                let before = handle.counters().submissions;
                for number in 0..300 {
                    peer.send_to(&numbered(20, number, 50), socket.local_addr()).expect("room");
                }
                let received = receive(&socket, 300).await;
                assert_all(20, &received, 300, &options);
                assert!(received.iter().all(|r| r.to.is_some() == pktinfo));
                settle().await;
                let submissions = handle.counters().submissions - before;
                assert!(if configuration.is_epoll() {
                    submissions == 0
                } else {
                    submissions >= 300
                });
            }
        });
    }
}

/// On epoll: one system call for each datagram, against one for up to 64.
fn calls_per_datagram_are_counted(configuration: Configuration) {
    if configuration.has_faults() || !configuration.is_epoll() {
        // Faults change when things happen, and by how many calls.
        return;
    }
    let calls = |batch: bool| {
        configuration.run_with_handle(move |handle| async move {
            let options =
                UdpOptions { batch, recv_buffer_bytes: Some(4 << 20), ..UdpOptions::default() };
            let (from, to) = (bind(&options), bind(&options));
            let datagram = |n| Datagram::to(to.local_addr(), numbered(21, n, 50));
            let mut datagrams: Vec<_> = (0..640).map(datagram).collect();
            let start = handle.counters().syscalls;
            from.send_batch(&mut datagrams).await.expect("room");
            let sent = handle.counters().syscalls;
            receive(&to, 640).await;
            (sent - start, handle.counters().syscalls - sent)
        })
    };
    let (sent, received) = calls(false);
    // A task that has received 32 times yields, and the worker checks for events meanwhile.
    assert!(sent == 640 && (640..=700).contains(&received), "{received}");
    let (sent, received) = calls(true);
    assert!(sent == 10 && (10..=20).contains(&received), "{received}");
}

async fn a_ticker_keeps_its_moments_and_reports_missed_ones() {
    let mut ticker = Interval::new(2 * MS);
    let first = ticker.tick().await;
    let mut last = first;
    for _ in 0..20 {
        let next = ticker.tick().await;
        assert!(Instant::now() >= next.deadline);
        assert_eq!(next.number, last.number + 1 + next.missed);
        let periods = (next.number - first.number) as u32;
        assert_eq!(next.deadline, first.deadline + 2 * MS * periods, "no drift");
        last = next;
    }
    // Busy through several: the last of them is reported at once, with the number missed.
    let until = last.deadline + 11 * MS;
    while Instant::now() < until {}
    let late = ticker.tick().await;
    assert!(late.missed >= 4 && late.number > last.number + 4, "{late:?}");
    // Dropped while it waits, it has handed nothing out.
    let early = poll_once(ticker.tick()).await;
    assert!(early.is_none_or(|tick| Instant::now() >= tick.deadline));
    let next = ticker.tick().await;
    assert!(next.number > early.map_or(late.number, |tick| tick.number));
}

/// Without a wait in between: after `submit` the datagram is at the other socket.
fn submit_sends_at_once(configuration: Configuration) {
    if configuration.has_faults() {
        // They change when things happen, and by how many calls.
        return;
    }
    run_on(configuration.builder(), |_| async move {
        let peer = peer();
        peer.set_nonblocking(true).expect("a socket");
        let socket = connect(&UdpOptions::default(), address_of(&peer));
        let polls = Tally::default();
        for number in 0..50 {
            socket.send(numbered(25, number, 50)).await.expect("room");
            twinring::submit().expect("the engine works");
            // A submission thread, where there is one, takes its moment, and a datagram then waits for the
            // completion of the one before.
            let mut bytes = [0; 100];
            let length = loop {
                match peer.recv(&mut bytes) {
                    Ok(length) => break length,
                    Err(_) => polls.add(1),
                }
                yield_now().await;
            };
            assert_eq!(assert_numbered(25, &bytes[..length]), number);
        }
        if configuration.name != "sqpoll" {
            assert_eq!(polls.get(), 0, "each was there at once");
        }
    });
}
