//! The futures of [`TcpStream`] that have a name.

use super::TcpStream;
use crate::buf::{RecvBuf, SendBuf};
use crate::driver::Side;
use crate::net::forget_waiter;
use crate::runtime::current;
use crate::sys;
use crate::sys::socket::{Domain, Protocol, SockAddr, Socket, Type};
use crate::task::{WaitToken, Waiter};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future of [`TcpStream::connect`], which connects when it is first polled. Dropping it abandons
/// the attempt.
#[derive(Debug)]
pub struct Connect {
    attempt: Attempt,
    /// It need not be returned: dropping this closes the socket.
    token: WaitToken,
}

#[derive(Debug)]
enum Attempt {
    /// From a local address, to an address.
    Internet(Option<SocketAddr>, SocketAddr),
    /// With this socket.
    Socket(Socket, SockAddr),
    Started(TcpStream),
    Over,
}

impl Connect {
    /// Connects a new socket.
    pub(super) fn from(local: Option<SocketAddr>, address: SocketAddr) -> Connect {
        let attempt = Attempt::Internet(local, address);
        Connect { attempt, token: WaitToken::default() }
    }

    /// Connects this socket.
    pub(in crate::net) fn socket(socket: Socket, address: &SockAddr) -> Connect {
        let attempt = Attempt::Socket(socket, address.clone());
        Connect { attempt, token: WaitToken::default() }
    }

    fn start(&mut self) -> io::Result<()> {
        let (socket, address) = match std::mem::replace(&mut self.attempt, Attempt::Over) {
            Attempt::Internet(local, address) => (socket_for(local, address)?, address.into()),
            Attempt::Socket(socket, address) => (socket, address),
            other => {
                self.attempt = other;
                return Ok(());
            }
        };
        let worker = current();
        let stream = worker.driver.borrow_mut().connect(OwnedFd::from(socket), &address)?;
        self.attempt = Attempt::Started(TcpStream::new(worker, stream));
        Ok(())
    }
}

impl Future for Connect {
    type Output = io::Result<TcpStream>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.start()?;
        let Connect { attempt, token } = &mut *self;
        let mut waiter = Waiter::new(cx, token);
        let Attempt::Started(stream) = attempt else { return Poll::Ready(Err(polled_again())) };
        let polled = stream.stream.borrow_mut().sending.poll_connected(&mut waiter);
        polled.map(|connected| match std::mem::replace(attempt, Attempt::Over) {
            Attempt::Started(stream) => connected.map(|()| stream),
            _ => Err(polled_again()),
        })
    }
}

fn polled_again() -> io::Error {
    io::Error::other("a finished connect was polled again")
}

fn socket_for(local: Option<SocketAddr>, address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if let Some(local) = local {
        sys::bind_address_no_port(socket.as_raw_fd())?;
        socket.bind(&local.into())?;
    }
    Ok(socket)
}

/// The future of [`TcpStream::recv`]. Dropping it loses no data.
#[derive(Debug)]
#[must_use = "receives nothing unless awaited"]
pub struct Recv<'a> {
    stream: &'a TcpStream,
    cancels: u32,
    token: WaitToken,
}

impl<'a> Recv<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> Recv<'a> {
        Recv { stream, cancels: stream.cancels.get(), token: WaitToken::default() }
    }
}

impl Future for Recv<'_> {
    type Output = io::Result<RecvBuf>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Recv { stream, cancels, token } = self.get_mut();
        stream.check_cancelled(*cancels)?;
        stream.recv_or_wait(cx, token)
    }
}

impl Drop for Recv<'_> {
    fn drop(&mut self) {
        forget_waiter(&self.stream.worker, self.stream.key, Side::Receive, &mut self.token);
    }
}

/// The future of [`TcpStream::send`] and [`TcpStream::send_corked`]. If it is dropped before it was
/// ready, it has sent nothing, and drops the buffer: see [`into_buffer`](Send::into_buffer).
#[derive(Debug)]
#[must_use = "sends nothing unless awaited"]
pub struct Send<'a> {
    stream: &'a TcpStream,
    buf: Option<SendBuf>,
    more: bool,
    cancels: u32,
    token: WaitToken,
}

impl<'a> Send<'a> {
    pub(super) fn new(stream: &'a TcpStream, buf: SendBuf, more: bool) -> Send<'a> {
        let (cancels, token) = (stream.cancels.get(), WaitToken::default());
        Send { stream, buf: Some(buf), more, cancels, token }
    }

    /// Abandons the send and returns the buffer; `None` if it was queued.
    pub fn into_buffer(mut self) -> Option<SendBuf> {
        self.buf.take()
    }
}

impl Future for Send<'_> {
    type Output = io::Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.stream.check_cancelled(self.cancels)?;
        let Send { stream, buf, more, token, .. } = &mut *self;
        stream.send_or_wait(cx, token, buf, *more)
    }
}

impl Drop for Send<'_> {
    fn drop(&mut self) {
        forget_waiter(&self.stream.worker, self.stream.key, Side::Send, &mut self.token);
    }
}

/// The future of [`TcpStream::send_vectored`]. If it is dropped before it was ready, it has sent
/// nothing, and drops the buffers: see [`into_buffers`](SendVectored::into_buffers).
#[derive(Debug)]
#[must_use = "sends nothing unless awaited"]
pub struct SendVectored<'a>(pub(super) Send<'a>);

impl SendVectored<'_> {
    /// Abandons the send and returns the buffers, in order; `None` if they were queued.
    pub fn into_buffers(self) -> Option<Vec<SendBuf>> {
        self.0.into_buffer().map(SendBuf::into_parts)
    }
}

impl Future for SendVectored<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}
