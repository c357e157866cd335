//! Sockets, waiting with a bound, counting.

use crate::Subject;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How long something may take that is to happen in the end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Time in which bytes and connections of loopback arrive, without a turn of the runtime.
pub(crate) const ARRIVAL: Duration = Duration::from_millis(2);

pub(crate) fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")
}

pub(crate) fn address_of(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound socket")
}

/// Two ends of a connection, both of the standard library.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = listen();
    let one = TcpStream::connect(address_of(&listener)).expect("the backlog has room");
    let (other, _address) = listener.accept().expect("a connection");
    one.set_nodelay(true).expect("a TCP socket");
    (other, one)
}

/// Polls `future` while `duration` lasts. The runtime has its turns meanwhile.
pub(crate) async fn poll_for<S: Subject, F: Future>(
    subject: &S,
    future: F,
    duration: Duration,
) -> Option<F::Output> {
    let (mut future, mut sleep) = (pin!(future), pin!(subject.sleep(duration)));
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Waits until `done` says so; false if it never does.
pub(crate) async fn wait_until<S: Subject>(subject: &S, mut done: impl FnMut() -> bool) -> bool {
    let began = std::time::Instant::now();
    while !done() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        subject.sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Descriptors that this process has open.
pub(crate) fn open_descriptors() -> usize {
    // One is the directory being read.
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count() - 1
}

/// A listener whose backlog is full, with the connections that fill it: a further connect waits.
pub(crate) fn full_backlog() -> (SocketAddr, socket2::Socket, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    listener.bind(&any.into()).expect("a free port");
    listener.listen(0).expect("a bound socket");
    let address = listener.local_addr().expect("a bound socket");
    let fillers = (0..4).map(|_| {
        let filler = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        filler.set_nonblocking(true).expect("a socket");
        let _in_progress = filler.connect(&address);
        filler
    });
    let fillers = fillers.collect();
    (address.as_socket().expect("an IPv4 address"), listener, fillers)
}
