//! The simulated machine itself: that it is repeatable, that time in it is virtual, and that what
//! programs do there obeys the rules of sockets.
#![cfg(feature = "sim")]

mod busy;
mod faults;
mod hazards;
#[path = "../contract/may_skip.rs"]
mod may_skip;
mod real;
mod threads;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::sim::{Fault, Faults, Summary, World};
use twinring::{Runtime, TcpListener, TcpStream, Tick, Ticker, UdpSocket, sleep, spawn};

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return stream.shutdown_write().await;
        }
        stream.send(chunk).await?;
    }
}

/// Sends `bytes` in random looking chunks and reads them back.
async fn echo_bytes(address: SocketAddr, bytes: usize) -> io::Result<usize> {
    let stream = std::rc::Rc::new(TcpStream::connect(address).await?);
    let sender = std::rc::Rc::clone(&stream);
    let sending = spawn(async move {
        let mut sent = 0;
        while sent < bytes {
            let chunk = (sent * 7 % 5000 + 1).min(bytes - sent);
            sender.send((sent..sent + chunk).map(|at| (at / 3) as u8).collect::<Vec<_>>()).await?;
            sent += chunk;
        }
        sender.shutdown_write().await
    });
    let mut received = 0;
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            break;
        }
        assert!((received..).zip(chunk.iter()).all(|(at, byte)| *byte == (at / 3) as u8));
        received += chunk.len();
    }
    sending.await.map_err(io::Error::other)??;
    Ok(received)
}

/// A server and ten clients on runtimes of their own; what the clients got, and what happened.
fn echo_run(seed: u64, faults: Faults) -> (Vec<io::Result<usize>>, Summary) {
    let world = World::new(seed, faults);
    let runtime = || Runtime::builder().stop_on_panic(true).build().expect("the simulated engine");
    let server = runtime();
    let stop = server.handle();
    let listener = twinring::ListenOptions::default().bind(anywhere(), 1).expect("a free port");
    let address = listener[0].local_addr();
    let listener = std::cell::RefCell::new(listener);
    let serving = server.start(|_| {
        let bound = listener.borrow_mut().pop().expect("one worker");
        async move {
            let listener = TcpListener::from_bound(bound).expect("a listener");
            loop {
                let stream = listener.accept().await.expect("a usable listener");
                spawn(echo(stream));
            }
        }
    });
    let serving = serving.expect("a worker");
    let clients: Vec<_> = (0..10)
        .map(|number| {
            let client = move |_| echo_bytes(address, 1000 << number);
            runtime().start(client).expect("a worker")
        })
        .collect();
    let over = || clients.iter().all(|client| client.is_over());
    assert!(world.run_until(Duration::from_secs(3600), over), "the clients come to an end");
    stop.stop();
    assert!(world.run_until(Duration::from_secs(60), || serving.is_over()));
    assert_eq!(serving.outcome().expect("the engine works"), [None::<()>]);
    let outcome = |client: twinring::sim::Running<io::Result<usize>>| {
        client.outcome().expect("the engine works").remove(0).expect("it ran to its end")
    };
    let outcomes = clients.into_iter().map(outcome).collect();
    (outcomes, world.finish())
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [1, 2, 3] {
        let (first, second) =
            (echo_run(seed, Faults::of_seed(seed)), echo_run(seed, Faults::of_seed(seed)));
        assert_eq!(first.1, second.1, "seed {seed}");
        assert!(first.1.events > 100);
    }
    let hash = |seed| echo_run(seed, Faults::none()).1.trace_hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn without_faults_everything_arrives() {
    let (outcomes, summary) = echo_run(4, Faults::none());
    for (number, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.expect("no fault"), 1000 << number);
    }
    assert!(summary.injected.is_empty());
}

/// Every kind of fault that breaks no connection, as often as may be: everything arrives all the
/// same, in order (which the world itself checks, too).
#[test]
fn harmless_faults_lose_no_data() {
    let harmless = [
        (Fault::ShortSend, 500_000),
        (Fault::ShortReceive, 500_000),
        (Fault::Late, 50_000),
        (Fault::Reordered, 300_000),
        (Fault::NoBuffers, 200_000),
        (Fault::Cancelled, 200_000),
        (Fault::EndedEarly, 300_000),
        (Fault::Overflow, 300_000),
        (Fault::Again, 300_000),
        (Fault::Interrupted, 200_000),
    ];
    let faults =
        harmless.iter().fold(Faults::none(), |all, (fault, often)| all.with(*fault, *often));
    let (outcomes, summary) = echo_run(5, faults);
    for (number, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.expect("nothing broke"), 1000 << number);
    }
    assert_eq!(summary.injected.len(), harmless.len(), "all of them happened: {summary:?}");
}

#[test]
fn broken_connections_end_with_an_error_and_nothing_is_left_behind() {
    let faults = Faults::none().with(Fault::Reset, 20_000).with(Fault::TimedOut, 20_000);
    let (outcomes, _) = echo_run(6, faults);
    let broken = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    assert!(broken > 0 && outcomes.iter().any(Result::is_ok), "{outcomes:?}");
}

#[test]
fn a_day_passes_in_no_time() {
    let began = Instant::now();
    let world = World::new(7, Faults::none());
    let inside = Instant::now();
    let runtime = Runtime::builder().stop_on_panic(true).build().expect("the simulated engine");
    let sleeper = runtime.start(|_| async {
        for _ in 0..24 {
            sleep(Duration::from_secs(3600)).await;
        }
    });
    let sleeper = sleeper.expect("a worker");
    assert!(!world.run_until(Duration::from_secs(86_000), || sleeper.is_over()));
    assert!(world.run_until(Duration::from_secs(1000), || sleeper.is_over()));
    assert!(inside.elapsed() >= Duration::from_secs(86_400));
    drop(world);
    assert!(began.elapsed() < Duration::from_secs(3600), "the real clock is back");
}

/// A suspended machine, or a stopped process: when it continues, all due timers are due at once.
/// None fires twice, early or never, and no program catches up step by step.
#[test]
fn a_day_in_one_step_fires_each_timer_once() {
    const TIMERS: u64 = 2_000;
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let world = World::new(10, Faults::none());
    let began = Instant::now();
    let fired: Rc<RefCell<Vec<u64>>> = Rc::default();
    let ticks: Rc<RefCell<Vec<Tick>>> = Rc::default();
    let runtime = Runtime::builder().stop_on_panic(true).build().expect("the simulated engine");
    let end = runtime.handle();
    let (telling, ticking) = (Rc::clone(&fired), Rc::clone(&ticks));
    let sleeping = runtime.start(move |_| {
        let (telling, ticking) = (Rc::clone(&telling), Rc::clone(&ticking));
        async move {
            for number in 0..TIMERS {
                let telling = Rc::clone(&telling);
                spawn(async move {
                    let due = sleep(minutes(number));
                    let deadline = due.deadline();
                    due.await;
                    assert!(Instant::now() >= deadline, "timer {number} fired early");
                    telling.borrow_mut().push(number);
                });
            }
            let mut ticker = Ticker::new(Duration::from_secs(1));
            loop {
                let tick = ticker.tick().await;
                ticking.borrow_mut().push(tick);
            }
        }
    });
    let sleeping = sleeping.expect("a worker");
    let due = |fired: &RefCell<Vec<u64>>| fired.borrow().len() as u64;
    assert!(!world.run_until(minutes(10), || false));
    let (before, steps) = (due(&fired), world.summary().steps);
    assert!((10..=11).contains(&before), "{before}");
    world.stand_still(Duration::from_secs(86_400));
    assert!(!world.run_until(Duration::from_millis(10), || false));
    let passed = began.elapsed().as_secs() / 60;
    assert_eq!(due(&fired), passed + 1, "all that were due, and no others");
    let mut seen = fired.borrow().clone();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..=passed), "each once");
    assert!(world.summary().steps - steps < 100, "no time is caught up on step by step");
    let missed: u64 = ticks.borrow().iter().map(|tick| tick.missed).sum();
    assert!((86_390..=86_400).contains(&missed), "{missed} ticks of a day");
    assert!(world.run_until(minutes(TIMERS), || due(&fired) == TIMERS), "and the others later");
    end.stop();
    assert!(world.run_until(minutes(1), || sleeping.is_over()));
    drop(sleeping);
    world.finish();
}

#[test]
fn datagrams_come_from_where_they_were_sent() {
    let world = World::new(8, Faults::none());
    let runtime = Runtime::builder().stop_on_panic(true).build().expect("the simulated engine");
    let talk = runtime.start(|_| async {
        let (a, b) = (UdpSocket::bind(anywhere())?, UdpSocket::bind(anywhere())?);
        a.send_to("ping", b.local_addr()).await?;
        let ping = b.recv_from().await?;
        assert_eq!((&*ping.data, ping.from), (&b"ping"[..], a.local_addr()));
        b.send_batch(&mut vec![ping.into_reply()]).await?;
        assert_eq!(&*a.recv_from().await?.data, b"ping");
        Ok::<_, io::Error>(())
    });
    let talk = talk.expect("a worker");
    assert!(world.run_until(Duration::from_secs(1), || talk.is_over()));
    talk.outcome().expect("the engine works").remove(0).expect("it ended").expect("no fault");
    world.finish();
}

#[test]
#[should_panic(expected = "descriptors were never closed")]
fn a_leaked_descriptor_is_detected() {
    let world = World::new(9, Faults::none());
    let forgotten = twinring::ListenOptions::default().bind(anywhere(), 1).expect("a free port");
    std::mem::forget(forgotten);
    world.finish();
}
