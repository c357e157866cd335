//! epoll(7) and eventfd(2) of a simulated machine.
//!
//! As in Linux: an event at a socket calls its watchers, with the bits that it may have changed. An
//! epoll set then lists the socket. A wait goes through the list, reads the current bits of each,
//! and reports the watched ones. A level-triggered socket stays on the list as long as it has any;
//! an edge-triggered one returns with the next event.

use super::kernel::{Event, Kernel, error};
use super::socket::{Kind, Socket};
use crate::sys::faults::Fault;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::RawFd;

pub(super) const IN: u32 = libc::EPOLLIN as u32;
pub(super) const OUT: u32 = libc::EPOLLOUT as u32;
pub(super) const ERR: u32 = libc::EPOLLERR as u32;
pub(super) const HUP: u32 = libc::EPOLLHUP as u32;
pub(super) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const EDGE: u32 = libc::EPOLLET as u32;
/// Bits that are always reported.
const ALWAYS: u32 = ERR | HUP;

/// The maximum delay of an event that a fault delays.
const LATE_NS: std::ops::Range<u64> = 1_000_000..20_000_000;
/// When a socket is reported again after a call that got less than available.
const AGAIN_NS: std::ops::Range<u64> = 1_000..1_000_000;

/// One descriptor in a set.
struct Watch {
    data: u64,
    interest: u32,
    listed: bool,
}

/// An epoll set.
#[derive(Default)]
pub(super) struct Set {
    watched: BTreeMap<RawFd, Watch>,
    /// Descriptors to check, in the order of their events.
    list: VecDeque<RawFd>,
}

/// An event of epoll for one descriptor.
pub(crate) struct Report {
    pub(crate) bits: u32,
    pub(crate) data: u64,
}

/// Descriptors other than sockets, and all watches.
#[derive(Default)]
pub(super) struct Polling {
    sets: BTreeMap<RawFd, Set>,
    eventfds: BTreeMap<RawFd, u64>,
    /// Of each socket, the sets that watch it, and under which descriptor.
    watchers: BTreeMap<RawFd, Vec<(RawFd, RawFd)>>,
}

impl Kernel {
    /// epoll_create1(2). Refused only if descriptors have really run out: faults are for serving
    /// programs, and a worker that cannot be created serves no connection.
    pub(crate) fn epoll_create(&mut self) -> io::Result<RawFd> {
        if self.open >= self.descriptors_max {
            return Err(error(libc::EMFILE));
        }
        self.open += 1;
        let set = self.next_fd();
        self.polling.sets.insert(set, Set::default());
        Ok(set)
    }

    /// eventfd(2). Not counted: handles may keep one for longer than their world lasts.
    pub(crate) fn eventfd(&mut self) -> RawFd {
        let fd = self.next_fd();
        self.polling.eventfds.insert(fd, 0);
        fd
    }

    /// Adds one, and notifies its watchers.
    pub(crate) fn eventfd_signal(&mut self, fd: RawFd) {
        if let Some(count) = self.polling.eventfds.get_mut(&fd) {
            *count += 1;
            self.tell(fd, IN);
        }
    }

    pub(crate) fn eventfd_clear(&mut self, fd: RawFd) {
        if let Some(count) = self.polling.eventfds.get_mut(&fd) {
            *count = 0;
        }
    }

    /// close(2) of a descriptor other than a socket; false if it is a socket.
    pub(super) fn close_polling(&mut self, fd: RawFd) -> bool {
        if let Some(set) = self.polling.sets.remove(&fd) {
            self.open -= 1;
            for watched in set.watched.keys() {
                let socket = self.socket_of(*watched);
                self.stop_watching(socket, |watcher| watcher.0 == fd);
            }
            return true;
        }
        if self.close_ring(fd) {
            return true;
        }
        let is_eventfd = self.polling.eventfds.remove(&fd).is_some();
        if is_eventfd {
            self.forget_watches(fd, fd);
        }
        is_eventfd
    }

    fn stop_watching(&mut self, socket: RawFd, whose: impl Fn(&(RawFd, RawFd)) -> bool) {
        if let Some(watchers) = self.polling.watchers.get_mut(&socket) {
            watchers.retain(|watcher| !whose(watcher));
            if watchers.is_empty() {
                self.polling.watchers.remove(&socket);
            }
        }
    }

    /// A descriptor of `socket` is closed: no set has it any more.
    pub(super) fn forget_watches(&mut self, socket: RawFd, fd: RawFd) {
        for set in self.polling.sets.values_mut() {
            if set.watched.remove(&fd).is_some() {
                set.list.retain(|listed| *listed != fd);
            }
        }
        self.stop_watching(socket, |watcher| watcher.1 == fd);
    }

    /// epoll_ctl(2): adds a descriptor, or with `known` changes its interest.
    pub(crate) fn epoll_control(
        &mut self,
        set: RawFd,
        fd: RawFd,
        interest: u32,
        data: u64,
        known: bool,
    ) -> io::Result<()> {
        let socket = self.socket_of(fd);
        if !self.sockets.contains_key(&socket) && !self.polling.eventfds.contains_key(&fd) {
            return Err(error(libc::EBADF));
        }
        let bits = self.bits(socket);
        let Some(found) = self.polling.sets.get_mut(&set) else { return Err(error(libc::EBADF)) };
        match (found.watched.get_mut(&fd), known) {
            (Some(_), false) => return Err(error(libc::EEXIST)),
            (None, true) => return Err(error(libc::ENOENT)),
            (Some(watch), true) => (watch.interest, watch.data) = (interest, data),
            (None, false) => {
                found.watched.insert(fd, Watch { data, interest, listed: false });
                self.polling.watchers.entry(socket).or_default().push((set, fd));
            }
        }
        if bits & (interest | ALWAYS) != 0 {
            self.list(set, fd, usize::MAX);
        }
        Ok(())
    }

    /// Puts a descriptor on the list of a set, at this place or at the end.
    fn list(&mut self, set: RawFd, fd: RawFd, at: usize) {
        let Some(set) = self.polling.sets.get_mut(&set) else { return };
        if let Some(watch) = set.watched.get_mut(&fd)
            && !std::mem::replace(&mut watch.listed, true)
        {
            set.list.insert(at.min(set.list.len()), fd);
        }
    }

    /// An event at a socket may have set these bits: notifies the watchers of them.
    pub(super) fn tell(&mut self, socket: RawFd, bits: u32) {
        if !self.polling.watchers.contains_key(&socket) && self.rings.is_empty() {
            return;
        }
        if self.dice.strikes(Fault::Late) {
            let after_ns = self.dice.between(LATE_NS);
            return self.schedule(after_ns, Event::Told { socket, bits });
        }
        self.tell_now(socket, bits);
    }

    pub(super) fn tell_now(&mut self, socket: RawFd, bits: u32) {
        self.tell_rings(socket, bits);
        let watchers = self.polling.watchers.get(&socket).cloned().unwrap_or_default();
        for (set, fd) in watchers {
            let Some(found) = self.polling.sets.get(&set) else { continue };
            let watched = found.watched.get(&fd).map_or(0, |watch| watch.interest | ALWAYS);
            if watched & bits == 0 {
                continue;
            }
            let listed = found.list.len();
            let at = match self.dice.strikes(Fault::Reordered) {
                true => self.dice.between(0..listed as u64 + 1) as usize,
                false => listed,
            };
            self.note("told", socket, i64::from(bits));
            self.list(set, fd, at);
        }
    }

    /// A call on a socket got less than available, because of a fault. A real kernel does that when
    /// more data has arrived meanwhile, and reports that.
    pub(super) fn owe(&mut self, socket: RawFd, bits: u32) {
        let after_ns = self.dice.between(AGAIN_NS);
        self.schedule(after_ns, Event::Told { socket, bits });
    }

    /// The current bits of a descriptor, as for poll(2).
    pub(crate) fn bits(&mut self, fd: RawFd) -> u32 {
        if let Some(count) = self.polling.eventfds.get(&fd) {
            return OUT | if *count > 0 { IN } else { 0 };
        }
        self.sockets.get_mut(&fd).map_or(ERR | HUP, Socket::bits)
    }

    /// EBADF if the descriptor does not exist.
    pub(crate) fn is_open(&self, fd: RawFd) -> io::Result<()> {
        let polling = &self.polling;
        let known = self.sockets.contains_key(&fd)
            || polling.sets.contains_key(&fd)
            || self.rings.contains_key(&fd)
            || polling.eventfds.contains_key(&fd);
        if known { Ok(()) } else { Err(error(libc::EBADF)) }
    }

    pub(super) fn is_readable(&mut self, fd: RawFd) -> bool {
        self.bits(fd) & IN != 0
    }

    /// The watches of a set without pending events: data and bits.
    pub(crate) fn told_of(&mut self, set: RawFd) -> Vec<Report> {
        let Some(found) = self.polling.sets.get(&set) else { return Vec::new() };
        let unlisted = found.watched.iter().filter(|(_, watch)| !watch.listed);
        let unlisted: Vec<(RawFd, u64)> = unlisted.map(|(fd, watch)| (*fd, watch.data)).collect();
        let ahead = self.sockets_to_be_told();
        let mut told = Vec::new();
        for (fd, data) in unlisted {
            let socket = self.socket_of(fd);
            if !ahead.contains(&socket) {
                told.push(Report { bits: self.bits(socket), data });
            }
        }
        told
    }

    /// True if a wait for this set need not wait.
    pub(crate) fn has_reports(&mut self, set: RawFd) -> bool {
        let Some(found) = self.polling.sets.get(&set) else { return self.ring_has_reports(set) };
        let listed: Vec<RawFd> = found.list.iter().copied().collect();
        listed.into_iter().any(|fd| self.report(set, fd).is_some())
    }

    fn report(&mut self, set: RawFd, fd: RawFd) -> Option<Report> {
        let bits = self.bits(self.socket_of(fd));
        let watch = self.polling.sets.get(&set)?.watched.get(&fd)?;
        let bits = bits & (watch.interest | ALWAYS);
        (bits != 0).then_some(Report { bits, data: watch.data })
    }

    /// The events that a wait reports, at most `most`. EINTR instead if a fault occurs.
    pub(crate) fn epoll_reports(&mut self, set: RawFd, most: usize) -> io::Result<Vec<Report>> {
        if self.dice.strikes(Fault::Interrupted) {
            return Err(error(libc::EINTR));
        }
        let Some(found) = self.polling.sets.get_mut(&set) else { return Err(error(libc::EBADF)) };
        let mut list = std::mem::take(&mut found.list);
        let (mut reports, mut again) = (Vec::new(), Vec::new());
        while reports.len() < most
            && let Some(fd) = list.pop_front()
        {
            let report = self.report(set, fd);
            let Some(found) = self.polling.sets.get_mut(&set) else { break };
            let Some(watch) = found.watched.get_mut(&fd) else { continue };
            watch.listed = report.is_some() && watch.interest & EDGE == 0;
            if watch.listed {
                again.push(fd);
            }
            reports.extend(report);
        }
        list.extend(again);
        if let Some(found) = self.polling.sets.get_mut(&set) {
            found.list = list;
        }
        Ok(reports)
    }
}

impl Socket {
    /// The bits as for poll(2). Requesting space in a full stream makes it report when there is
    /// some.
    fn bits(&mut self) -> u32 {
        let send_bytes = self.send_bytes;
        let set = |on: bool, bits: u32| if on { bits } else { 0 };
        match &mut self.kind {
            Kind::Fresh => OUT | HUP,
            Kind::Listener { backlog, .. } => set(!backlog.is_empty(), IN),
            Kind::Tcp(tcp) => tcp.bits(send_bytes),
            Kind::Udp(udp) => udp.bits(send_bytes),
        }
    }
}
