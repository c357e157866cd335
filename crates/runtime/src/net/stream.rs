//! TCP connections.

mod exact;
mod futures;
mod send_file;

pub use futures::{Recv, Send};

use super::{SocketHandle, internet_address};
use crate::buf::{RecvBuf, SendBuf};
use crate::driver::Side;
use crate::driver::stream::{Sending, Stream, StreamRef};
use crate::runtime::{Worker, current};
use crate::sys;
use crate::sys::datagram::set_option;
use crate::sys::socket::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use crate::task::{WaitToken, Waiter};
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A TCP connection of the current worker.
///
/// All methods take `&self`, so one task may receive while another sends (share the stream in an
/// [`Rc`]). Dropping it closes the connection: pending operations end, queued data is still sent
/// within the linger limit of the runtime.
///
/// # Errors
/// A receive fails with the error that broke the connection, once. A send fails with that of an
/// earlier send, or EPIPE after [`shutdown`](Self::shutdown); its bytes are then not sent. Either
/// fails with ECANCELED when it is ended by [`cancel`](Self::cancel). Other methods fail as the
/// system call that they name, or are named after.
pub struct TcpStream {
    pub(super) socket: SocketHandle,
    stream: StreamRef,
    sent_of_files: Cell<u64>,
    /// Of the last `poll_recv` and `poll_send` that waited.
    recv_token: Cell<WaitToken>,
    send_token: Cell<WaitToken>,
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream").field("key", &self.socket.key).finish_non_exhaustive()
    }
}

impl TcpStream {
    pub(super) fn new(worker: Rc<Worker>, stream: StreamRef) -> TcpStream {
        let key = stream.borrow().key;
        TcpStream {
            socket: SocketHandle::new(worker, key),
            stream,
            sent_of_files: Cell::new(0),
            recv_token: Cell::default(),
            send_token: Cell::default(),
        }
    }

    /// Like [`connect`](TcpStream::connect), from a local address; port 0 lets the kernel choose
    /// one per destination, so many more connections than ephemeral ports are possible.
    pub async fn connect_from(
        local: Option<SocketAddr>,
        address: SocketAddr,
    ) -> io::Result<TcpStream> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        if let Some(local) = local {
            // The kernel chooses it when it knows the destination, so none is reserved exclusively (Linux 4.2).
            let option = libc::IP_BIND_ADDRESS_NO_PORT;
            set_option(socket.as_fd(), libc::IPPROTO_IP, option, 1)?;
            socket.bind(&local.into())?;
        }
        TcpStream::connect_with(socket, &address.into()).await
    }

    /// Connects this socket, which is not blocking. Dropping the future abandons the attempt.
    pub(super) async fn connect_with(socket: Socket, address: &SockAddr) -> io::Result<TcpStream> {
        let worker = current();
        let stream = worker.driver.borrow_mut().connect(OwnedFd::from(socket), address)?;
        let connecting = TcpStream::new(worker, stream);
        // It need not be returned: dropping the stream closes the socket.
        let mut token = WaitToken::default();
        poll_fn(|cx| {
            let mut waiter = Waiter::new(cx, &mut token);
            connecting
                .stream
                .borrow_mut()
                .sending
                .poll(&mut waiter, |sending| sending.is_connected())
        })
        .await?;
        Ok(connecting)
    }

    /// Adds a connected socket of the standard library to the current worker.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        TcpStream::from_fd(OwnedFd::from(stream), false)
    }

    pub(super) fn from_fd(socket: OwnedFd, unix: bool) -> io::Result<TcpStream> {
        SockRef::from(&socket).set_nonblocking(true)?;
        let worker = current();
        let stream = worker.driver.borrow_mut().add_stream(socket, unix);
        Ok(TcpStream::new(worker, stream))
    }

    /// The next received bytes, in order; empty at the end of the stream, for ever after.
    pub fn recv(&self) -> Recv<'_> {
        Recv::new(self)
    }

    /// Like [`recv`](Self::recv), for hand-written futures. Of several tasks that call this, the
    /// last one is woken.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        let mut token = self.recv_token.take();
        let polled = self.recv_or_wait(cx, &mut token);
        self.recv_token.set(token);
        polled
    }

    /// Sends `buf`; returns once it is queued: all of it or, if the future is dropped before,
    /// nothing. Less than 256 KiB are queued per connection before this waits for the peer; one
    /// buffer of any size fits beside them.
    ///
    /// A future that is dropped while it waits drops the buffer. To keep it, for instance after a
    /// [`timeout`](crate::timeout), keep the future:
    ///
    /// ```no_run
    /// # async fn example(stream: twinring::TcpStream, buf: Vec<u8>) -> std::io::Result<()> {
    /// # use std::time::Duration;
    /// let mut send = stream.send(buf);
    /// let unsent = match twinring::timeout(Duration::from_secs(1), &mut send).await {
    ///     Ok(queued) => queued.map(|()| None)?,
    ///     Err(_elapsed) => send.into_buffer(),
    /// };
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(&self, buf: impl Into<SendBuf>) -> Send<'_> {
        Send::new(self, buf.into(), false)
    }

    /// Like [`send`](Self::send), for hand-written futures: takes `buf` once it can be queued, and
    /// leaves it in place until then. Of several tasks that call this, the last one is woken.
    pub fn poll_send(
        &self,
        cx: &mut Context<'_>,
        buf: &mut Option<SendBuf>,
    ) -> Poll<io::Result<()>> {
        let mut token = self.send_token.take();
        let polled = self.send_or_wait(cx, &mut token, buf, false);
        self.send_token.set(token);
        polled
    }

    /// Sends, or waits. A task whose budget is used up yields first: otherwise a peer that reads as fast
    /// as we send would monopolise the thread.
    #[inline]
    fn send_or_wait(
        &self,
        cx: &mut Context<'_>,
        token: &mut WaitToken,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Poll<io::Result<()>> {
        let executor = &self.socket.worker.executor;
        if !executor.has_budget(cx) {
            return Poll::Pending;
        }
        let bytes = buf.as_ref().map_or(0, SendBuf::len);
        let sent = self.socket.worker.driver.borrow_mut().try_send(&self.stream, buf, more);
        if sent.is_pending() {
            return self.wait_for_room(cx, token);
        }
        executor.charge(bytes);
        sent
    }

    #[cold]
    fn wait_for_room(&self, cx: &Context<'_>, token: &mut WaitToken) -> Poll<io::Result<()>> {
        let mut waiter = Waiter::new(cx, token);
        let mut driver = self.socket.worker.driver.borrow_mut();
        let polled = driver.poll_sending(&self.stream, &mut waiter, |sending| sending.may_accept());
        drop(driver);
        if matches!(polled, Poll::Ready(Ok(()))) {
            // Cloning a foreign waker has made room.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        polled
    }

    #[inline]
    fn recv_or_wait(
        &self,
        cx: &mut Context<'_>,
        token: &mut WaitToken,
    ) -> Poll<io::Result<RecvBuf>> {
        let executor = &self.socket.worker.executor;
        if !executor.has_budget(cx) {
            return Poll::Pending;
        }
        {
            let stream = &mut *self.stream.borrow_mut();
            let ready = |chunk: RecvBuf, stream: &Stream, token: &mut WaitToken| {
                if stream.receiving.waiters.is_empty() {
                    *token = WaitToken::default();
                }
                executor.charge(chunk.len());
                Poll::Ready(Ok(chunk))
            };
            if let Some(chunk) = stream.receiving.unread.pop() {
                return ready(chunk, stream, token);
            }
            if stream.is_readable()
                && let Some(chunk) = self.socket.worker.driver.borrow_mut().receive(stream)
            {
                return ready(chunk, stream, token);
            }
            if stream.awaits_event() && stream.receiving.waiters.add_task(cx, token) {
                return Poll::Pending;
            }
        }
        self.wait_for_bytes(cx, token)
    }

    /// This waits behind others, or the end has come, or a receive has to be started.
    #[cold]
    fn wait_for_bytes(&self, cx: &Context<'_>, token: &mut WaitToken) -> Poll<io::Result<RecvBuf>> {
        let mut waiter = Waiter::new(cx, token);
        let mut stream = self.stream.borrow_mut();
        if !stream.receiving.unread.is_empty() || stream.is_readable() {
            // Cloning a foreign waker has changed that.
            drop(stream);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        stream.receiving.waiters.leave(&mut waiter);
        let polled = stream.receiving.poll_end(&mut waiter);
        if polled.is_ready() {
            self.socket.worker.executor.charge(0);
        } else if !stream.awaits_event() {
            self.socket.worker.driver.borrow_mut().start_receive(&mut stream);
        }
        polled
    }

    /// Ready when [`poll_send`](Self::poll_send) would take a buffer: for writers that copy their
    /// bytes only when they can be queued. Of several tasks that call this, `poll_send`,
    /// [`poll_flush`](Self::poll_flush) or [`poll_shutdown`](Self::poll_shutdown), the
    /// last one is woken.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sending(cx, |sending| sending.may_accept())
    }

    /// Like [`flush`](Self::flush), for hand-written futures.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sending(cx, |sending| sending.is_flushed())
    }

    /// Like [`shutdown`](Self::shutdown), for hand-written futures.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        self.poll_flush(cx)
    }

    fn poll_sending(
        &self,
        cx: &Context<'_>,
        ready: impl FnOnce(&mut Sending) -> io::Result<bool>,
    ) -> Poll<io::Result<()>> {
        let mut token = self.send_token.take();
        let mut waiter = Waiter::new(cx, &mut token);
        let mut driver = self.socket.worker.driver.borrow_mut();
        let polled = driver.poll_sending(&self.stream, &mut waiter, ready);
        drop(driver);
        drop(waiter);
        self.send_token.set(token);
        polled
    }

    /// Like [`send`](Self::send), with more to follow at once: the kernel may keep back a last
    /// segment that is not full (MSG_MORE), so that a header shares a segment with the data behind
    /// it. If no data follows, the segment leaves after 200 ms, or with [`shutdown`](Self::shutdown).
    /// Behind data that is still queued it is an ordinary send.
    pub fn send_corked(&self, buf: impl Into<SendBuf>) -> Send<'_> {
        Send::new(self, buf.into(), true)
    }

    /// Sends several buffers in order, as [`send`](Self::send) sends one with all their bytes: they are
    /// copied into one. To copy no large body, [`send_corked`](Self::send_corked) what comes before it.
    ///
    /// ```no_run
    /// # async fn example(stream: twinring::TcpStream, body: std::rc::Rc<[u8]>) -> std::io::Result<()> {
    /// use twinring::SendBuf;
    ///
    /// let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    /// stream.send_vectored([SendBuf::from(head), body.into()]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_vectored<B: Into<SendBuf>>(&self, bufs: impl IntoIterator<Item = B>) -> Send<'_> {
        Send::new(self, SendBuf::joined(bufs.into_iter().map(Into::into)), false)
    }

    /// Returns when the kernel has all sent data.
    pub async fn flush(&self) -> io::Result<()> {
        let cancels = self.socket.cancels.get();
        let mut flush = self.socket.operation(Side::Send);
        poll_fn(|cx| {
            self.socket.check_cancelled(cancels)?;
            flush.poll(cx, |driver, _, waiter| {
                driver.poll_sending(&self.stream, waiter, |sending| sending.is_flushed())
            })
        })
        .await
    }

    /// Closes the sending half behind all queued data: the peer reads all of it, then the end of
    /// the stream. Receiving continues. Returns when the kernel has all data.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.finish();
        self.flush().await
    }

    /// Sends queued data, then closes the connection. Fails if queued data could not be sent.
    pub async fn close(self) -> io::Result<()> {
        self.flush().await
    }

    /// Ends the operations that wait on this stream: each returns ECANCELED, exactly once. No
    /// received data is lost, and later operations work as before.
    pub fn cancel(&self) {
        self.socket.cancel();
    }

    /// Bytes of this connection that the peer has acknowledged (`tcpi_bytes_acked`, Linux 4.1):
    /// only these are known to have arrived.
    pub fn acked_bytes(&self) -> io::Result<u64> {
        self.socket.ask(|socket| sys::tcp_bytes_acked(socket.as_raw_fd()))
    }

    /// True if the peer has acknowledged everything that the kernel was given to send, FIN included
    /// (`tcpi_unacked` and `tcpi_notsent_bytes`).
    pub fn is_acked(&self) -> io::Result<bool> {
        self.socket.ask(|socket| sys::tcp_is_acked(socket.as_raw_fd()))
    }

    /// Sets TCP_NODELAY. For other options see [`with_fd`](Self::with_fd).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket.ask(|socket| socket.set_tcp_nodelay(nodelay))
    }

    /// Makes the close send a reset instead of FIN (SO_LINGER with zero), dropping unsent data.
    pub fn set_reset_on_close(&self) -> io::Result<()> {
        self.socket.ask(|socket| socket.set_linger(Some(Duration::ZERO)))?;
        self.socket.resets.set(true);
        Ok(())
    }

    /// Calls `f` with the descriptor, for socket options that have no method here. The engine reads from
    /// the socket and writes to it: do neither through the descriptor.
    ///
    /// # Panics
    /// After the end of the runtime, and if `f` uses a socket of it or drops one.
    pub fn with_fd<R>(&self, f: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        let driver = self.socket.worker.driver.borrow();
        f(driver
            .fd(self.socket.key)
            .expect("a socket has no descriptor after the end of its runtime"))
    }

    /// The address of the other end. Fails with ENOTCONN when the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.ask(|socket| socket.peer_addr()).and_then(internet_address)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.ask(|socket| socket.local_addr()).and_then(internet_address)
    }

    fn finish(&self) {
        self.socket.worker.driver.borrow_mut().finish(&self.stream);
    }
}
