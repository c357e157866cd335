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
//!    (`queues::RECEIVED_BYTES_MAX`, `stream::QUEUED_BYTES_MAX` in `socket`); all others are served meanwhile.
//! 8. At most one send in flight per stream, short sends continued, order kept. Sends are owned;
//!    an error surfaces at the next call.
//! 9. Closing reaches the wire: pending receives are cancelled before the descriptor goes.
//! 10. EMFILE on accept is an ordinary error here; the listener (`net::TcpListener`) waits.
//! 11. An idle connection holds no receive buffer.
//! 12. Datagrams are queued and sent whole; those that the kernel does not accept are sent again or
//!     counted (`datagrams::Outbox`). An ICMP error ends neither receiving nor sending.
//! 13. A file is sent in pieces, by non-blocking system calls, while it has the sending half of its
//!     stream to itself; other sends and FIN wait behind it. A read that may wait for a disk is an
//!     operation that owns its memory like any other (`uring::files`, `crate::blocking`).
//!
//! Operations are polled: they register the task's waker, and the driver's `turn` returns it when the
//! operation should be polled again. Wakers are collected during a turn and called after it, cloned
//! before the driver is borrowed and dropped after that ([`Waiter`]), so no foreign code runs
//! while it is borrowed. A future that is dropped removes its waker.

pub(crate) mod ancillary;
mod common;
pub(crate) mod datagrams;
pub(crate) mod epoll;
#[cfg(all(test, not(loom)))]
mod foreign_wakers;
mod mmsg;
pub(crate) mod pieces;
mod socket;
pub(crate) mod unix_attempt;
pub(crate) mod uring;

pub(crate) use self::common::{DriverSetup, InUse, Side, errno};

use self::datagrams::UdpSetup;
use self::epoll::EpollDriver;
use self::pieces::Piece;
use self::unix_attempt::UnixAttempt;
use self::uring::UringDriver;
use crate::buf::{RecvBuf, SendBuf};
use crate::config::Features;
use crate::datagram::{Datagram, Received, UdpStats};
use crate::fs::operation::{FileOp, Start};
use crate::slots::Key;
use crate::sys::socket::SockAddr;
use crate::task::{WaitQueue, WaitToken, Waiter};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// The engine of one worker.
pub(crate) enum Driver {
    Uring(Box<UringDriver>),
    Epoll(Box<EpollDriver>),
}

macro_rules! dispatch {
    ($self:expr, $driver:ident => $call:expr) => {
        match $self {
            Driver::Uring($driver) => $call,
            Driver::Epoll($driver) => $call,
        }
    };
}

/// The operations: each is a row here, and a method either of [`socket::Sockets`], above the primitives
/// of an engine, or of both engines.
macro_rules! operations {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Driver {
            $($(#[$doc])*
            #[inline]
            pub(crate) fn $name(&mut self, $($argument: $type),*) $(-> $result)? {
                dispatch!(self, driver => driver.$name($($argument),*))
            })*
        }
    };
}

operations! {
    /// Takes over a listening socket.
    fn add_listener(socket: OwnedFd) -> io::Result<Key>;

    /// The next connection of a listener.
    fn poll_accept(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<OwnedFd>>;

    /// Takes over an accepted socket.
    fn add_stream(socket: OwnedFd, unix: bool) -> Key;

    /// Takes over a fresh socket and starts to connect it.
    fn connect(socket: OwnedFd, address: &SockAddr) -> io::Result<Key>;

    /// Ready once a connection attempt has succeeded or failed.
    fn poll_connected(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>>;

    /// The next received piece, if there is one. The future of this token no longer waits then.
    fn take_received(key: Key, token: &mut WaitToken) -> Option<RecvBuf>;

    /// The next received piece; empty at the end of the stream.
    fn poll_recv(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<RecvBuf>>;

    /// Returns bytes that were received to the front of the stream, and wakes its readers.
    fn put_back(key: Key, piece: RecvBuf, wakes: &mut Vec<Waker>);

    /// Copies the next received bytes without taking them: how many, and 0 at the end of the stream.
    fn poll_peek(key: Key, waiter: &mut Waiter<'_>, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Takes `buf` if the stream's queue has room; `None` if it has none. `more`: further data follows
    /// immediately.
    fn try_send(key: Key, buf: &mut Option<SendBuf>, more: bool) -> Option<io::Result<()>>;

    /// Ready when `try_send` would take a buffer.
    fn poll_send_ready(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>>;

    /// Ready once the kernel has everything that was queued, FIN included.
    fn poll_flushed(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>>;

    /// Queues FIN behind what is queued.
    fn finish(key: Key);

    /// Drops all data that is queued for sending, so that a close does not wait for it.
    fn discard(key: Key, wakes: &mut Vec<Waker>);

    /// Ready, with the sending half reserved for pieces of a file, once the kernel has all earlier data.
    fn poll_begin_pieces(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>>;

    /// Sends as much of a piece as the socket accepts now; EAGAIN if it accepts nothing.
    fn send_piece(key: Key, piece: Piece<'_>) -> io::Result<usize>;

    /// Ready when the socket accepts more again, or is broken. `asked` belongs to the caller and is false
    /// at the first call, which therefore always waits.
    fn poll_room(
        key: Key, waiter: &mut Waiter<'_>, asked: &mut bool
    ) -> Poll<io::Result<()>>;

    /// Releases the sending half. With an errno it is broken from now on, and a close sends a reset.
    fn end_pieces(key: Key, broken: Option<i32>, wakes: &mut Vec<Waker>);

    /// Begins an operation on a file, if this engine supports such operations.
    fn start_file(op: Box<FileOp>, waiter: &mut Waiter<'_>) -> Start;

    /// Ready when an operation that was started is complete.
    fn poll_file(
        key: Key, waiter: &mut Waiter<'_>
    ) -> Poll<io::Result<(Box<FileOp>, io::Result<usize>)>>;

    /// Abandons an operation that was started. Drop the waker as that of `forget_waiter`.
    fn abandon_file(key: Key) -> Option<Waker>;

    /// Abandons an operation that was not started, because there was no room.
    fn forget_file(token: &mut WaitToken) -> Option<Waker>;

    /// Takes over a bound or connected datagram socket.
    fn add_udp(socket: OwnedFd, setup: UdpSetup) -> io::Result<Key>;

    /// Appends at least one and at most `most` received datagrams; returns how many.
    fn poll_recv_batch(
        key: Key, waiter: &mut Waiter<'_>, into: &mut Vec<Received>, most: usize
    ) -> Poll<io::Result<usize>>;

    /// Takes datagrams from the front of `batch`; ready when it is empty.
    fn poll_send_batch(
        key: Key, waiter: &mut Waiter<'_>, batch: &mut Vec<Datagram>
    ) -> Poll<io::Result<()>>;

    /// Takes a datagram of a Unix socket once there is room; ready when `attempt` has its outcome.
    fn poll_attempt(
        key: Key, waiter: &mut Waiter<'_>, data: &mut Option<SendBuf>, attempt: &Rc<UnixAttempt>
    ) -> Poll<io::Result<()>>;

    /// Ready when `poll_send_batch` would take a datagram.
    fn poll_datagrams_ready(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>>;

    /// Ready once every datagram that was taken is with the kernel, or was counted as not sent.
    fn poll_datagrams_sent(key: Key, waiter: &mut Waiter<'_>) -> Poll<io::Result<()>>;

    /// The waiters of this side of a socket.
    fn wait_queue(key: Key, side: Side) -> Option<&mut WaitQueue>;

    /// Collects the wakers of all waiters of this socket.
    fn wake_waiters(key: Key, wakes: &mut Vec<Waker>);

    /// Closes a socket. Queued data is still sent, for at most the linger time. Collects the wakers of
    /// futures that were leaked.
    fn close(key: Key, wakes: &mut Vec<Waker>);

    /// Submits new operations to the kernel, waits at most `timeout` (`None`: until an event occurs),
    /// handles a portion of the events, and collects the wakers to call. While `has_arrivals` returns
    /// true, the next call handles the next portion without waiting. This and the next fail only if
    /// the engine as a whole is unusable.
    fn turn(timeout: Option<Duration>, wakes: &mut Vec<Waker>) -> io::Result<()>;

    /// Submits new operations to the kernel now. Events stay for the next `turn`, unless the
    /// kernel reports them by itself.
    fn submit(wakes: &mut Vec<Waker>) -> io::Result<()>;

    /// When `turn` has to run even without events.
    fn next_deadline() -> Option<Instant>;

    /// True while closed streams still send.
    fn is_lingering() -> bool;

    /// Cancels everything, waits until the kernel holds nothing (at most `patience` for operations on
    /// files), closes all descriptors. Collects the wakers of sockets and futures that were leaked.
    fn teardown(patience: Duration, wakes: &mut Vec<Waker>);
}

impl Driver {
    pub(crate) fn new(features: &Features, setup: &DriverSetup) -> io::Result<Driver> {
        Ok(match features {
            Features::IoUring(features) => {
                Driver::Uring(Box::new(UringDriver::new(features.clone(), setup)?))
            }
            Features::Epoll(features) => {
                Driver::Epoll(Box::new(EpollDriver::new(features.clone(), setup)?))
            }
        })
    }

    /// Lets `wake_waiters` wake a task that is waiting for something else.
    pub(crate) fn watch_sends(&mut self, key: Key, waiter: &mut Waiter<'_>) {
        if let Some(queue) = self.wait_queue(key, Side::Send) {
            queue.add(waiter);
        }
    }

    /// A future that may wait for this socket was dropped. Drop the waker when the driver is no longer
    /// borrowed.
    pub(crate) fn forget_waiter(
        &mut self,
        key: Key,
        side: Side,
        token: &mut WaitToken,
    ) -> Option<Waker> {
        self.wait_queue(key, side).and_then(|queue| queue.remove(token))
    }

    /// The counters of a datagram socket.
    pub(crate) fn udp_stats(&self, key: Key) -> Option<UdpStats> {
        dispatch!(self, driver => driver.udp_stats(key))
    }

    /// The descriptor, for socket options and addresses; it stays the driver's.
    pub(crate) fn fd(&self, key: Key) -> Option<BorrowedFd<'_>> {
        let fd = dispatch!(self, driver => driver.fd(key))?;
        // SAFETY: the driver owns the descriptor, and closes none while it is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// True if `turn` has events to handle without waiting.
    pub(crate) fn has_arrivals(&self) -> bool {
        dispatch!(self, driver => driver.has_arrivals())
    }

    /// The resources that the engine holds now.
    pub(crate) fn in_use(&self) -> InUse {
        dispatch!(self, driver => driver.in_use())
    }
}
