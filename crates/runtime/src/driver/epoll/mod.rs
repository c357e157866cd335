//! The epoll engine: readiness from the kernel, the system calls made here.
//!
//! Edge-triggered, it registers each descriptor once and never calls epoll_ctl(2) again; an accepted
//! one not before the next wait, so that a connection that is served and closed by then costs no
//! registration. A receive or send is tried first and waits only when the kernel says EAGAIN; a receive that did
//! not fill its buffer has emptied the socket, so the EAGAIN is not asked for (this costs 15 % in
//! an echo). The exceptions are a hang-up, whose edge may have been reported together with the last
//! bytes, and urgent data, before which a receive ends: after EPOLLRDHUP and EPOLLPRI the socket is
//! read until it says EAGAIN, or that it has ended.

mod files;
mod gather;
mod stream;
mod udp;
mod zero_copy;

use self::gather::Gather;
use self::stream::Stream;
use self::udp::Udp;
use super::datagrams::UdpSetup;
use super::linger::Lingering;
use super::mmsg::{RecvBatch, SendBatch};
use super::slots::{Key, Slots};
use super::{DriverSetup, InUse, Side, closed, errno};
use crate::buf::{Pool, RecvBuf, SendBuf};
use crate::calls::Call;
use crate::config::EpollFeatures;
use crate::counters::Counters;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::sys;
use crate::sys::poll::{Epoll, Event};
use crate::task::{WaitQueue, Waiter};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Events taken per wait; more stay in the kernel for the next turn.
const EVENTS_PER_TURN: usize = 512;
/// Events handled before their tasks run. What a connection needs is then still in the first
/// level of the cache when its task runs, with any number of connections.
const PORTION: usize = 32;
/// Waits in a row that take events, when each finds as many as fit.
const DRAIN_TURNS_MAX: usize = 64;

enum Entry {
    /// The worker's eventfd. Reset by the inbox, not here.
    Wake,
    Listener(Listener),
    Stream(Stream),
    Udp(Box<Udp>),
}

/// A listening socket. Always edge-triggered: a level-triggered one would report its backlog
/// again and again while accepting is stalled for want of descriptors.
struct Listener {
    socket: OwnedFd,
    ready: bool,
    waiters: WaitQueue,
}

/// One worker's epoll set and everything registered in it.
pub(crate) struct EpollDriver {
    epoll: Epoll,
    entries: Slots<Entry>,
    events: Vec<Event>,
    /// The first of `events` that is still to be handled.
    next_event: usize,
    lingering: Lingering,
    gather: Gather,
    /// Accepted streams that are to be registered before the next wait.
    unregistered: Vec<Key>,
    /// The tasks that the last gathered sends woke have run, and no wait came since.
    waits_next: bool,
    /// Who is to be woken by what was sent outside of a turn.
    woken: Vec<Waker>,
    shared: Shared,
}

/// Pools for datagrams a worker makes at most: one for each buffer geometry its sockets ask for.
const DATAGRAM_POOLS_MAX: usize = 63;

/// What every operation needs beside its socket.
struct Shared {
    /// What streams receive into.
    pool: Rc<Pool>,
    /// What datagram sockets receive into, one for each geometry.
    datagrams: Vec<RecvBatch>,
    sends: SendBatch,
    features: EpollFeatures,
    counters: Arc<Counters>,
}

impl EpollDriver {
    pub(crate) fn new(features: EpollFeatures, setup: &DriverSetup) -> io::Result<EpollDriver> {
        let epoll = Epoll::new()?;
        let mut entries = Slots::new();
        let wake = entries.insert(Entry::Wake);
        epoll.add(setup.wake_fd, libc::EPOLLIN | libc::EPOLLET, wake.to_bits())?;
        let pool = Rc::new(Pool::new(features.buffer_count, features.buffer_bytes)?);
        Ok(EpollDriver {
            epoll,
            entries,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            next_event: 0,
            lingering: Lingering::new(setup.linger),
            gather: Gather::new(features.gather),
            unregistered: Vec::new(),
            waits_next: false,
            woken: Vec::new(),
            shared: Shared {
                pool,
                datagrams: Vec::new(),
                sends: SendBatch::new(),
                features,
                counters: Arc::clone(&setup.counters),
            },
        })
    }

    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        let fd = socket.as_raw_fd();
        super::set_nonblocking(&socket)?;
        let listener = Listener { socket, ready: true, waiters: WaitQueue::default() };
        let key = self.entries.insert(Entry::Listener(listener));
        self.register(fd, libc::EPOLLIN | libc::EPOLLET, key)
    }

    pub(crate) fn poll_accept(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<OwnedFd>> {
        let Some(Entry::Listener(listener)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if listener.ready {
            self.shared.counters.syscalls.add(1);
            match sys::accept(listener.socket.as_raw_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.shared.counters.eagain.add(1);
                    listener.ready = false;
                }
                other => return Poll::Ready(other),
            }
        }
        listener.waiters.add(waiter);
        Poll::Pending
    }

    /// Takes over an accepted socket. It is registered before the next wait, if it is open then.
    pub(crate) fn add_stream(&mut self, socket: OwnedFd) -> Key {
        let interest = Stream::first_interest(&self.shared.features, false);
        let key = self.entries.insert(Entry::Stream(Stream::new(socket, interest, false)));
        self.unregistered.push(key);
        key
    }

    pub(crate) fn add_connecting(&mut self, socket: OwnedFd) -> io::Result<Key> {
        let fd = socket.as_raw_fd();
        let interest = Stream::first_interest(&self.shared.features, true);
        let key = self.entries.insert(Entry::Stream(Stream::new(socket, interest, true)));
        self.register(fd, interest, key)
    }

    /// Epoll reports what a socket is ready for when it is registered, so nothing is missed. A stream
    /// that cannot be registered, for want of memory or watches, has failed.
    fn register_accepted(&mut self, wakes: &mut Vec<Waker>) {
        let mut accepted = std::mem::take(&mut self.unregistered);
        for key in accepted.drain(..) {
            let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { continue };
            self.shared.counters.syscalls.add(1);
            if let Err(error) = stream.register(&self.epoll, key) {
                stream.fail(errno(&error), wakes);
                if stream.closing {
                    self.remove(key);
                }
            }
        }
        self.unregistered = accepted;
    }

    pub(crate) fn add_udp(&mut self, socket: OwnedFd, setup: UdpSetup) -> io::Result<Key> {
        let (count, bytes) = (setup.buffer_count, setup.buffer_bytes);
        let pools = &mut self.shared.datagrams;
        let group = match pools.iter().position(|pool| pool.has_geometry(count, bytes)) {
            Some(group) => group,
            None if pools.len() == DATAGRAM_POOLS_MAX => return Err(super::too_many_geometries()),
            None => {
                pools.push(RecvBatch::new(count, bytes)?);
                pools.len() - 1
            }
        };
        let fd = socket.as_raw_fd();
        let interest = Udp::first_interest(self.shared.features.edge_triggered);
        let udp = Box::new(Udp::new(socket, setup, group, interest));
        let key = self.entries.insert(Entry::Udp(udp));
        self.register(fd, interest, key)
    }

    pub(crate) fn udp_stats(&self, key: Key) -> Option<UdpStats> {
        match self.entries.get(key)? {
            Entry::Udp(udp) => Some(udp.stats),
            _ => None,
        }
    }

    pub(crate) fn poll_recv_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let polled = udp.poll_recv_batch(waiter, into, most, &mut self.shared);
        if polled.is_pending() {
            udp.update_interest(&self.epoll, key, &self.shared)?;
        }
        polled
    }

    pub(crate) fn poll_send_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        batch: &mut Vec<Datagram>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Udp(udp)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let polled = udp.poll_send_batch(waiter, batch, &mut self.shared);
        udp.update_interest(&self.epoll, key, &self.shared)?;
        polled
    }

    pub(crate) fn poll_datagrams_sent(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        match self.entries.get_mut(key) {
            Some(Entry::Udp(udp)) => udp.outbox.poll_settled(waiter).map(Ok),
            _ => Poll::Ready(Err(closed())),
        }
    }

    fn register(&mut self, fd: RawFd, interest: i32, key: Key) -> io::Result<Key> {
        self.shared.counters.syscalls.add(1);
        match self.epoll.add(fd, interest, key.to_bits()) {
            Ok(()) => Ok(key),
            Err(error) => {
                self.entries.remove(key);
                Err(error)
            }
        }
    }

    pub(crate) fn poll_connected(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => stream.poll_connected(waiter),
            _ => Poll::Ready(Err(closed())),
        }
    }

    pub(crate) fn poll_recv(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<RecvBuf>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let polled = stream.poll_recv(waiter, &self.shared);
        if polled.is_pending() {
            stream.update_interest(&self.epoll, key, &self.shared)?;
        }
        polled
    }

    pub(crate) fn poll_send(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        let room = stream.poll_send_room(waiter);
        if !matches!(room, Poll::Ready(Ok(()))) {
            return room;
        }
        let Some(buf) = buf.take().filter(|buf| !buf.is_empty()) else { return room };
        // What is behind a queue waits for the peer, and what more belongs to waits for nothing.
        if self.gather.is_on() && stream.queued.is_empty() && !more {
            self.gather.push(key, stream, buf);
            if self.gather.is_full() {
                self.send_gathered();
            }
            return room;
        }
        if stream.gathered_bytes > 0 {
            self.send_gathered();
        }
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        stream.queued.check()?;
        let sent = stream.send(buf, more, &self.shared);
        stream.update_interest(&self.epoll, key, &self.shared)?;
        Poll::Ready(sent)
    }

    pub(crate) fn poll_flushed(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.queued.poll_flushed(waiter, stream.gathered_bytes == 0)
            }
            _ => Poll::Ready(Err(closed())),
        }
    }

    pub(crate) fn finish(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
            stream.finish(&self.shared);
        }
    }

    pub(crate) fn wait_queue(&mut self, key: Key, side: Side) -> Option<&mut WaitQueue> {
        Some(match (self.entries.get_mut(key)?, side) {
            (Entry::Stream(stream), Side::Receive) => &mut stream.readers,
            (Entry::Stream(stream), Side::Send) => &mut stream.queued.waiters,
            (Entry::Udp(udp), _) => udp.wait_queue(side),
            (Entry::Listener(listener), _) => &mut listener.waiters,
            (Entry::Wake, _) => return None,
        })
    }

    pub(crate) fn wake_waiters(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.readers.wake(wakes);
                stream.queued.waiters.wake(wakes);
            }
            Some(Entry::Udp(udp)) => udp.wake_waiters(wakes),
            Some(Entry::Listener(listener)) => listener.waiters.wake(wakes),
            Some(Entry::Wake) | None => {}
        }
    }

    pub(crate) fn fd(&self, key: Key) -> Option<RawFd> {
        match self.entries.get(key)? {
            Entry::Stream(stream) => Some(stream.fd()),
            Entry::Udp(udp) => Some(udp.fd()),
            Entry::Listener(listener) => Some(listener.socket.as_raw_fd()),
            Entry::Wake => None,
        }
    }

    pub(crate) fn discard(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
            stream.queued.fail(libc::ECANCELED, wakes);
        }
    }

    /// Gives up a socket. Queued bytes are still sent, within the linger limit.
    pub(crate) fn close(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get(key)
            && stream.gathered_bytes > 0
        {
            self.send_gathered();
        }
        match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) if stream.must_linger() => {
                stream.closing = true;
                self.lingering.push(key);
                // Nobody reads any more; level-triggered, unread bytes would report for ever.
                let _gone_with_the_socket = stream.update_interest(&self.epoll, key, &self.shared);
            }
            Some(Entry::Udp(udp)) if udp.must_linger() => {
                udp.closing = true;
                self.lingering.push(key);
                let _gone_with_the_socket = udp.update_interest(&self.epoll, key, &self.shared);
            }
            Some(_) => self.remove(key),
            None => {}
        }
    }

    /// Closing the descriptor takes it out of the epoll set, as nobody duplicates it.
    fn remove(&mut self, key: Key) {
        if self.entries.remove(key).is_some() {
            self.shared.counters.syscalls.add(1);
        }
    }

    /// The next events: those of the last wait, a portion at a time, or of a new one.
    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        if !self.has_arrivals() {
            self.submit(wakes);
            // Those who waited for that may be about to close what was never registered. Once between
            // two waits: a task that sends again and again must not keep events waiting.
            let woken = !wakes.is_empty() && !self.unregistered.is_empty();
            if woken && !std::mem::replace(&mut self.waits_next, true) {
                return Ok(());
            }
            self.waits_next = false;
            self.register_accepted(wakes);
            self.wait(if wakes.is_empty() { timeout } else { Some(Duration::ZERO) })?;
        }
        self.handle_events(PORTION, wakes);
        Ok(())
    }

    /// Sends what was gathered.
    pub(crate) fn submit(&mut self, wakes: &mut Vec<Waker>) {
        self.send_gathered();
        wakes.append(&mut self.woken);
    }

    /// True if events wait to be handled, so that `turn` will not call the kernel.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.next_event < self.events.len()
    }

    pub(crate) fn in_use(&self) -> InUse {
        let datagrams = self.shared.datagrams.iter().map(RecvBatch::buffers_in_use);
        let buffers = self.shared.pool.in_use() + datagrams.sum::<usize>();
        InUse { sockets: self.entries.len(), operations: 0, buffers }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.shared.counters.waits.add(1);
        self.shared.counters.syscalls.add(1);
        self.next_event = 0;
        self.events.clear();
        let calls = &self.shared.counters.calls;
        calls.timed(Call::EpollWait, || self.epoll.wait(&mut self.events, timeout))?;
        self.shared.counters.events.add(self.events.len() as u64);
        self.gather.begin(self.events.len());
        self.expire_lingering();
        Ok(())
    }

    fn handle_events(&mut self, most: usize, wakes: &mut Vec<Waker>) {
        let end = self.events.len().min(self.next_event.saturating_add(most));
        while self.next_event < end {
            let Event { events, u64: data } = self.events[self.next_event];
            self.next_event += 1;
            self.dispatch(Key::from_bits(data), events as i32, wakes);
        }
    }

    fn expire_lingering(&mut self) {
        while let Some(key) = self.lingering.pop_expired() {
            let lingers = match self.entries.get(key) {
                Some(Entry::Stream(stream)) => {
                    stream.cut_off();
                    true
                }
                Some(Entry::Udp(_)) => true,
                _ => false,
            };
            if lingers {
                self.shared.counters.lingers_expired.add(1);
                self.remove(key);
            }
        }
    }

    /// Takes all that has been reported, without waiting.
    pub(crate) fn drain(&mut self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        self.submit(wakes);
        self.register_accepted(wakes);
        self.handle_events(usize::MAX, wakes);
        // A full list may not be all. Edge-triggered, what is reported goes out of the list; a
        // level-triggered set reports the same sockets again, so one round has to do.
        let most = if self.shared.features.edge_triggered { DRAIN_TURNS_MAX } else { 1 };
        for _ in 0..most {
            self.wait(Some(Duration::ZERO))?;
            self.handle_events(usize::MAX, wakes);
            if self.events.len() < EVENTS_PER_TURN {
                break;
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, key: Key, bits: i32, wakes: &mut Vec<Waker>) {
        let finished = match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.on_event(bits, &self.shared, wakes);
                // Fails only when the descriptor is gone; the next operation says so.
                let _said_later = stream.update_interest(&self.epoll, key, &self.shared);
                stream.closing && !stream.must_linger()
            }
            Some(Entry::Udp(udp)) => {
                udp.on_event(bits, &mut self.shared, wakes);
                let _said_later = udp.update_interest(&self.epoll, key, &self.shared);
                udp.closing && !udp.must_linger()
            }
            Some(Entry::Listener(listener)) => {
                listener.ready = true;
                listener.waiters.wake(wakes);
                false
            }
            // A stale event of this batch, for an entry closed earlier in it.
            Some(Entry::Wake) | None => false,
        };
        if finished {
            self.remove(key);
        }
    }

    /// The moment by which `turn` has to run even if nothing happens.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        let entries = &self.entries;
        self.lingering.next_deadline(|key| entries.get(key).is_some())
    }

    /// True while closed streams still send.
    pub(crate) fn is_lingering(&mut self) -> bool {
        self.next_deadline().is_some()
    }

    /// Closes everything at once.
    pub(crate) fn teardown(&mut self, wakes: &mut Vec<Waker>) {
        for key in self.entries.keys() {
            self.wake_waiters(key, wakes);
            if let Some(Entry::Stream(stream)) = self.entries.remove(key) {
                stream.cut_off();
            }
        }
    }
}
