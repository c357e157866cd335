//! Simulated sockets: the common parts of all kinds, addresses and options.

use super::datagram::Udp;
use super::kernel::{Kernel, Op, error};
use super::tcp::Tcp;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// Default bytes of the receive and send buffers of a socket; those of datagrams are
/// net.core.rmem_default of Linux.
const BUFFER_BYTES: usize = 64 * 1024;
const DATAGRAM_BUFFER_BYTES: usize = 212_992;
const BUFFER_BYTES_MIN: usize = 2048;
const BUFFER_BYTES_MAX: usize = 64 * 1024 * 1024;

pub(super) enum Kind {
    Fresh,
    Listener { backlog: VecDeque<RawFd>, most: usize },
    Tcp(Tcp),
    Udp(Udp),
}

pub(super) struct Socket {
    pub(super) stream: bool,
    pub(super) ipv6: bool,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer_name: Option<SocketAddr>,
    pub(super) recv_bytes: usize,
    pub(super) send_bytes: usize,
    pub(super) reset_on_close: bool,
    /// SO_REUSEPORT.
    pub(super) share: bool,
    /// The program holds a descriptor of it.
    pub(super) open: bool,
    /// Further descriptors of it that the program holds.
    pub(super) copies: usize,
    /// O_NONBLOCK, SO_RCVTIMEO and SO_SNDTIMEO, for blocking programs.
    pub(super) nonblocking: bool,
    pub(super) recv_timeout_ns: Option<u64>,
    pub(super) send_timeout_ns: Option<u64>,
    /// It is in the backlog of a listener.
    pub(super) pending: bool,
    pub(super) kind: Kind,
}

/// Names and options of sockets.
impl Kernel {
    pub(crate) fn local_name(&mut self, fd: RawFd) -> io::Result<SocketAddr> {
        let socket = self.socket_mut(fd)?;
        let ip = if socket.ipv6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0, 0, 0, 0]) };
        Ok(socket.local.unwrap_or(SocketAddr::new(ip, 0)))
    }

    pub(crate) fn peer_name(&mut self, fd: RawFd) -> io::Result<SocketAddr> {
        let socket = self.socket_mut(fd)?;
        let is_over = matches!(&socket.kind, Kind::Tcp(tcp) if tcp.is_closed());
        socket.peer_name.filter(|_| !is_over).ok_or_else(|| error(libc::ENOTCONN))
    }

    /// Bytes of the receive and send buffers.
    pub(crate) fn buffers(&mut self, fd: RawFd) -> io::Result<(usize, usize)> {
        let socket = self.socket_mut(fd)?;
        Ok((socket.recv_bytes, socket.send_bytes))
    }

    /// Queued data stays.
    pub(crate) fn set_recv_buffer(&mut self, fd: RawFd, wish: usize) -> io::Result<()> {
        let socket = self.socket_mut(fd)?;
        socket.recv_bytes = granted(wish).max(socket.received_bytes());
        Ok(())
    }

    pub(crate) fn set_send_buffer(&mut self, fd: RawFd, wish: usize) -> io::Result<()> {
        let socket = self.socket_mut(fd)?;
        socket.send_bytes = granted(wish).max(socket.unsent_bytes());
        Ok(())
    }

    pub(crate) fn set_share(&mut self, fd: RawFd, share: bool) -> io::Result<()> {
        self.socket_mut(fd)?.share = share;
        Ok(())
    }

    pub(crate) fn set_reset_on_close(&mut self, fd: RawFd, resets: bool) -> io::Result<()> {
        self.socket_mut(fd)?.reset_on_close = resets;
        Ok(())
    }

    /// It knows UDP_SEGMENT.
    pub(crate) fn cuts_datagrams(&self) -> bool {
        self.cuts_datagrams
    }
}

/// Options that affect datagrams.
impl Kernel {
    /// setsockopt(2) with a number; options without an effect here are accepted and ignored.
    pub(crate) fn set_option(
        &mut self,
        fd: RawFd,
        level: i32,
        name: i32,
        value: i32,
    ) -> io::Result<()> {
        let Kind::Udp(udp) = &mut self.socket_mut(fd)?.kind else { return Ok(()) };
        let on = value != 0;
        match (level, name) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => udp.wanted.pktinfo = on,
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => udp.wanted.pktinfo = on,
            (libc::IPPROTO_IP, libc::IP_RECVTOS) => udp.wanted.traffic_class = on,
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) => udp.wanted.traffic_class = on,
            (libc::IPPROTO_IP, libc::IP_TOS) => udp.traffic_class = value as u8,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => udp.traffic_class = value as u8,
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => udp.wanted.timestamps = on,
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => udp.wanted.drop_marks = on,
            _ => {}
        }
        Ok(())
    }

    /// SO_ERROR: takes the pending error, or 0.
    pub(crate) fn take_error(&mut self, fd: RawFd) -> io::Result<i32> {
        let errno = match &mut self.socket_mut(fd)?.kind {
            Kind::Tcp(tcp) => tcp.take_error(),
            Kind::Udp(udp) => udp.take_error(),
            Kind::Fresh | Kind::Listener { .. } => None,
        };
        Ok(errno.unwrap_or(0))
    }
}

/// The granted size for a requested one: twice as much, for the kernel's bookkeeping, within
/// limits.
fn granted(wish: usize) -> usize {
    wish.saturating_mul(2).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
}

impl Socket {
    fn received_bytes(&self) -> usize {
        if let Kind::Tcp(tcp) = &self.kind { tcp.received_bytes() } else { 0 }
    }

    fn unsent_bytes(&self) -> usize {
        if let Kind::Tcp(tcp) = &self.kind { tcp.unsent_bytes() } else { 0 }
    }

    pub(super) fn new(stream: bool, ipv6: bool, kind: Kind) -> Socket {
        let buffer_bytes = if stream { BUFFER_BYTES } else { DATAGRAM_BUFFER_BYTES };
        Socket {
            stream,
            ipv6,
            local: None,
            peer_name: None,
            recv_bytes: buffer_bytes,
            send_bytes: buffer_bytes,
            reset_on_close: false,
            share: false,
            open: true,
            copies: 0,
            nonblocking: false,
            recv_timeout_ns: None,
            send_timeout_ns: None,
            pending: false,
            kind,
        }
    }

    pub(super) fn is_ready(&self, op: Op) -> bool {
        match (&self.kind, op) {
            (Kind::Listener { backlog, .. }, Op::Accept) => !backlog.is_empty(),
            (Kind::Tcp(tcp), Op::Receive) => tcp.is_readable(),
            (Kind::Tcp(tcp), Op::Send) => tcp.is_writable(self.send_bytes),
            (Kind::Tcp(tcp), Op::Connect) => !tcp.connecting,
            (Kind::Udp(udp), Op::Receive) => udp.is_readable(),
            (Kind::Udp(udp), Op::Send) => udp.is_writable(self.send_bytes),
            _ => false,
        }
    }
}
