//! The modes of a worker: kinds of receives, and ticks.

use crate::peers::*;
use crate::support::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::{Datagram, Handle, Ticker, UdpOptions, spawn};

pub(crate) const RULES: &[Rule] = rules![
    single_shot_receives_cost_a_submission_each,
    single_shot_receives_stay_in_flight,
    many_at_a_time_are_read_by_calls_and_few_by_the_ring,
    calls_per_datagram_are_counted,
    a_tick_wakes_a_worker_once,
    a_worker_without_work_does_not_tick,
    due_sends_leave_before_arrivals_are_handled,
    another_thread_interrupts_a_tick,
    timers_and_streams_work_in_ticks,
    a_ticker_keeps_its_moments_and_reports_missed_ones,
    submit_sends_at_once,
    a_tick_out_of_range_is_refused,
];

const MS: Duration = Duration::from_millis(1);

/// The multishot receive is submitted once; single-shot ones for every datagram. Only io_uring
/// submits anything.
fn single_shot_receives_cost_a_submission_each(configuration: Configuration) {
    for pending in [1, 16] {
        configuration.run_with_handle(|handle| async move {
            let options = UdpOptions { pending, ..UdpOptions::default() };
            let peer = peer();
            let socket = connect(&options, address_of(&peer));
            assert!(poll_once(socket.recv_from()).await.is_none());
            settle().await;
            let before = handle.counters().submissions;
            for number in 0..200 {
                peer.send_to(&numbered(19, number, 50), socket.local_addr()).expect("room");
                assert_numbered(19, &socket.recv_from().await.expect("a datagram").data);
            }
            settle().await;
            let submissions = handle.counters().submissions - before;
            match configuration.is_epoll() {
                true => assert_eq!(submissions, 0),
                false => assert!(submissions >= 200, "{submissions}"),
            }
        });
    }
}

/// However many are asked for, they all come back to the kernel, and the socket can be closed and
/// made again with all of them in flight.
fn single_shot_receives_stay_in_flight(configuration: Configuration) {
    for pending in [2, 100, 4096] {
        configuration.run(async move {
            for pktinfo in [false, true] {
                let recv_buffer_bytes = Some(4 << 20);
                let options =
                    UdpOptions { pending, pktinfo, recv_buffer_bytes, ..UdpOptions::default() };
                let socket = bind(&options);
                let peer = peer();
                for number in 0..300 {
                    peer.send_to(&numbered(20, number, 50), socket.local_addr()).expect("room");
                }
                let received = receive(&socket, 300).await;
                let mut numbers: Vec<_> =
                    received.iter().map(|r| assert_numbered(20, &r.data)).collect();
                numbers.sort_unstable();
                assert_eq!(numbers, (0..300).collect::<Vec<_>>());
                assert!(received.iter().all(|r| r.to.is_some() == pktinfo));
                assert!(poll_once(socket.recv_from()).await.is_none());
            }
        });
    }
}

/// A fast socket cost io_uring a fifth more than epoll, which takes 64 datagrams per call. The
/// change from the ring to calls, and back, reorders and loses nothing.
fn many_at_a_time_are_read_by_calls_and_few_by_the_ring(configuration: Configuration) {
    const AT_A_TIME: usize = 40;
    let changes = !has_faults() && configuration.name == "io_uring";
    configuration.run_with_handle(|handle| async move {
        let peer = peer();
        let options = UdpOptions { recv_buffer_bytes: Some(4 << 20), ..UdpOptions::default() };
        let socket = bind(&options);
        let mut sent = 0;
        for round in 0..60 {
            // The calls are found out with 20 of 40, and the way back takes a hundred times one.
            let (rounds, count) = if round % 20 == 19 { (200, 1) } else { (1, AT_A_TIME) };
            for _ in 0..rounds {
                let first = sent;
                for _ in 0..count {
                    peer.send_to(&numbered(23, sent, 50), socket.local_addr()).expect("room");
                    sent += 1;
                }
                let before = handle.counters();
                for (at, received) in receive(&socket, count).await.iter().enumerate() {
                    assert_eq!(assert_numbered(23, &received.data), first + at);
                }
                let after = handle.counters();
                let completions = after.completions - before.completions;
                if changes && round % 20 == 18 {
                    assert!(completions < AT_A_TIME as u64, "{completions} for {count} in {round}");
                }
            }
            if changes && rounds > 1 {
                let by_calls = |handle: &Handle| {
                    let counted = handle.counters();
                    counted.syscalls - counted.enters
                };
                let before = by_calls(&handle);
                peer.send_to(&numbered(23, sent, 50), socket.local_addr()).expect("room");
                sent += 1;
                receive(&socket, 1).await;
                assert_eq!(by_calls(&handle), before, "one datagram, read by a call");
            }
        }
    });
}

/// On epoll: one system call for each datagram, against one for up to 64.
fn calls_per_datagram_are_counted(configuration: Configuration) {
    if has_faults() {
        // They change when things happen, and by how many calls.
        return;
    }
    if !configuration.is_epoll() {
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

/// Datagrams trickle in over several ticks: the worker sleeps, and takes what came, once per tick.
fn a_tick_wakes_a_worker_once(configuration: Configuration) {
    run_on(configuration.builder().tick(10 * MS), |handle| async move {
        const SENT: usize = 60;
        let peer = peer();
        let socket = connect(&UdpOptions::default(), address_of(&peer));
        assert!(poll_once(socket.recv_from()).await.is_none());
        let mut ticker = Ticker::new(10 * MS);
        ticker.tick().await;
        let before = handle.counters();
        let address = socket.local_addr();
        let sending = std::thread::spawn(move || {
            for number in 0..SENT {
                peer.send_to(&numbered(22, number, 50), address).expect("room");
                std::thread::sleep(MS);
            }
        });
        let (mut received, mut batches) = (Vec::new(), 0);
        while received.len() < SENT {
            socket.recv_batch(&mut received).await.expect("datagrams");
            batches += 1;
        }
        let after = handle.counters();
        let ticks = after.ticks - before.ticks;
        // One more at each end, one in which epoll learns how many come at a time, and a second one after
        // a tick that came late, as more came in it than was asked for. Without ticks there are 60.
        let missed = after.ticks_missed - before.ticks_missed;
        assert!(
            batches <= 2 * ticks + missed + 3,
            "{batches} batches in {ticks} ticks, {missed} missed"
        );
        // Beside the sleep there is the wait that only asks, on epoll.
        let waits = after.waits - before.waits;
        let asks = if configuration.is_epoll() { ticks } else { 0 };
        assert!(waits <= ticks + asks + 2, "{waits} waits in {ticks} ticks");
        sending.join().expect("no panic");
    });
}

/// A worker without work woke 1,000 times per second for its ticks. Now it sleeps until a datagram
/// arrives, receives it at once, and ticks again.
fn a_worker_without_work_does_not_tick(configuration: Configuration) {
    run_on(configuration.builder().tick(MS), |handle| async move {
        let peer = peer();
        let socket = connect(&UdpOptions::default(), address_of(&peer));
        let address = socket.local_addr();
        let received: Rc<Cell<usize>> = Rc::default();
        let count = Rc::clone(&received);
        spawn(async move {
            loop {
                socket.recv_from().await.expect("a datagram");
                count.set(count.get() + 1);
            }
        });
        for number in 0..2 {
            let before = handle.counters();
            twinring::sleep(500 * MS).await;
            let after = handle.counters();
            // It ticks for 100 ms more. On epoll each tick is two waits.
            let (ticks, waits) = (after.ticks - before.ticks, after.waits - before.waits);
            assert!(ticks < 200, "{ticks} ticks in half a second without work");
            assert!(waits < 400, "{waits} waits in half a second without work");
            peer.send_to(&numbered(26, number, 50), address).expect("room");
            while received.get() == number {
                yield_now().await;
            }
            let mut ticker = Ticker::new(MS);
            let ticks = handle.counters().ticks;
            for _ in 0..20 {
                ticker.tick().await;
            }
            assert!(handle.counters().ticks >= ticks + 2, "it ticks again");
        }
    });
}

/// Something arrives, and then a sender that is due sends: its datagram is with the kernel before
/// what arrived is handled, tick after tick.
fn due_sends_leave_before_arrivals_are_handled(configuration: Configuration) {
    if has_faults() {
        // They change when things happen, and by how many calls.
        return;
    }
    if configuration.name == "sqpoll" {
        // A submission thread sends, and receives, when it comes to it.
        return;
    }
    // Long against what a sanitizer makes of one turn.
    let tick = 100 * MS;
    run_on(configuration.builder().tick(tick), |handle| async move {
        let options = UdpOptions::default();
        // For each that arrived, what the sender had sent last.
        let order: Rc<RefCell<Vec<Option<usize>>>> = Rc::default();
        let (far, near) = (peer(), bind(&options));
        let to = address_of(&far);
        let from = connect(&options, to);
        far.connect(from.local_addr()).expect("a route");
        let near_address = near.local_addr();
        let log = Rc::clone(&order);
        spawn(async move {
            loop {
                near.recv_from().await.expect("a datagram");
                // Datagrams that the sender sent in this tick have already arrived.
                far.set_nonblocking(true).expect("a socket");
                let mut bytes = [0; 100];
                let arrived = || {
                    let length = far.recv(&mut bytes).ok()?;
                    Some(assert_numbered(23, &bytes[..length]))
                };
                log.borrow_mut().push(std::iter::from_fn(arrived).last());
            }
        });
        let mut ticker = Ticker::new(tick);
        let stranger = peer();
        let (mut in_time, mut expected) = (0, None);
        let mut sent_in = 0;
        for number in 0.. {
            let now = ticker.tick().await;
            // On a machine that stood still, this tick was due already when it was awaited, and the
            // worker has had no turn since the last one.
            if handle.counters().ticks == sent_in {
                continue;
            }
            let handled = order.take();
            if let Some(last) = expected.take() {
                assert_eq!(handled, [Some(last)], "sent before what arrived was handled");
                in_time += 1;
            }
            if in_time == 5 {
                break;
            }
            stranger.send_to(b"this arrives first", near_address).expect("room");
            yield_now().await;
            let handled = order.borrow().len();
            from.send(numbered(23, number, 50)).await.expect("room");
            // A datagram that is due after a tick has passed waits for the next: such a tick shows
            // nothing.
            if now.missed == 0 && Instant::now() < now.deadline + tick {
                assert_eq!(handled, 0, "nothing was handled before the sender");
                expected = Some(number);
            }
            sent_in = handle.counters().ticks;
        }
    });
}

/// A tick of a second, and a wake from another thread that is served long before.
fn another_thread_interrupts_a_tick(configuration: Configuration) {
    run_on(configuration.builder().tick(Duration::from_secs(1)), |handle| async move {
        let mut rounds = 0;
        // Fifty round trips through another thread; in ticks they would outlast the watchdog.
        while rounds < 50 {
            on_thread(move || rounds).await;
            rounds += 1;
        }
        assert!(handle.counters().ticks < 25, "{:?}", handle.counters());
    });
    // And a stop from outside ends a runtime in the middle of a tick.
    let runtime = configuration.builder().tick(Duration::from_secs(1)).build().expect("tried");
    let handle = runtime.handle();
    let stopper = std::thread::spawn(move || handle.stop());
    let ended = runtime.run(|_| std::future::pending::<()>()).expect("the engine works");
    assert_eq!(ended, [None]);
    stopper.join().expect("no panic");
}

fn timers_and_streams_work_in_ticks(configuration: Configuration) {
    run_on(configuration.builder().tick(MS), |_| async {
        let start = Instant::now();
        twinring::sleep(5 * MS).await;
        assert!(start.elapsed() >= 5 * MS);
        let listener = listen();
        let address = listener.local_addr();
        spawn(echo_server(listener));
        on_thread(move || {
            let mut peer = Peer::connect(address).expect("the backlog has room");
            for size in [1, 1000, 300_000] {
                ping(&mut peer, &pattern(24, 0..size));
            }
        })
        .await;
        let timed_out = twinring::timeout(2 * MS, std::future::pending::<()>()).await;
        assert!(timed_out.is_err());
    });
}

fn a_ticker_keeps_its_moments_and_reports_missed_ones(configuration: Configuration) {
    for tick in [false, true] {
        let builder = configuration.builder();
        let builder = if tick { builder.tick(MS) } else { builder };
        run_on(builder, |_| async {
            let mut ticker = Ticker::new(2 * MS);
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
        });
    }
}

/// Without a wait in between: after `submit` the datagram is at the other socket.
fn submit_sends_at_once(configuration: Configuration) {
    if has_faults() {
        // They change when things happen, and by how many calls.
        return;
    }
    run_on(configuration.builder(), |_| async move {
        let peer = peer();
        peer.set_nonblocking(true).expect("a socket");
        let socket = connect(&UdpOptions::default(), address_of(&peer));
        let polls = Cell::new(0);
        for number in 0..50 {
            socket.send(numbered(25, number, 50)).await.expect("room");
            twinring::submit().expect("the engine works");
            // A submission thread, where there is one, takes its moment.
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut bytes = [0; 100];
            let length = loop {
                match peer.recv(&mut bytes) {
                    Ok(length) => break length,
                    Err(_) if Instant::now() < deadline => polls.set(polls.get() + 1),
                    Err(error) => panic!("datagram {number} was not handed over: {error}"),
                }
            };
            assert_eq!(assert_numbered(25, &bytes[..length]), number);
        }
        if configuration.name != "sqpoll" {
            assert_eq!(polls.get(), 0, "each was there at once");
        }
    });
}

fn a_tick_out_of_range_is_refused(configuration: Configuration) {
    for period in [Duration::ZERO, Duration::from_micros(49), Duration::from_secs(2)] {
        let error = configuration.builder().tick(period).build().expect_err("out of range");
        assert!(error.to_string().contains("expected 50 us to 1 s"), "{error}");
    }
}
