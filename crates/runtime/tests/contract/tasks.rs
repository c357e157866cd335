//! Tasks, blocking work, timers, and wakes from other threads, of which none is lost.

use crate::support::*;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use twinring::task::JoinSet;
use twinring::{Event, sleep_until, spawn_blocking, submit, timeout_at};

pub(crate) const RULES: &[Rule] = rules![
    results_and_aborts_reach_the_handle,
    a_set_returns_each_task_once,
    destructors_may_spawn_and_use_streams,
    a_panic_ends_its_task_alone,
    the_main_future_borrows_from_its_caller,
    blocking_work_runs_beside_the_worker,
    blocking_work_that_does_not_end_is_abandoned,
    timers_fire_once_unless_they_are_dropped,
    deadlines_cut_only_late_futures,
    deadlines_spare_what_has_arrived,
    no_wake_from_another_thread_is_lost,
    an_overflow_of_wakes_wakes_all_tasks,
    wakers_of_an_ended_runtime_wake_no_task,
    wakes_leave_no_busy_loop_behind,
];

async fn results_and_aborts_reach_the_handle() {
    let early = spawn(async { "early" });
    settle().await;
    assert!(early.is_finished());
    early.abort();
    assert_eq!(early.await.ok(), Some("early"), "an abort after the end changes nothing");
    let never = spawn(pending::<()>());
    never.abort();
    assert!(never.is_finished() && never.await.is_err());
    let tasks: Vec<_> = (0..2000).map(|n| spawn(async move { n })).collect();
    assert!(join_all(tasks).await.into_iter().eq(0..2000));
    // A task may abort itself, and keeps nothing that it owned.
    let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
    let its_own = Rc::clone(&own);
    own.replace(Some(spawn(async move {
        yield_now().await;
        its_own.borrow().as_ref().expect("stored").abort();
        pending::<()>().await;
    })));
    settle().await;
    assert_eq!(Rc::strong_count(&own), 1);
    assert!(own.take().expect("stored").await.is_err());
}

fn a_set_returns_each_task_once(configuration: Configuration) {
    run_on(configuration.builder().stop_on_panic(false), async |_| {
        let mut set = JoinSet::new();
        assert!(set.join_next().await.is_none());
        for number in 0..100 {
            set.spawn(async move {
                sleep(Duration::from_micros(100 * (100 - number))).await;
                assert_ne!(number, 50, "on purpose");
                number
            });
        }
        assert!(poll_once(set.join_next()).await.is_none());
        let (mut numbers, mut panics) = (Vec::new(), 0);
        while let Some(ended) = set.join_next().await {
            match ended {
                Ok(number) => numbers.push(number),
                Err(error) => panics += usize::from(error.is_panic()),
            }
        }
        numbers.sort_unstable();
        assert_eq!(panics, 1);
        assert!(numbers.into_iter().eq((0..50).chain(51..100)));
        // Tasks end with an abort of all, and with their set.
        let live = Rc::new(0);
        let forever = |owned: Rc<u64>| async move { *owned + pending::<u64>().await };
        set.spawn(forever(Rc::clone(&live)));
        settle().await;
        set.abort_all();
        assert!(set.join_next().await.expect("one").expect_err("aborted").is_cancelled());
        set.spawn(forever(Rc::clone(&live)));
        drop(set);
        settle().await;
        assert_eq!(Rc::strong_count(&live), 1);
    });
}

fn destructors_may_spawn_and_use_streams(configuration: Configuration) {
    struct LastWords(Rc<TcpStream>, Tally);
    impl Drop for LastWords {
        fn drop(&mut self) {
            self.1.add(1);
            self.0.cancel();
            let kept_by_a_task_that_never_runs = Rc::clone(&self.0);
            spawn(async move { drop(kept_by_a_task_that_never_runs) });
        }
    }
    let ran = Tally::default();
    let counted = ran.clone();
    let mut peer = configuration.run(async move {
        let (stream, peer) = pair().await;
        spawn(async move {
            let on_drop = LastWords(Rc::new(stream), counted);
            drop(on_drop.0.recv().await);
            pending::<()>().await;
        });
        settle().await;
        peer
    });
    assert_eq!(ran.get(), 1);
    assert!(read_to_end(&mut peer).expect("closed, not reset").is_empty());
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("in a destructor");
    }
}

/// A panic of one connection's task ended the workers, and with them all connections.
fn a_panic_ends_its_task_alone(configuration: Configuration) {
    run_on(configuration.builder().stop_on_panic(false), async move |handle| {
        let (stream, mut peer) = pair().await;
        let failing = spawn(async move {
            let chunk = stream.recv().await.expect("a request");
            panic!("cannot answer {} bytes", chunk.len());
        });
        // One byte, which seeded faults cannot cut short: what is left unread is a reset.
        peer.write_all(b"!").expect("the server reads");
        assert_eq!(reading(peer).await, b"");
        let error = failing.await.map(|()| "an answer").expect_err("a panic");
        assert!(error.is_panic() && !error.is_cancelled());
        assert!(error.to_string().contains("cannot answer 1 bytes"), "{error}");
        let payload = error.try_into_panic().expect("a panic");
        assert_eq!(payload.downcast_ref::<String>().expect("formatted"), "cannot answer 1 bytes");
        // Destructors: of an aborted task, of one that ends, of an unused output, and of one that is left to the end of
        // the runtime.
        let late = || async {
            let _late = PanicsOnDrop;
            pending::<()>().await;
        };
        let aborted = spawn(late());
        settle().await;
        aborted.abort();
        assert!(aborted.await.expect_err("aborted").is_cancelled());
        drop(spawn(async { PanicsOnDrop }));
        settle().await;
        assert_eq!(handle.counters().panics, 3);
        another_is_served().await;
        spawn(late());
        settle().await;
    });
}

fn the_main_future_borrows_from_its_caller(configuration: Configuration) {
    let request = String::from("lent to the runtime");
    let mut log = Vec::new();
    let runtime = configuration.builder().build().expect("tried before");
    let answer = runtime.block_on(async {
        let (stream, peer) = pair().await;
        stream.send(request.clone()).await.expect("room");
        stream.shutdown().await.expect("connected");
        log.push(request.len());
        // What it owns when it ends is dropped inside the runtime.
        (&request[..4], reading(peer).await, spawn(pending::<()>()))
    });
    let (lent, read, never) = answer.expect("the engine works");
    assert_eq!((lent, &read[..]), ("lent", request.as_bytes()));
    assert!(never.is_finished());
    // Stopped, it is dropped with what it borrows, and may use the runtime for the last time.
    struct Sender<'a>(&'a mut Vec<usize>, TcpStream);
    impl Drop for Sender<'_> {
        fn drop(&mut self) {
            self.0.push(0);
            let late = std::pin::pin!(self.1.send("late"));
            let _maybe = late.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
    let runtime = configuration.builder().build().expect("tried before");
    let handle = runtime.handle();
    let stopped = runtime.block_on(async {
        let (stream, _peer) = pair().await;
        let _sender = Sender(&mut log, stream);
        handle.stop();
        pending::<()>().await;
    });
    assert!(stopped.is_err());
    assert_eq!(log, [request.len(), 0]);
}

fn blocking_work_runs_beside_the_worker(configuration: Configuration) {
    run_on(configuration.builder().stop_on_panic(false), async move |handle| {
        let (go_on, gate) = mpsc::channel();
        let work = spawn_blocking(move || gate.recv().expect("a message from the worker"));
        let (name, here) =
            (spawn_blocking(|| std::thread::current().id()), std::thread::current().id());
        assert_ne!(name.await.expect("no panic"), here);
        assert!(!work.is_finished());
        go_on.send(42).expect("it waits");
        assert_eq!(work.await.expect("no panic"), 42);
        // Given up before it began: nothing is left of it.
        spawn_blocking(|| unreachable!("aborted")).abort();
        let many: Vec<_> = (0..300).map(|number| spawn_blocking(move || number)).collect();
        assert!(join_all(many).await.into_iter().eq(0..300));
        let failed = spawn_blocking(|| -> u8 { panic!("on purpose") }).await;
        assert!(failed.expect_err("a panic").is_panic());
        assert_eq!(handle.counters().panics, 1);
        assert_eq!(spawn_blocking(|| 7).await.expect("the thread lives on"), 7);
    });
}

/// Only that. The destructor of a result that nobody waits for panicked, and took the thread with it.
fn blocking_work_that_does_not_end_is_abandoned(configuration: Configuration) {
    let (told, notices) = mpsc::channel();
    let (end, gate) = mpsc::channel::<()>();
    let builder = configuration.builder().on_event(move |notice| {
        told.send(notice).expect("the test waits");
    });
    run_on(builder, async move |_| {
        let (begun, begins) = mpsc::channel();
        let also_begun = begun.clone();
        let _detached = spawn_blocking(move || {
            begun.send(()).expect("the test waits");
            gate.recv().unwrap_or_default();
        });
        let (go_on, gate) = mpsc::channel::<()>();
        let given_up = spawn_blocking(move || {
            also_begun.send(()).expect("the test waits");
            gate.recv().unwrap_or_default();
            PanicsOnDrop
        });
        for _ in 0..2 {
            while begins.try_recv().is_err() {
                settle().await;
            }
        }
        given_up.abort();
        drop(go_on);
    });
    assert_eq!(notices.try_recv(), Ok(Event::BlockingStuck(1)));
    drop(end);
}

async fn timers_fire_once_unless_they_are_dropped(_: Configuration, handle: Handle) {
    let mut random = Random::new(3);
    let timer = |_| {
        let duration = Duration::from_micros(random.below(70_000) as u64);
        spawn(async move {
            let started = Instant::now();
            sleep(duration).await;
            assert!(started.elapsed() >= duration, "early");
        })
    };
    join_all((0..3000).map(timer).collect::<Vec<_>>()).await;
    sleep_until(Instant::now()).await;
    sleep(Duration::ZERO).await;
    for ms in 1..200 {
        assert!(poll_once(sleep(Duration::from_millis(ms))).await.is_none());
    }
    let far = spawn(sleep(Duration::MAX));
    settle().await;
    let (_, waits) = calls_in(&handle, Duration::from_millis(60)).await;
    assert!(waits < 30, "{waits} waits for timers that were dropped");
    assert!(!far.is_finished());
    far.abort();
    assert!(far.await.is_err());
}

async fn deadlines_cut_only_late_futures() {
    assert!(timeout(Duration::from_millis(1), pending::<()>()).await.is_err());
    assert!(timeout(Duration::ZERO, pending::<()>()).await.is_err());
    assert!(timeout_at(Instant::now() + Duration::from_millis(1), pending::<()>()).await.is_err());
    assert_eq!(timeout(Duration::ZERO, async { 5 }).await, Ok(5));
    assert_eq!(timeout(Duration::MAX, async { 6 }).await, Ok(6));
    let long = timeout(Duration::from_secs(9), pending::<()>());
    assert!(timeout(Duration::from_millis(1), long).await.is_err());
    let (stream, mut peer) = pair().await;
    assert!(timeout(Duration::from_millis(1), stream.recv()).await.is_err());
    peer.write_all(b"late").expect("room");
    assert_eq!(recv_exactly(&stream, 4).await, b"late");
}

/// With more arrivals than are handled at a time, a deadline that passed meanwhile cut off the last ones.
async fn deadlines_spare_what_has_arrived(configuration: Configuration, _: Handle) {
    // Three portions, and no more than one enter collects.
    const STREAMS: usize = 80;
    if !["epoll", "io_uring", "single_shot"].contains(&configuration.name)
        || configuration.has_faults()
    {
        // Not all that has arrived is reported at once.
        return;
    }
    let deadline = Instant::now() + Duration::from_millis(300);
    let (mut peers, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let (stream, peer) = pair().await;
        peers.push(peer);
        tasks.push(spawn(async move {
            let received = timeout_at(deadline, stream.recv()).await;
            let early = deadline.saturating_duration_since(Instant::now());
            // The first one keeps the worker for so long.
            std::thread::sleep(early);
            (received.is_ok(), !early.is_zero())
        }));
    }
    settle().await;
    peers.iter_mut().for_each(|peer| peer.write_all(b"!").expect("room"));
    let ended = join_all(tasks).await;
    // Unless the machine was too busy.
    if ended.iter().any(|(_, early)| *early) {
        let received = ended.iter().filter(|(received, _)| *received).count();
        assert_eq!(received, STREAMS);
    }
}

/// A thread sends back each number at once. In lockstep with it, each wake finds the worker about to wait, waiting, or
/// just back. So much in a turn is submitted in an enter of its own, before the one that waits. The first one may
/// take the signal; the second one then waited for ever.
async fn no_wake_from_another_thread_is_lost() {
    const ROUNDS: usize = 1500;
    for bytes in [0, 160 * 1024] {
        let (stream, peer) = pair().await;
        let drain = reading(peer);
        let (to, theirs) = mpsc::channel();
        let (answer, mut from) = unbounded();
        std::thread::spawn(move || {
            for round in 0..ROUNDS {
                // It never sleeps.
                let tries = std::iter::repeat_with(|| theirs.try_recv());
                let value = tries.inspect(|_| std::thread::yield_now()).find_map(Result::ok);
                assert_eq!(value, Some(round));
                answer.unbounded_send(round).expect("the worker waits");
            }
        });
        for round in 0..ROUNDS {
            stream.send(vec![1; bytes]).await.expect("sent");
            to.send(round).expect("the other waits");
            assert_eq!(from.recv().await, Ok(round));
        }
        stream.shutdown().await.expect("finished");
        assert_eq!(drain.await.len(), ROUNDS * bytes);
    }
    // A poll for wakes that is armed when one has come ends at once: `submit` took that, and the worker then slept.
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let (woken, wait) = mpsc::channel();
    std::thread::spawn(move || {
        waker.wake();
        woken.send(()).expect("the other waits");
    });
    wait.recv().expect("it is woken");
    let mut polled = false;
    let next_poll = poll_fn(|_| match std::mem::replace(&mut polled, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    });
    submit().expect("the engine works");
    next_poll.await;
}

/// Each of 50 tasks gets 500 values from each of 2 threads that never wait, and one task is woken
/// 50,000 times for nothing: 100,000 wakes at full speed.
async fn an_overflow_of_wakes_wakes_all_tasks() {
    const TASKS: usize = 50;
    const VALUES: usize = 500;
    let (mut senders, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..TASKS {
        let (to, mut from) = unbounded();
        senders.push(to);
        tasks.push(spawn(async move {
            let mut sum = 0;
            while let Ok(value) = from.recv().await {
                sum += value;
            }
            sum
        }));
    }
    yield_now().await;
    let flood = |senders: Vec<UnboundedSender<usize>>| {
        on_thread(move || {
            for value in 0..VALUES {
                senders.iter().for_each(|to| to.unbounded_send(value).expect("a task"));
            }
        })
    };
    let threads = [flood(senders.clone()), flood(senders)];
    // Meanwhile one task is woken far more often than an inbox stores.
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    on_thread(move || (0..50_000).for_each(|_| waker.wake_by_ref())).await;
    for thread in threads {
        thread.await;
    }
    assert_eq!(join_all(tasks).await, [VALUES * (VALUES - 1); TASKS]);
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
async fn wakes_leave_no_busy_loop_behind(_: Configuration, handle: Handle) {
    for _ in 0..15 {
        let (to, mut from) = unbounded();
        let sender = on_thread(move || (0..60).try_for_each(|value| to.unbounded_send(value)));
        for value in 0..60 {
            assert_eq!(from.recv().await, Ok(value));
        }
        sender.await.expect("the worker waits");
        settle().await;
        let (_, waits) = calls_in(&handle, Duration::from_millis(4)).await;
        assert!(waits < 20, "{waits} waits in 4 ms without work");
    }
}
