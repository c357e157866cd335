//! The epoll engine: the kernel reports readiness, and the engine makes the system calls.
//!
//! Edge-triggered, it registers each descriptor once and never calls epoll_ctl(2) again; an
//! accepted one not before the next wait, so that a connection that is served and closed by then
//! costs no registration. A receive or send is tried first and waits only when the kernel says
//! EAGAIN; a receive that did not fill its buffer has emptied the socket, so no second call is made
//! for the EAGAIN (it would cost 15 % in an echo). The exceptions are a hang-up, whose edge may
//! have been reported together with the last bytes, and urgent data, before which a receive ends:
//! after EPOLLRDHUP and EPOLLPRI the socket is read until EAGAIN or the end.

mod files;
mod gather;
mod stream;
mod udp;

use self::gather::Gather;
use self::stream::{Own, Stream};
use self::udp::Udp;
use super::datagrams::UdpSetup;
use super::mmsg::{RecvBatch, SendBatch};
use super::socket::stream::Sending;
use super::socket::{self, Engine, Sockets};
use crate::buf::{Pool, RecvBuf, SendBuf};
use crate::calls::Call;
use crate::config::EpollFeatures;
use crate::counters::Counters;
use crate::datagram::Received;
use crate::driver::common::{
    DriverSetup, InUse, closed, errno, set_nonblocking, too_many_geometries,
};
use crate::slots::Key;
use crate::sys;
use crate::sys::poll::{Epoll as EpollSet, Event};
use crate::sys::socket::{SockAddr, SockRef};
use crate::task::WaitQueue;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Events taken per wait; more stay in the kernel for the next turn.
const EVENTS_PER_TURN: usize = 512;
/// Events handled before their tasks run. The state of a connection is then still in the
/// first-level cache when its task runs, with any number of connections.
const PORTION: usize = 32;

type Entry = socket::Entry<Epoll>;
type Listener = socket::Listener<Epoll>;

/// The state of a listener on epoll, beside the common state. Always edge-triggered: a
/// level-triggered one would report its backlog again and again while accepting is stalled for lack
/// of descriptors.
pub(crate) struct Accepting {
    ready: bool,
}

/// One worker's epoll set and the sockets registered in it.
pub(crate) type EpollDriver = Sockets<Epoll>;

/// One worker's epoll set and its state.
pub(crate) struct Epoll {
    epoll: EpollSet,
    events: Vec<Event>,
    /// The first of `events` that is still to be handled.
    next_event: usize,
    gather: Gather,
    /// Accepted streams that are to be registered before the next wait.
    unregistered: Vec<Key>,
    /// The tasks that the last gathered sends woke have run, and no wait came since.
    waits_next: bool,
    /// Wakers to call because of sends outside of a turn.
    woken: Vec<Waker>,
    shared: Shared,
}

/// Pools for datagrams a worker makes at most: one for each buffer geometry its sockets ask for.
const DATAGRAM_POOLS_MAX: usize = 63;

/// The state that every operation needs beside its socket.
struct Shared {
    /// The pool that streams receive into.
    pool: Rc<Pool>,
    /// The pools that datagram sockets receive into, one for each geometry.
    datagrams: Vec<RecvBatch>,
    sends: SendBatch,
    counters: Arc<Counters>,
}

impl EpollDriver {
    pub(crate) fn new(features: EpollFeatures, setup: &DriverSetup) -> io::Result<EpollDriver> {
        let epoll = EpollSet::new()?;
        let pool = Rc::new(Pool::new(features.buffer_count, features.buffer_bytes)?);
        let engine = Epoll {
            epoll,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            next_event: 0,
            gather: Gather::new(features.gather),
            unregistered: Vec::new(),
            waits_next: false,
            woken: Vec::new(),
            shared: Shared {
                pool,
                datagrams: Vec::new(),
                sends: SendBatch::new(),
                counters: Arc::clone(&setup.counters),
            },
        };
        let mut sockets = Sockets::with(engine, setup.linger);
        let wake = sockets.entries.insert(Entry::Wake(()));
        let interest = libc::EPOLLIN | libc::EPOLLET;
        sockets.engine.epoll.add(setup.wake_fd, interest, wake.to_bits())?;
        Ok(sockets)
    }

    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        let fd = socket.as_raw_fd();
        set_nonblocking(&socket)?;
        let (waiters, own) = (WaitQueue::default(), Accepting { ready: true });
        let listener = Listener { socket: Some(socket), waiters, own };
        let key = self.entries.insert(Entry::Listener(listener));
        self.register(fd, libc::EPOLLIN | libc::EPOLLET, key)
    }

    /// Takes over an accepted socket. It is registered before the next wait, if it is open then.
    pub(crate) fn add_stream(&mut self, socket: OwnedFd, unix: bool) -> Key {
        let stream = Stream::new(socket, Sending::default(), Own::new(unix));
        let key = self.entries.insert(Entry::Stream(stream));
        self.engine.unregistered.push(key);
        key
    }

    pub(crate) fn connect(&mut self, socket: OwnedFd, address: &SockAddr) -> io::Result<Key> {
        let fd = socket.as_raw_fd();
        set_nonblocking(&socket)?;
        match SockRef::from(&socket).connect(address) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let stream = Stream::new(socket, Sending::connecting(), Own::new(address.is_unix()));
        let key = self.entries.insert(Entry::Stream(stream));
        // Registered after connect(2): an unconnected socket reports EPOLLHUP.
        self.register(fd, stream::INTEREST, key)
    }

    /// Epoll reports the readiness of a socket when it is registered, so nothing is missed. A
    /// stream that cannot be registered, for lack of memory or watches, has failed.
    fn register_accepted(&mut self, wakes: &mut Vec<Waker>) {
        if self.engine.unregistered.is_empty() {
            return;
        }
        let mut accepted = std::mem::take(&mut self.engine.unregistered);
        for key in accepted.drain(..) {
            let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { continue };
            self.engine.shared.counters.syscalls.add(1);
            if let Err(error) = stream.register(&self.engine.epoll, key) {
                stream.fail(errno(&error), wakes);
                if stream.sending.is_closing() {
                    Epoll::close(self, key);
                }
            }
        }
        self.engine.unregistered = accepted;
    }

    pub(crate) fn add_udp(&mut self, socket: OwnedFd, setup: UdpSetup) -> io::Result<Key> {
        let count = setup.buffer_count;
        let pools = &mut self.engine.shared.datagrams;
        let group = match pools.iter().position(|pool| pool.fits(&setup, count)) {
            Some(group) => group,
            None if pools.len() == DATAGRAM_POOLS_MAX => return Err(too_many_geometries()),
            None => {
                pools.push(RecvBatch::new(&setup, count)?);
                pools.len() - 1
            }
        };
        let fd = socket.as_raw_fd();
        let udp = Box::new(Udp::new(setup, udp::Own::new(socket, group)));
        let key = self.entries.insert(Entry::Udp(udp));
        self.register(fd, udp::INTEREST, key)
    }

    fn register(&mut self, fd: RawFd, interest: i32, key: Key) -> io::Result<Key> {
        self.engine.shared.counters.syscalls.add(1);
        match self.engine.epoll.add(fd, interest, key.to_bits()) {
            Ok(()) => Ok(key),
            Err(error) => {
                self.entries.remove(key);
                Err(error)
            }
        }
    }

    #[inline(always)]
    pub(crate) fn try_send(
        &mut self,
        key: Key,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Option<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Some(Err(closed()));
        };
        match stream.sending.may_accept() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        let bytes = buf.as_ref().map_or(0, SendBuf::len);
        if bytes == 0 {
            *buf = None;
            return Some(Ok(()));
        }
        // Data behind a queue waits for the peer, and data with `more` does not wait.
        let gather = &mut self.engine.gather;
        if gather.is_on() && !stream.sending.is_queued() && !more {
            stream.sending.accept(bytes);
            gather.push(key, buf);
            if gather.is_full() {
                self.send_gathered();
            }
            return Some(Ok(()));
        }
        buf.take().map(|buf| self.send_now(key, buf, more))
    }

    /// Sends a buffer behind what is held back of its stream, by a system call or the queue.
    fn send_now(&mut self, key: Key, buf: SendBuf, more: bool) -> io::Result<()> {
        Epoll::send_held_back(self, key);
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return Err(closed()) };
        stream.sending.check()?;
        stream.sending.accept(buf.len());
        stream.send(buf, more, &self.engine.shared, &mut self.engine.woken)
    }

    /// The next events: those of the last wait, a portion at a time, or of a new one.
    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        if !self.has_arrivals() {
            self.submit(wakes)?;
            // The tasks woken by that may close streams that were never registered. Once between
            // two waits: a task that sends repeatedly must not delay events.
            let woken = !wakes.is_empty() && !self.engine.unregistered.is_empty();
            if woken && !std::mem::replace(&mut self.engine.waits_next, true) {
                return Ok(());
            }
            self.engine.waits_next = false;
            self.register_accepted(wakes);
            self.wait(if wakes.is_empty() { timeout } else { Some(Duration::ZERO) })?;
        }
        self.handle_events(PORTION, wakes);
        Ok(())
    }

    /// Sends what was gathered.
    pub(crate) fn submit(&mut self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        self.send_gathered();
        wakes.append(&mut self.engine.woken);
        Ok(())
    }

    /// True if events wait to be handled, so that `turn` does not call the kernel.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.engine.next_event < self.engine.events.len()
    }

    pub(crate) fn in_use(&self) -> InUse {
        let datagrams = self.engine.shared.datagrams.iter().map(RecvBatch::buffers_in_use);
        let buffers = self.engine.shared.pool.in_use() + datagrams.sum::<usize>();
        InUse { sockets: self.entries.len(), operations: 0, buffers }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.engine.shared.counters.waits.add(1);
        self.engine.shared.counters.syscalls.add(1);
        self.engine.next_event = 0;
        self.engine.events.clear();
        let calls = &self.engine.shared.counters.calls;
        calls
            .timed(Call::EpollWait, || self.engine.epoll.wait(&mut self.engine.events, timeout))?;
        self.engine.shared.counters.events.add(self.engine.events.len() as u64);
        self.engine.gather.begin(self.engine.events.len());
        if !self.lingering.is_empty() {
            self.expire_lingering();
        }
        Ok(())
    }

    fn handle_events(&mut self, most: usize, wakes: &mut Vec<Waker>) {
        let end = self.engine.events.len().min(self.engine.next_event.saturating_add(most));
        while self.engine.next_event < end {
            let Event { events, u64: data } = self.engine.events[self.engine.next_event];
            self.engine.next_event += 1;
            self.dispatch(Key::from_bits(data), events as i32, wakes);
        }
    }

    fn dispatch(&mut self, key: Key, bits: i32, wakes: &mut Vec<Waker>) {
        let finished = match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.on_event(bits, key, &mut self.engine, wakes);
                stream.sending.is_over()
            }
            Some(Entry::Udp(udp)) => {
                udp.on_event(bits, &mut self.engine.shared, wakes);
                let _said_later = udp.update_interest(&self.engine.epoll, key, &self.engine.shared);
                udp.outbox.closing && !udp.must_linger()
            }
            Some(Entry::Listener(listener)) => {
                listener.own.ready = true;
                listener.waiters.wake(wakes);
                false
            }
            // A stale event of this batch, for an entry closed earlier in it.
            Some(Entry::Wake(())) | None => false,
        };
        if finished {
            Epoll::close(self, key);
        }
    }
}

impl Engine for Epoll {
    type Wake = ();
    type Listener = Accepting;
    type Stream = Own;
    type Udp = udp::Own;

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    fn accept(&mut self, listener: &mut Listener) -> Option<io::Result<OwnedFd>> {
        let socket = listener.socket.as_ref().filter(|_| listener.own.ready)?;
        self.shared.counters.syscalls.add(1);
        match sys::accept(socket.as_raw_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.shared.counters.eagain.add(1);
                listener.own.ready = false;
                None
            }
            other => Some(other),
        }
    }

    #[inline]
    fn receive(&mut self, stream: &mut Stream) -> Option<RecvBuf> {
        stream.try_receive(&self.shared)
    }

    fn peek(&mut self, stream: &mut Stream, into: &mut [u8]) -> Option<usize> {
        stream.try_peek(into, &self.shared)
    }

    #[inline]
    fn await_bytes(&mut self, _key: Key, _stream: &mut Stream) -> io::Result<()> {
        Ok(())
    }

    fn send(
        &mut self,
        _key: Key,
        stream: &mut Stream,
        buf: SendBuf,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        stream.send_queued(buf, &self.shared, wakes)
    }

    fn await_sent(&mut self, _key: Key, _stream: &mut Stream) {}

    fn await_room(&mut self, _key: Key, _stream: &mut Stream) -> io::Result<()> {
        Ok(())
    }

    fn send_held_back(sockets: &mut Sockets<Epoll>, key: Key) {
        if let Some(Entry::Stream(stream)) = sockets.entries.get(key)
            && stream.sending.is_in_hand()
        {
            sockets.send_gathered();
        }
    }

    fn receive_batch(
        &mut self,
        _key: Key,
        udp: &mut Udp,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Option<io::Result<usize>> {
        udp.receive_batch(into, most, &mut self.shared)
    }

    fn await_datagrams(&mut self, _key: Key, _udp: &mut Udp) -> io::Result<()> {
        Ok(())
    }

    fn send_datagrams(&mut self, _key: Key, udp: &mut Udp) {
        udp.flush(&mut self.shared);
    }

    fn await_datagrams_sent(&mut self, key: Key, udp: &mut Udp) -> io::Result<()> {
        udp.update_interest(&self.epoll, key, &self.shared)
    }

    fn udp_fd(udp: &Udp) -> Option<RawFd> {
        Some(udp.fd())
    }

    /// Closing the descriptor removes it from the epoll set, unless the program has duplicated it.
    fn close(sockets: &mut Sockets<Epoll>, key: Key) {
        if sockets.entries.remove(key).is_some() {
            sockets.engine.shared.counters.syscalls.add(1);
        }
    }

    fn teardown(sockets: &mut Sockets<Epoll>, _patience: Duration, wakes: &mut Vec<Waker>) {
        for key in sockets.entries.keys() {
            sockets.wake_waiters(key, wakes);
            if let Some(Entry::Stream(stream)) = sockets.entries.remove(key) {
                stream.cut_off();
            }
        }
    }
}
