//! Simulated streams: bounded buffers at both ends, a window, FIN and reset.

mod transit;

use super::kernel::{Event, Kernel, error};
use super::poll::{ERR, HUP, IN, OUT, RDHUP};
use super::socket::{Kind, Socket};
use crate::sys::faults::Fault;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// A lost SYN is sent again after this.
const SYN_AGAIN_NS: u64 = 1_000_000_000;
const SYN_TRIES_MAX: u32 = 6;

/// The first bytes of a queue that has them; by whole slices, as a run moves gigabytes.
fn take_front(queue: &mut VecDeque<u8>, bytes: usize) -> Vec<u8> {
    let (first, second) = queue.as_slices();
    let of_first = bytes.min(first.len());
    let taken = [&first[..of_first], &second[..bytes - of_first]].concat();
    queue.drain(..bytes);
    taken
}

/// Copies what there is room for, and returns how much that is. Not byte by byte, for the same reason.
pub(super) fn copy_front(into: &mut [MaybeUninit<u8>], bytes: &[u8]) -> usize {
    let count = bytes.len().min(into.len());
    // SAFETY: both are valid for `count` bytes, and nothing else overlaps what is exclusive.
    unsafe { into.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count) };
    count
}

/// One end of a connection.
#[derive(Default)]
pub(super) struct Tcp {
    /// The other end, while it exists.
    peer: Option<RawFd>,
    pub(super) connecting: bool,
    /// Sent by the program and not yet with the peer.
    out: VecDeque<u8>,
    /// Sent bytes that have arrived at the peer.
    delivered_bytes: u64,
    /// Received and not yet read.
    inbox: VecDeque<u8>,
    fin: bool,
    fin_arrived: bool,
    peer_finished: bool,
    /// The error that broke the connection; returned once by a call, then EPIPE and the end of the
    /// stream.
    errno: Option<i32>,
    broken: bool,
    carrying: bool,
    slow: bool,
    silent_until_ns: u64,
    /// A send found no space, or space was requested in vain: its return is reported.
    wants_room: bool,
    /// Sends without a copy so far, and the first and last of the completed ones that were not
    /// reported.
    pub(super) zero_copies: u32,
    pub(super) released: VecDeque<(u32, u32)>,
    /// Bytes that the program at the other end has sent and the program at this end has not
    /// received: this end must receive exactly these next.
    promised: VecDeque<u8>,
    /// Some of it cannot arrive any more.
    excused: bool,
}

impl Tcp {
    pub(super) fn is_readable(&self) -> bool {
        !self.inbox.is_empty() || self.peer_finished || self.broken
    }

    pub(super) fn is_writable(&self, send_bytes: usize) -> bool {
        self.broken || self.out.len() < send_bytes
    }

    /// There is enough space for waiting senders: a third of the buffer, as with
    /// sk_stream_is_writeable.
    fn has_room(&self, send_bytes: usize) -> bool {
        self.out.len() * 3 <= send_bytes * 2
    }

    /// As tcp_poll.
    pub(super) fn bits(&mut self, send_bytes: usize) -> u32 {
        if self.connecting {
            return 0;
        }
        let (ended, finished) = (self.peer_finished || self.broken, self.fin || self.broken);
        let room = finished || self.has_room(send_bytes);
        self.wants_room |= !room;
        let set = |on: bool, bits: u32| if on { bits } else { 0 };
        set(ended && finished, HUP)
            | set(ended, IN | RDHUP)
            | set(!self.inbox.is_empty(), IN)
            | set(room, OUT)
            | set(self.errno.is_some() || !self.released.is_empty(), ERR)
    }

    pub(super) fn take_error(&mut self) -> Option<i32> {
        self.errno.take()
    }

    pub(super) fn received_bytes(&self) -> usize {
        self.inbox.len()
    }

    /// The next bytes to be received, at most `most`.
    pub(super) fn beginning(&self, most: usize) -> Vec<u8> {
        self.inbox.iter().take(most).copied().collect()
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.out.len()
    }

    /// The next receive reports a reset.
    pub(super) fn is_reset(&self) -> bool {
        self.inbox.is_empty() && !self.peer_finished && self.errno == Some(libc::ECONNRESET)
    }

    /// Over in both directions.
    pub(super) fn is_closed(&self) -> bool {
        self.broken || self.fin_arrived && self.peer_finished
    }
}

impl Kernel {
    pub(super) fn tcp(&mut self, fd: RawFd) -> Option<&mut Tcp> {
        match &mut self.sockets.get_mut(&fd)?.kind {
            Kind::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    fn peer(&mut self, fd: RawFd) -> Option<RawFd> {
        self.tcp(fd)?.peer
    }

    /// listen(2).
    pub(crate) fn listen(&mut self, fd: RawFd, backlog: usize) -> io::Result<()> {
        let most = backlog.max(1);
        self.socket_mut(fd)?.kind = Kind::Listener { backlog: VecDeque::new(), most };
        Ok(())
    }

    /// connect(2) of a stream, which continues asynchronously.
    pub(crate) fn connect(&mut self, fd: RawFd, to: SocketAddr) -> io::Result<()> {
        self.name_for(fd, to)?;
        let socket = self.socket_mut(fd)?;
        socket.peer_name = Some(to);
        socket.kind = Kind::Tcp(Tcp { connecting: true, ..Tcp::default() });
        let after_ns = self.travel_ns();
        self.schedule(after_ns, Event::Syn { client: fd, tries: 0 });
        Ok(())
    }

    pub(super) fn on_syn(&mut self, client: RawFd, tries: u32) {
        let Some(socket) = self.sockets.get(&client).filter(|socket| socket.open) else { return };
        let (Some(from), Some(to)) = (socket.local, socket.peer_name) else { return };
        let back_ns = self.travel_ns();
        let listeners: Vec<RawFd> = self.bound_to(true, to).cloned().unwrap_or_default();
        let shared = listeners.into_iter().filter(|fd| {
            let socket = self.sockets.get(fd);
            socket.is_some_and(|socket| matches!(socket.kind, Kind::Listener { .. }))
        });
        let shared: Vec<RawFd> = shared.collect();
        if shared.is_empty() {
            let errno = Some(libc::ECONNREFUSED);
            return self.schedule(back_ns, Event::Established { client, errno });
        }
        // Spread by the client's port, as a hash of the addresses would.
        let listener = shared[usize::from(from.port()) % shared.len()];
        let lost = self.dice.strikes(Fault::Silent);
        let Some(Kind::Listener { backlog, most }) =
            self.sockets.get(&listener).map(|socket| &socket.kind)
        else {
            return;
        };
        if lost || backlog.len() >= *most {
            if tries == SYN_TRIES_MAX {
                let errno = Some(libc::ETIMEDOUT);
                return self.schedule(0, Event::Established { client, errno });
            }
            return self.schedule(SYN_AGAIN_NS << tries, Event::Syn { client, tries: tries + 1 });
        }
        let ipv6 = to.is_ipv6();
        let server = Tcp { peer: Some(client), ..Tcp::default() };
        let mut socket = Socket::new(true, ipv6, Kind::Tcp(server));
        (socket.open, socket.pending) = (false, true);
        (socket.local, socket.peer_name) = (Some(to), Some(from));
        if let Some(listening) = self.sockets.get(&listener) {
            (socket.recv_bytes, socket.send_bytes) = (listening.recv_bytes, listening.send_bytes);
        }
        let server = self.new_fd(socket);
        if let Some(Kind::Listener { backlog, .. }) =
            self.sockets.get_mut(&listener).map(|socket| &mut socket.kind)
        {
            backlog.push_back(server);
        }
        if let Some(tcp) = self.tcp(client) {
            tcp.peer = Some(server);
        }
        self.note("syn", client, i64::from(tries));
        self.schedule(back_ns, Event::Established { client, errno: None });
        self.tell(listener, IN);
    }

    pub(super) fn on_established(&mut self, client: RawFd, errno: Option<i32>) {
        let Some(tcp) = self.tcp(client) else { return };
        tcp.connecting = false;
        if errno.is_some() {
            (tcp.errno, tcp.broken) = (errno, true);
        }
        self.note("established", client, errno.unwrap_or(0).into());
        self.tell(client, if errno.is_some() { IN | OUT | ERR | HUP | RDHUP } else { OUT });
        // Data sent meanwhile has waited for this.
        self.start_carrying(client);
    }

    /// The outcome of a connect that is over.
    pub(crate) fn connected(&mut self, fd: RawFd) -> io::Result<()> {
        match self.tcp(fd).and_then(|tcp| tcp.errno) {
            Some(errno) => Err(error(errno)),
            None => Ok(()),
        }
    }

    /// accept4(2).
    pub(crate) fn accept(&mut self, listener: RawFd) -> io::Result<RawFd> {
        let Kind::Listener { backlog, .. } = &self.socket_mut(listener)?.kind else {
            return Err(error(libc::EINVAL));
        };
        let Some(fd) = backlog.front().copied() else { return Err(error(libc::EAGAIN)) };
        self.may_have_descriptor()?;
        self.open += 1;
        if let Kind::Listener { backlog, .. } = &mut self.socket_mut(listener)?.kind {
            backlog.pop_front();
        }
        let socket = self.socket_mut(fd)?;
        (socket.open, socket.pending) = (true, false);
        self.note("accepted", fd, 0);
        Ok(fd)
    }

    /// The number of bytes that a receive of at most `most` returns; `None` at the end of the
    /// stream.
    fn receivable(&mut self, fd: RawFd, most: usize) -> io::Result<Option<usize>> {
        let Some(tcp) = self.tcp(fd) else { return Err(error(libc::EBADF)) };
        if !tcp.inbox.is_empty() {
            return Ok(Some(most.min(tcp.inbox.len())));
        }
        // Behind the peer's FIN there is only the end of the stream (SOCK_DONE).
        if tcp.peer_finished {
            return Ok(None);
        }
        match tcp.errno.take() {
            Some(errno) => Err(error(errno)),
            None if tcp.broken => Ok(None),
            None => Err(error(libc::EAGAIN)),
        }
    }

    /// recv(2) with MSG_PEEK, without waiting.
    pub(super) fn peek(&mut self, fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
        let Some(bytes) = self.receivable(fd, into.len())? else { return Ok(0) };
        if let Some(tcp) = self.tcp(fd) {
            into[..bytes].copy_from_slice(&tcp.beginning(bytes));
        }
        Ok(bytes)
    }

    /// recv(2) without waiting.
    pub(super) fn recv(&mut self, fd: RawFd, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let Some(mut bytes) = self.receivable(fd, into.len())? else { return Ok(0) };
        if self.dice.strikes(Fault::ShortReceive) {
            bytes = self.dice.part(bytes);
            self.owe(fd, IN);
        }
        let Some(tcp) = self.tcp(fd) else { return Err(error(libc::EBADF)) };
        copy_front(into, &take_front(&mut tcp.inbox, bytes));
        let peer = tcp.peer;
        self.note("recv", fd, bytes as i64);
        if let Some(peer) = peer {
            self.start_carrying(peer);
        }
        Ok(bytes)
    }

    /// send(2) without waiting.
    pub(super) fn send(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
        let room = self.socket_mut(fd)?.send_bytes;
        let Some(tcp) = self.tcp(fd) else { return Err(error(libc::EBADF)) };
        if let Some(errno) = tcp.errno.take() {
            return Err(error(errno));
        }
        if tcp.broken || tcp.fin {
            return Err(error(libc::EPIPE));
        }
        let mut taken = bytes.len().min(room.saturating_sub(tcp.out.len()));
        tcp.wants_room |= taken < bytes.len();
        if taken == 0 && !bytes.is_empty() {
            return Err(error(libc::EAGAIN));
        }
        if self.dice.strikes(Fault::ShortSend) {
            taken = self.dice.part(taken);
            self.owe(fd, OUT);
        }
        if let Some(tcp) = self.tcp(fd) {
            tcp.out.extend(&bytes[..taken]);
        }
        self.note("send", fd, taken as i64);
        self.start_carrying(fd);
        Ok(taken)
    }

    /// shutdown(2) of the sending half.
    pub(crate) fn shutdown_write(&mut self, fd: RawFd) -> io::Result<()> {
        self.socket_mut(fd)?;
        let Some(tcp) = self.tcp(fd) else { return Err(error(libc::ENOTCONN)) };
        let is_over = tcp.is_closed();
        tcp.fin = true;
        self.note("shutdown", fd, 0);
        // As sk_state_change, which wakes all watchers.
        self.tell(fd, IN | OUT | ERR | HUP | RDHUP);
        self.start_carrying(fd);
        if is_over { Err(error(libc::ENOTCONN)) } else { Ok(()) }
    }

    /// Of tcp_info: whether the connection is over in both directions, and the bytes that the peer
    /// has acknowledged.
    pub(crate) fn tcp_info(&mut self, fd: RawFd) -> (bool, u64) {
        self.tcp(fd).map_or((true, 0), |tcp| (tcp.is_closed(), tcp.delivered_bytes))
    }

    pub(super) fn reset_peer_of(&mut self, fd: RawFd) {
        let Some(peer) = self.peer(fd) else { return };
        let after_ns = self.travel_ns();
        if let Some(tcp) = self.tcp(peer) {
            tcp.excused = true;
            tcp.peer = None;
        }
        self.schedule(after_ns, Event::Break { fd: peer, errno: libc::ECONNRESET });
    }

    pub(super) fn close_tcp(&mut self, fd: RawFd) {
        let resets = self.sockets.get(&fd).is_some_and(|socket| socket.reset_on_close);
        let Some(tcp) = self.tcp(fd) else { return };
        let unread = !tcp.inbox.is_empty();
        if tcp.broken || tcp.connecting {
            self.reset_peer_of(fd);
            return self.remove_tcp(fd);
        }
        if resets || unread {
            self.reset_peer_of(fd);
            return self.remove_tcp(fd);
        }
        if let Some(tcp) = self.tcp(fd) {
            tcp.fin = true;
        }
        self.start_carrying(fd);
        self.remove_if_over(fd);
    }

    /// An end that the program has closed is removed when its FIN has arrived.
    fn remove_if_over(&mut self, fd: RawFd) {
        let open = self.sockets.get(&fd).is_none_or(|socket| socket.open);
        if !open && self.tcp(fd).is_some_and(|tcp| tcp.fin_arrived) && !self.is_pending(fd) {
            self.remove_tcp(fd);
        }
    }

    fn remove_tcp(&mut self, fd: RawFd) {
        if let Some(peer) = self.peer(fd)
            && let Some(tcp) = self.tcp(peer)
            && tcp.peer == Some(fd)
        {
            tcp.peer = None;
        }
        // Its listener keeps the address while other sockets are bound to it.
        self.forget_name(fd);
        self.sockets.remove(&fd);
    }
}

/// The bytes that programs send and receive, which must be equal.
impl Kernel {
    /// The program at this end has handed `bytes` over.
    pub(super) fn handed_over(&mut self, fd: RawFd, bytes: &[u8]) {
        if let Some(tcp) = self.peer(fd).and_then(|peer| self.tcp(peer)) {
            tcp.promised.extend(bytes);
        }
    }

    /// The program at this end has received `bytes`.
    pub(super) fn received(&mut self, fd: RawFd, bytes: &[u8]) {
        self.received_bytes += bytes.len() as u64;
        let Some(tcp) = self.tcp(fd) else { return };
        let known = tcp.promised.len().min(bytes.len());
        let same = take_front(&mut tcp.promised, known) == bytes[..known];
        if known < bytes.len() || !same {
            let len = bytes.len();
            self.complain(|| format!("socket {fd} received {len} bytes that are not those sent"));
        }
    }

    /// The program at this end saw the end of the stream.
    pub(super) fn was_told_the_end(&mut self, fd: RawFd) {
        let Some(tcp) = self.tcp(fd) else { return };
        let missing = tcp.promised.len();
        if missing > 0 && !tcp.excused {
            self.complain(|| {
                format!("socket {fd} saw the end of the stream {missing} bytes early")
            });
        }
    }

    /// Bounds that must always hold.
    pub(super) fn check_bounds(&mut self) {
        let beyond = self.sockets.iter().find(|(_, socket)| match &socket.kind {
            Kind::Tcp(tcp) => {
                tcp.out.len() > socket.send_bytes || tcp.inbox.len() > socket.recv_bytes
            }
            _ => false,
        });
        if let Some(fd) = beyond.map(|(fd, _)| *fd) {
            self.complain(|| format!("the buffers of socket {fd} hold more than they may"));
        }
    }
}
