//! Segments on their way between the two ends of a connection, and the faults that they meet.

use super::take_front;
use crate::sys::faults::Fault;
use crate::sys::machine::kernel::{Event, Kernel};
use crate::sys::machine::poll::{ERR, HUP, IN, OUT, RDHUP};
use crate::sys::machine::socket::Kind;
use std::os::fd::RawFd;

/// Bytes that move to the peer at once.
const SEGMENT_BYTES_MAX: u64 = 16 * 1024;
const SLOW_BYTES_MAX: u64 = 200;
const SLOW_NS_MAX: u64 = 2_000_000;
const SILENT_NS: std::ops::Range<u64> = 100_000_000..30_000_000_000;

impl Kernel {
    pub(super) fn start_carrying(&mut self, from: RawFd) {
        let travel_ns = self.travel_ns();
        let now_ns = self.now_ns();
        let slow_ns = self.dice.between(1..SLOW_NS_MAX);
        let Some(tcp) = self.tcp(from) else { return };
        let something = !tcp.out.is_empty() || tcp.fin && !tcp.fin_arrived;
        if tcp.connecting || tcp.carrying || tcp.broken || !something {
            return;
        }
        tcp.carrying = true;
        let slow_ns = if tcp.slow { slow_ns } else { 0 };
        let silent_ns = tcp.silent_until_ns.saturating_sub(now_ns);
        self.schedule(travel_ns + slow_ns + silent_ns, Event::Carry { from });
    }

    /// A segment of `from` arrives at its peer.
    pub(in crate::sys) fn carry(&mut self, from: RawFd) {
        let Some(tcp) = self.tcp(from) else { return };
        tcp.carrying = false;
        let Some(peer) = tcp.peer.filter(|_| !tcp.broken) else {
            return self.no_peer_receives(from);
        };
        if self.misfortune(from, peer) {
            return;
        }
        let segment = self.dice.between(1..SEGMENT_BYTES_MAX + 1);
        let slow = self.dice.between(1..SLOW_BYTES_MAX + 1);
        let Some(receiver) = self.sockets.get(&peer) else { return self.no_peer_receives(from) };
        let (window, open) = match &receiver.kind {
            Kind::Tcp(tcp) => (receiver.recv_bytes.saturating_sub(tcp.inbox.len()), tcp.fin),
            _ => return,
        };
        // A receiver that is closed altogether answers data with a reset.
        let gone = open && !receiver.open && !self.is_pending(peer);
        let Some(tcp) = self.tcp(from) else { return };
        if gone && !tcp.out.is_empty() {
            return self.no_peer_receives(from);
        }
        let most = if tcp.slow { slow } else { segment };
        let bytes = tcp.out.len().min(window).min(most as usize);
        let arriving = take_front(&mut tcp.out, bytes);
        tcp.delivered_bytes += bytes as u64;
        let finished = tcp.out.is_empty() && tcp.fin && !tcp.fin_arrived;
        tcp.fin_arrived |= finished;
        let goes_on = !tcp.out.is_empty() && window > bytes;
        self.note("carried", from, bytes as i64);
        if let Some(tcp) = self.tcp(peer) {
            tcp.inbox.extend(arriving);
            tcp.peer_finished |= finished;
        }
        if bytes > 0 || finished {
            self.tell(peer, if finished { IN | HUP | RDHUP } else { IN });
        }
        self.tell_of_room(from);
        if goes_on {
            self.start_carrying(from);
        }
        self.remove_if_over(from);
        self.remove_if_over(peer);
    }

    /// True until the connection is accepted.
    pub(super) fn is_pending(&self, fd: RawFd) -> bool {
        self.sockets.get(&fd).is_some_and(|socket| socket.pending)
    }

    /// The faults of a connection.
    fn misfortune(&mut self, from: RawFd, peer: RawFd) -> bool {
        let broke = self
            .dice
            .errno(&[(Fault::Reset, libc::ECONNRESET), (Fault::TimedOut, libc::ETIMEDOUT)]);
        if let Some(errno) = broke {
            self.break_socket(from, errno);
            self.break_socket(peer, errno);
            return true;
        }
        if self.dice.strikes(Fault::Silent) {
            let until_ns = self.now_ns() + self.dice.between(SILENT_NS);
            for end in [from, peer] {
                if let Some(tcp) = self.tcp(end) {
                    tcp.silent_until_ns = until_ns;
                }
            }
            self.start_carrying(from);
            return true;
        }
        if self.dice.strikes(Fault::Slow) {
            for end in [from, peer] {
                if let Some(tcp) = self.tcp(end) {
                    tcp.slow = true;
                }
            }
        }
        false
    }

    fn no_peer_receives(&mut self, from: RawFd) {
        let open = self.sockets.get(&from).is_some_and(|socket| socket.open);
        let Some(tcp) = self.tcp(from) else { return };
        let unsent = !tcp.out.is_empty();
        tcp.fin_arrived |= tcp.fin;
        match open {
            true if unsent => self.break_socket(from, libc::ECONNRESET),
            true => {}
            false => self.remove_tcp(from),
        }
    }

    /// Bytes have left: waiting senders are notified once there is enough space.
    fn tell_of_room(&mut self, fd: RawFd) {
        let Some(send_bytes) = self.sockets.get(&fd).map(|socket| socket.send_bytes) else {
            return;
        };
        let Some(tcp) = self.tcp(fd) else { return };
        if tcp.wants_room && tcp.has_room(send_bytes) {
            tcp.wants_room = false;
            self.tell(fd, OUT);
        }
    }

    /// The connection has ended for this end.
    pub(in crate::sys) fn break_socket(&mut self, fd: RawFd, errno: i32) {
        let open = self.sockets.get(&fd).is_some_and(|socket| socket.open);
        let pending = self.is_pending(fd);
        let Some(tcp) = self.tcp(fd).filter(|tcp| !tcp.is_closed()) else { return };
        // As tcp_reset: behind the peer's FIN it is this end that went on.
        let behind = errno == libc::ECONNRESET && tcp.peer_finished;
        let errno = if behind { libc::EPIPE } else { errno };
        (tcp.broken, tcp.excused, tcp.errno) = (true, true, Some(errno));
        tcp.out.clear();
        let peer = tcp.peer;
        self.note("broken", fd, errno.into());
        // Its data in transit will not arrive.
        if let Some(tcp) = peer.and_then(|peer| self.tcp(peer)) {
            tcp.excused = true;
        }
        self.tell(fd, IN | OUT | ERR | HUP | RDHUP);
        if !open && !pending {
            self.remove_tcp(fd);
        }
    }
}
