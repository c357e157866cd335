//! Errors injected into each system call of the engines, by a seccomp filter on the worker's thread:
//! each ends in an error, a notice or a pause, never in a future that waits for ever or in a busy loop.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream as Peer};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use testing::{Test, tests};
use twinring::{
    EngineChoice, Handle, Runtime, TcpListener, TcpStream, UdpSocket, UnixStream, sleep, spawn,
};

const TESTS: &[Test] = tests![
    a_send_that_fails_wakes_the_receiver,
    a_receive_that_fails_is_reported,
    refused_accepts_pause_with_a_notice,
    refused_enters_pause_or_end_the_worker,
    datagrams_that_cannot_be_sent_are_counted,
    waits_in_milliseconds_serve_as_well,
    data_behind_descriptors_is_received,
    a_worker_that_cannot_start_stops_the_others,
];

fn main() -> ExitCode {
    testing::run(&[TESTS])
}

/// How long what counts as hung may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// System calls within [`WATCHED`] that are no busy loop: those made hundreds of thousands.
const CALLS_MAX: u64 = 5_000;
const WATCHED: Duration = Duration::from_millis(300);

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

/// Runs a program on a worker of its own thread, which ends in time; also the notices that came.
fn on_worker<F>(
    engine: EngineChoice,
    program: impl FnOnce(Handle) -> F + Send + 'static,
) -> (io::Result<()>, u32)
where
    F: Future<Output = ()> + 'static,
{
    if engine == EngineChoice::IoUring {
        testing::needs_io_uring();
    }
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        let notices = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&notices);
        let builder = Runtime::builder().engine(engine).stop_on_panic(true);
        let builder = builder.linger(Duration::ZERO).on_event(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let runtime = builder.build().expect("an engine");
        let handle = runtime.handle();
        let outcome = runtime.block_on(program(handle));
        done.send(()).expect("the test waits");
        (outcome, notices.load(Ordering::Relaxed))
    });
    let hung = ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
    assert!(!hung, "{engine:?} hangs");
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

async fn pair() -> (TcpStream, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let peer = Peer::connect(listener.local_addr()).expect("the backlog has room");
    (listener.accept().await.expect("a connection"), peer)
}

fn errno<T>(result: &io::Result<T>) -> i32 {
    result.as_ref().err().and_then(io::Error::raw_os_error).unwrap_or(0)
}

/// Does not return for good while something keeps the worker busy.
async fn assert_calm(handle: &Handle, what: &str) {
    let before = handle.counters();
    sleep(WATCHED).await;
    let calls = handle.counters().syscalls - before.syscalls;
    assert!(calls < CALLS_MAX, "{what}: {calls} system calls in {WATCHED:?}");
}

/// Runs a program on a worker that ends by itself; returns the notices.
fn served<F>(engine: EngineChoice, program: impl FnOnce(Handle) -> F + Send + 'static) -> u32
where
    F: Future<Output = ()> + 'static,
{
    let (outcome, notices) = on_worker(engine, program);
    outcome.expect("the worker ends by itself");
    notices
}

/// The receiver was put into a list of wakers that was dropped, and waited for ever.
fn a_send_that_fails_wakes_the_receiver() {
    for (engine, more) in
        [(EngineChoice::Epoll, false), (EngineChoice::Epoll, true), (EngineChoice::IoUring, true)]
    {
        for refused in [libc::ENOBUFS, libc::ENOMEM] {
            served(engine, move |_| async move {
                let (stream, _peer) = pair().await;
                let stream = Rc::new(stream);
                let receiver = Rc::clone(&stream);
                let receiving = spawn(async move { receiver.recv().await });
                sleep(Duration::from_millis(5)).await;
                refuse(libc::SYS_sendto, refused);
                let _reported_here_or_later = match more {
                    true => stream.send_corked("lost").await,
                    false => stream.send("lost").await,
                };
                let received = receiving.await.expect("not aborted");
                assert_eq!(errno(&received), refused);
                assert_eq!(errno(&stream.send("more").await), refused);
            });
        }
    }
}

fn a_receive_that_fails_is_reported() {
    // A full socket that the kernel calls empty is no reason to ask again and again.
    for refused in [libc::ENOBUFS, libc::ENOMEM, libc::EPERM, libc::EBADR, libc::EAGAIN] {
        served(EngineChoice::Epoll, move |handle| async move {
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
}

/// accept4 was called 644,000 times a second, without a word.
fn refused_accepts_pause_with_a_notice() {
    for refused in [libc::EPERM, libc::ENOPROTOOPT, libc::ENOBUFS, libc::EMFILE] {
        let notices = served(EngineChoice::Epoll, move |handle| async move {
            let listener = TcpListener::bind("127.0.0.1:0");
            let listener = listener.expect("a port");
            let _peer = Peer::connect(listener.local_addr()).expect("the backlog has room");
            refuse(libc::SYS_accept4, refused);
            let accepting = spawn(async move { listener.accept().await.map(drop) });
            assert_calm(&handle, "accept4").await;
            assert!(!accepting.is_finished());
        });
        assert_eq!(notices, 1, "errno {refused}");
    }
}

/// Waits that the kernel refused were repeated 223,000 times a second, or ended the worker; only those that lose
/// completions may end it.
fn refused_enters_pause_or_end_the_worker() {
    testing::needs_io_uring();
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
                let (outcome, _) = on_worker(EngineChoice::IoUring, move |handle| async move {
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

fn datagrams_that_cannot_be_sent_are_counted() {
    for refused in [libc::ENOBUFS, libc::ENOMEM, libc::EPERM] {
        served(EngineChoice::Epoll, move |handle| async move {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
            refuse(libc::SYS_sendmmsg, refused);
            socket.send_to("lost", socket.local_addr()).await.expect("taken");
            socket.flush().await.expect("settled");
            assert_eq!(socket.counted().send_errors.total(), 1);
            assert_calm(&handle, "sendmmsg").await;
        });
    }
}

/// epoll_pwait2 was tried again in every wait.
fn waits_in_milliseconds_serve_as_well() {
    for refused in [libc::ENOSYS, libc::EPERM] {
        served(EngineChoice::Epoll, move |_| async move {
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

/// The receive of a message with descriptors ends behind it. That was taken for an empty socket, and
/// the bytes behind it waited for a third message.
fn data_behind_descriptors_is_received() {
    for engine in [EngineChoice::Epoll, EngineChoice::IoUring] {
        served(engine, |_| async move {
            let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
            let stream = UnixStream::from_std(ours).expect("a socket");
            let receiving = spawn(async move {
                let mut received = Vec::new();
                while received.len() < 2 {
                    received.extend_from_slice(&stream.recv().await.expect("received"));
                }
                received
            });
            sleep(Duration::from_millis(5)).await;
            let sent = send_with_a_descriptor(&theirs, b"A");
            assert_eq!(sent.expect("room"), 1);
            theirs.write_all(b"B").expect("room");
            assert_eq!(receiving.await.expect("not aborted"), b"AB");
            theirs.shutdown(Shutdown::Both).expect("open");
        });
    }
}

fn send_with_a_descriptor(
    socket: &std::os::unix::net::UnixStream,
    bytes: &[u8],
) -> rustix::io::Result<usize> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let descriptors = [socket.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty())
}

/// The workers before it were waited for, and ran on.
fn a_worker_that_cannot_start_stops_the_others() {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Runtime::builder().engine(EngineChoice::Epoll).workers(64).build();
        let runtime = runtime.expect("descriptors for 64");
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
        let error = runtime.run(|_| std::future::pending::<()>()).expect_err("no stack");
        done.send(error.to_string()).expect("the test waits");
    });
    let error = ended.recv_timeout(PATIENCE).expect("it ends");
    assert!(error.contains("starting a worker thread"), "{error}");
}
