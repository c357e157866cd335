//! Faults between the real kernel and the engines: what they found.

use crate::may_skip::skip;
use crate::{anywhere, echo, echo_bytes};
use std::io::Write;
use std::time::Duration;
use twinring::sim::{Fault, Faults, inject};
use twinring::{CounterSnapshot, EngineChoice, Runtime, TcpListener, spawn};

/// A hundred kilobytes there and back, over real sockets, for a few seeds; what the engine counted,
/// if this kernel has it.
fn echo_run(engine: EngineChoice, options: &str, faults: Faults) -> Option<CounterSnapshot> {
    let mut counted = CounterSnapshot::default();
    for seed in 0..5 {
        inject(seed, faults.clone());
        let builder = Runtime::builder().stop_on_panic(true).engine(engine);
        let builder = match engine {
            EngineChoice::Epoll => builder.epoll(options.parse().expect("options")),
            _ => builder.uring(options.parse().expect("options")),
        };
        let runtime = match builder.build() {
            Ok(runtime) => runtime,
            Err(error) => {
                skip("io_uring", error);
                return None;
            }
        };
        let handle = runtime.handle();
        let received = runtime.block_on(async {
            let listener = TcpListener::bind(anywhere()).expect("a free port");
            let address = listener.local_addr();
            spawn(async move {
                let stream = listener.accept().await.expect("a connection");
                echo(stream).await.expect("the echo goes on");
            });
            echo_bytes(address, 100_000).await.expect("no connection breaks")
        });
        assert_eq!(received.expect("the engine works"), 100_000, "seed {seed}");
        counted.merge(&handle.counters());
    }
    Some(counted)
}

/// Requested faults occur, which the engines' own counters show.
#[test]
fn faults_reach_the_engines() {
    let only = |fault| Faults::none().with(fault, 500_000);
    for engine in [EngineChoice::Epoll, EngineChoice::IoUring] {
        let Some(baseline) = echo_run(engine, "", Faults::none()) else { continue };
        let count = |fault, of: fn(&CounterSnapshot) -> u64| {
            let counted = echo_run(engine, "", only(fault)).expect("as before");
            assert!(of(&counted) > of(&baseline), "{engine:?}, {fault}: {counted:?}");
        };
        count(Fault::ShortSend, |counted| counted.short_sends);
        count(Fault::Again, |counted| counted.eagain);
        if engine == EngineChoice::IoUring {
            count(Fault::NoBuffers, |counted| counted.enobufs);
            count(Fault::EndedEarly, |counted| counted.rearms);
            count(Fault::Cancelled, |counted| counted.rearms);
            count(Fault::Late, |counted| counted.enters);
        }
    }
}

/// A receive or send that waits in a worker thread of the kernel may end with EINTR. It used to end
/// its stream as well.
#[test]
fn an_interrupted_operation_does_not_break_its_stream() {
    let interrupted = Faults::none().with(Fault::Interrupted, 500_000).with(Fault::Again, 500_000);
    for options in ["", "multishot=off", "skip_success=off"] {
        echo_run(EngineChoice::IoUring, options, interrupted.clone());
    }
}

/// A reset behind data that the kernel sometimes does not report is detected: by a task that only
/// receives, and by one that answers.
#[test]
fn a_lost_reset_is_found() {
    let mut calls_beside_enters = Vec::new();
    for answering in [false, true] {
        inject(1, Faults::none().with(Fault::LostReset, 1_000_000));
        let built = Runtime::builder().stop_on_panic(true).engine(EngineChoice::IoUring).build();
        let runtime = match built {
            Ok(runtime) => runtime,
            Err(error) => return skip("io_uring", error),
        };
        let handle = runtime.handle();
        let error = runtime.block_on(async move {
            let listener = TcpListener::bind(anywhere()).expect("a free port");
            let mut peer = std::net::TcpStream::connect(listener.local_addr()).expect("room");
            let stream = listener.accept().await.expect("a connection");
            peer.write_all(b"question").expect("room");
            assert_eq!(*stream.recv().await.expect("data"), *b"question");
            socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).expect("a socket");
            drop(peer);
            // The engine gets an event meanwhile, and must ignore it.
            twinring::sleep(Duration::from_millis(20)).await;
            if answering {
                stream.send(b"answer".to_vec()).await.expect("it is not known yet");
            }
            stream.recv().await.expect_err("it was reset").raw_os_error()
        });
        assert_eq!(error.expect("the engine works"), Some(libc::ECONNRESET), "{answering}");
        let counted = handle.counters();
        calls_beside_enters.push(counted.syscalls - counted.enters);
    }
    // The state of the connection was not checked: the failed send was enough.
    assert!(calls_beside_enters[1] < calls_beside_enters[0], "{calls_beside_enters:?}");
}

#[test]
fn every_harmless_fault_at_once_changes_no_byte() {
    for seed in 0..4 {
        echo_run(EngineChoice::Epoll, "", Faults::harmless(seed));
        echo_run(EngineChoice::Epoll, "trigger=level", Faults::harmless(seed));
        echo_run(EngineChoice::IoUring, "", Faults::harmless(seed));
        echo_run(EngineChoice::IoUring, "cq_entries=16,sq_entries=8", Faults::harmless(seed));
    }
}
