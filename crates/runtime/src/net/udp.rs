//! UDP sockets.

use super::names::bind_first;
use super::{BoundUdp, SocketHandle, UdpOptions};
use crate::buf::SendBuf;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::driver::udp::{BATCH_MAX, Udp};
use crate::driver::{Driver, Side};
use crate::runtime::current;
use crate::slots::Key;
use crate::sys;
use crate::sys::socket::{SockFilter, SockRef};
use crate::task::{WaitToken, Waiter};
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};

/// A UDP socket of the current worker.
///
/// Datagrams come and go in batches, whose vectors the program keeps and uses again. All methods
/// take `&self`, so one task may receive while another sends. Dropping the socket closes it:
/// pending operations end, what was handed over is still sent within the linger limit of the
/// runtime. Operations that wait fail with ECANCELED when they are ended by
/// [`cancel`](Self::cancel).
///
/// ```no_run
/// # async fn reflect() -> std::io::Result<()> {
/// let socket = twinring::UdpSocket::bind("127.0.0.1:9000")?;
/// let (mut received, mut replies) = (Vec::new(), Vec::new());
/// loop {
///     socket.recv_batch(&mut received).await?;
///     replies.extend(received.drain(..).map(twinring::Received::into_reply));
///     socket.send_batch(&mut replies).await?;
/// }
/// # }
/// ```
pub struct UdpSocket {
    socket: SocketHandle,
    local: SocketAddr,
    peer: Option<SocketAddr>,
    /// Of the last `poll_recv_batch` that waited.
    recv_token: Cell<WaitToken>,
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdpSocket {{ local: {}, peer: {:?}, .. }}", self.local, self.peer)
    }
}

impl UdpSocket {
    /// Binds `address` with the default [`UdpOptions`]. A name that is no address blocks on the system's
    /// resolver, and its first address that can be bound is taken.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::from_bound(bind_first(address, |it| UdpOptions::default().bind(it))?)
    }

    /// A socket with the default [`UdpOptions`] that sends to, and receives from, `peer` alone. Fails
    /// without a route to it.
    pub fn connect(peer: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::from_bound(UdpOptions::default().connect(None, peer)?)
    }

    /// Takes a socket that was set up beforehand into the current worker. Fails when there is no memory
    /// for its buffers.
    pub fn from_bound(bound: BoundUdp) -> io::Result<UdpSocket> {
        let BoundUdp { socket, setup } = bound;
        let (worker, local, peer) = (current(), setup.local, setup.peer);
        let key = worker.driver.borrow_mut().add_udp(OwnedFd::from(socket), setup)?;
        let socket = SocketHandle::new(worker, key);
        Ok(UdpSocket { socket, local, peer, recv_token: Cell::default() })
    }

    /// The address of this end, with the port the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The other end of a connected socket.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Waits for a datagram and appends all available ones, at most 64, to `into`, in the order of
    /// arrival; returns how many it appended. ICMP errors are counted and do not end the wait.
    /// Dropping the future loses no datagram. Fails with the error that makes the socket itself
    /// fail, once.
    pub async fn recv_batch(&self, into: &mut Vec<Received>) -> io::Result<usize> {
        self.recv_at_most(BATCH_MAX, into).await
    }

    /// Like [`recv_batch`](Self::recv_batch), for hand-written futures. Of several tasks that call
    /// this, the last one is woken. [`cancel`](Self::cancel) does not end it.
    pub fn poll_recv_batch(
        &self,
        cx: &mut Context<'_>,
        into: &mut Vec<Received>,
    ) -> Poll<io::Result<usize>> {
        if !self.socket.worker.executor.has_budget(cx) {
            return Poll::Pending;
        }
        self.socket.worker.executor.charge(0);
        let mut token = self.recv_token.take();
        let (mut waiter, before) = (Waiter::new(cx, &mut token), into.len());
        let mut driver = self.socket.worker.driver.borrow_mut();
        let polled = driver.poll_recv_batch(self.socket.key, &mut waiter, into, BATCH_MAX);
        drop(driver);
        drop(waiter);
        self.recv_token.set(token);
        self.spend_bytes_of(&into[before..]);
        polled
    }

    /// The next datagram. [`recv_batch`](Self::recv_batch) costs less when there are many.
    pub async fn recv_from(&self) -> io::Result<Received> {
        let mut one = Vec::with_capacity(1);
        self.recv_at_most(1, &mut one).await?;
        one.pop().ok_or_else(|| io::Error::other("a receive ended without a datagram"))
    }

    async fn recv_at_most(&self, most: usize, into: &mut Vec<Received>) -> io::Result<usize> {
        let before = into.len();
        let receiving = self.until_ready(Side::Receive, |driver, key, waiter| {
            driver.poll_recv_batch(key, waiter, into, most)
        });
        let received = receiving.await;
        self.spend_bytes_of(&into[before..]);
        received
    }

    fn spend_bytes_of(&self, received: &[Received]) {
        let bytes: usize = received.iter().map(|received| received.data.len()).sum();
        self.socket.worker.executor.spend_bytes(bytes);
    }

    /// Sends the datagrams, in order, and empties `batch`. Waits only while the socket holds its
    /// maximum of unsent data: 1,024 datagrams or 1 MiB. If the future is dropped, datagrams that
    /// were not queued are still in `batch`.
    ///
    /// A datagram that the kernel refuses is counted, see [`stats`](Self::stats), and affects no
    /// other.
    pub async fn send_batch(&self, batch: &mut Vec<Datagram>) -> io::Result<()> {
        self.until_ready(Side::Send, |driver, key, waiter| {
            self.socket.worker.executor.spend_bytes(driver.send_batch(key, batch)?);
            driver.poll_outbox(key, waiter, |_| batch.is_empty())
        })
        .await
    }

    /// Does an operation that waits for one side of the socket, within the task's budget: otherwise a
    /// path as fast as the program would monopolise the thread.
    async fn until_ready<T>(
        &self,
        side: Side,
        mut ask: impl FnMut(&mut Driver, Key, &mut Waiter<'_>) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        let cancels = self.socket.cancels.get();
        let mut operation = self.socket.operation(side);
        self.socket.worker.executor.spend_or_yield().await;
        poll_fn(|cx| {
            self.socket.check_cancelled(cancels)?;
            operation.poll(cx, &mut ask)
        })
        .await
    }

    /// Queues as many datagrams as the socket can hold, in order, without waiting; the rest stays
    /// in `batch`. For a sender with a schedule that must not wait for one socket.
    pub fn try_send_batch(&self, batch: &mut Vec<Datagram>) -> io::Result<()> {
        self.socket.worker.driver.borrow_mut().send_batch(self.socket.key, batch).map(drop)
    }

    /// Sends one datagram to `to`, like [`send_batch`](Self::send_batch). A future that is dropped while
    /// it waits drops the datagram; a batch keeps it.
    pub async fn send_to(&self, data: impl Into<SendBuf>, to: SocketAddr) -> io::Result<()> {
        self.send_batch(&mut vec![Datagram::to(to, data)]).await
    }

    /// Sends one datagram to the peer of a connected socket, like [`send_to`](Self::send_to).
    pub async fn send(&self, data: impl Into<SendBuf>) -> io::Result<()> {
        self.send_batch(&mut vec![Datagram::new(data)]).await
    }

    /// Returns when the kernel has accepted, or finally refused, all sent datagrams.
    pub async fn flush(&self) -> io::Result<()> {
        self.until_ready(Side::Send, |driver, key, waiter| {
            driver.poll_outbox(key, waiter, Udp::is_settled)
        })
        .await
    }

    /// Ends the operations that wait on this socket: each returns ECANCELED, exactly once. No
    /// received datagram is lost, and later operations work as before.
    pub fn cancel(&self) {
        self.socket.cancel();
    }

    /// From now on the kernel drops all arriving datagrams, and counts them among its drops. Queued
    /// ones can still be received, so that a service can end with all of them answered or counted.
    /// This cannot be undone. Fails without memory for the filter.
    pub fn stop_receiving(&self) -> io::Result<()> {
        // The shortest program of the classic packet filter: keep 0 bytes, that is, drop.
        const DROP: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let filter = [SockFilter::new(DROP, 0, 0, 0)];
        self.socket.ask(|socket| socket.attach_filter(&filter))
    }

    /// The counts of the socket so far, including the drops that the kernel counted for it.
    pub fn stats(&self) -> io::Result<UdpStats> {
        let drops = |socket: SockRef<'_>| sys::datagram::drops(socket.as_fd());
        let kernel_drops = self.socket.ask(drops)?.into();
        Ok(UdpStats { kernel_drops, ..self.counted() })
    }

    /// The counts of the socket itself: like [`stats`](Self::stats) without a system call, and with
    /// 0 for the drops of the kernel.
    pub fn counted(&self) -> UdpStats {
        // The driver has every socket that the program has not dropped.
        self.socket.worker.driver.borrow_mut().udp_stats(self.socket.key).unwrap_or_default()
    }
}
