//! Timers and deadlines.

use crate::support::*;
use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::{sleep, sleep_until, spawn, timeout, timeout_at};

pub(crate) const RULES: &[Rule] = rules![
    thousands_of_timers_fire_once_each,
    dropped_timers_neither_fire_nor_delay,
    deadlines_cut_only_late_futures,
    timers_fire_while_sockets_are_busy,
];

async fn thousands_of_timers_fire_once_each() {
    let fired = Rc::new(RefCell::new(0));
    let mut random = Random::new(3);
    let tasks: Vec<_> = (0..3000)
        .map(|_| {
            let fired = Rc::clone(&fired);
            let duration = Duration::from_micros(random.below(70_000) as u64);
            spawn(async move {
                let started = Instant::now();
                sleep(duration).await;
                assert!(started.elapsed() >= duration, "early");
                *fired.borrow_mut() += 1;
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*fired.borrow(), 3000);
    sleep_until(Instant::now()).await;
    sleep(Duration::ZERO).await;
}

async fn dropped_timers_neither_fire_nor_delay(handle: Handle) {
    let mut sleeps: Vec<_> =
        (1..200).map(|ms| Box::pin(sleep(Duration::from_millis(ms)))).collect();
    for one in &mut sleeps {
        let _pending = poll_once(one.as_mut()).await;
    }
    let far = spawn(sleep(Duration::MAX));
    drop(sleeps);
    settle().await;
    let before = handle.counters().waits;
    sleep(Duration::from_millis(60)).await;
    let waits = handle.counters().waits - before;
    assert!(waits < 30, "{waits} waits for timers that were dropped");
    assert!(!far.is_finished());
    far.abort();
    assert!(far.await.is_err());
}

async fn deadlines_cut_only_late_futures() {
    let pending = std::future::pending::<()>;
    assert!(timeout(Duration::from_millis(1), pending()).await.is_err());
    assert!(timeout(Duration::ZERO, pending()).await.is_err());
    assert!(timeout_at(Instant::now() + Duration::from_millis(1), pending()).await.is_err());
    assert_eq!(timeout(Duration::ZERO, async { 5 }).await, Ok(5));
    assert_eq!(timeout(Duration::MAX, async { 6 }).await, Ok(6));
    let nested = timeout(Duration::from_millis(1), timeout(Duration::from_secs(9), pending()));
    assert!(nested.await.is_err());
    let (stream, mut peer) = pair().await;
    assert!(timeout(Duration::from_millis(1), stream.recv()).await.is_err());
    peer.write_all(b"late").expect("room");
    assert_eq!(recv_exactly(&stream, 4).await, b"late");
}

async fn timers_fire_while_sockets_are_busy() {
    let (stream, mut peer) = pair().await;
    let done = Tally::default();
    let stop = done.clone();
    spawn(echo(stream));
    let pinging = on_thread(move || {
        while stop.get() == 0 {
            ping(&mut peer, &[4; 64]);
        }
    });
    for _ in 0..15 {
        let started = Instant::now();
        sleep(Duration::from_millis(1)).await;
        assert!(started.elapsed() >= Duration::from_millis(1), "early");
    }
    done.add(1);
    pinging.await;
}
