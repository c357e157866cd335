//! Tasks: spawn, join, abort, panic.

use crate::support::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;
use twinring::task::JoinSet;
use twinring::{JoinHandle, sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    results_and_aborts_reach_the_handle,
    a_task_may_abort_itself,
    a_set_returns_each_task_once,
    a_detached_task_runs_on_and_ends_with_the_runtime,
    destructors_may_spawn_and_use_streams,
    a_panic_ends_its_task_alone,
    a_panic_comes_out_of_the_runtime,
    the_main_future_borrows_from_its_caller,
    a_runtime_inside_a_runtime_is_refused,
];

async fn results_and_aborts_reach_the_handle() {
    let finished = spawn(async { 41 + 1 });
    assert_eq!(finished.await.ok(), Some(42));
    let early = spawn(async { "early" });
    settle().await;
    assert!(early.is_finished());
    early.abort();
    assert_eq!(early.await.ok(), Some("early"), "an abort after the end changes nothing");
    let never = spawn(std::future::pending::<()>());
    never.abort();
    assert!(never.is_finished() && never.await.is_err());
    let tasks: Vec<_> = (0..2000).map(|n| spawn(async move { n })).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("no abort");
    }
    assert_eq!(sum, 1999 * 1000);
}

fn a_set_returns_each_task_once(configuration: Configuration) {
    run_on(configuration.builder().stop_on_panic(false), |_| async {
        let mut set = JoinSet::new();
        assert!(set.join_next().await.is_none());
        let dropped = Rc::new(());
        for number in 0..100 {
            set.spawn(async move {
                twinring::sleep(Duration::from_micros(100 * (100 - number))).await;
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
        assert_eq!((numbers.len(), panics), (99, 1));
        assert!(numbers.iter().all(|number| *number != 50));
        let (kept, dropped_too) = (Rc::clone(&dropped), Rc::clone(&dropped));
        set.spawn(async move {
            let _kept = kept;
            std::future::pending::<u64>().await
        });
        settle().await;
        set.abort_all();
        assert!(set.join_next().await.expect("one").expect_err("aborted").is_cancelled());
        set.spawn(async move {
            let _kept = dropped_too;
            std::future::pending::<u64>().await
        });
        drop(set);
        settle().await;
        assert_eq!(Rc::strong_count(&dropped), 1);
    });
}

async fn a_task_may_abort_itself() {
    let live = Live::default();
    let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
    let (its_own, kept) = (Rc::clone(&own), live.clone());
    own.replace(Some(spawn(async move {
        let _kept = kept;
        yield_now().await;
        its_own.borrow().as_ref().expect("stored").abort();
        std::future::pending::<()>().await;
    })));
    settle().await;
    assert_eq!(live.count(), 0, "an aborted task keeps what it owned");
    assert!(own.take().expect("stored").await.is_err());
}

fn a_detached_task_runs_on_and_ends_with_the_runtime(configuration: Configuration) {
    let ran = Tally::default();
    let counted = ran.clone();
    configuration.run(async move {
        for duration in [Duration::from_millis(1), Duration::from_secs(3600)] {
            let finished = counted.clone();
            drop(spawn(async move {
                sleep(duration).await;
                finished.add(1);
            }));
        }
        while counted.get() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(ran.get(), 1);
}

fn destructors_may_spawn_and_use_streams(configuration: Configuration) {
    struct OnDrop(Option<Box<dyn FnOnce()>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|last_words| last_words());
        }
    }
    let ran = Tally::default();
    let counted = ran.clone();
    let reader = configuration.run(async move {
        let (stream, mut peer) = pair().await;
        let stream = std::rc::Rc::new(stream);
        let theirs = std::rc::Rc::clone(&stream);
        spawn(async move {
            let _on_drop = OnDrop(Some(Box::new(move || {
                counted.add(1);
                theirs.cancel();
                spawn(async move {
                    let _kept_by_a_task_that_never_runs = theirs;
                });
            })));
            drop(stream.recv().await);
            std::future::pending::<()>().await;
        });
        settle().await;
        std::thread::spawn(move || read_to_end(&mut peer))
    });
    assert_eq!(ran.get(), 1);
    assert!(reader.join().expect("no panic").expect("closed, not reset").is_empty());
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("in a destructor");
    }
}

/// A panic of one connection's task ended the workers, and with them all connections.
fn a_panic_ends_its_task_alone(configuration: Configuration) {
    run_on(configuration.builder().stop_on_panic(false), |handle| async move {
        let ((healthy, mut other), (stream, mut peer)) = (pair().await, pair().await);
        spawn(echo(healthy));
        let failing = spawn(async move {
            let chunk = stream.recv().await.expect("a request");
            panic!("cannot answer {} bytes", chunk.len());
        });
        on_thread(move || {
            // One byte, which seeded faults cannot cut short: what is left unread is a reset.
            std::io::Write::write_all(&mut peer, b"!").expect("the server reads");
            assert_eq!(read_to_end(&mut peer).expect("closed, not reset"), b"");
        })
        .await;
        let error = failing.await.map(|()| "an answer").expect_err("a panic");
        assert!(error.is_panic() && !error.is_cancelled());
        assert!(error.to_string().contains("cannot answer 1 bytes"), "{error}");
        let payload = error.into_panic();
        assert_eq!(payload.downcast_ref::<String>().expect("formatted"), "cannot answer 1 bytes");
        // Destructors: of an aborted task, of one that ends, and of an unused output.
        let aborted = spawn(async {
            let _late = PanicsOnDrop;
            std::future::pending::<()>().await;
        });
        settle().await;
        aborted.abort();
        assert!(aborted.await.expect_err("aborted").is_cancelled());
        drop(spawn(async { PanicsOnDrop }));
        settle().await;
        assert_eq!(handle.counters().panics, 3);
        on_thread(move || ping(&mut other, b"still here")).await;
        // One that is left to the end of the runtime.
        spawn(async {
            let _late = PanicsOnDrop;
            std::future::pending::<()>().await;
        });
        settle().await;
    });
}

fn a_panic_comes_out_of_the_runtime(configuration: Configuration) {
    let without_output = |runtime: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(runtime)).expect_err("a panic");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    };
    without_output(&|| configuration.run(async { panic!("on purpose") }));
    without_output(&|| {
        configuration.run(async {
            let (stream, _peer) = pair().await;
            spawn(async move {
                assert!(poll_once(stream.recv()).await.is_none());
                panic!("on purpose");
            });
            std::future::pending::<()>().await;
        });
    });
    // The thread can run another one.
    configuration.run(async { sleep(Duration::from_millis(1)).await });
}

fn a_runtime_inside_a_runtime_is_refused(configuration: Configuration) {
    configuration.run(async move {
        let inner = configuration.builder().build().expect("building one is fine");
        let error = inner.block_on(async {}).expect_err("running it is not");
        assert!(error.to_string().contains("already"), "{error}");
        // The outer one goes on.
        sleep(Duration::from_millis(1)).await;
        another_is_served().await;
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
        (&request[..4], reading(peer).await, spawn(std::future::pending::<()>()))
    });
    let (lent, read, never) = answer.expect("the engine works");
    assert_eq!((lent, &read[..]), ("lent", request.as_bytes()));
    assert!(never.is_finished());
    // Stopped, it is dropped with what it borrows, and may use the runtime for the last time.
    struct Sender<'a>(&'a mut Vec<usize>, twinring::TcpStream);
    impl Drop for Sender<'_> {
        fn drop(&mut self) {
            self.0.push(0);
            let mut late = std::pin::pin!(self.1.send("late"));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let _maybe = late.as_mut().poll(&mut context);
        }
    }
    let runtime = configuration.builder().build().expect("tried before");
    let handle = runtime.handle();
    let stopped = runtime.block_on(async {
        let (stream, _peer) = pair().await;
        let _sender = Sender(&mut log, stream);
        handle.stop();
        std::future::pending::<()>().await;
    });
    assert!(stopped.is_err());
    assert_eq!(log, [request.len(), 0]);
    // And so on each of several workers.
    let runtime = configuration.builder().workers(2).build().expect("tried before");
    let outputs = runtime.run(|number| {
        let request = &request;
        async move { &request[..number] }
    });
    assert_eq!(outputs.expect("the engine works"), [Some(""), Some("l")]);
}
