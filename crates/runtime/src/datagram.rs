//! Datagrams: received ones with their ancillary data, those to send, and the counts of a socket.

use crate::buf::{RecvBuf, SendBuf};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};

/// Explicit congestion notification (RFC 3168): the low two bits of the traffic class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not support ECN.
    NotEct = 0,
    /// ECN-capable transport, codepoint 1.
    Ect1 = 1,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 2,
    /// A router on the path was congested.
    Ce = 3,
}

/// A received datagram; with GRO several of equal size from the same sender, in one buffer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received {
    /// The payload. Empty for an empty datagram; a datagram socket has no end of stream.
    pub data: RecvBuf,
    /// The sender.
    pub from: SocketAddr,
    /// The local address it was sent to, which is the right source for a reply; with
    /// [`UdpOptions::pktinfo`](crate::net::UdpOptions::pktinfo).
    pub to: Option<IpAddr>,
    /// `data` is this many bytes per datagram (the last may be shorter), when the kernel coalesced
    /// several; with [`UdpOptions::gro`](crate::net::UdpOptions::gro).
    pub segment_bytes: Option<u16>,
    /// DSCP in the upper six bits, ECN in the lower two; with
    /// [`UdpOptions::traffic_class`](crate::net::UdpOptions::traffic_class).
    pub traffic_class: Option<u8>,
    /// The datagram was longer than the buffer; `data` is its beginning.
    pub truncated: bool,
}

impl Received {
    /// Number of datagrams in `data`, at least 1.
    pub fn datagrams(&self) -> usize {
        datagrams(self.data.len(), self.segment_bytes)
    }

    /// The payload of each datagram in `data`.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let segment_bytes = self.segment_bytes.map_or(self.data.len(), usize::from).max(1);
        let empty: Option<&[u8]> = self.data.is_empty().then_some(&[]);
        empty.into_iter().chain(self.data.chunks(segment_bytes))
    }

    /// The ECN codepoint, where the traffic class is known.
    pub fn ecn(&self) -> Option<Ecn> {
        Some([Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][usize::from(self.traffic_class? & 3)])
    }

    /// The answer with the same bytes: to the sender, from the address to which it was sent, in
    /// datagrams of the same size. Nothing is copied.
    pub fn into_reply(self) -> Datagram {
        Datagram {
            to: Some(self.from),
            from: self.to,
            segment_bytes: self.segment_bytes,
            ecn: None,
            data: self.data.into(),
        }
    }
}

/// A datagram to be sent; with `segment_bytes` several in one buffer.
#[derive(Debug)]
pub struct Datagram {
    /// The payload.
    pub data: SendBuf,
    /// The destination; `None` on a connected socket.
    pub to: Option<SocketAddr>,
    /// The local address to send from (not for IPv6 link-local ones, which need an interface
    /// too); `None` leaves it to the routing table.
    pub from: Option<IpAddr>,
    /// Segment `data` into datagrams of this many bytes (the last may be shorter). The kernel or
    /// the device does it (GSO) if they can, otherwise the runtime does; 0 is treated as `None`.
    pub segment_bytes: Option<u16>,
    /// The ECN codepoint; `None` leaves it at "not capable".
    pub ecn: Option<Ecn>,
}

impl Datagram {
    /// One datagram for the peer of a connected socket.
    pub fn new(data: impl Into<SendBuf>) -> Datagram {
        Datagram { data: data.into(), to: None, from: None, segment_bytes: None, ecn: None }
    }

    /// One datagram for `to`.
    pub fn to(to: SocketAddr, data: impl Into<SendBuf>) -> Datagram {
        Datagram { to: Some(to), ..Datagram::new(data) }
    }

    /// Number of datagrams that `data` is cut into, at least 1.
    pub fn datagrams(&self) -> usize {
        datagrams(self.data.len(), self.segment_bytes)
    }
}

fn datagrams(bytes: usize, segment_bytes: Option<u16>) -> usize {
    match segment_bytes {
        Some(segment_bytes) if segment_bytes > 0 => bytes.div_ceil(segment_bytes.into()).max(1),
        _ => 1,
    }
}

/// The counts of one UDP socket. Coalesced or segmented datagrams count one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UdpStats {
    /// Datagrams received, truncated ones included.
    pub received: u64,
    /// Received datagrams that were longer than the buffer.
    pub truncated: u64,
    /// Datagrams that the kernel dropped because the socket was not read in time, or because
    /// their checksum was wrong: the counter behind SO_RXQ_OVFL (SO_MEMINFO).
    pub kernel_drops: u64,
    /// Datagrams the kernel took for sending.
    pub sent: u64,
    /// Sends that found the socket's send buffer full, and waited.
    pub blocked: u64,
    /// ICMP errors that connected sockets report, about something sent earlier.
    pub icmp_errors: u64,
    /// Sends repeated because an ICMP error surfaced in their place.
    pub retries: u64,
    /// Buffers that were to be cut by the kernel, which refused; cut by the runtime instead.
    pub gso_fallbacks: u64,
    /// Receives that failed for a reason of the socket itself; the next call reports them.
    pub receive_errors: u64,
    /// Datagrams that were not sent, by reason.
    pub send_errors: SendErrors,
}

impl UdpStats {
    pub(crate) fn count_received(&mut self, received: &Received) {
        self.received += received.datagrams() as u64;
        self.truncated += u64::from(received.truncated);
    }
}

/// Datagrams that were handed over and not sent, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SendErrors {
    /// Longer than the protocol or the path allows (EMSGSIZE).
    pub too_big: u64,
    /// No route, or the network or host is unreachable (ENETUNREACH, EHOSTUNREACH, ENETDOWN).
    pub unreachable: u64,
    /// The peer has no socket on the port: the repetition also got an ICMP error
    /// (ECONNREFUSED).
    pub refused: u64,
    /// No memory, or a full queue of the device (ENOBUFS, ENOMEM).
    pub no_memory: u64,
    /// Forbidden by a firewall or for lack of rights (EPERM, EACCES).
    pub forbidden: u64,
    /// The address is invalid for this socket (EINVAL, EAFNOSUPPORT, EDESTADDRREQ, EISCONN,
    /// EADDRNOTAVAIL).
    pub bad_address: u64,
    /// Any other reason.
    pub other: u64,
}

impl SendErrors {
    pub(crate) fn count(&mut self, errno: i32, datagrams: u64) {
        let counter = match errno {
            libc::EMSGSIZE => &mut self.too_big,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN => &mut self.unreachable,
            libc::ECONNREFUSED => &mut self.refused,
            libc::ENOBUFS | libc::ENOMEM => &mut self.no_memory,
            libc::EPERM | libc::EACCES => &mut self.forbidden,
            libc::EINVAL
            | libc::EAFNOSUPPORT
            | libc::EDESTADDRREQ
            | libc::EISCONN
            | libc::EADDRNOTAVAIL => &mut self.bad_address,
            _ => &mut self.other,
        };
        *counter += datagrams;
    }

    /// All of them.
    pub fn total(self) -> u64 {
        let SendErrors { too_big, unreachable, refused, no_memory, forbidden, bad_address, other } =
            self;
        too_big + unreachable + refused + no_memory + forbidden + bad_address + other
    }
}
