//! Shows that the quarantine of debug builds finds what a real kernel writes into memory that was
//! released too early. Each test arms a receive, breaks the rule on purpose, lets data arrive, and
//! expects the report.

use super::{Kind, STREAMS};
use crate::buf::quarantine;
use crate::config::UringOptions;
use crate::counters::Counters;
use crate::driver::ancillary::Wanted;
use crate::driver::common::DriverSetup;
use crate::driver::datagrams::UdpSetup;
use crate::driver::uring::UringDriver;
use crate::driver::uring::ring::Enter;
use crate::fs::handle::Handle;
use crate::fs::operation::{FileOp, Start, What};
use crate::may_skip::skip;
use crate::probe::select_uring;
use crate::slots::Key;
use crate::sys;
use crate::sys::file::{OpenHow, Status};
use crate::task::{WaitToken, Waiter};
use std::ffi::CString;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

/// Every way to give buffers to the kernel.
const WAYS: [&str; 6] = [
    "buffers=legacy",
    "buffers=ring",
    "buffers=incremental",
    "multishot=off,buffers=legacy",
    "multishot=off,buffers=ring",
    "taskrun=coop,buffers=ring",
];

/// A driver and the eventfd that it watches; `None`, with a message, if this kernel refuses the
/// options.
fn driver(options: &str) -> Option<(UringDriver, OwnedFd)> {
    let options: UringOptions = options.parse().expect("options");
    let features = match select_uring(&options) {
        Ok(features) => features,
        Err(refusal) => {
            skip("io_uring", refusal);
            return None;
        }
    };
    let eventfd = sys::eventfd().expect("a descriptor");
    let setup = DriverSetup {
        wake_fd: eventfd.as_raw_fd(),
        confined: None,
        counters: Arc::new(Counters::with_call_times(false)),
        linger: Duration::ZERO,
    };
    Some((UringDriver::new(features, &setup).expect("a ring"), eventfd))
}

fn submit(driver: &mut UringDriver) {
    driver.turn(Some(Duration::ZERO), &mut Vec::new()).expect("the ring works");
}

/// A stream with its receive in the kernel's hands, and the peer's end.
fn stream_that_receives(driver: &mut UringDriver) -> (Key, UnixStream) {
    // The buffers first: a receive that finds none is over.
    submit(driver);
    let (ours, peer) = UnixStream::pair().expect("descriptors");
    let key = driver.add_stream(ours.into());
    let (nobody, mut token) = (Context::from_waker(Waker::noop()), WaitToken::default());
    assert!(driver.poll_recv(key, &mut Waiter::new(&nobody, &mut token)).is_pending());
    submit(driver);
    (key, peer)
}

/// Lets the kernel run what is due, without taking completions.
fn let_the_kernel_write(driver: &mut UringDriver) {
    driver.engine.ring.enter(Enter::Collect, None).expect("the ring works");
    assert!(driver.engine.ring.has_completions(), "the kernel wrote nothing");
}

/// Ends a driver whose records of its buffers are wrong by now.
fn give_up(mut driver: UringDriver) {
    driver.engine.torn_down = true;
}

/// The report of the quarantine when `leaving` takes memory out of it.
fn complaint(leaving: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(leaving)).expect_err("a late write was not found");
    *panic.downcast::<String>().expect("a message")
}

#[test]
fn a_buffer_released_under_a_receive_is_found_when_it_is_taken_again() {
    for options in WAYS {
        let Some((mut driver, _eventfd)) = driver(options) else { continue };
        let (_, mut peer) = stream_that_receives(&mut driver);
        let provided = driver.engine.groups.get(STREAMS);
        let pool = &provided.pool;
        // All that the kernel has, because it may take any of them first; the last ones were kept
        // back.
        for id in pool.released()..pool.count() {
            match &provided.kind {
                Kind::Incremental(..) => pool.end_kernel_hold(id as u16),
                Kind::Legacy | Kind::Ring(_) => pool.give_back(id as u16),
            }
        }
        peer.write_all(b"too late").expect("room");
        let_the_kernel_write(&mut driver);
        let pool = &driver.engine.groups.get(STREAMS).pool;
        let said = complaint(|| while pool.take().is_some() {});
        assert!(said.contains("was written to after its release: bytes 0 to 7"), "{said}");
        give_up(driver);
    }
}

#[test]
fn a_pool_freed_under_a_receive_is_found_after_its_end() {
    for options in WAYS {
        let Some((mut driver, _eventfd)) = driver(options) else { continue };
        let (_, mut peer) = stream_that_receives(&mut driver);
        driver.engine.groups.groups.clear();
        peer.write_all(b"too late").expect("room");
        let_the_kernel_write(&mut driver);
        let said = complaint(quarantine::verify);
        assert!(said.contains("freed memory was written to after its release"), "{said}");
        give_up(driver);
    }
}

#[test]
fn a_datagram_socket_forgotten_with_its_receives_is_found() {
    for wanted in [Wanted::default(), Wanted { pktinfo: true, ..Wanted::default() }] {
        let Some((mut driver, _eventfd)) = driver("") else { return };
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (ours, peer) = (UdpSocket::bind(local), UdpSocket::bind(local));
        let (ours, peer) = (ours.expect("a free port"), peer.expect("a free port"));
        ours.connect(peer.local_addr().expect("bound")).expect("a route");
        peer.connect(ours.local_addr().expect("bound")).expect("a route");
        let setup = UdpSetup {
            peer: peer.local_addr().ok(),
            ipv6: false,
            unix: false,
            wanted,
            traffic_class: 0,
            buffer_bytes: 512,
            buffer_count: 8,
            pending: 4,
            batch: true,
            segmentation: false,
        };
        let key = driver.add_udp(ours.into(), setup).expect("memory");
        let (nobody, mut token) = (Context::from_waker(Waker::noop()), WaitToken::default());
        let nobody = &mut Waiter::new(&nobody, &mut token);
        assert!(driver.poll_recv_batch(key, nobody, &mut Vec::new(), 8).is_pending());
        submit(&mut driver);
        // Without a cancel, and without waiting for the last completion. The receives hold the file
        // open, so datagrams go on coming.
        drop(driver.entries.remove(key));
        peer.send(b"too late").expect("room");
        let_the_kernel_write(&mut driver);
        let said = complaint(quarantine::verify);
        assert!(said.contains("freed memory was written to after its release"), "{said}");
    }
}

#[test]
fn memory_of_a_read_freed_before_its_completion_is_found() {
    let Some((mut driver, _eventfd)) = driver("") else { return };
    let (pipe, mut peer) = std::io::pipe().expect("descriptors");
    let op = Box::new(FileOp {
        what: What::Read,
        on: Handle::of_pipe(pipe.into()),
        path: CString::default(),
        how: OpenHow::default(),
        offset: 0,
        len: 100,
        bytes: Vec::new(),
        status: Status::new(),
        opened: None,
    });
    let (nobody, mut token) = (Context::from_waker(Waker::noop()), WaitToken::default());
    let nobody = &mut Waiter::new(&nobody, &mut token);
    let Start::OnRing(key) = driver.start_file(op, nobody) else {
        return skip("io_uring", "this kernel has no files on rings");
    };
    submit(&mut driver);
    driver.engine.files.forget(key);
    peer.write_all(b"too late").expect("room");
    let_the_kernel_write(&mut driver);
    let said = complaint(quarantine::verify);
    assert!(said.contains("freed memory was written to after its release: bytes 0 to 7"), "{said}");
    give_up(driver);
}

/// The counterpart: memory that was released correctly passes, independent of what arrived in between.
#[test]
fn what_is_released_in_order_passes() {
    for options in WAYS {
        let Some((mut driver, _eventfd)) = driver(options) else { continue };
        for round in 0..100u8 {
            let (key, mut peer) = stream_that_receives(&mut driver);
            match round % 4 {
                // Closed with the receive armed; with data that was taken; with data that was not.
                0 => {}
                1 => {
                    peer.write_all(&[round; 5000]).expect("room");
                    submit(&mut driver);
                }
                _ => peer.write_all(&[round; 5000]).expect("room"),
            }
            driver.close(key, &mut Vec::new());
            if round % 2 == 0 {
                let _into_a_closed_socket = peer.write_all(b"more");
            }
            submit(&mut driver);
        }
        drop(driver);
        quarantine::verify();
    }
}
