//! Unix datagram sockets.

use super::address::{UnixName, of_kernel, unnamed};
use crate::buf::RecvBuf;
use crate::datagram::Received;
use crate::driver::ancillary::Wanted;
use crate::driver::datagrams::UdpSetup;
use crate::net::UdpSocket;
use crate::sys::socket::{Domain, SockAddr, Socket, Type};
use crate::time::sleep;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::time::Duration;

/// Pauses between two attempts to send to a receiver whose queue is full: the first, and the longest.
/// The kernel reports no event when there is room again, unless the socket is connected.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Options of Unix datagram sockets. Sockets of a worker with equal options share their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixDatagramOptions {
    /// Longest datagram that is received completely: 16 bytes to 1 MiB, 64 KiB by default. A longer
    /// one is truncated and marked.
    pub buffer_bytes: u32,
    /// Receive buffers: a power of two from 4 to 32,768, 64 by default.
    pub buffer_count: u32,
}

impl Default for UnixDatagramOptions {
    fn default() -> UnixDatagramOptions {
        UnixDatagramOptions { buffer_bytes: 64 << 10, buffer_count: 64 }
    }
}

impl UnixDatagramOptions {
    /// Adds a socket of the standard library to the current worker.
    ///
    /// # Errors
    /// When an option is out of its range, or the engine cannot register the socket or has no memory
    /// for its buffers.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn from_std(self, socket: std::os::unix::net::UnixDatagram) -> io::Result<UnixDatagram> {
        self.adopt(OwnedFd::from(socket))
    }

    fn adopt(self, socket: OwnedFd) -> io::Result<UnixDatagram> {
        let UnixDatagramOptions { buffer_bytes, buffer_count } = self;
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(16..=1 << 20).contains(&buffer_bytes) {
            return wrong(format!("buffer_bytes {buffer_bytes}: expected 16 to 1048576"));
        }
        if !(4..=1 << 15).contains(&buffer_count) || !buffer_count.is_power_of_two() {
            return wrong(format!(
                "buffer_count {buffer_count}: expected a power of two from 4 to 32768"
            ));
        }
        let setup = UdpSetup {
            peer: None,
            ipv6: false,
            unix: true,
            wanted: Wanted::default(),
            traffic_class: 0,
            buffer_bytes: buffer_bytes as usize,
            buffer_count: buffer_count as u16,
            pending: 0,
            batch: true,
            segmentation: false,
        };
        Ok(UnixDatagram { socket: UdpSocket::of_unix(socket, setup)? })
    }
}

/// A datagram that a [`UnixDatagram`] has received.
#[derive(Debug)]
#[non_exhaustive]
pub struct UnixReceived {
    /// The payload. Empty for an empty datagram.
    pub data: RecvBuf,
    /// The sender; unnamed if its socket is not bound, or to a path of 108 bytes.
    pub from: SocketAddr,
    /// The datagram was longer than the buffer; `data` is its beginning.
    pub truncated: bool,
}

impl UnixReceived {
    fn new(received: Received) -> io::Result<UnixReceived> {
        let from = received.unix_from.map_or_else(unnamed, |from| Ok(*from))?;
        Ok(UnixReceived { data: received.data, from, truncated: received.truncated })
    }
}

/// A Unix datagram socket of the current worker: datagrams that arrive, do so whole, once and in
/// order. Sends are system calls on either engine; the kernel delivers or refuses a datagram at once.
///
/// All methods take `&self`, so one task may receive while another sends. Dropping the socket closes
/// it, and leaves its path in the filesystem.
///
/// ```no_run
/// # async fn notify(path: &str) -> std::io::Result<()> {
/// let socket = twinring::net::UnixDatagram::unbound()?;
/// socket.send_to("READY=1", path).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UnixDatagram {
    /// The receiving side of a datagram socket, without addresses.
    socket: UdpSocket,
}

impl UnixDatagram {
    /// A socket that is bound to a path, which must not exist, or to an abstract name.
    ///
    /// # Errors
    /// When the name cannot be bound; the message contains it.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn bind(name: impl UnixName) -> io::Result<UnixDatagram> {
        let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
        name.to_kernel().and_then(|address| socket.bind(&address)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot bind {name:?}: {error}"))
        })?;
        UnixDatagramOptions::default().adopt(OwnedFd::from(socket))
    }

    /// A socket without a name, which nobody can send to unless it is connected with.
    ///
    /// # Errors
    /// Those of socket(2).
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn unbound() -> io::Result<UnixDatagram> {
        let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
        UnixDatagramOptions::default().adopt(OwnedFd::from(socket))
    }

    /// Two connected sockets of the current worker.
    ///
    /// # Errors
    /// Those of socketpair(2).
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, other) = std::os::unix::net::UnixDatagram::pair()?;
        Ok((UnixDatagram::from_std(one)?, UnixDatagram::from_std(other)?))
    }

    /// Adds a socket of the standard library to the current worker, with the default
    /// [`UnixDatagramOptions`].
    ///
    /// # Errors
    /// As [`UnixDatagramOptions::from_std`].
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub fn from_std(socket: std::os::unix::net::UnixDatagram) -> io::Result<UnixDatagram> {
        UnixDatagramOptions::default().from_std(socket)
    }

    /// Makes the socket bound to `name` the receiver of [`send`](Self::send), and the only sender to
    /// this one. Can be called again.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(&self, name: impl UnixName) -> io::Result<()> {
        let address = name.to_kernel()?;
        self.socket.with_socket(|socket| socket.connect(&address))
    }

    /// The next datagram and its sender. Dropping the future loses none.
    ///
    /// # Errors
    /// The error that makes the socket itself fail, once; or ECANCELED, see [`cancel`](Self::cancel).
    pub async fn recv_from(&self) -> io::Result<UnixReceived> {
        UnixReceived::new(self.socket.recv_from().await?)
    }

    /// The payload of the next datagram. Dropping the future loses none.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from); also if the datagram is longer than the buffers of the socket:
    /// its beginning is lost too.
    pub async fn recv(&self) -> io::Result<RecvBuf> {
        let received = self.socket.recv_from().await?;
        if received.truncated {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a datagram is longer than the buffers of its socket: raise \
                 UnixDatagramOptions::buffer_bytes",
            ));
        }
        Ok(received.data)
    }

    /// Sends one datagram to the socket that this one is connected to; returns when the kernel has
    /// delivered it. Waits while the receiver's queue is full (net.unix.max_dgram_qlen datagrams), or the
    /// send buffer of this socket, in which datagrams count until they are received; with attempts at
    /// growing intervals up to 5 ms.
    ///
    /// Sends that are awaited one after the other arrive in this order. A future that is dropped while
    /// it waits has sent nothing.
    ///
    /// # Errors
    /// Those of send(2), such as ECONNREFUSED when the receiver was closed and EMSGSIZE for a datagram
    /// longer than the send buffer (about 200 KB by default). ECANCELED, see [`cancel`](Self::cancel).
    pub async fn send(&self, data: impl AsRef<[u8]>) -> io::Result<()> {
        self.deliver(data.as_ref(), None).await
    }

    /// Like [`send`](Self::send), to the socket that is bound to `name`: a path or an address, such as
    /// [`UnixReceived::from`].
    ///
    /// # Errors
    /// As [`send`](Self::send); ENOENT or ECONNREFUSED if no socket is bound to the name; also if it is
    /// the address of an unnamed one.
    pub async fn send_to(&self, data: impl AsRef<[u8]>, name: impl UnixName) -> io::Result<()> {
        self.deliver(data.as_ref(), Some(name.to_kernel()?)).await
    }

    async fn deliver(&self, bytes: &[u8], to: Option<SockAddr>) -> io::Result<()> {
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let cancels = self.socket.cancels();
        let mut pause = PAUSE_MIN;
        loop {
            self.socket.worker().executor.spend_or_yield().await;
            self.socket.check_cancelled(cancels)?;
            self.socket.worker().counters.syscalls.add(1);
            let sent = self.socket.with_socket(|socket| match &to {
                Some(to) => socket.send_to_with_flags(bytes, to, FLAGS),
                None => socket.send_with_flags(bytes, FLAGS),
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(pause).await,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent.map(drop),
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Ends the operations that wait on this socket: each returns ECANCELED, exactly once, sends at their
    /// next attempt. No received datagram is lost, and later operations work as before.
    pub fn cancel(&self) {
        self.socket.cancel();
    }

    /// The address of this end; unnamed if it is not bound.
    ///
    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.with_socket(|socket| socket.local_addr()).and_then(|it| of_kernel(&it))
    }

    /// The address of the socket that this one is connected to.
    ///
    /// # Errors
    /// ENOTCONN if there is none.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.with_socket(|socket| socket.peer_addr()).and_then(|it| of_kernel(&it))
    }
}
