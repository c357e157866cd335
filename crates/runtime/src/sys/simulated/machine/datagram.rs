//! Simulated datagrams: lost, duplicated and reordered in transit, dropped at full sockets.

use super::kernel::{Event, Kernel, SINCE_1970_NS, error};
use super::poll::{ERR, IN, OUT};
use super::socket::Kind;
use crate::driver::ancillary::RecvControl;
use crate::driver::ancillary::Wanted;
use crate::sys::faults::Fault;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// The longest payload on IPv4.
const PAYLOAD_BYTES_MAX: usize = 65_507;
/// The kernel's overhead of a datagram besides its payload.
const OVERHEAD_BYTES: usize = 256;
/// The maximum delay of a reordered datagram.
const OVERTAKEN_NS_MAX: u64 = 20_000_000;

/// A datagram in transit, or in a socket.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) from: SocketAddr,
    to: IpAddr,
    traffic_class: u8,
    /// Since 1970, as SO_TIMESTAMPNS reports it.
    arrived_ns: u64,
    /// Earlier drops of the socket.
    drops: u32,
    pub(crate) payload: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Udp {
    inbox: VecDeque<Packet>,
    inbox_bytes: usize,
    /// In the send buffer.
    leaving_bytes: usize,
    pub(super) peer: Option<SocketAddr>,
    pub(super) drops: u32,
    /// A filter rejects all datagrams.
    pub(super) sealed: bool,
    /// An ICMP error that the next call reports.
    errno: Option<i32>,
    /// The ancillary data to report, and the default traffic class to send.
    pub(super) wanted: Wanted,
    pub(super) traffic_class: u8,
}

impl Udp {
    pub(super) fn is_readable(&self) -> bool {
        !self.inbox.is_empty() || self.errno.is_some()
    }

    pub(super) fn is_writable(&self, send_bytes: usize) -> bool {
        self.leaving_bytes < send_bytes
    }

    /// As datagram_poll. Senders that wait for space wait until half of it is free
    /// (sock_writeable).
    pub(super) fn bits(&self, send_bytes: usize) -> u32 {
        let set = |on: bool, bits: u32| if on { bits } else { 0 };
        set(!self.inbox.is_empty(), IN)
            | set(self.leaving_bytes < send_bytes / 2, OUT)
            | set(self.errno.is_some(), ERR)
    }

    pub(super) fn take_error(&mut self) -> Option<i32> {
        self.errno.take()
    }
}

/// A datagram to send.
#[derive(Default)]
pub(crate) struct Outbound<'a> {
    pub(crate) to: Option<SocketAddr>,
    pub(crate) from: Option<IpAddr>,
    pub(crate) segment_bytes: Option<u16>,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) payload: &'a [u8],
}

impl Kernel {
    fn udp(&mut self, fd: RawFd) -> io::Result<&mut Udp> {
        match &mut self.socket_mut(fd)?.kind {
            Kind::Udp(udp) => Ok(udp),
            _ => Err(error(libc::EBADF)),
        }
    }

    /// connect(2) of a datagram socket.
    pub(crate) fn connect_datagrams(&mut self, fd: RawFd, peer: SocketAddr) -> io::Result<()> {
        self.name_for(fd, peer)?;
        self.udp(fd)?.peer = Some(peer);
        self.socket_mut(fd)?.peer_name = Some(peer);
        Ok(())
    }

    /// sendmsg(2) without waiting.
    pub(crate) fn send_datagram(&mut self, fd: RawFd, out: &Outbound<'_>) -> io::Result<()> {
        let room = self.socket_mut(fd)?.send_bytes;
        let udp = self.udp(fd)?;
        if let Some(errno) = udp.errno.take() {
            return Err(error(errno));
        }
        let Some(to) = out.to.or(udp.peer) else { return Err(error(libc::EDESTADDRREQ)) };
        let (leaving, bytes) = (udp.leaving_bytes, out.payload.len());
        let traffic_class = out.traffic_class.unwrap_or(udp.traffic_class);
        self.check_route(fd, to, out.from)?;
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(error(libc::EMSGSIZE));
        }
        if leaving >= room {
            return Err(error(libc::EAGAIN));
        }
        if self.dice.strikes(Fault::NoBuffers) {
            return Err(error(libc::ENOBUFS));
        }
        let mut from = self.name_for(fd, to)?;
        if from.ip().is_unspecified() {
            from.set_ip(out.from.unwrap_or(to.ip()));
        }
        let size = out.segment_bytes.map_or(bytes, usize::from).max(1);
        let whole: Option<&[u8]> = (bytes == 0).then_some(&[]);
        for payload in whole.into_iter().chain(out.payload.chunks(size)) {
            let payload = payload.to_vec();
            let packet =
                Packet { from, to: to.ip(), traffic_class, arrived_ns: 0, drops: 0, payload };
            self.travel(fd, to, packet);
        }
        let held = bytes + OVERHEAD_BYTES;
        self.udp(fd)?.leaving_bytes += held;
        let leaves_ns = self.dice.between(500..20_000);
        self.schedule(leaves_ns, Event::Departed { from: fd, bytes: held });
        self.note("datagram", fd, bytes as i64);
        Ok(())
    }

    /// Whether a datagram can be routed from here to there.
    fn check_route(&mut self, fd: RawFd, to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
        if to.is_ipv6() != self.socket_mut(fd)?.ipv6 {
            return Err(error(libc::EAFNOSUPPORT));
        }
        if to.port() == 0 || from.is_some_and(|from| !from.is_loopback()) {
            return Err(error(libc::EINVAL));
        }
        match to.ip() {
            IpAddr::V4(to) if to.is_broadcast() => Err(error(libc::EACCES)),
            to if !to.is_loopback() && !to.is_unspecified() => Err(error(libc::ENETUNREACH)),
            _ => Ok(()),
        }
    }

    fn travel(&mut self, sender: RawFd, to: SocketAddr, packet: Packet) {
        if self.dice.strikes(Fault::DatagramLost) {
            return;
        }
        let copies = 1 + usize::from(self.dice.strikes(Fault::DatagramDuplicated));
        for packet in std::iter::repeat_n(packet, copies) {
            let mut after_ns = self.latency_ns;
            if self.dice.strikes(Fault::DatagramReordered) {
                after_ns += self.dice.between(1..OVERTAKEN_NS_MAX);
            }
            self.schedule(after_ns, Event::Datagram { to, packet, sender });
        }
    }

    pub(super) fn departed(&mut self, from: RawFd, bytes: usize) {
        if let Ok(udp) = self.udp(from) {
            udp.leaving_bytes -= bytes;
            self.tell_of_departure(from);
        }
    }

    pub(super) fn arrive(&mut self, to: SocketAddr, mut packet: Packet, sender: RawFd) {
        packet.arrived_ns = self.now_ns() + SINCE_1970_NS;
        let bound: Vec<RawFd> = self.bound_to(false, to).cloned().unwrap_or_default();
        let takes = |fd: &&RawFd| match self.sockets.get(fd).map(|socket| &socket.kind) {
            Some(Kind::Udp(udp)) => udp.peer.is_none_or(|peer| peer == packet.from),
            _ => false,
        };
        let takers: Vec<RawFd> = bound.iter().filter(takes).copied().collect();
        if takers.is_empty() {
            // ICMP: port unreachable, which only a connected socket reports.
            if let Ok(udp) = self.udp(sender)
                && udp.peer == Some(to)
            {
                udp.errno = Some(libc::ECONNREFUSED);
                self.tell(sender, ERR);
            }
            return;
        }
        let taker = takers[usize::from(packet.from.port()) % takers.len()];
        let room = self.sockets.get(&taker).map_or(0, |socket| socket.recv_bytes);
        let bytes = packet.payload.len() + OVERHEAD_BYTES;
        let Ok(udp) = self.udp(taker) else { return };
        if udp.sealed || udp.inbox_bytes + bytes > room {
            udp.drops = udp.drops.wrapping_add(1);
            return self.note("dropped", taker, bytes as i64);
        }
        udp.inbox_bytes += bytes;
        packet.drops = udp.drops;
        udp.inbox.push_back(packet);
        self.note("arrived", taker, bytes as i64);
        self.tell(taker, IN);
    }

    /// recvmsg(2) without waiting.
    pub(super) fn recv_datagram(&mut self, fd: RawFd) -> io::Result<Packet> {
        let udp = self.udp(fd)?;
        if let Some(errno) = udp.errno.take() {
            return Err(error(errno));
        }
        let Some(packet) = udp.inbox.pop_front() else { return Err(error(libc::EAGAIN)) };
        udp.inbox_bytes -= packet.payload.len() + OVERHEAD_BYTES;
        self.received_bytes += packet.payload.len() as u64;
        Ok(packet)
    }

    /// The used part of the send buffer.
    pub(crate) fn queued_bytes(&mut self, fd: RawFd) -> io::Result<usize> {
        Ok(self.udp(fd)?.leaving_bytes)
    }

    /// Packets dropped at this socket.
    pub(crate) fn drops(&mut self, fd: RawFd) -> io::Result<u32> {
        Ok(self.udp(fd)?.drops)
    }

    /// A filter that rejects all datagrams.
    pub(crate) fn seal(&mut self, fd: RawFd) -> io::Result<()> {
        self.udp(fd)?.sealed = true;
        Ok(())
    }

    /// Bytes have left the send buffer, which is reported when half of it is free
    /// (sock_def_write_space).
    fn tell_of_departure(&mut self, fd: RawFd) {
        let Some(socket) = self.sockets.get(&fd) else { return };
        if let Kind::Udp(udp) = &socket.kind
            && udp.leaving_bytes < socket.send_bytes / 2
        {
            self.tell(fd, OUT);
        }
    }

    /// How many of the requested datagrams an engine may receive.
    pub(crate) fn datagrams_for_engine(&mut self, fd: RawFd, asked: usize) -> io::Result<usize> {
        self.may_refuse(fd, IN)?;
        if asked > 1 && self.dice.strikes(Fault::ShortReceive) {
            self.owe(fd, IN);
            return Ok(self.dice.part(asked));
        }
        Ok(asked)
    }

    /// Whether an engine may send one.
    pub(crate) fn may_send_datagram(&mut self, fd: RawFd) -> io::Result<()> {
        self.may_refuse(fd, OUT)
    }

    /// Like [`recv_datagram`](Kernel::recv_datagram), with ancillary data, and whether the socket
    /// is one of IPv6.
    pub(crate) fn receive_datagram(
        &mut self,
        fd: RawFd,
    ) -> io::Result<(Packet, RecvControl, bool)> {
        let packet = self.recv_datagram(fd)?;
        let wanted = self.udp(fd)?.wanted;
        let told = RecvControl {
            to: wanted.pktinfo.then_some(packet.to),
            segment_bytes: None,
            traffic_class: wanted.traffic_class.then_some(packet.traffic_class),
            received_ns: wanted.timestamps.then_some(packet.arrived_ns),
            kernel_drops: (wanted.drop_marks && packet.drops > 0).then_some(packet.drops),
        };
        Ok((packet, told, self.socket_mut(fd)?.ipv6))
    }
}
