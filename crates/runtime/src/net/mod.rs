//! Sockets: the only API that services see.

mod listener;
mod names;
mod stream;
mod udp;
mod udp_options;
mod unix;

pub use crate::datagram::{Ecn, SendErrors, UdpStats};
pub use listener::{BoundListener, ListenOptions, TcpListener};
pub use names::resolve;
pub use stream::{Recv, Send, TcpStream};
pub use udp::UdpSocket;
pub use udp_options::{BoundUdp, Granted, UdpOptions};
pub use unix::{UnixListener, UnixStream};

use crate::driver::{Driver, Side};
use crate::runtime::{Worker, is_serving};
use crate::slots::Key;
use crate::sys::socket::{Domain, SockAddr, SockRef, Socket, Type};
use crate::task::{WaitToken, Waiter, wake_all};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Context;
use std::time::{Duration, Instant};

/// Sends all that `from` receives to `to`, until the end of the stream; returns how many bytes. Nothing
/// is copied in memory, and a slow receiver slows down the sender. It does not end the stream of `to`:
/// call [`shutdown`](TcpStream::shutdown) for that.
pub async fn copy(from: &TcpStream, to: &TcpStream) -> io::Result<u64> {
    let mut copied = 0;
    loop {
        let bytes = from.recv().await?;
        if bytes.is_empty() {
            return Ok(copied);
        }
        copied += bytes.len() as u64;
        to.send(bytes).await?;
    }
}

/// How often binding is tried again while the address is in use. The port of an io_uring process
/// that was killed stays bound for 9 to 12 ms, until the kernel has torn its rings down.
const BIND_PATIENCE: Duration = Duration::from_millis(100);

/// Repeats `bind` for a moment while the address is in use; only once on a serving worker, which
/// would block all its connections.
fn patiently<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let patience = if is_serving() { Duration::ZERO } else { BIND_PATIENCE };
    let began = Instant::now();
    loop {
        match bind() {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && Instant::now() - began < patience =>
            {
                std::thread::sleep(Duration::from_millis(3));
            }
            other => return other,
        }
    }
}

/// A socket to be bound to an address whose port others may share.
fn new_socket(address: SocketAddr, kind: Type, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        // So that 0.0.0.0 and [::] can be used together.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(share)?;
    Ok(socket)
}

/// Binds `address` once for each of `workers`, which share the port. Port 0 picks one free port.
fn bind_each<T>(
    address: SocketAddr,
    workers: usize,
    bind: impl Fn(SocketAddr, bool) -> io::Result<(SocketAddr, T)>,
) -> io::Result<Vec<T>> {
    let share = workers > 1;
    if share && address.port() != 0 {
        // SO_REUSEPORT would silently join another process of the same user; a plain bind
        // reports that the port is taken.
        bind(address, false)?;
    }
    let (bound, first) = bind(address, share)?;
    let more = (1..workers).map(|_| Ok(bind(bound, share)?.1));
    std::iter::once(Ok(first)).chain(more).collect()
}

/// A socket of a worker, which is closed when this is dropped.
#[derive(Debug)]
struct SocketHandle {
    worker: Rc<Worker>,
    key: Key,
    /// Number of cancellations so far; an operation that started under an older number ends.
    cancels: Cell<u32>,
    /// The close will be a reset, so queued data need not be sent first.
    resets: Cell<bool>,
}

impl SocketHandle {
    fn new(worker: Rc<Worker>, key: Key) -> SocketHandle {
        SocketHandle { worker, key, cancels: Cell::new(0), resets: Cell::new(false) }
    }

    /// Asks the socket, which stays the engine's. Fails with EBADF after the end of the runtime.
    fn ask<R>(&self, ask: impl FnOnce(SockRef<'_>) -> io::Result<R>) -> io::Result<R> {
        let driver = self.worker.driver.borrow();
        let fd = driver.fd(self.key).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        ask(SockRef::from(&fd))
    }

    fn operation(&self, side: Side) -> Operation<'_> {
        Operation { socket: self, side, token: WaitToken::default() }
    }

    fn cancel(&self) {
        self.cancels.set(self.cancels.get().wrapping_add(1));
        self.worker.driver.borrow_mut().wake_waiters(self.key);
    }

    #[inline]
    fn check_cancelled(&self, started_under: u32) -> io::Result<()> {
        if self.cancels.get() == started_under { Ok(()) } else { cancelled() }
    }

    /// A future that may have waited for the socket was dropped. In most cases it was ready, and nothing
    /// is done.
    #[inline(always)]
    fn forget_waiter(&self, side: Side, token: &mut WaitToken) {
        if token.may_wait() {
            self.leave_queue(side, token);
        }
    }

    #[cold]
    fn leave_queue(&self, side: Side, token: &mut WaitToken) {
        let waker = self.worker.driver.borrow_mut().forget_waiter(self.key, side, token);
        drop(waker);
    }
}

#[cold]
fn cancelled() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ECANCELED))
}

impl Drop for SocketHandle {
    fn drop(&mut self) {
        self.worker.driver.borrow_mut().close(self.key, self.resets.get());
        wake_all(&self.worker.descriptor_waiters);
    }
}

/// A pending operation of a socket, which waits for one side of it. Dropping it ends the wait.
struct Operation<'a> {
    socket: &'a SocketHandle,
    side: Side,
    token: WaitToken,
}

impl Operation<'_> {
    fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        ask: impl FnOnce(&mut Driver, Key, &mut Waiter<'_>) -> T,
    ) -> T {
        let mut waiter = Waiter::new(cx, &mut self.token);
        let mut driver = self.socket.worker.driver.borrow_mut();
        ask(&mut driver, self.socket.key, &mut waiter)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.socket.forget_waiter(self.side, &mut self.token);
    }
}

fn internet_address(address: SockAddr) -> io::Result<SocketAddr> {
    let not_internet = || io::Error::new(io::ErrorKind::InvalidData, "not an IPv4 or IPv6 address");
    address.as_socket().ok_or_else(not_internet)
}
