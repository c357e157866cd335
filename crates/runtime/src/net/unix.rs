//! Unix sockets: streams and listeners like those of TCP. Those with an abstract name come from the standard library.
//! Constructors panic outside a runtime.

use super::listener::Acceptor;
use super::stream::TcpStream;
use crate::runtime::failed;
use crate::sys::socket::{Domain, SockAddr, Socket, Type};
use crate::time::sleep;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Connections that the kernel holds before they are accepted; it caps this at net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// How long to wait until connecting is tried again, if the listener's backlog is full: the kernel
/// does not notify a non-blocking connect of room.
const FULL_BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// A listening Unix socket of the current worker. Dropping it leaves its path in the filesystem.
#[derive(Debug)]
pub struct UnixListener {
    acceptor: Acceptor,
}

impl UnixListener {
    /// Binds a path, which must not exist, and listens.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        let path = path.as_ref();
        let listen = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            socket.listen(BACKLOG)?;
            Ok(UnixListener { acceptor: Acceptor::new(OwnedFd::from(socket), true)? })
        };
        let refused = |error| failed(format_args!("cannot listen on {}", path.display()), &error);
        listen().map_err(refused)
    }

    /// Adds a listening socket of the standard library to the current worker.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        Ok(UnixListener { acceptor: Acceptor::new(OwnedFd::from(listener), true)? })
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.acceptor.socket.ask(|socket| socket.local_addr()).and_then(|it| of_kernel(&it))
    }

    /// The next connection, as [`TcpListener::accept`](super::TcpListener::accept).
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixStream { stream: self.acceptor.accept().await? })
    }
}

/// A Unix stream connection of the current worker: a [`TcpStream`] but for its addresses, to which it
/// dereferences. Options of TCP fail with EOPNOTSUPP.
#[derive(Debug)]
pub struct UnixStream {
    /// Nothing in the state of a stream depends on the kind of its socket.
    stream: TcpStream,
}

impl Deref for UnixStream {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl UnixStream {
    /// Connects to the listener at this path. Waits while its backlog is full.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        let address = SockAddr::unix(path)?;
        loop {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
            match TcpStream::connect_with(socket, &address).await {
                Ok(stream) => return Ok(UnixStream { stream }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(FULL_BACKLOG_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Two connected streams of the current worker.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        Ok((UnixStream::from_std(one)?, UnixStream::from_std(other)?))
    }

    /// Adds a connected socket of the standard library to the current worker.
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
        Ok(UnixStream { stream: TcpStream::from_fd(OwnedFd::from(stream), true)? })
    }

    /// As [`TcpStream::close`].
    pub async fn close(self) -> io::Result<()> {
        self.stream.close().await
    }

    /// The address of the other end: its path or abstract name, if it is bound to one. Fails with ENOTCONN
    /// when the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.socket.ask(|socket| socket.peer_addr()).and_then(|it| of_kernel(&it))
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.socket.ask(|socket| socket.local_addr()).and_then(|it| of_kernel(&it))
    }
}

/// The address of a Unix socket that the kernel reports. Fails for another kind of socket, and for a path of
/// 108 bytes, which only the kernel can represent.
fn of_kernel(address: &SockAddr) -> io::Result<SocketAddr> {
    match (address.as_pathname(), address.as_abstract_namespace()) {
        (Some(path), _) => SocketAddr::from_pathname(path),
        (None, Some(name)) => SocketAddr::from_abstract_name(name),
        // Not bound.
        (None, None) if address.is_unnamed() => SocketAddr::from_pathname(""),
        (None, None) => Err(io::Error::new(io::ErrorKind::InvalidData, "not a Unix socket")),
    }
}
