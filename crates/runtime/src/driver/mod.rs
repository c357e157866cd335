//! The driver contract, and the choice between its implementations.
//!
//! A driver belongs to one worker thread. It owns the sockets registered with it; other code refers
//! to them by [`Key`]. The contract, which the suite in `tests/contract/` checks once per
//! engine and once per degraded feature set:
//!
//! 1. A key is slot and generation; late completions for a slot that was reused find nothing. A
//!    slot counts the completions it still expects and is reused only at zero.
//! 2. Dropping a future never frees memory the kernel can see. Closing a socket orphans its slot;
//!    the last completion releases what it held.
//! 3. A cancelled operation ends exactly once, with ECANCELED.
//! 4. Teardown cancels all, drains to zero, then frees. Closing the ring is no barrier: the
//!    kernel may write into buffers after close(2) of the ring has returned.
//! 5. Received data is a queue of the socket: dropping `recv()` loses nothing. An empty buffer
//!    is the end of the stream and nothing else.
//! 6. Running out of provided buffers pauses that receive until a buffer returns; it neither
//!    spins nor starves others. Under pressure received data is copied out of the pool, so no reader
//!    can hold all of it.
//! 7. A peer that does not read stops us reading from it within a bound
//!    (`queues::RECEIVED_BYTES_MAX`, `stream::QUEUED_BYTES_MAX`); all others are served meanwhile.
//! 8. At most one send in flight per stream, short sends continued, order kept. Sends are owned;
//!    an error surfaces at the next call.
//! 9. Closing reaches the wire: pending receives are cancelled before the descriptor goes.
//! 10. EMFILE on accept is an ordinary error here; the listener (`net::TcpListener`) waits.
//! 11. An idle connection holds no receive buffer.
//! 12. Datagrams are queued and sent whole; those that the kernel does not accept are sent again or
//!     counted (`udp::Outbox`). An ICMP error ends neither receiving nor sending.
//! 13. A file is sent in pieces, by non-blocking system calls, while it has the sending half of its
//!     stream to itself; other sends and FIN wait behind it. A read that may wait for a disk is an
//!     operation that owns its memory like any other (`uring::files`, `crate::blocking`).
//!
//! Operations are polled: they register the task's waker, and the driver's `turn` returns it when the
//! operation should be polled again. Wakers are collected during a turn and called after it, cloned
//! before the driver is borrowed and dropped after that ([`Waiter`]), so no foreign code runs
//! while it is borrowed. A future that is dropped removes its waker.

mod ancillary;
mod common;
mod epoll;
#[cfg(all(test, not(loom)))]
mod foreign_wakers;
mod messages;
mod queues;
mod sockets;
pub(crate) mod stream;
pub(crate) mod udp;
mod uring;

pub(crate) use self::common::{DriverSetup, Side, errno};

use self::common::closed;
use self::epoll::Epoll;
use self::sockets::{Entry, Sockets};
use self::stream::{Sending, Stream, StreamRef};
use self::udp::{Udp, UdpSetup};
use self::uring::Uring;
use crate::buf::{RecvBuf, SendBuf};
use crate::config::Features;
use crate::counters::Counters;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::slots::Key;
use crate::sys;
use crate::sys::socket::SockAddr;
use crate::task::{WaitQueue, WaitToken, Waiter};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// One worker's engine, and the sockets registered with it. The operations are transitions of a socket's
/// state and, where a kernel is needed, a call of the engine.
pub(crate) struct Driver {
    // Dropped in this order: a ring before the memory that it uses.
    engine: Engine,
    sockets: Sockets,
}

enum Engine {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
}

impl Driver {
    pub(crate) fn new(features: &Features, setup: &DriverSetup) -> io::Result<Driver> {
        let mut sockets = Sockets::new(setup);
        let engine = match features {
            Features::IoUring(features) => {
                Engine::Uring(Box::new(Uring::new(features.clone(), setup, &mut sockets)?))
            }
            Features::Epoll(features) => {
                Engine::Epoll(Box::new(Epoll::new(features.clone(), setup, &mut sockets)?))
            }
        };
        Ok(Driver { engine, sockets })
    }

    fn counters(&self) -> &Counters {
        match &self.engine {
            Engine::Uring(uring) => &uring.counters,
            Engine::Epoll(epoll) => &epoll.shared.counters,
        }
    }

    fn stream(&self, key: Key) -> io::Result<StreamRef> {
        self.sockets.stream(key).cloned().ok_or_else(closed)
    }

    fn udp(&mut self, key: Key) -> io::Result<(&mut Udp, &mut Engine)> {
        Ok((self.sockets.udp(key).ok_or_else(closed)?, &mut self.engine))
    }

    /// Takes over a listening socket.
    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        match &mut self.engine {
            Engine::Uring(_) => Ok(self.sockets.add_listener(socket)),
            Engine::Epoll(epoll) => epoll.add_listener(&mut self.sockets, socket),
        }
    }

    /// The next connection of a listener.
    pub(crate) fn poll_accept(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<OwnedFd>> {
        let listener = self.sockets.listener(key).ok_or_else(closed)?;
        let accepted = match &mut self.engine {
            Engine::Uring(_) => listener.uring.accepted.pop_front(),
            Engine::Epoll(epoll) => epoll.accept(listener),
        };
        if let Some(accepted) = accepted {
            return Poll::Ready(accepted);
        }
        listener.waiters.add(waiter);
        if let Engine::Uring(uring) = &mut self.engine {
            uring.arm_accept(key, listener);
        }
        Poll::Pending
    }

    /// Takes over an accepted socket.
    pub(crate) fn add_stream(&mut self, socket: OwnedFd, unix: bool) -> StreamRef {
        let stream = self.insert(Stream::new(socket, stream::Sending::default()));
        if let Engine::Epoll(epoll) = &mut self.engine {
            epoll.add_stream(&mut stream.borrow_mut(), unix);
        }
        stream
    }

    /// Takes over a fresh socket and starts to connect it.
    pub(crate) fn connect(&mut self, socket: OwnedFd, address: &SockAddr) -> io::Result<StreamRef> {
        let stream = self.insert(Stream::new(socket, stream::Sending::connecting()));
        let key = stream.borrow().key;
        let started = match &mut self.engine {
            Engine::Uring(uring) => {
                uring.connect(&mut stream.borrow_mut(), address);
                Ok(())
            }
            Engine::Epoll(epoll) => epoll.connect(&mut stream.borrow_mut(), address),
        };
        if started.is_err() {
            self.sockets.remove(key);
        }
        started.map(|()| stream)
    }

    fn insert(&mut self, stream: Stream) -> StreamRef {
        let stream = Rc::new(RefCell::new(stream));
        let key = self.sockets.entries.insert(Entry::Stream(Rc::clone(&stream)));
        stream.borrow_mut().key = key;
        stream
    }

    /// The next received piece; empty at the end of the stream. Waits if there is none.
    pub(crate) fn poll_recv(
        &mut self,
        stream: &StreamRef,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<RecvBuf>> {
        let stream = &mut *stream.borrow_mut();
        stream.receiving.waiters.leave(waiter);
        if let Some(piece) = stream.receiving.unread.pop() {
            return Poll::Ready(Ok(piece));
        }
        if let Some(piece) = self.receive(stream) {
            return Poll::Ready(Ok(piece));
        }
        let polled = stream.receiving.poll_end(waiter);
        if let Engine::Uring(uring) = &mut self.engine
            && polled.is_pending()
        {
            uring.await_bytes(stream);
        }
        polled
    }

    /// Bytes that are still with the kernel, and that a system call gets.
    #[inline]
    pub(crate) fn receive(&self, stream: &mut Stream) -> Option<RecvBuf> {
        match &self.engine {
            Engine::Epoll(epoll) if stream.is_readable() => stream.receive(&epoll.shared),
            _ => None,
        }
    }

    /// Takes `buf` if the stream's queue has room; `None` if it has none. `more`: further data follows
    /// immediately.
    #[inline]
    pub(crate) fn try_send(
        &mut self,
        stream: &StreamRef,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Option<io::Result<()>> {
        match &mut self.engine {
            Engine::Uring(uring) => uring.try_send(&mut stream.borrow_mut(), buf, more),
            Engine::Epoll(epoll) => epoll.try_send(&mut self.sockets, stream, buf, more),
        }
    }

    /// Polls the sending half for what has to wait until data is with the kernel.
    pub(crate) fn poll_sending<T>(
        &mut self,
        stream: &StreamRef,
        ask: impl FnOnce(&mut Sending) -> T,
    ) -> T {
        let stream = &mut *stream.borrow_mut();
        self.engine.await_sent(stream);
        let polled = ask(&mut stream.sending);
        self.engine.await_sent(stream);
        polled
    }

    /// Queues FIN behind what is queued.
    pub(crate) fn finish(&mut self, stream: &StreamRef) {
        self.poll_sending(stream, Sending::finish);
        stream.borrow_mut().shut_down_if_due(self.counters());
    }

    /// Ready when the socket accepts more again, or is broken. `asked` belongs to the caller and is false
    /// at the first call, which therefore always waits.
    pub(crate) fn poll_room(
        &mut self,
        stream: &StreamRef,
        waiter: &mut Waiter<'_>,
        asked: &mut bool,
    ) -> Poll<io::Result<()>> {
        let stream = &mut *stream.borrow_mut();
        let awaited = stream.sending.awaits_room;
        let polled = stream.sending.poll_writable(waiter, asked);
        if let Engine::Uring(uring) = &mut self.engine
            && polled.is_pending()
            && !awaited
        {
            uring.await_room(stream)?;
        }
        polled.map(Ok)
    }

    /// The ring, which reads files; `None` on epoll.
    pub(crate) fn uring(&mut self) -> Option<&mut Uring> {
        match &mut self.engine {
            Engine::Uring(uring) => Some(uring),
            Engine::Epoll(_) => None,
        }
    }

    /// Takes over a bound or connected datagram socket.
    pub(crate) fn add_udp(&mut self, socket: OwnedFd, setup: UdpSetup) -> io::Result<Key> {
        match &mut self.engine {
            Engine::Uring(uring) => uring.add_udp(&mut self.sockets, socket, setup),
            Engine::Epoll(epoll) => epoll.add_udp(&mut self.sockets, socket, setup),
        }
    }

    /// Appends at least one and at most `most` received datagrams; returns how many.
    pub(crate) fn poll_recv_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let (udp, engine) = self.udp(key)?;
        udp.receive_waiters.leave(waiter);
        let received = match engine {
            Engine::Uring(uring) => uring.take_datagrams(key, udp, into, most),
            Engine::Epoll(epoll) => udp.receive_batch(into, most, &mut epoll.shared),
        };
        if let Some(received) = received {
            return Poll::Ready(received);
        }
        udp.receive_waiters.add(waiter);
        if let Engine::Uring(uring) = engine {
            uring.arm_datagrams(key, udp);
        }
        Poll::Pending
    }

    /// Takes as many datagrams from the front of `batch` as there is room for.
    pub(crate) fn send_batch(&mut self, key: Key, batch: &mut Vec<Datagram>) -> io::Result<()> {
        let (udp, engine) = self.udp(key)?;
        while udp.outbox.take(batch) {
            engine.send_datagrams(key, udp);
        }
        engine.await_datagrams_sent(key, udp)
    }

    /// Ready when [`send_batch`](Driver::send_batch) has taken all.
    pub(crate) fn poll_send_batch(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        batch: &mut Vec<Datagram>,
    ) -> Poll<io::Result<()>> {
        self.send_batch(key, batch)?;
        self.poll_outbox(key, waiter, |_| batch.is_empty())
    }

    /// Ready if `done`; otherwise waits until datagrams are with the kernel or were counted as not sent.
    pub(crate) fn poll_outbox(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        done: impl FnOnce(&Udp) -> bool,
    ) -> Poll<io::Result<()>> {
        let (udp, engine) = self.udp(key)?;
        let done = done(udp);
        if !done {
            udp.outbox.waiters.add(waiter);
        }
        engine.await_datagrams_sent(key, udp)?;
        if done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The counters of a datagram socket.
    pub(crate) fn udp_stats(&self, key: Key) -> Option<UdpStats> {
        match self.sockets.entries.get(key)? {
            Entry::Udp(udp) => Some(udp.stats),
            _ => None,
        }
    }

    /// Does something to the waiters of this side of a socket.
    fn with_queue<R>(
        &mut self,
        key: Key,
        side: Side,
        what: impl FnOnce(&mut WaitQueue) -> R,
    ) -> Option<R> {
        match (self.sockets.entries.get_mut(key)?, side) {
            (Entry::Stream(stream), Side::Receive) => {
                Some(what(&mut stream.borrow_mut().receiving.waiters))
            }
            (Entry::Stream(stream), Side::Send) => {
                Some(what(&mut stream.borrow_mut().sending.waiters))
            }
            (Entry::Udp(udp), Side::Receive) => Some(what(&mut udp.receive_waiters)),
            (Entry::Udp(udp), Side::Send) => Some(what(&mut udp.outbox.waiters)),
            (Entry::Listener(listener), _) => Some(what(&mut listener.waiters)),
            (Entry::Wake(_), _) => None,
        }
    }

    /// Lets `wake_waiters` wake a task that is waiting for something else.
    pub(crate) fn watch_sends(&mut self, key: Key, waiter: &mut Waiter<'_>) {
        self.with_queue(key, Side::Send, |queue| queue.add(waiter));
    }

    /// A future that may wait for this socket was dropped. Drop the waker when the driver is no longer
    /// borrowed.
    pub(crate) fn forget_waiter(
        &mut self,
        key: Key,
        side: Side,
        token: &mut WaitToken,
    ) -> Option<Waker> {
        self.with_queue(key, side, |queue| queue.remove(token)).flatten()
    }

    /// Collects the wakers of all waiters of this socket.
    pub(crate) fn wake_waiters(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        for side in [Side::Receive, Side::Send] {
            self.with_queue(key, side, |queue| queue.wake(wakes));
        }
    }

    /// The descriptor, for socket options and addresses; it stays the driver's.
    pub(crate) fn fd(&self, key: Key) -> Option<BorrowedFd<'_>> {
        let fd = match self.sockets.entries.get(key)? {
            Entry::Stream(stream) => stream.borrow().fd(),
            Entry::Listener(listener) => listener.socket.as_ref().map(AsRawFd::as_raw_fd),
            Entry::Udp(udp) => udp.fd(),
            Entry::Wake(_) => None,
        };
        // SAFETY: the driver owns the descriptor, and closes none while it is borrowed.
        fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Closes a socket. Queued data is still sent, for at most the linger time, unless it is to be
    /// discarded. Collects the wakers of futures that were leaked.
    pub(crate) fn close(&mut self, key: Key, discards: bool, wakes: &mut Vec<Waker>) {
        self.wake_waiters(key, wakes);
        if let Ok(stream) = self.stream(key) {
            if discards {
                stream.borrow_mut().sending.fail(libc::ECANCELED, wakes);
            }
            if let Engine::Epoll(epoll) = &mut self.engine {
                epoll.send_held_back(&mut self.sockets, &stream);
            }
            let over = self.poll_sending(&stream, |sending| {
                sending.closing = true;
                sending.is_over()
            });
            if !over {
                return self.sockets.linger(key);
            }
        } else if let Ok((udp, engine)) = self.udp(key) {
            udp.outbox.closing = true;
            if !udp.is_settled() {
                let _gone_with_the_socket = engine.await_datagrams_sent(key, udp);
                return self.sockets.linger(key);
            }
        }
        match &mut self.engine {
            Engine::Uring(uring) => uring.abandon(&mut self.sockets, key),
            Engine::Epoll(epoll) => epoll.close(&mut self.sockets, key),
        }
    }

    /// Submits new operations to the kernel, waits at most `timeout` (`None`: until an event occurs),
    /// handles a portion of the events, and collects the wakers to call. The next call handles the next
    /// portion, without waiting. This and the next fail only if the engine as a whole is unusable.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        match &mut self.engine {
            Engine::Uring(uring) => uring.turn(&mut self.sockets, timeout, wakes),
            Engine::Epoll(epoll) => epoll.turn(&mut self.sockets, timeout, wakes),
        }
    }

    /// Submits new operations to the kernel now. Events stay for the next `turn`, unless the
    /// kernel reports them by itself.
    pub(crate) fn submit(&mut self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        match &mut self.engine {
            Engine::Uring(uring) => uring.submit(&mut self.sockets, wakes),
            Engine::Epoll(epoll) => epoll.submit(&mut self.sockets, wakes),
        }
    }

    /// The number of the round: data that tasks handle in a round had arrived when it began.
    pub(crate) fn round(&self) -> u64 {
        self.sockets.round
    }

    /// Closes the sockets that have lingered long enough.
    pub(crate) fn expire_lingering(&mut self) {
        let now = sys::now();
        while let Some((deadline, key)) = self.sockets.lingering.front().copied()
            && deadline <= now
        {
            self.sockets.lingering.pop_front();
            if !self.sockets.is_open(key) {
                continue;
            }
            if let Some(stream) = self.sockets.stream(key) {
                stream.borrow().cut_off();
            }
            self.counters().lingers_expired.add(1);
            match &mut self.engine {
                Engine::Uring(uring) => uring.abandon(&mut self.sockets, key),
                Engine::Epoll(epoll) => epoll.close(&mut self.sockets, key),
            }
        }
    }

    /// When `turn` has to run even without events.
    #[inline]
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        if self.sockets.lingering.is_empty() { None } else { self.next_linger() }
    }

    #[cold]
    fn next_linger(&mut self) -> Option<Instant> {
        let sockets = &mut self.sockets;
        while let Some((deadline, key)) = sockets.lingering.front().copied() {
            if sockets.is_open(key) {
                return Some(deadline);
            }
            sockets.lingering.pop_front();
        }
        None
    }

    /// True while closed streams still send.
    pub(crate) fn is_lingering(&mut self) -> bool {
        self.next_deadline().is_some()
    }

    /// Cancels everything, waits until the kernel holds nothing (at most `patience` for operations on
    /// files), closes all descriptors. Collects the wakers of sockets and futures that were leaked.
    pub(crate) fn teardown(&mut self, patience: Duration, wakes: &mut Vec<Waker>) {
        for key in self.sockets.entries.keys() {
            self.wake_waiters(key, wakes);
            if let Ok(stream) = self.stream(key) {
                self.poll_sending(&stream, |_| ());
                stream.borrow().cut_off();
            }
        }
        match &mut self.engine {
            Engine::Uring(uring) => uring.tear_down(&mut self.sockets, patience, wakes),
            Engine::Epoll(_) => {
                for key in self.sockets.entries.keys() {
                    self.sockets.remove(key);
                }
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.teardown(Duration::ZERO, &mut Vec::new());
    }
}

impl Engine {
    /// A task, FIN or a close may wait until the data that is being sent is with the kernel.
    fn await_sent(&mut self, stream: &mut Stream) {
        if let Engine::Uring(uring) = self {
            uring.await_sent(stream);
        }
    }

    /// Sends as much of the outbox as the kernel accepts now.
    fn send_datagrams(&mut self, key: Key, udp: &mut Udp) {
        match self {
            Engine::Uring(uring) => uring.submit_datagrams(key, udp),
            Engine::Epoll(epoll) => udp.flush(&mut epoll.shared),
        }
    }

    /// As [`await_sent`](Engine::await_sent), and after datagrams were sent.
    fn await_datagrams_sent(&mut self, key: Key, udp: &mut Udp) -> io::Result<()> {
        match self {
            Engine::Uring(uring) => {
                uring.held_up |= udp.is_held_up();
                Ok(())
            }
            Engine::Epoll(epoll) => udp.update_interest(&epoll.epoll, key, &epoll.shared),
        }
    }
}
