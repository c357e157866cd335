//! Several workers on one port, shutdown and stop.

use crate::support::*;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use twinring::net::ListenOptions;
use twinring::{Either, Engine, race, shutdown_requested, spawn_blocking};

pub(crate) const RULES: &[Rule] = rules![
    every_worker_gets_connections_and_drains,
    a_panic_and_a_stop_end_every_worker,
    a_runtime_runs_several_futures_one_after_the_other,
];

const WORKERS: usize = 2;

fn runtime(configuration: Configuration, workers: usize) -> Runtime {
    configuration.builder().workers(workers).build().expect("tried before")
}

fn every_worker_gets_connections_and_drains(configuration: Configuration) {
    let error = runtime(configuration, WORKERS).block_on(async {}).expect_err("one for two");
    assert!(error.to_string().contains("one worker"), "{error}");
    for workers in [0, 1025] {
        let error = configuration.builder().workers(workers).build().expect_err("out of range");
        assert!(error.to_string().contains("expected 1 to 1024"), "{error}");
    }
    served_by(runtime(configuration, WORKERS));
    // The even workers run the chosen engine, the odd ones epoll, in one runtime.
    let builder = configuration.builder().side_by_side(true).workers(4);
    let runtime = builder.build().expect("tried before");
    let of_each: Vec<Engine> = (0..4).map(|worker| runtime.features_of(worker).engine()).collect();
    let chosen = runtime.features().engine();
    assert_eq!(of_each, [chosen, Engine::Epoll, chosen, Engine::Epoll]);
    served_by(runtime);
}

fn served_by(runtime: Runtime) {
    const PEERS: usize = 80;
    let workers = runtime.workers();
    let bound = ListenOptions::default().bind(loopback(), workers).expect("a free port");
    let address = bound[0].local_addr();
    let occupied = ListenOptions::default().bind(address, workers).expect_err("the port is taken");
    assert_eq!(occupied.kind(), ErrorKind::AddrInUse);
    let bound = Mutex::new(bound);
    let handle = runtime.handle();
    let peers = std::thread::spawn(move || {
        // Distributed by a hash of the addresses: it is next to impossible that a worker gets none.
        let connect = |_| Peer::connect(address).expect("a connection");
        let mut peers: Vec<Peer> = (0..PEERS).map(connect).collect();
        for (seed, peer) in peers.iter_mut().enumerate() {
            ping(peer, &pattern(seed as u64, 0..100));
        }
        handle.shutdown();
        // Connections that stand are drained, not cut.
        for (seed, peer) in peers.iter_mut().enumerate() {
            ping(peer, &pattern(seed as u64, 100..200));
            finish(peer);
            assert!(read_to_end(peer).expect("no reset").is_empty());
        }
    });
    let accepted = runtime.run(|_| {
        let bound = bound.lock().expect("no panic").pop().expect("one each");
        async move {
            let listener = TcpListener::from_bound(bound).expect("a listener");
            let mut connections = Vec::new();
            while let Either::Left(stream) = race(listener.accept(), shutdown_requested()).await {
                connections.push(spawn(echo(stream.expect("a connection"))));
            }
            let echoed = join_all(connections).await;
            assert!(echoed.iter().all(Result::is_ok), "{echoed:?}");
            echoed.len()
        }
    });
    peers.join().expect("every peer was served");
    let accepted: Vec<usize> = accepted.expect("the engines work").into_iter().flatten().collect();
    assert_eq!((accepted.len(), accepted.iter().sum::<usize>()), (workers, PEERS));
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
}

fn a_panic_and_a_stop_end_every_worker(configuration: Configuration) {
    for (workers, of_a_task) in [(1, false), (1, true), (WORKERS, false), (WORKERS, true)] {
        let panicking = runtime(configuration, workers);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            panicking.run(|worker| async move {
                let late = async {
                    sleep(Duration::from_millis(2)).await;
                    panic!("on purpose");
                };
                match of_a_task {
                    _ if worker + 1 < workers => {}
                    true => drop(spawn(late)),
                    false => late.await,
                }
                pending::<()>().await;
            })
        }));
        assert_eq!(outcome.expect_err("a panic").downcast_ref::<&str>(), Some(&"on purpose"));
    }
    let stopped = runtime(configuration, WORKERS);
    let handle = stopped.handle();
    let ended = stopped.run(|worker| {
        let handle = handle.clone();
        async move {
            if worker == 0 {
                // By another thread, once this worker has begun: one that is stopped before does not begin.
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(5));
                    handle.stop();
                });
                return worker;
            }
            pending().await
        }
    });
    assert_eq!(ended.expect("the engine works"), [Some(0), None]);
    // Stopped before it runs: it does not begin.
    let stopped = runtime(configuration, 1);
    stopped.handle().stop();
    assert!(stopped.block_on(pending::<()>()).is_err());
    // Asked to finish before it runs: it sees that at once.
    let asked = runtime(configuration, 1);
    asked.handle().shutdown();
    asked.block_on(shutdown_requested()).expect("it finished by itself");
}

/// A peer that does not read held up the end for the linger time, and too long a one was a panic. A timer that outlived its
/// future never fired.
fn a_runtime_runs_several_futures_one_after_the_other(configuration: Configuration) {
    let runtime = configuration.builder().linger(Duration::MAX).build().expect("tried before");
    let mut timer = sleep(Duration::from_millis(50));
    let begun = runtime.block_on(async { poll_once(&mut timer).await.is_some() });
    let _pending = begun.expect("the engine works");
    runtime.block_on(timer).expect("the engine works");
    for number in 0..3 {
        let served = runtime.block_on(async {
            let (stream, peer) = pair().await;
            stream.send(vec![number; 16 << 20]).await.expect("queued");
            let early = spawn(pending::<()>());
            let threads = spawn_blocking(move || number).await.expect("no panic");
            drop((stream, early));
            (threads, peer)
        });
        assert_eq!(served.expect("the engine works").0, number);
    }
}
