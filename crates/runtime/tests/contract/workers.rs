//! Several workers on one port, shutdown and stop.

use crate::support::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;
use twinring::net::Targets;
use twinring::{
    Either, Engine, ListenOptions, TcpListener, race, shutdown_requested, sleep, spawn,
};

contract!(
    every_worker_gets_connections_and_drains,
    steering_moves_new_connections_and_breaks_none real "the simulated kernel runs no such program",
    engines_run_side_by_side real "the threads of one world run one engine",
    a_worker_that_panics_stops_the_others,
    stop_ends_every_worker,
    a_runtime_for_several_workers_runs_no_single_future,
);

const WORKERS: usize = 2;

fn every_worker_gets_connections_and_drains(configuration: Configuration) {
    let bound = ListenOptions::default().bind(loopback(), WORKERS).expect("a free port");
    let address = bound[0].local_addr();
    let occupied = ListenOptions::default().bind(address, WORKERS).expect_err("the port is taken");
    assert_eq!(occupied.kind(), std::io::ErrorKind::AddrInUse);
    let bound = Mutex::new(bound);
    let runtime = configuration.builder().workers(WORKERS).build().expect("tried before");
    let handle = runtime.handle();
    let peers = std::thread::spawn(move || {
        // Distributed by a hash of the addresses: it is next to impossible that one of two gets
        // none of 40.
        let connect = |_| Peer::connect(address).expect("a connection");
        let mut peers: Vec<Peer> = (0..40).map(connect).collect();
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
    let accepted = runtime
        .run(|_| {
            let bound = bound.lock().expect("no panic").pop().expect("one each");
            async move {
                let listener = TcpListener::from_bound(bound).expect("a listener");
                let mut connections = Vec::new();
                while let Either::Left(stream) = race(listener.accept(), shutdown_requested()).await
                {
                    connections.push(spawn(echo(stream.expect("a connection"))));
                }
                shutdown_requested().await;
                let accepted = connections.len();
                for connection in connections {
                    connection.await.expect("not aborted").expect("echoed to the end");
                }
                accepted
            }
        })
        .expect("the engine works");
    peers.join().expect("every peer was served");
    let accepted: Vec<usize> = accepted.into_iter().map(|count| count.expect("finished")).collect();
    assert_eq!(accepted.iter().sum::<usize>(), 40);
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
}

/// Connections wait in the accept queues of both workers while new ones are moved to and fro.
fn steering_moves_new_connections_and_breaks_none(configuration: Configuration) {
    for address in [loopback(), "[::1]:0".parse().expect("an address")] {
        let bound = ListenOptions::default().bind(address, WORKERS).expect("a free port");
        let address = bound[0].local_addr();
        let steering = bound[0].steering(WORKERS).expect("a descriptor");
        let mut peers = Vec::new();
        for first in [0, 1, 0, 1, 1] {
            steering.steer(Targets { first, step: 2 }).expect("the kernel can");
            peers.extend((0..8).map(|_| Peer::connect(address).expect("a connection")));
        }
        let nowhere = steering.steer(Targets { first: WORKERS, step: 2 });
        assert_eq!(nowhere.expect_err("no such socket").kind(), std::io::ErrorKind::InvalidInput);
        drop(steering);
        let bound = Mutex::new(bound.into_iter().map(Some).collect::<Vec<_>>());
        let runtime = configuration.builder().workers(WORKERS).build().expect("tried before");
        let handle = runtime.handle();
        let peers = std::thread::spawn(move || {
            for (seed, peer) in peers.iter_mut().enumerate() {
                ping(peer, &pattern(seed as u64, 0..100));
            }
            handle.shutdown();
        });
        let accepted = runtime.run(|worker| {
            let bound = bound.lock().expect("no panic")[worker].take().expect("one each");
            async move {
                let listener = TcpListener::from_bound(bound).expect("a listener");
                let mut connections = Vec::new();
                while let Either::Left(stream) = race(listener.accept(), shutdown_requested()).await
                {
                    connections.push(spawn(echo(stream.expect("a connection"))));
                }
                connections.len()
            }
        });
        peers.join().expect("every peer was served");
        assert_eq!(accepted.expect("the engine works"), [Some(16), Some(24)], "{address}");
    }
}

fn a_worker_that_panics_stops_the_others(configuration: Configuration) {
    let runtime = configuration.builder().workers(WORKERS).build().expect("tried before");
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.run(|worker| async move {
            if worker == 1 {
                sleep(Duration::from_millis(2)).await;
                panic!("on purpose");
            }
            std::future::pending::<()>().await;
        })
    }));
    assert_eq!(outcome.expect_err("a panic").downcast_ref::<&str>(), Some(&"on purpose"));
}

fn stop_ends_every_worker(configuration: Configuration) {
    let runtime = configuration.builder().workers(WORKERS).build().expect("tried before");
    let handle = runtime.handle();
    let (done, wait) = std::sync::mpsc::channel();
    let stopper = std::thread::spawn(move || {
        // A worker that is stopped before it begins does not begin, and worker 0 must end.
        wait.recv().expect("worker 0 runs");
        std::thread::sleep(Duration::from_millis(5));
        handle.stop();
    });
    let ended = runtime.run(|worker| {
        let done = done.clone();
        async move {
            if worker == 0 {
                done.send(()).expect("the other waits");
                return worker;
            }
            std::future::pending().await
        }
    });
    assert_eq!(ended.expect("the engine works"), [Some(0), None]);
    stopper.join().expect("no panic");
    // Stopped before it runs: it does not begin.
    let runtime = configuration.builder().build().expect("tried before");
    runtime.handle().stop();
    assert!(runtime.block_on(std::future::pending::<()>()).is_err());
    // Asked to finish before it runs: it sees that at once.
    let runtime = configuration.builder().build().expect("tried before");
    runtime.handle().shutdown();
    runtime.block_on(shutdown_requested()).expect("it finished by itself");
}

/// The even workers run the chosen engine, the odd ones epoll, in one runtime.
fn engines_run_side_by_side(configuration: Configuration) {
    let bound = ListenOptions::default().bind(loopback(), 4).expect("a free port");
    let address = bound[0].local_addr();
    let bound = Mutex::new(bound);
    let builder = configuration.builder().side_by_side(true).workers(4);
    let runtime = builder.build().expect("tried before");
    let of_each: Vec<Engine> = (0..4).map(|worker| runtime.features_of(worker).engine()).collect();
    let chosen = runtime.features().engine();
    assert_eq!(of_each, [chosen, Engine::Epoll, chosen, Engine::Epoll]);
    let handle = runtime.handle();
    let peers = std::thread::spawn(move || {
        for seed in 0..40 {
            ping(&mut Peer::connect(address).expect("a connection"), &pattern(seed, 0..100));
        }
        handle.shutdown();
    });
    let served = runtime.run(|_| {
        let bound = bound.lock().expect("no panic").pop().expect("one each");
        async move {
            let listener = TcpListener::from_bound(bound).expect("a listener");
            let mut count = 0;
            while let Either::Left(stream) = race(listener.accept(), shutdown_requested()).await {
                spawn(echo(stream.expect("a connection")));
                count += 1;
            }
            count
        }
    });
    peers.join().expect("every peer was served");
    let served: Vec<i32> = served.expect("the engines work").into_iter().flatten().collect();
    assert_eq!((served.len(), served.iter().sum::<i32>()), (4, 40), "{served:?}");
}

fn a_runtime_for_several_workers_runs_no_single_future(configuration: Configuration) {
    let runtime = configuration.builder().workers(WORKERS).build().expect("tried before");
    let error = runtime.block_on(async {}).expect_err("one future for two workers");
    assert!(error.to_string().contains("one worker"), "{error}");
    for workers in [0, 1025] {
        let error = configuration.builder().workers(workers).build().expect_err("out of range");
        assert!(error.to_string().contains("expected 1 to 1024"), "{error}");
    }
}
