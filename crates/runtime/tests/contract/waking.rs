//! Wakes from other threads: none is lost, in any number.

use crate::support::*;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;
use twinring::{sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    no_wake_from_another_thread_is_lost,
    an_overflow_of_wakes_wakes_all_tasks,
    a_wake_that_comes_while_sends_are_submitted_is_not_lost,
    wakers_of_an_ended_runtime_wake_no_task,
    wakes_leave_no_busy_loop_behind,
];

/// A channel of the plainest kind: one queue, one waker.
#[derive(Clone, Default)]
struct Channel(Arc<Mutex<(VecDeque<usize>, Option<Waker>)>>);

impl Channel {
    fn send(&self, value: usize) {
        let waker = {
            let mut inner = self.0.lock().expect("no panic with the lock");
            inner.0.push_back(value);
            inner.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    async fn recv(&self) -> usize {
        poll_fn(|cx| {
            let mut inner = self.0.lock().expect("no panic with the lock");
            match inner.0.pop_front() {
                Some(value) => Poll::Ready(value),
                None => {
                    inner.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A thread that sends back each of `rounds` numbers at once. In lockstep with it, each wake finds
/// the worker about to wait, waiting, or just back.
fn partner(rounds: usize, from: &Channel, to: &Channel) -> std::thread::JoinHandle<()> {
    let (from, to) = (from.clone(), to.clone());
    std::thread::spawn(move || {
        for round in 0..rounds {
            let value = loop {
                if let Some(value) = from.0.lock().expect("no panic").0.pop_front() {
                    break value;
                }
                std::thread::yield_now();
            };
            assert_eq!(value, round);
            to.send(round);
        }
    })
}

/// So much in a turn is submitted in an enter of its own, before the one that waits. The first one may
/// take the signal; the second one then waited for ever.
async fn a_wake_that_comes_while_sends_are_submitted_is_not_lost() {
    const ROUNDS: usize = 1500;
    const BYTES: usize = 160 * 1024;
    let (stream, mut peer) = pair().await;
    let drain = on_thread(move || read_to_end(&mut peer).expect("no reset").len());
    let (to, from) = (Channel::default(), Channel::default());
    let partner = partner(ROUNDS, &to, &from);
    for round in 0..ROUNDS {
        stream.send(vec![1; BYTES]).await.expect("sent");
        to.send(round);
        assert_eq!(from.recv().await, round);
    }
    partner.join().expect("no panic");
    stream.shutdown().await.expect("finished");
    assert_eq!(drain.await, ROUNDS * BYTES);
}

async fn no_wake_from_another_thread_is_lost() {
    const ROUNDS: usize = 1200;
    let (to, from) = (Channel::default(), Channel::default());
    let partner = partner(ROUNDS, &to, &from);
    for round in 0..ROUNDS {
        to.send(round);
        assert_eq!(from.recv().await, round);
    }
    partner.join().expect("no panic");
}

/// Each of 50 tasks gets 500 values from each of 2 threads that never wait, and one task is woken
/// 50,000 times for nothing: 100,000 wakes at full speed.
async fn an_overflow_of_wakes_wakes_all_tasks() {
    const TASKS: usize = 50;
    const VALUES: usize = 500;
    let channels: Vec<Channel> = (0..TASKS).map(|_| Channel::default()).collect();
    let tasks: Vec<_> = channels
        .iter()
        .map(|channel| {
            let channel = channel.clone();
            spawn(async move {
                let mut sum = 0;
                for _ in 0..2 * VALUES {
                    sum += channel.recv().await;
                }
                sum
            })
        })
        .collect();
    yield_now().await;
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let channels = channels.clone();
            on_thread(move || {
                for value in 0..VALUES {
                    channels.iter().for_each(|channel| channel.send(value));
                }
            })
        })
        .collect();
    // Meanwhile one task is woken far more often than an inbox stores.
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    on_thread(move || (0..50_000).for_each(|_| waker.wake_by_ref())).await;
    for thread in threads {
        thread.await;
    }
    for task in tasks {
        assert_eq!(task.await.ok(), Some(VALUES * (VALUES - 1)));
    }
}

fn wakers_of_an_ended_runtime_wake_no_task(configuration: Configuration) {
    let waker = configuration.run(poll_fn(|cx| Poll::Ready(cx.waker().clone())));
    waker.wake_by_ref();
    configuration.run(async move {
        waker.wake_by_ref();
        on_thread(move || (0..100).for_each(|_| waker.wake_by_ref())).await;
        sleep(Duration::from_millis(1)).await;
    });
}

/// Between a waker's note and its signal the worker may already have checked: a level-triggered
/// watch on the signal must then not report it for ever.
async fn wakes_leave_no_busy_loop_behind(handle: Handle) {
    for _ in 0..15 {
        let channel = Channel::default();
        let theirs = channel.clone();
        let sender = on_thread(move || (0..60).for_each(|value| theirs.send(value)));
        for value in 0..60 {
            assert_eq!(channel.recv().await, value);
        }
        sender.await;
        settle().await;
        let mut waits = u64::MAX;
        // On a busy machine something may be late; a loop would not end.
        for _ in 0..3 {
            let before = handle.counters().waits;
            sleep(Duration::from_millis(4)).await;
            waits = waits.min(handle.counters().waits - before);
            if waits < 20 {
                break;
            }
        }
        assert!(waits < 20, "{waits} waits in 4 ms without work");
    }
}
