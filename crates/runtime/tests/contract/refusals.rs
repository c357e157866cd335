//! Errors injected into each system call of the engines, by a seccomp filter on the worker's thread:
//! each ends in an error, a notice or a pause, never in a future that waits for ever or in a busy loop.

use crate::support::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::thread;

pub(crate) const RULES: &[Rule] = rules![a_send_that_fails_wakes_the_receiver];

pub(crate) const OF_EPOLL: &[Rule] =
    rules![refused_calls_are_reported_or_wait, a_worker_that_cannot_start_stops_the_others];

pub(crate) const OF_IO_URING: &[Rule] = rules![refused_enters_pause_or_end_the_worker];

/// System calls within [`WATCHED`] that are no busy loop: those made tens of thousands.
const CALLS_MAX: u64 = 2_000;
const WATCHED: Duration = Duration::from_millis(100);

/// From now on, `call` answers `errno` on this thread.
fn refuse(call: libc::c_long, errno: i32) {
    refuse_if(call, errno, Vec::new());
}

/// Only calls that meet one of the rules, if there are any.
fn refuse_if(call: libc::c_long, errno: i32, rules: Vec<SeccompRule>) {
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("an architecture");
    let rules = [(call, rules)].into_iter().collect();
    let answer = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    // Also sets no_new_privs, for this thread alone.
    seccompiler::apply_filter(&program).expect("allowed");
}

/// Runs a program on a worker of its own thread, which keeps its filter; also the notices that came.
fn on_worker(
    configuration: Configuration,
    program: impl AsyncFnOnce(Handle) + Send + 'static,
) -> (io::Result<()>, usize) {
    let worker = thread::spawn(move || {
        let notices = Tally::default();
        let count = notices.clone();
        let builder = configuration.builder().linger(Duration::ZERO);
        let runtime = builder.on_event(move |_| count.add(1)).build().expect("an engine");
        let handle = runtime.handle();
        (runtime.block_on(program(handle)), notices.get())
    });
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs a program on a worker that ends by itself; returns the notices.
fn served(
    configuration: Configuration,
    program: impl AsyncFnOnce(Handle) + Send + 'static,
) -> usize {
    let (outcome, notices) = on_worker(configuration, program);
    outcome.expect("the worker ends by itself");
    notices
}

/// Does not return for good while something keeps the worker busy.
async fn assert_calm(handle: &Handle, what: &str) {
    let (calls, _) = calls_in(handle, WATCHED).await;
    assert!(calls < CALLS_MAX, "{what}: {calls} system calls in {WATCHED:?}");
}

/// The receiver was put into a list of wakers that was dropped, and waited for ever.
fn a_send_that_fails_wakes_the_receiver(configuration: Configuration) {
    for (corked, refused) in
        [(false, libc::ENOBUFS), (true, libc::ENOBUFS), (false, libc::ENOMEM), (true, libc::ENOMEM)]
    {
        if !corked && !configuration.is_epoll() {
            // The ring sends.
            continue;
        }
        served(configuration, async move |_| {
            let (stream, _peer) = pair().await;
            let stream = Rc::new(stream);
            let receiver = Rc::clone(&stream);
            let receiving = spawn(async move { receiver.recv().await });
            settle().await;
            refuse(libc::SYS_sendto, refused);
            let _reported_here_or_later = match corked {
                true => stream.send_corked("lost").await,
                false => stream.send("lost").await,
            };
            let received = receiving.await.expect("not aborted");
            assert_eq!(errno(&received), refused);
            assert_eq!(errno(&stream.send("more").await), refused);
        });
    }
}

fn refused_calls_are_reported_or_wait(configuration: Configuration) {
    // A full socket that the kernel calls empty is no reason to ask again and again.
    for refused in [libc::ENOBUFS, libc::ENOMEM, libc::EPERM, libc::EBADR, libc::EAGAIN] {
        served(configuration, async move |handle| {
            let (stream, mut peer) = pair().await;
            refuse(libc::SYS_recvfrom, refused);
            peer.write_all(b"unread").expect("room");
            let receiving = spawn(async move { errno(&stream.recv().await) });
            assert_calm(&handle, "recvfrom").await;
            match refused {
                libc::EAGAIN => assert!(!receiving.is_finished()),
                _ => assert_eq!(receiving.await.expect("not aborted"), refused),
            }
        });
    }
    // accept4 was called 644,000 times a second, without a word.
    for refused in [libc::EPERM, libc::ENOPROTOOPT, libc::ENOBUFS, libc::EMFILE] {
        let notices = served(configuration, async move |handle| {
            let listener = TcpListener::bind(loopback()).expect("a port");
            let _peer = Peer::connect(listener.local_addr()).expect("the backlog has room");
            refuse(libc::SYS_accept4, refused);
            let accepting = spawn(async move { listener.accept().await.map(drop) });
            assert_calm(&handle, "accept4").await;
            assert!(!accepting.is_finished());
        });
        assert_eq!(notices, 1, "errno {refused}");
    }
    for refused in [libc::ENOBUFS, libc::ENOMEM, libc::EPERM] {
        served(configuration, async move |handle| {
            let socket = UdpSocket::bind(loopback()).expect("a port");
            refuse(libc::SYS_sendmmsg, refused);
            socket.send_to("lost", socket.local_addr()).await.expect("taken");
            socket.flush().await.expect("settled");
            assert_eq!(socket.counted().send_errors.total(), 1);
            assert_calm(&handle, "sendmmsg").await;
        });
    }
    // The peer read a clean end behind the part that had been sent.
    served(configuration, async move |_| {
        let (stream, mut peer) = pair().await;
        refuse(libc::SYS_epoll_ctl, libc::ENOSPC);
        stream.send(vec![1; 16 << 20]).await.expect("taken");
        drop(stream);
        let end = on_thread(move || read_to_end(&mut peer)).await;
        assert_eq!(errno(&end), libc::ECONNRESET);
    });
    // epoll_pwait2 was tried again in every wait.
    for refused in [libc::ENOSYS, libc::EPERM] {
        served(configuration, async move |_| {
            let (stream, mut peer) = pair().await;
            refuse(libc::SYS_epoll_pwait2, refused);
            for _ in 0..5 {
                peer.write_all(b"n").expect("room");
                assert!(!stream.recv().await.expect("received").is_empty());
                sleep(Duration::from_millis(2)).await;
            }
        });
    }
}

/// Waits that the kernel refused were repeated 223,000 times a second, or ended the worker; only those that lose
/// completions may end it.
fn refused_enters_pause_or_end_the_worker(configuration: Configuration) {
    // Beside each other: each runtime ends after its patience with a kernel that does not answer.
    thread::scope(|scope| {
        for (refused, ends) in [
            (libc::EAGAIN, false),
            (libc::EBUSY, false),
            (libc::ENOMEM, false),
            (libc::EBADR, true),
            (libc::EPERM, true),
        ] {
            scope.spawn(move || {
                let (outcome, _) = on_worker(configuration, async move |handle| {
                    let (stream, _peer) = pair().await;
                    refuse(libc::SYS_io_uring_enter, refused);
                    let _receiving = spawn(async move { stream.recv().await });
                    assert_calm(&handle, "io_uring_enter").await;
                });
                let error = outcome.err().map(|error| error.to_string());
                assert_eq!(error.is_some(), ends, "errno {refused}: {error:?}");
                assert!(error.is_none_or(|error| error.contains("engine failed")));
            });
        }
    });
}

/// The workers before it were waited for, and ran on.
fn a_worker_that_cannot_start_stops_the_others(configuration: Configuration) {
    let refused = thread::spawn(move || {
        let runtime = configuration.builder().workers(64).build().expect("descriptors for 64");
        // The C library keeps the stack of this one for the first worker, and has none for the last.
        thread::spawn(|| {}).join().expect("it does nothing");
        let mask = libc::MAP_STACK as u64;
        let stacks = [
            SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ge, 1 << 20),
            SeccompCondition::new(3, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), mask),
        ];
        let stacks = stacks.map(|condition| condition.expect("a condition")).to_vec();
        let rule = SeccompRule::new(stacks).expect("a rule");
        refuse_if(libc::SYS_mmap, libc::ENOMEM, vec![rule]);
        runtime.run(|_| std::future::pending::<()>()).expect_err("no stack").to_string()
    });
    let error = refused.join().expect("no panic");
    assert!(error.contains("starting a worker thread"), "{error}");
}
