//! The cost of programs that are never idle. One that runs for a simulated second must not take this
//! CPU for more than that, or the rules of the contract suite do not come to their end.

use crate::anywhere;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::fs::{Dir, Symlinks};
use twinring::sim::{Fault, Faults, World};
use twinring::{Builder, Runtime, UdpSocket, sleep, spawn, yield_now};

/// How often a task runs that never rests, while another one does what `main` does.
fn turns_beside(builder: Builder, faults: Faults, main: impl Future<Output = ()> + 'static) -> u64 {
    let world = World::new(41, faults);
    let turns = Rc::new(Cell::new(0));
    let counting = Rc::clone(&turns);
    let ended = builder.build().expect("the simulated engine").block_on(async move {
        spawn(async move {
            loop {
                counting.set(counting.get() + 1);
                yield_now().await;
            }
        });
        main.await;
    });
    world.finish();
    ended.expect("the engine works");
    turns.get()
}

async fn a_second() {
    sleep(Duration::from_secs(1)).await;
}

/// Every turn took 10 us, so a second of nothing took 100,000 of them, and with late completions
/// `a_dropped_send_keeps_unsent_datagrams` did not come to its end (seed 4).
#[test]
fn an_idle_second_takes_few_turns() {
    let turns = turns_beside(Runtime::builder().stop_on_panic(true), Faults::none(), a_second());
    assert!((500..5_000).contains(&turns), "{turns} turns");
}

/// Between ticks no time passed but that of reading the clock: 40,000 turns in each millisecond.
#[test]
fn a_second_of_ticks_takes_few_turns() {
    let builder = Runtime::builder().stop_on_panic(true).tick(Duration::from_millis(1));
    let turns = turns_beside(builder, Faults::none(), a_second());
    assert!((500..20_000).contains(&turns), "{turns} turns");
}

/// Time that is passed over is time in which nothing happens: not a single event is late for it.
#[test]
fn no_event_is_skipped() {
    const ROUNDS: u32 = 100;
    let late = Faults::none().with(Fault::Late, 1_000_000);
    let turns = turns_beside(Runtime::builder().stop_on_panic(true), late, async {
        let (near, far) = (UdpSocket::bind(anywhere()), UdpSocket::bind(anywhere()));
        let (near, far) = (near.expect("a free port"), far.expect("a free port"));
        let began = Instant::now();
        for _ in 0..ROUNDS {
            near.send_to("ping", far.local_addr()).await.expect("room");
            far.recv_from().await.expect("a datagram");
        }
        // A completion is 20 ms late at most, and a datagram 5 ms on its way.
        assert!(began.elapsed() < ROUNDS * Duration::from_millis(26), "{:?}", began.elapsed());
    });
    assert!(turns < 300 * u64::from(ROUNDS), "{turns} turns");
}

/// Reading from the page cache took no time, so hundreds of tasks that read on and on copied some
/// hundred gigabytes in a simulated second: `a_runtime_that_ends_leaves_nothing_behind` did not end.
#[test]
fn reading_takes_simulated_time() {
    const BYTES: usize = 400_000;
    const ROUNDS: u32 = 100;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    std::fs::write(path.join("file"), vec![7; BYTES]).expect("room");
    let world = World::new(42, Faults::none());
    let read =
        Runtime::builder().stop_on_panic(true).build().expect("the simulated engine").block_on(
            async move {
                let root = Dir::open(&path).expect("the directory");
                let file =
                    root.open_file("file".as_ref(), Symlinks::Beneath).await.expect("it is there");
                let began = Instant::now();
                for _ in 0..ROUNDS {
                    assert_eq!(file.read_at(0, BYTES).await.expect("bytes").len(), BYTES);
                }
                began.elapsed()
            },
        );
    world.finish();
    // At 2 GB/s.
    assert!(read.expect("the engine works") >= ROUNDS * Duration::from_micros(200));
}
