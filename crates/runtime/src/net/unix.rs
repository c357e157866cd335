//! Unix sockets: streams and listeners like those of TCP, and datagrams, with paths for addresses.

mod address;
mod datagram;

pub use datagram::{UnixDatagram, UnixDatagramOptions, UnixReceived, UnixSend};

use self::address::{of_kernel, to_kernel};
use super::listener::Acceptor;
use super::stream::{Connect, Recv, Send, SendVectored, TcpStream};
use crate::buf::{RecvBuf, SendBuf};
use crate::sys::socket::{Domain, SockAddr, Socket, Type};
use crate::time::sleep;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

/// Connections that the kernel holds before they are accepted; it caps this at net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// How long to wait until connecting is tried again, if the listener's backlog is full: the kernel
/// does not notify a non-blocking connect of room.
const FULL_BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// A listening Unix socket of the current worker. Dropping it leaves its path in the filesystem.
pub struct UnixListener {
    acceptor: Acceptor,
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixListener").finish_non_exhaustive()
    }
}

impl UnixListener {
    /// Binds `path`, which must not exist, and listens.
    ///
    /// # Errors
    /// When the path cannot be bound; the message names it.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        let path = path.as_ref();
        SockAddr::unix(path).and_then(|address| UnixListener::listen(&address)).map_err(|error| {
            let path = path.display();
            io::Error::new(error.kind(), format!("cannot listen on {path}: {error}"))
        })
    }

    /// Like [`bind`](Self::bind), for an address that may be an abstract name
    /// ([`SocketAddrExt`](std::os::linux::net::SocketAddrExt)).
    ///
    /// # Errors
    /// When the address cannot be bound; the message names it.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixListener> {
        to_kernel(address).and_then(|it| UnixListener::listen(&it)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {address:?}: {error}"))
        })
    }

    fn listen(address: &SockAddr) -> io::Result<UnixListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?;
        Ok(UnixListener { acceptor: Acceptor::new(OwnedFd::from(socket), true)? })
    }

    /// Adds a listening socket of the standard library to the current worker.
    ///
    /// # Errors
    /// When the engine cannot register it.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        Ok(UnixListener { acceptor: Acceptor::new(OwnedFd::from(listener), true)? })
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.acceptor.with_socket(|socket| socket.local_addr()).and_then(|it| of_kernel(&it))
    }

    /// The next connection, as [`TcpListener::accept`](super::TcpListener::accept).
    ///
    /// # Errors
    /// When the listening socket itself is unusable.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixStream { stream: self.acceptor.accept().await? })
    }
}

/// A Unix stream connection of the current worker, with the guarantees of a [`TcpStream`].
#[derive(Debug)]
pub struct UnixStream {
    /// Nothing in the state of a stream depends on the kind of its socket.
    stream: TcpStream,
}

impl UnixStream {
    /// Connects to the listener at `path`; waits while its backlog is full.
    ///
    /// # Errors
    /// Those of connect(2).
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        UnixStream::connect_to(&SockAddr::unix(path)?).await
    }

    /// Like [`connect`](Self::connect), to an address that may be an abstract name
    /// ([`SocketAddrExt`](std::os::linux::net::SocketAddrExt)).
    ///
    /// # Errors
    /// Those of connect(2).
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<UnixStream> {
        UnixStream::connect_to(&to_kernel(address)?).await
    }

    async fn connect_to(address: &SockAddr) -> io::Result<UnixStream> {
        loop {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            match Connect::socket(socket, address).await {
                Ok(stream) => return Ok(UnixStream { stream }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(FULL_BACKLOG_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Two connected streams of the current worker.
    ///
    /// # Errors
    /// Those of socketpair(2).
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        Ok((UnixStream::from_std(one)?, UnixStream::from_std(other)?))
    }

    /// Adds a connected socket of the standard library to the current worker.
    ///
    /// # Errors
    /// Those of fcntl(2).
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
        Ok(UnixStream { stream: TcpStream::from_fd(OwnedFd::from(stream), true)? })
    }

    /// As [`TcpStream::recv`].
    pub fn recv(&self) -> Recv<'_> {
        self.stream.recv()
    }

    /// As [`TcpStream::recv_into`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv_into(&self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.recv_into(into).await
    }

    /// As [`TcpStream::recv_exact`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv_exact(&self, into: &mut [u8]) -> io::Result<()> {
        self.stream.recv_exact(into).await
    }

    /// As [`TcpStream::recv_until`].
    ///
    /// # Errors
    /// As there.
    pub async fn recv_until(&self, separator: u8, limit: usize) -> io::Result<Vec<u8>> {
        self.stream.recv_until(separator, limit).await
    }

    /// As [`TcpStream::peek`].
    ///
    /// # Errors
    /// As there.
    pub async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.peek(into).await
    }

    /// As [`TcpStream::put_back`].
    pub fn put_back(&self, data: impl Into<RecvBuf>) {
        self.stream.put_back(data);
    }

    /// As [`TcpStream::send`].
    pub fn send(&self, buf: impl Into<SendBuf>) -> Send<'_> {
        self.stream.send(buf)
    }

    /// As [`TcpStream::send_vectored`].
    pub fn send_vectored<B: Into<SendBuf>>(
        &self,
        bufs: impl IntoIterator<Item = B>,
    ) -> SendVectored<'_> {
        self.stream.send_vectored(bufs)
    }

    /// As [`TcpStream::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> io::Result<()> {
        self.stream.flush().await
    }

    /// As [`TcpStream::shutdown_write`].
    ///
    /// # Errors
    /// As there.
    pub async fn shutdown_write(&self) -> io::Result<()> {
        self.stream.shutdown_write().await
    }

    /// As [`TcpStream::close`].
    ///
    /// # Errors
    /// As there.
    pub async fn close(self) -> io::Result<()> {
        self.stream.close().await
    }

    /// As [`TcpStream::cancel`].
    pub fn cancel(&self) {
        self.stream.cancel();
    }

    /// As [`TcpStream::poll_recv`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        self.stream.poll_recv(cx)
    }

    /// As [`TcpStream::poll_send`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_send(
        &self,
        cx: &mut Context<'_>,
        buf: &mut Option<SendBuf>,
    ) -> Poll<io::Result<()>> {
        self.stream.poll_send(cx, buf)
    }

    /// As [`TcpStream::poll_send_ready`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_send_ready(cx)
    }

    /// As [`TcpStream::poll_flush`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(cx)
    }

    /// As [`TcpStream::poll_shutdown_write`].
    ///
    /// # Errors
    /// As there.
    pub fn poll_shutdown_write(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown_write(cx)
    }

    /// The address of the other end: its path or abstract name, if it is bound to one.
    ///
    /// # Errors
    /// ENOTCONN when the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.socket_address(|socket| socket.peer_addr()).and_then(|it| of_kernel(&it))
    }

    /// The address of this end.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.socket_address(|socket| socket.local_addr()).and_then(|it| of_kernel(&it))
    }
}
