//! How UDP sockets are set up.

use super::{bind_each, internet_address, new_socket, patiently};
use crate::driver::udp::UdpSetup;
use crate::runtime::failed;
use crate::sys::datagram::{knows_segmentation, set_option};
use crate::sys::socket::{Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Longest payload that GRO delivers in one buffer.
const COALESCED_BYTES_MAX: u32 = 65_535;

/// Options of UDP sockets.
///
/// Sockets of a worker with equal `buffer_bytes`, `buffer_count` and ancillary options share their
/// receive buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Bytes of receive buffer to request (SO_RCVBUF); `None` leaves the default. Beyond
    /// net.core.rmem_max this requires CAP_NET_ADMIN. [`BoundUdp::granted`] returns the granted
    /// size.
    pub recv_buffer_bytes: Option<u32>,
    /// Bytes of send buffer to request (SO_SNDBUF); as for `recv_buffer_bytes`.
    pub send_buffer_bytes: Option<u32>,
    /// Longest datagram that is received completely: 16 to 65,535 bytes, 2,048 by default. A longer
    /// one is truncated and marked.
    pub buffer_bytes: u32,
    /// Receive buffers, shared by sockets with equal options: a power of two from 4 to 32,768,
    /// 1,024 by default.
    pub buffer_count: u32,
    /// Let the kernel coalesce datagrams of equal size from one sender into one buffer (UDP_GRO,
    /// Linux 5.0), if it can. Raises `buffer_bytes` to 65,535; 64 buffers of that size are plenty.
    pub gro: bool,
    /// Report the local address of each datagram ([`Received::to`](crate::Received::to)).
    pub pktinfo: bool,
    /// Report the DSCP and ECN of each datagram
    /// ([`Received::traffic_class`](crate::Received::traffic_class)).
    pub traffic_class: bool,
    /// Differentiated services codepoint of sent datagrams, 0 to 63.
    pub dscp: u8,
    /// On io_uring, keep this many single-shot receives in flight (1 to 4,096) instead of one
    /// multishot receive: every datagram wakes all of them. 0 is off, the default.
    pub pending: u32,
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions {
            recv_buffer_bytes: None,
            send_buffer_bytes: None,
            buffer_bytes: 2048,
            buffer_count: 1024,
            gro: false,
            pktinfo: false,
            traffic_class: false,
            dscp: 0,
            pending: 0,
        }
    }
}

/// The granted values of options that the kernel may refuse or change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Granted {
    /// Bytes of receive buffer: twice the wish for the kernel's own bookkeeping, within its limit.
    pub recv_buffer_bytes: usize,
    /// Bytes of send buffer; likewise.
    pub send_buffer_bytes: usize,
    /// The kernel coalesces received datagrams, as requested.
    pub gro: bool,
    /// The kernel segments buffers into datagrams (GSO); otherwise the runtime does.
    pub gso: bool,
}

impl UdpOptions {
    /// A socket bound to `address`; port 0 picks a free port. An error names the option or the address.
    pub fn bind(&self, address: SocketAddr) -> io::Result<BoundUdp> {
        self.open(address, Some(address), None, false)
    }

    /// One socket for each of `workers`, all bound to `address`; the kernel distributes datagrams
    /// by a hash of the addresses. Port 0 picks one free port. Fails if another process has the port,
    /// shared or not.
    pub fn bind_shared(&self, address: SocketAddr, workers: usize) -> io::Result<Vec<BoundUdp>> {
        bind_each(address, workers, |address, share| {
            let bound = self.open(address, Some(address), None, share)?;
            Ok((bound.local_addr(), bound))
        })
    }

    /// A socket that sends to, and receives from, `peer` alone; from `local`, or from wherever
    /// the kernel chooses. Fails without a route to the peer.
    pub fn connect(&self, local: Option<SocketAddr>, peer: SocketAddr) -> io::Result<BoundUdp> {
        self.open(peer, local, Some(peer), false)
    }

    fn open(
        &self,
        address: SocketAddr,
        local: Option<SocketAddr>,
        peer: Option<SocketAddr>,
        share: bool,
    ) -> io::Result<BoundUdp> {
        self.check()?;
        let socket = patiently(|| {
            let socket = new_socket(address, Type::DGRAM, share)?;
            self.configure(&socket, address.is_ipv6())?;
            if let Some(local) = local {
                socket.bind(&local.into())?;
            }
            if let Some(peer) = peer {
                socket.connect(&peer.into())?;
            }
            Ok(socket)
        });
        socket.and_then(|socket| self.bound(socket, peer)).map_err(|error| {
            let what = if peer.is_some() { "connect UDP to" } else { "bind UDP" };
            failed(format_args!("cannot {what} {address}"), &error)
        })
    }

    /// A socket of the standard library, which is bound, and perhaps connected.
    pub fn from_std(&self, socket: std::net::UdpSocket) -> io::Result<BoundUdp> {
        self.check()?;
        let socket = Socket::from(socket);
        let local = internet_address(socket.local_addr()?)?;
        if local.port() == 0 {
            let what = "the UDP socket is not bound: bind or connect it first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        // Fails if it is not connected.
        let peer = socket.peer_addr().ok().and_then(|peer| internet_address(peer).ok());
        socket.set_nonblocking(true)?;
        self.configure(&socket, local.is_ipv6())?;
        self.bound(socket, peer)
    }

    fn check(&self) -> io::Result<()> {
        let count = self.buffer_count;
        let counts = (4..=1 << 15).contains(&count) && count.is_power_of_two();
        let bytes = (16..=COALESCED_BYTES_MAX).contains(&self.buffer_bytes);
        for (name, value, is_valid, expected) in [
            ("buffer_bytes", self.buffer_bytes, bytes, "16 to 65535"),
            ("buffer_count", count, counts, "a power of two from 4 to 32768"),
            ("pending", self.pending, self.pending <= 4096, "0 to 4096"),
            ("dscp", self.dscp.into(), self.dscp <= 63, "0 to 63"),
        ] {
            if !is_valid {
                let what = format!("{name} {value}: expected {expected}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        Ok(())
    }

    /// Sets what can be set at any time. Ancillary data must be enabled before the datagram arrives.
    fn configure(&self, socket: &Socket, ipv6: bool) -> io::Result<()> {
        let fd = socket.as_fd();
        let level = if ipv6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
        for (wanted, v4, v6, value) in [
            (self.pktinfo, libc::IP_PKTINFO, libc::IPV6_RECVPKTINFO, 1),
            (self.traffic_class, libc::IP_RECVTOS, libc::IPV6_RECVTCLASS, 1),
            (self.dscp > 0, libc::IP_TOS, libc::IPV6_TCLASS, i32::from(self.dscp << 2)),
        ] {
            if wanted {
                set_option(fd, level, if ipv6 { v6 } else { v4 }, value)?;
            }
        }
        // The privileged option may exceed the limit of the system.
        for (bytes, privileged, plain) in [
            (self.recv_buffer_bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (self.send_buffer_bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            if let Some(bytes) = bytes {
                let bytes = bytes.min(i32::MAX as u32 / 2) as i32;
                set_option(fd, libc::SOL_SOCKET, privileged, bytes)
                    .or_else(|_| set_option(fd, libc::SOL_SOCKET, plain, bytes))?;
            }
        }
        Ok(())
    }

    fn bound(&self, socket: Socket, peer: Option<SocketAddr>) -> io::Result<BoundUdp> {
        let local = internet_address(socket.local_addr()?)?;
        let gro = self.gro && set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let granted = Granted {
            recv_buffer_bytes: socket.recv_buffer_size()?,
            send_buffer_bytes: socket.send_buffer_size()?,
            gro,
            gso: knows_segmentation(socket.as_fd()),
        };
        let buffer_bytes = if gro { COALESCED_BYTES_MAX } else { self.buffer_bytes };
        let options = UdpOptions { buffer_bytes, ..self.clone() };
        Ok(BoundUdp { socket, setup: UdpSetup { local, peer, options, granted } })
    }
}

/// A UDP socket that is set up and can be sent to its worker. Socket options that [`UdpOptions`]
/// lacks can be set through its descriptor.
#[derive(Debug)]
pub struct BoundUdp {
    pub(super) socket: Socket,
    pub(super) setup: UdpSetup,
}

impl BoundUdp {
    /// The address it is bound to, with the port the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.setup.local
    }

    /// The granted values of options that the kernel may refuse or change.
    pub fn granted(&self) -> Granted {
        self.setup.granted
    }
}

impl AsFd for BoundUdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
