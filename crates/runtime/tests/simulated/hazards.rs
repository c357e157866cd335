//! Each hazard of the probe's table on the shipped drivers: injected by a fault of the simulated
//! kernel and survived, or why it cannot be (docs/simulation.md).

use crate::{anywhere, echo};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use twinring::probe::hazards::HAZARDS;
use twinring::sim::{Fault, Faults, Summary, World};
use twinring::{EngineChoice, Handle, Runtime, TcpListener, TcpStream, sleep, spawn};

/// Whether a hazard can be injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Injected {
    By(Fault),
    /// Twinring does not use the feature, or needs no workaround.
    NotUsed,
    /// It is about a part of the kernel that is not simulated, or no program could survive it.
    No,
}

const INJECTED: &[(&str, Injected)] = &[
    // Submission threads are not simulated.
    ("sqpoll_spin", Injected::No),
    ("memlock_before_5_12", Injected::By(Fault::RingNoMemory)),
    ("spurious_enomem", Injected::By(Fault::OperationNoMemory)),
    ("multishot_lost_reset", Injected::By(Fault::LostReset)),
    // Neither is urgent data.
    ("multishot_urgent_data", Injected::No),
    ("recvmsg_multishot_enobufs", Injected::NotUsed),
    // The accounting of idle time, which no program sees.
    ("idle_counts_as_iowait", Injected::No),
    // The process cannot even be killed.
    ("unkillable_receiver", Injected::No),
    // A wrong descriptor may be that of another socket: use one of the listed options.
    ("multishot_accept_wrong_descriptor", Injected::No),
    ("linked_timeout_lockup", Injected::NotUsed),
    ("recvmsg_multishot_incremental", Injected::NotUsed),
    ("bundles_out_of_order", Injected::NotUsed),
    ("memlock_since_6_14", Injected::By(Fault::RingNoMemory)),
    ("fragmentation_enomem", Injected::By(Fault::RingNoMemory)),
    ("wait_overrun", Injected::By(Fault::WaitOverrun)),
];

#[test]
fn every_hazard_is_classified() {
    let listed: Vec<&str> = INJECTED.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, HAZARDS.iter().map(|hazard| hazard.name).collect::<Vec<_>>());
    for (hazard, (_, injected)) in HAZARDS.iter().zip(INJECTED) {
        let not_used = *injected == Injected::NotUsed;
        assert!(!not_used || hazard.concerns.is_none(), "{} concerns Twinring", hazard.name);
    }
}

/// Runs `main` on io_uring in a world of its own, which has to be empty afterwards.
fn on_a_ring<T: 'static, F>(
    seed: u64,
    faults: Faults,
    main: impl FnOnce(Handle) -> F,
) -> (io::Result<T>, Summary)
where
    F: Future<Output = T> + 'static,
{
    let world = World::new(seed, faults);
    let built = Runtime::builder()
        .engine(EngineChoice::IoUring)
        // As by default. The seed of a world would choose.
        .uring("multishot=on".parse().expect("options"))
        .stop_on_panic(true)
        .build();
    let output = built
        .and_then(|runtime| {
            let main = main(runtime.handle());
            runtime.block_on(main)
        })
        .map_err(io::Error::other);
    (output, world.finish())
}

fn count(summary: &Summary, fault: Fault) -> u64 {
    summary.injected.iter().find(|(kind, _)| *kind == fault).map_or(0, |(_, count)| *count)
}

/// The limit of locked memory is still used up by a predecessor.
#[test]
fn a_ring_that_gets_no_memory_is_created_later() {
    let scarce = Faults::none().with(Fault::RingNoMemory, 800_000);
    let (output, summary) = on_a_ring(3, scarce, |_| async { 7 });
    assert_eq!(output.expect("memory was given back"), 7);
    assert!(count(&summary, Fault::RingNoMemory) > 0);
    let none = Faults::none().with(Fault::RingNoMemory, 1_000_000);
    let (output, _) = on_a_ring(3, none, |_| async { 7 });
    let error = output.expect_err("there is never memory").to_string();
    assert!(error.contains("memory"), "{error}");
}

/// A connection ends with that error, and all others are served.
#[test]
fn operations_that_fail_for_want_of_memory_end_their_connection_only() {
    const CONNECTIONS: usize = 200;
    let faults = Faults::none().with(Fault::OperationNoMemory, 20_000);
    let (output, summary) = on_a_ring(4, faults, |_| async {
        let listener = TcpListener::bind(anywhere()).expect("a free port");
        let address = listener.local_addr();
        let server = spawn(async move {
            loop {
                let stream = listener.accept().await.expect("accepting goes on");
                spawn(async move { echo(stream).await.ok() });
            }
        });
        let (mut whole, mut errors) = (0, BTreeSet::new());
        for number in 0..CONNECTIONS {
            match ask(address, number as u8).await {
                Ok(()) => whole += 1,
                Err(error) => drop(errors.insert(error.raw_os_error())),
            }
        }
        server.abort();
        (whole, errors)
    });
    let (whole, errors) = output.expect("the engine works");
    assert!(count(&summary, Fault::OperationNoMemory) > 0 && whole > CONNECTIONS / 2, "{whole}");
    // At this end, or after one at the other: a reset, or an end that comes early (None).
    let expected = [Some(libc::ENOMEM), Some(libc::ECONNRESET), Some(libc::EPIPE), None];
    assert!(whole < CONNECTIONS && errors.iter().all(|it| expected.contains(it)), "{errors:?}");
}

async fn ask(address: std::net::SocketAddr, byte: u8) -> io::Result<()> {
    let stream = TcpStream::connect(address).await?;
    for _ in 0..5 {
        stream.send(vec![byte; 100]).await?;
        let mut left = 100;
        while left > 0 {
            let chunk = stream.recv().await?;
            if chunk.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            assert!(chunk.iter().all(|it| *it == byte), "bytes of another connection");
            left -= chunk.len();
        }
    }
    Ok(())
}

/// The receive stays armed and reports nothing; the check of idle sockets finds the reset.
#[test]
fn a_lost_reset_is_found() {
    let faults = Faults::none().with(Fault::LostReset, 1_000_000);
    let (output, summary) = on_a_ring(5, faults, |_| async {
        for _ in 0..10 {
            let listener = TcpListener::bind(anywhere()).expect("a free port");
            let peer = TcpStream::connect(listener.local_addr()).await.expect("it listens");
            let stream = listener.accept().await.expect("a connection");
            let receiving = spawn(async move {
                loop {
                    match stream.recv().await {
                        Ok(chunk) => assert!(!chunk.is_empty(), "no end without the reset"),
                        Err(error) => return error.raw_os_error(),
                    }
                }
            });
            // The receive is armed before the data and the reset arrive together.
            sleep(Duration::from_millis(10)).await;
            peer.send("data").await.expect("connected");
            peer.flush().await.expect("connected");
            peer.set_reset_on_close().expect("a socket");
            drop(peer);
            assert_eq!(receiving.await.expect("it ran"), Some(libc::ECONNRESET));
        }
    });
    output.expect("the engine works");
    assert!(count(&summary, Fault::LostReset) > 0, "{summary:?}");
}

/// Timers are late, and the counter shows by how much.
#[test]
fn waits_that_overrun_are_counted_and_end() {
    let faults = Faults::none().with(Fault::WaitOverrun, 500_000);
    let (output, summary) = on_a_ring(7, faults, |handle| async move {
        for _ in 0..100 {
            sleep(Duration::from_millis(10)).await;
        }
        handle.counters().wait_overrun_us.max
    });
    let overrun_us = output.expect("the engine works");
    assert!(count(&summary, Fault::WaitOverrun) > 0, "{summary:?}");
    assert!(overrun_us > 10_000, "{overrun_us} us");
}
