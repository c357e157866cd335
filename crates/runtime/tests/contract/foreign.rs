//! Sockets of the standard library, descriptors for other code, names, halves, blocking work: what
//! applications bring along.

use crate::support::*;
use socket2::{Domain, SockRef, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::mpsc;
use std::time::Duration;
use twinring::net::resolve;
use twinring::{
    Event, TcpListener, TcpStream,
    net::{Keepalive, ListenOptions},
    spawn, spawn_blocking,
};

pub(crate) const RULES: &[Rule] = rules![
    sockets_come_from_the_standard_library,
    options_have_methods,
    a_duplicate_keeps_the_connection_and_no_events,
    names_are_resolved_without_blocking,
    connecting_and_accepting_have_options,
    a_connection_is_copied_to_another,
    ready_to_send_means_that_the_send_is_taken,
    blocking_work_runs_beside_the_worker,
    blocking_work_that_does_not_end_is_abandoned,
];

async fn sockets_come_from_the_standard_library() {
    let listener = StdListener::bind(loopback()).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let listener = TcpListener::from_std(listener).expect("a socket");
    assert_eq!(listener.local_addr(), address);
    let client = Peer::connect(address).expect("the backlog has room");
    let server = listener.accept().await.expect("a connection");
    let client = TcpStream::from_std(client).expect("a socket");
    spawn(echo(server));
    client.send("there and back").await.expect("room");
    assert_eq!(recv_exactly(&client, 14).await, b"there and back");
}

fn options_have_methods(configuration: Configuration) {
    configuration.run(async {
        let (stream, _peer) = pair().await;
        let nodelay = || stream.with_fd(|fd| SockRef::from(&fd).tcp_nodelay()).expect("TCP");
        assert!(nodelay(), "inherited");
        stream.set_nodelay(false).expect("TCP_NODELAY");
        assert!(!nodelay());
        let wanted = Keepalive {
            idle: Duration::from_secs(30),
            interval: Duration::from_secs(5),
            probes: 3,
        };
        stream.set_keepalive(Some(wanted)).expect("SO_KEEPALIVE");
        stream.with_fd(|fd| {
            let socket = SockRef::from(&fd);
            assert!(socket.keepalive().expect("a socket"));
            assert_eq!(socket.tcp_keepalive_time().expect("set"), wanted.idle);
            assert_eq!(socket.tcp_keepalive_interval().expect("set"), wanted.interval);
            assert_eq!(socket.tcp_keepalive_retries().expect("set"), 3);
        });
        stream.set_keepalive(None).expect("SO_KEEPALIVE");
        assert!(!stream.with_fd(|fd| SockRef::from(&fd).keepalive()).expect("a socket"));
    });
    testing::needs_ipv6();
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    configuration.run(async move {
        let dual = ListenOptions { only_v6: false, ..ListenOptions::default() };
        let listener = dual.bind(any, 1).expect("[::1] can be bound, and so can [::]");
        let bound = listener.into_iter().next().expect("one for each worker");
        let listener = TcpListener::from_bound(bound).expect("a socket");
        let port = listener.local_addr().port();
        let _peer = Peer::connect(("127.0.0.1", port)).expect("IPv4 is accepted");
        let stream = listener.accept().await.expect("a connection");
        let address = stream.peer_addr().expect("connected");
        assert!(address.is_ipv6(), "{address} is mapped");
    });
}

/// Closing a descriptor that has a duplicate does not take it out of an epoll set: level-triggered,
/// its events would keep the worker busy for ever.
async fn a_duplicate_keeps_the_connection_and_no_events(handle: Handle) {
    let (stream, mut peer) = pair().await;
    let duplicate = stream.with_fd(|fd| fd.try_clone_to_owned()).expect("a descriptor");
    assert!(poll_once(stream.recv()).await.is_none());
    settle().await;
    let open = handle.counters().slots_in_use;
    drop(stream);
    // A submission thread may be late to cancel the receive, which would take the bytes.
    while handle.counters().slots_in_use >= open {
        settle().await;
    }
    peer.write_all(b"for the duplicate").expect("connected");
    settle().await;
    let before = handle.counters().waits;
    twinring::sleep(Duration::from_millis(20)).await;
    let waits = handle.counters().waits - before;
    assert!(waits < 100, "{waits} waits while nothing happens");
    let mut duplicate = Peer::from(duplicate);
    duplicate.set_nonblocking(false).expect("a socket");
    let read = on_thread(move || {
        let mut bytes = [0; 17];
        duplicate.read_exact(&mut bytes).map(|()| bytes)
    });
    assert_eq!(&read.await.expect("connected"), b"for the duplicate");
}

async fn names_are_resolved_without_blocking() {
    testing::needs_localhost();
    let listener = listen();
    let port = listener.local_addr().port();
    let addresses = resolve(("localhost", port)).await.expect("it is known here");
    assert!(addresses.iter().any(|address| address.ip().is_loopback()), "{addresses:?}");
    let literal = resolve(listener.local_addr().to_string()).await.expect("an address");
    assert_eq!(literal, [listener.local_addr()]);
    resolve("no port here").await.expect_err("no port");
    let stream = TcpStream::connect(listener.local_addr().to_string()).await;
    let address = stream.expect("a listener").peer_addr().expect("connected");
    assert_eq!(address, listener.local_addr());
    // The second address of a name, if the first does not answer.
    let closed = closed_port();
    let both: &'static [_] = Vec::leak(vec![closed, address]);
    let stream = TcpStream::connect(both).await.expect("one of them listens");
    assert_eq!(stream.peer_addr().expect("connected"), address);
    let refused = TcpStream::connect(closed).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

async fn connecting_and_accepting_have_options() {
    testing::needs_localhost();
    let listener = TcpListener::bind(("localhost", 0)).expect("a free port");
    let address = listener.local_addr();
    assert!(address.ip().is_loopback());
    let family = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(family, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(1 << 16).expect("a size");
    let granted = socket.recv_buffer_size().expect("a size");
    let stream = TcpStream::connect_socket(socket, address).await.expect("a listener");
    let has = stream.with_fd(|fd| SockRef::from(&fd).recv_buffer_size());
    assert_eq!(has.expect("a size"), granted);
    let (accepted, peer) = listener.accept_from().await.expect("a connection");
    assert_eq!(peer, stream.local_addr().expect("connected"));
    stream.send("both ways").await.expect("queued");
    assert_eq!(recv_exactly(&accepted, 9).await, b"both ways");
}

async fn a_connection_is_copied_to_another() {
    let ((from, mut one), (to, mut other)) = (pair().await, pair().await);
    let copying = spawn(async move {
        let copied = twinring::net::copy(&from, &to).await;
        to.shutdown().await.expect("sent");
        copied
    });
    let read = on_thread(move || {
        let mut bytes = Vec::new();
        other.read_to_end(&mut bytes).expect("a connection");
        bytes
    });
    let sent = on_thread(move || {
        one.write_all(&pattern(1, 0..3_000_000)).expect("a connection");
    });
    sent.await;
    assert_eq!(copying.await.expect("no panic").expect("no error"), 3_000_000);
    assert_pattern(1, 0, &read.await);
}

async fn ready_to_send_means_that_the_send_is_taken() {
    let (stream, peer) = narrow_pair().await;
    let mut queued = 0;
    for round in 0.. {
        // A task that sends much has to let others have their turn.
        yield_now().await;
        let ready = poll_once(std::future::poll_fn(|cx| stream.poll_send_ready(cx))).await;
        let mut buf = Some(pattern(5, queued..queued + 100_000).into());
        let taken = poll_once(std::future::poll_fn(|cx| stream.poll_send(cx, &mut buf))).await;
        assert_eq!(ready.is_some(), taken.is_some(), "round {round}");
        let Some(taken) = taken else { break };
        taken.expect("connected");
        queued += 100_000;
        assert!(queued < 4_000_000, "there is no end of it");
    }
    let flushed = poll_once(std::future::poll_fn(|cx| stream.poll_flush(cx))).await;
    assert!(flushed.is_none(), "the peer does not read");
    let theirs = reading(peer);
    std::future::poll_fn(|cx| stream.poll_send_ready(cx)).await.expect("room again");
    std::future::poll_fn(|cx| stream.poll_shutdown(cx)).await.expect("all is sent");
    assert_whole(5, queued, &theirs.await);
    let late = poll_once(std::future::poll_fn(|cx| stream.poll_send_ready(cx))).await;
    assert_eq!(errno(&late.expect("no wait")), libc::EPIPE);
}

fn blocking_work_runs_beside_the_worker(configuration: Configuration) {
    run_on(configuration.builder().stop_on_panic(false), |handle| async move {
        let (go_on, gate) = mpsc::channel();
        let work = spawn_blocking(move || gate.recv().expect("a message from the worker"));
        let (name, here) =
            (spawn_blocking(|| std::thread::current().id()), std::thread::current().id());
        assert_ne!(name.await.expect("no panic"), here);
        assert!(!work.is_finished());
        go_on.send(42).expect("it waits");
        assert_eq!(work.await.expect("no panic"), 42);
        // Given up before it began: nothing is left of it.
        spawn_blocking(|| unreachable!("aborted")).abort();
        let many: Vec<_> = (0..300).map(|number| spawn_blocking(move || number)).collect();
        for (number, one) in many.into_iter().enumerate() {
            assert_eq!(one.await.expect("no panic"), number);
        }
        let failed = spawn_blocking(|| -> u8 { panic!("on purpose") }).await;
        assert!(failed.expect_err("a panic").is_panic());
        assert_eq!(handle.counters().panics, 1);
        assert_eq!(spawn_blocking(|| 7).await.expect("the thread lives on"), 7);
    });
}

fn blocking_work_that_does_not_end_is_abandoned(configuration: Configuration) {
    let (told, notices) = mpsc::channel();
    let (end, gate) = mpsc::channel::<()>();
    let builder = configuration.builder().on_event(move |notice| {
        told.send(notice).expect("the test waits");
    });
    run_on(builder, |_| async move {
        let (begun, begins) = mpsc::channel();
        let _detached = spawn_blocking(move || {
            begun.send(()).expect("the test waits");
            gate.recv().unwrap_or_default();
        });
        while begins.try_recv().is_err() {
            settle().await;
        }
    });
    assert_eq!(notices.try_recv(), Ok(Event::BlockingStuck(1)));
    drop(end);
}
