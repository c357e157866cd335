//! The epoll engine: the kernel reports readiness, and the engine makes the system calls.
//!
//! Edge-triggered, it registers each descriptor once and never calls epoll_ctl(2) again; an
//! accepted one not before the next wait, so that a connection that is served and closed by then
//! costs no registration. A receive or send is tried first and waits only when the kernel says
//! EAGAIN; a receive that did not fill its buffer has emptied the socket, so no second call is made
//! for the EAGAIN (it would cost 15 % in an echo). The exceptions are a hang-up, whose edge may
//! have been reported together with the last bytes, and urgent data, before which a receive ends:
//! after EPOLLRDHUP and EPOLLPRI the socket is read until EAGAIN or the end.

mod stream;
mod udp;

pub(super) use self::udp::EpollUdp;

use super::messages::{RecvBatch, SendBatch};
use super::sockets::{Listener, Sockets, Source};
use super::stream::{End, Receive, Stream, StreamRef};
use super::udp::{Udp, UdpSetup};
use crate::buf::{SendBuf, SharedBuf};
use crate::config::EpollOptions;
use crate::counters::Counters;
use crate::driver::common::{DriverSetup, check_geometries, errno};
use crate::slots::Key;
use crate::sys;
use crate::sys::poll::{EpollEvent, EpollSet};
use crate::sys::socket::{SockAddr, SockRef};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Events taken per wait; more stay in the kernel for the next turn.
const EVENTS_PER_TURN: usize = 512;
/// Events handled before their tasks run. The state of a connection is then still in the
/// first-level cache when its task runs, with any number of connections.
const PORTION: usize = 32;
/// Bytes of sends that may wait. More would leave the cache before they are sent.
const GATHERED_BYTES_MAX: usize = 128 * 1024;

pub(crate) struct EpollEngine {
    pub(super) epoll: EpollSet,
    events: Vec<EpollEvent>,
    next_event: usize,
    /// Sends that wait until all tasks of the current events have run, in the order in which they were made.
    gathered: Vec<(StreamRef, SendBuf)>,
    gathered_bytes: usize,
    gathered_max: usize,
    /// The last wait reported more than one event, and sends may wait.
    gathers: bool,
    /// Accepted streams that are to be registered before the next wait.
    unregistered: Vec<Key>,
    /// The tasks that the last gathered sends woke have run, and no wait came since.
    waits_next: bool,
    pub(super) shared: EpollShared,
}

/// The state that every operation needs beside its socket.
pub(super) struct EpollShared {
    buffer: SharedBuf,
    /// The pools that datagram sockets receive into, one for each geometry.
    datagrams: Vec<RecvBatch>,
    sends: SendBatch,
    pub(super) counters: Arc<Counters>,
}

impl EpollEngine {
    pub(crate) fn new(features: EpollOptions, setup: &DriverSetup) -> io::Result<EpollEngine> {
        let epoll = EpollSet::new()?;
        let (count, bytes) = (features.buffer_count as u16, features.buffer_bytes as usize);
        // It has no slot: its events only end a wait.
        epoll.add(setup.wake_fd, libc::EPOLLIN | libc::EPOLLET, u64::MAX)?;
        Ok(EpollEngine {
            epoll,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            next_event: 0,
            gathered: Vec::new(),
            gathered_bytes: 0,
            gathered_max: features.gather as usize,
            gathers: false,
            unregistered: Vec::new(),
            waits_next: false,
            shared: EpollShared {
                buffer: SharedBuf::new(count, bytes)?,
                datagrams: Vec::new(),
                sends: SendBatch::new(),
                counters: Arc::clone(&setup.counters),
            },
        })
    }

    pub(crate) fn add_listener(
        &mut self,
        sockets: &mut Sockets,
        socket: OwnedFd,
    ) -> io::Result<Key> {
        let fd = socket.as_raw_fd();
        SockRef::from(&socket).set_nonblocking(true)?;
        let key = sockets.add_listener(socket);
        self.register_new(sockets, fd, libc::EPOLLIN | libc::EPOLLET, key)
    }

    pub(crate) fn accept(&mut self, listener: &mut Listener) -> Option<io::Result<OwnedFd>> {
        let socket = listener.socket.as_ref().filter(|_| listener.ready)?;
        self.shared.counters.syscalls.add(1);
        match sys::accept(socket.as_raw_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.shared.counters.eagain.add(1);
                listener.ready = false;
                None
            }
            other => Some(other),
        }
    }

    /// Takes over an accepted socket. It is registered before the next wait, if it is open then.
    pub(crate) fn add_stream(&mut self, stream: &mut Stream, unix: bool) {
        stream.receiving.state = Receive::Readable;
        stream.receiving.read_on = unix;
        self.unregistered.push(stream.key);
    }

    pub(crate) fn connect(&mut self, stream: &mut Stream, address: &SockAddr) -> io::Result<()> {
        let Some(socket) = &stream.socket else { return Ok(()) };
        match SockRef::from(socket).connect(address) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        stream.receiving.state = Receive::Readable;
        stream.receiving.read_on = address.is_unix();
        // Registered after connect(2): an unconnected socket reports EPOLLHUP.
        self.shared.counters.syscalls.add(1);
        stream.register(&self.epoll)
    }

    /// Epoll reports the readiness of a socket when it is registered, so nothing is missed. A
    /// stream that cannot be registered, for lack of memory or watches, has failed.
    #[cold]
    fn register_accepted(&mut self, sockets: &mut Sockets) {
        for key in std::mem::take(&mut self.unregistered) {
            let Some((stream, wakes)) = sockets.stream(key) else { continue };
            self.shared.counters.syscalls.add(1);
            let closes = {
                let stream = &mut *stream.borrow_mut();
                let registered = stream.register(&self.epoll);
                registered.is_err_and(|error| {
                    stream.cut_off();
                    stream.receiving.finish(End::Error(errno(&error)), wakes);
                    stream.sending.fail(errno(&error), wakes);
                    stream.sending.closing
                })
            };
            if closes {
                self.close(sockets, key);
            }
        }
    }

    pub(crate) fn add_udp(
        &mut self,
        sockets: &mut Sockets,
        socket: OwnedFd,
        setup: UdpSetup,
    ) -> io::Result<Key> {
        let pools = &mut self.shared.datagrams;
        let group = match pools.iter().position(|pool| pool.fits(&setup)) {
            Some(group) => group,
            None => {
                check_geometries(pools.len())?;
                pools.push(RecvBatch::new(&setup)?);
                pools.len() - 1
            }
        };
        let fd = socket.as_raw_fd();
        let key = sockets.sources.insert(Source::Udp(Udp::new(socket, setup, group)));
        self.register_new(sockets, fd, udp::INTEREST, key)
    }

    fn register_new(
        &mut self,
        sockets: &mut Sockets,
        fd: RawFd,
        interest: i32,
        key: Key,
    ) -> io::Result<Key> {
        self.shared.counters.syscalls.add(1);
        match self.epoll.add(fd, interest, key.to_bits()) {
            Ok(()) => Ok(key),
            Err(error) => {
                sockets.remove(key);
                Err(error)
            }
        }
    }

    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    pub(crate) fn try_send(
        &mut self,
        sockets: &mut Sockets,
        shared: &StreamRef,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Poll<io::Result<()>> {
        let mut stream = shared.borrow_mut();
        if !stream.sending.may_accept()? {
            return Poll::Pending;
        }
        // Data behind a queue waits for the peer, and data with `more` does not wait.
        let waits = self.gathers && !stream.sending.is_queued() && !more;
        if !waits && stream.sending.is_in_hand() {
            // Behind what is held back of the stream.
            drop(stream);
            self.send_gathered(sockets);
            return self.try_send(sockets, shared, buf, more);
        }
        let Some(buf) = buf.take().filter(|buf| !buf.is_empty()) else {
            return Poll::Ready(Ok(()));
        };
        if !waits {
            return Poll::Ready(stream.send(buf, more, &self.shared, &mut sockets.wakes));
        }
        stream.sending.unsent += buf.len();
        drop(stream);
        self.gathered_bytes += buf.len();
        self.gathered.push((Rc::clone(shared), buf));
        if self.gathered.len() >= self.gathered_max || self.gathered_bytes >= GATHERED_BYTES_MAX {
            self.send_gathered(sockets);
        }
        Poll::Ready(Ok(()))
    }

    /// Makes the sends that wait.
    ///
    /// A send to a socket of another CPU ends by notifying that CPU: over veth with receive steering by
    /// an interrupt, unless that CPU is still busy with earlier work. Sends in a burst share one
    /// interrupt: an echo of 100 x 128 B over such a network takes 1.23 [1.18, 1.29] times less CPU. A
    /// ring gathers its sends by itself; here they are held back until the tasks of all reported events
    /// have run. With a single event there is nothing to wait for: its task's sends leave at once, so
    /// that a single connection loses no latency.
    #[inline(never)]
    fn send_gathered(&mut self, sockets: &mut Sockets) {
        let (shared, wakes) = (&self.shared, &mut sockets.wakes);
        self.gathered_bytes = 0;
        for (stream, buf) in self.gathered.drain(..) {
            let stream = &mut *stream.borrow_mut();
            // One that was closed in between has sent its data first, or was to be cut off.
            if stream.sending.failed() {
                continue;
            }
            stream.sending.sent(buf.len());
            // A part of an earlier one may have been queued meanwhile.
            let _told_by_the_next = stream.send(buf, false, shared, wakes);
            if stream.sending.is_awaited() {
                stream.shut_down_if_due(&shared.counters);
                stream.sending.wake_if_room(wakes);
            }
        }
    }

    /// Sends the data of a stream that waits for the end of the round.
    pub(crate) fn send_held_back(&mut self, sockets: &mut Sockets, stream: &StreamRef) {
        if stream.borrow().sending.is_in_hand() {
            self.send_gathered(sockets);
        }
    }

    /// The next events: those of the last wait, a portion at a time, or of a new one.
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    pub(crate) fn turn(
        &mut self,
        sockets: &mut Sockets,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        if self.next_event == self.events.len() {
            sockets.round += 1;
            self.submit(sockets);
            if !self.unregistered.is_empty() {
                // The tasks woken by that may close streams that were never registered. Once between
                // two waits: a task that sends repeatedly must not delay events.
                if !sockets.wakes.is_empty() && !std::mem::replace(&mut self.waits_next, true) {
                    return Ok(());
                }
                self.register_accepted(sockets);
            }
            self.waits_next = false;
            self.wait(if sockets.wakes.is_empty() { timeout } else { Some(Duration::ZERO) })?;
        }
        let end = self.events.len().min(self.next_event + PORTION);
        for at in self.next_event..end {
            let EpollEvent { flags, data } = self.events[at];
            let (key, bits) = (Key::from_bits(data.u64()), flags.bits() as i32);
            let finished = match sockets.stream(key) {
                Some((stream, wakes)) => stream.borrow_mut().on_event(bits, &self.shared, wakes),
                None => self.on_other_event(sockets, key, bits),
            };
            if finished {
                self.close(sockets, key);
            }
        }
        self.next_event = end;
        Ok(())
    }

    /// Portions of events that are to be handled: any number if the last turn did not look for events.
    pub(crate) fn portions_left(&self) -> usize {
        let left = (self.events.len() - self.next_event).div_ceil(PORTION);
        if self.waits_next { usize::MAX } else { left }
    }

    #[inline]
    pub(crate) fn submit(&mut self, sockets: &mut Sockets) {
        if !self.gathered.is_empty() {
            self.send_gathered(sockets);
        }
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let EpollShared { buffer, datagrams, counters, .. } = &self.shared;
        let in_use = datagrams.iter().map(|batch| batch.pool.in_use());
        counters.buffers_in_use.set((buffer.in_use() + in_use.sum::<usize>()) as u64);
        counters.waits.add(1);
        self.next_event = 0;
        self.epoll.wait(&mut self.events, timeout)?;
        counters.events.add(self.events.len() as u64);
        self.gathers = self.events.len() > 1 && self.gathered_max > 0;
        Ok(())
    }

    /// An event of no stream. True if the socket is to be closed.
    #[cold]
    fn on_other_event(&mut self, sockets: &mut Sockets, key: Key, bits: i32) -> bool {
        let Sockets { sources, wakes, .. } = sockets;
        match sources.get_mut(key) {
            Some(Source::Udp(udp)) => {
                udp.on_event(bits, &mut self.shared, wakes);
                let _said_later = udp.update_interest(&self.epoll, key, &self.shared);
                udp.outbox.closing && udp.is_settled()
            }
            Some(Source::Listener(listener)) => {
                listener.ready = true;
                listener.waiters.wake(wakes);
                false
            }
            // A stale event of this batch, for a socket closed earlier in it; or the worker's eventfd.
            Some(Source::Stream(_)) | None => false,
        }
    }

    /// Closing the descriptor removes it from the epoll set, unless the program has duplicated it.
    pub(crate) fn close(&mut self, sockets: &mut Sockets, key: Key) {
        if sockets.remove(key).is_some() {
            self.shared.counters.syscalls.add(1);
        }
    }
}
