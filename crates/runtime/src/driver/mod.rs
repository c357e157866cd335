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
//! operation should be polled again. Wakers are collected in [`Sockets::wakes`] and called after a turn,
//! cloned before the driver is borrowed and dropped after that ([`Waiter`]), so no foreign code runs
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

use self::common::{closed, reset_on_close};
use self::epoll::EpollEngine;
use self::sockets::{Sockets, Source};
use self::stream::{Sending, Stream, StreamRef};
use self::uring::UringEngine;
use crate::buf::{RecvBuf, SendBuf};
use crate::config::Features;
use crate::counters::Counters;
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
    engine: Backend,
    sockets: Sockets,
}

enum Backend {
    Uring(Box<UringEngine>),
    Epoll(Box<EpollEngine>),
}

impl Driver {
    pub(crate) fn new(features: &Features, setup: &DriverSetup) -> io::Result<Driver> {
        let engine = match features {
            Features::IoUring(features) => {
                Backend::Uring(Box::new(UringEngine::new(features.clone(), setup)?))
            }
            Features::Epoll(features) => {
                Backend::Epoll(Box::new(EpollEngine::new(features.clone(), setup)?))
            }
        };
        Ok(Driver { engine, sockets: Sockets::new(setup) })
    }

    fn counters(&self) -> &Counters {
        match &self.engine {
            Backend::Uring(uring) => &uring.counters,
            Backend::Epoll(epoll) => &epoll.shared.counters,
        }
    }

    fn stream(&mut self, key: Key) -> io::Result<StreamRef> {
        self.sockets.stream(key).map(|(stream, _)| Rc::clone(stream)).ok_or_else(closed)
    }

    pub(crate) fn add_stream(&mut self, socket: OwnedFd, unix: bool) -> StreamRef {
        let stream = self.insert(Stream::new(socket, stream::Sending::default()));
        if let Backend::Epoll(epoll) = &mut self.engine {
            epoll.add_stream(&mut stream.borrow_mut(), unix);
        }
        stream
    }

    pub(crate) fn connect(&mut self, socket: OwnedFd, address: &SockAddr) -> io::Result<StreamRef> {
        let stream = self.insert(Stream::new(socket, stream::Sending::connecting()));
        let key = stream.borrow().key;
        let started = match &mut self.engine {
            Backend::Uring(uring) => {
                uring.connect(&mut stream.borrow_mut(), address);
                Ok(())
            }
            Backend::Epoll(epoll) => epoll.connect(&mut stream.borrow_mut(), address),
        };
        if started.is_err() {
            self.sockets.remove(key);
        }
        started.map(|()| stream)
    }

    fn insert(&mut self, stream: Stream) -> StreamRef {
        let stream = Rc::new(RefCell::new(stream));
        let key = self.sockets.sources.insert(Source::Stream(Rc::clone(&stream)));
        stream.borrow_mut().key = key;
        stream
    }

    /// A task waits for bytes, and no receive is with the kernel.
    #[cold]
    pub(crate) fn start_receive(&mut self, stream: &mut Stream) {
        if let Backend::Uring(uring) = &mut self.engine {
            uring.arm_receive(stream);
        }
    }

    /// Bytes that are still with the kernel, and that a system call gets.
    #[inline]
    pub(crate) fn receive(&mut self, stream: &mut Stream) -> Option<RecvBuf> {
        match &mut self.engine {
            Backend::Epoll(epoll) if stream.is_readable() => stream.receive(&mut epoll.shared),
            _ => None,
        }
    }

    /// Takes `buf` if the stream's queue has room; otherwise it is pending, and nothing will wake it. `more`:
    /// further data follows immediately.
    #[inline]
    pub(crate) fn try_send(
        &mut self,
        stream: &StreamRef,
        buf: &mut Option<SendBuf>,
        more: bool,
    ) -> Poll<io::Result<()>> {
        match &mut self.engine {
            Backend::Uring(uring) => {
                uring.try_send(&mut stream.borrow_mut(), buf, more, &mut self.sockets.wakes)
            }
            Backend::Epoll(epoll) => epoll.try_send(&mut self.sockets, stream, buf, more),
        }
    }

    /// [`Sending::poll`], for what has to wait until data is with the kernel.
    pub(crate) fn poll_sending(
        &mut self,
        stream: &StreamRef,
        waiter: &mut Waiter<'_>,
        ready: impl FnOnce(&mut Sending) -> io::Result<bool>,
    ) -> Poll<io::Result<()>> {
        self.with_sending(stream, |sending| sending.poll(waiter, ready))
    }

    fn with_sending<T>(&mut self, stream: &StreamRef, ask: impl FnOnce(&mut Sending) -> T) -> T {
        let stream = &mut *stream.borrow_mut();
        self.engine.await_sent(stream);
        let told = ask(&mut stream.sending);
        self.engine.await_sent(stream);
        told
    }

    /// Queues FIN behind what is queued.
    pub(crate) fn finish(&mut self, stream: &StreamRef) {
        self.with_sending(stream, Sending::finish);
        stream.borrow_mut().shut_down_if_due(self.counters());
    }

    pub(crate) fn put_back(&mut self, stream: &StreamRef, piece: RecvBuf) {
        stream.borrow_mut().receiving.put_back(piece, &mut self.sockets.wakes);
    }

    /// Releases a sending half that a file had to itself. With an errno it is broken from now on, and a close
    /// sends a reset.
    pub(crate) fn end_file(&mut self, stream: &StreamRef, broken: Option<i32>) {
        let stream = &mut *stream.borrow_mut();
        if let Some(errno) = broken {
            stream.sending.fail(errno, &mut self.sockets.wakes);
            stream.socket.iter().for_each(reset_on_close);
        }
        stream.sending.end_file(&mut self.sockets.wakes);
        stream.shut_down_if_due(self.counters());
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
        if std::mem::replace(asked, true) && !awaited {
            return Poll::Ready(Ok(()));
        }
        stream.sending.awaits_room = true;
        stream.sending.waiters.add(waiter);
        if let Backend::Uring(uring) = &mut self.engine
            && !awaited
        {
            uring.await_room(stream)?;
        }
        Poll::Pending
    }

    /// The ring, which reads files; `None` on epoll.
    pub(crate) fn uring(&mut self) -> Option<&mut UringEngine> {
        match &mut self.engine {
            Backend::Uring(uring) => Some(uring),
            Backend::Epoll(_) => None,
        }
    }

    /// Does something to the waiters of this side of a socket; it may collect their wakers.
    fn with_queue<R>(
        &mut self,
        key: Key,
        side: Side,
        what: impl FnOnce(&mut WaitQueue, &mut Vec<Waker>) -> R,
    ) -> Option<R> {
        let Sockets { sources, wakes, .. } = &mut self.sockets;
        let mut stream;
        let queue = match (sources.get_mut(key)?, side) {
            (Source::Stream(shared), side) => {
                stream = shared.borrow_mut();
                match side {
                    Side::Receive => &mut stream.receiving.waiters,
                    Side::Send => &mut stream.sending.waiters,
                }
            }
            (Source::Udp(udp), Side::Receive) => &mut udp.receive_waiters,
            (Source::Udp(udp), Side::Send) => &mut udp.outbox.waiters,
            (Source::Listener(listener), _) => &mut listener.waiters,
        };
        Some(what(queue, wakes))
    }

    /// Lets `wake_waiters` wake a task that is waiting for something else.
    pub(crate) fn watch_sends(&mut self, key: Key, waiter: &mut Waiter<'_>) {
        self.with_queue(key, Side::Send, |queue, _| queue.add(waiter));
    }

    /// A future that may wait for this socket was dropped. Drop the waker when the driver is no longer
    /// borrowed.
    pub(crate) fn forget_waiter(
        &mut self,
        key: Key,
        side: Side,
        token: &mut WaitToken,
    ) -> Option<Waker> {
        self.with_queue(key, side, |queue, _| queue.remove(token)).flatten()
    }

    /// Wakes all waiters of this socket, in the next turn.
    pub(crate) fn wake_waiters(&mut self, key: Key) {
        for side in [Side::Receive, Side::Send] {
            self.with_queue(key, side, WaitQueue::wake);
        }
    }

    /// The descriptor, for socket options and addresses; it stays the driver's.
    pub(crate) fn fd(&self, key: Key) -> Option<BorrowedFd<'_>> {
        let fd = match self.sockets.sources.get(key)? {
            Source::Stream(stream) => stream.borrow().fd(),
            Source::Listener(listener) => listener.socket.as_ref().map(AsRawFd::as_raw_fd),
            Source::Udp(udp) => udp.fd(),
        };
        // SAFETY: the driver owns the descriptor, and closes none while it is borrowed.
        fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Closes a socket. Queued data is still sent, for at most the linger time, unless it is to be
    /// discarded.
    pub(crate) fn close(&mut self, key: Key, discards: bool) {
        // Futures that were leaked.
        self.wake_waiters(key);
        if let Ok(stream) = self.stream(key) {
            if discards {
                stream.borrow_mut().sending.fail(libc::ECANCELED, &mut self.sockets.wakes);
            }
            if let Backend::Epoll(epoll) = &mut self.engine {
                epoll.send_held_back(&mut self.sockets, &stream);
            }
            let over = self.with_sending(&stream, |sending| {
                sending.closing = true;
                sending.is_over()
            });
            if !over {
                return self.sockets.linger(key);
            }
        } else if let Ok((udp, _)) = self.udp(key) {
            udp.outbox.closing = true;
            if udp.is_held_up() {
                // That ends it, and its port is free at once.
                let _told_by_the_next_turn = self.submit();
            }
            if let Ok((udp, engine)) = self.udp(key)
                && !udp.is_settled()
            {
                let _gone_with_the_socket = engine.await_datagrams_sent(key, udp);
                return self.sockets.linger(key);
            }
        }
        self.close_now(key);
    }

    fn close_now(&mut self, key: Key) {
        match &mut self.engine {
            Backend::Uring(uring) => uring.abandon(&mut self.sockets, key),
            Backend::Epoll(epoll) => epoll.close(&mut self.sockets, key),
        }
    }

    /// Submits new operations to the kernel, waits at most `timeout` (`None`: until an event occurs),
    /// handles a portion of the events, and returns the wakers to call in the empty `wakes`. The next call
    /// handles the next portion, without waiting. This and the next fail only if the engine as a whole is
    /// unusable.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        match &mut self.engine {
            Backend::Uring(uring) => uring.turn(&mut self.sockets, timeout),
            Backend::Epoll(epoll) => epoll.turn(&mut self.sockets, timeout),
        }?;
        std::mem::swap(wakes, &mut self.sockets.wakes);
        Ok(())
    }

    /// Submits new operations to the kernel now. Events stay for the next `turn`, unless the
    /// kernel reports them by itself.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        match &mut self.engine {
            Backend::Uring(uring) => uring.submit(&mut self.sockets),
            Backend::Epoll(epoll) => {
                epoll.submit(&mut self.sockets);
                Ok(())
            }
        }
    }

    /// How many turns it takes to handle what has arrived.
    pub(crate) fn portions_left(&self) -> usize {
        match &self.engine {
            Backend::Uring(uring) => uring.portions_left(),
            Backend::Epoll(epoll) => epoll.portions_left(),
        }
    }

    pub(crate) fn round(&self) -> u64 {
        self.sockets.round
    }

    pub(crate) fn expire_lingering(&mut self) {
        let now = Instant::now();
        if self.sockets.lingering.front().is_some_and(|(deadline, _)| *deadline <= now) {
            // What only waits for that is not cut off.
            let _told_by_the_next_turn = self.submit();
        }
        while let Some((deadline, key)) = self.sockets.lingering.front().copied()
            && deadline <= now
        {
            self.sockets.lingering.pop_front();
            if !self.sockets.is_open(key) {
                continue;
            }
            if let Some((stream, _)) = self.sockets.stream(key) {
                stream.borrow().cut_off();
            }
            self.counters().lingers_expired.add(1);
            self.close_now(key);
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

    /// Bytes that the peers of closed TCP streams have acknowledged so far.
    pub(crate) fn acked_by_lingering(&self) -> u64 {
        let open = self.sockets.lingering.iter().filter_map(|(_, key)| self.fd(*key));
        open.filter_map(|fd| sys::tcp_bytes_acked(fd.as_raw_fd()).ok()).sum()
    }

    /// Cancels everything, waits until the kernel holds nothing (at most `patience` for operations on
    /// files), closes all descriptors. Returns the wakers of sockets and futures that were leaked.
    pub(crate) fn teardown(&mut self, patience: Duration) -> Vec<Waker> {
        // What only waits for that is not cut off.
        let _or_the_ring_is_broken = self.submit();
        for key in self.sockets.sources.keys() {
            self.wake_waiters(key);
            if let Ok(stream) = self.stream(key) {
                self.with_sending(&stream, |_| ());
                stream.borrow().cut_off();
            }
        }
        match &mut self.engine {
            Backend::Uring(uring) => uring.tear_down(&mut self.sockets, patience),
            Backend::Epoll(_) => {
                for key in self.sockets.sources.keys() {
                    self.sockets.remove(key);
                }
            }
        }
        std::mem::take(&mut self.sockets.wakes)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.teardown(Duration::ZERO);
    }
}

impl Backend {
    /// A task, FIN or a close may wait until the data that is being sent is with the kernel.
    fn await_sent(&mut self, stream: &mut Stream) {
        if let Backend::Uring(uring) = self {
            uring.await_sent(stream);
        }
    }
}
