//! The state of a stream that both engines share: its unsent data, whether and how each half has
//! ended, and its waiters; and what an engine remembers of it.
//!
//! [`Receiving`] and [`Sending`] make no system calls. An engine reports events (`sent`, `fail`, `connected`, ...), and asks
//! for the next action when it has no send of the stream in progress ([`Sending::next`]).

use super::common::{closed, reset_on_close};
use super::queues::{Seldom, Unread};
use super::uring::UringStream;
use crate::buf::{RecvBuf, SendBuf};
use crate::counters::Counters;
use crate::slots::Key;
use crate::sys::socket::SockRef;
use crate::task::{WaitQueue, Waiter};
use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Bytes a socket may hold queued for sending before `send` waits. One further buffer of any
/// size is accepted while less than this is queued.
pub(crate) const QUEUED_BYTES_MAX: usize = 256 * 1024;

/// A connected or connecting socket, with all that an operation or a completion needs to know of it. The
/// program's handle and the driver's entry share it. It is borrowed for moments, and never while foreign code
/// runs.
pub(crate) struct Stream {
    pub(crate) key: Key,
    /// Empty once the close was submitted.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) receiving: Receiving,
    pub(crate) sending: Sending,
    pub(crate) uring: UringStream,
}

pub(crate) type StreamRef = Rc<RefCell<Stream>>;

impl Stream {
    pub(crate) fn new(socket: OwnedFd, sending: Sending) -> Stream {
        Stream {
            key: Key::from_bits(0),
            socket: Some(socket),
            receiving: Receiving::default(),
            sending,
            uring: UringStream::default(),
        }
    }

    /// True while the next bytes, or the end, will be reported by the engine, and none have come yet that a
    /// receive could take.
    #[inline]
    pub(crate) fn awaits_event(&self) -> bool {
        self.receiving.state.is_armed() && self.receiving.end.is_none()
    }

    /// True if a system call may find bytes.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.receiving.state == Receive::Readable && self.receiving.end.is_none()
    }

    #[inline]
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub(crate) fn shut_down_if_due(&mut self, counters: &Counters) {
        if self.sending.take_fin() {
            self.shut_down(counters);
        }
    }

    pub(crate) fn shut_down(&self, counters: &Counters) {
        if let Some(socket) = &self.socket {
            counters.syscalls.add(1);
            // Fails only when the connection has ended, which the receiving side reports.
            let _reported_by_recv = SockRef::from(socket).shutdown(Shutdown::Write);
        }
    }

    /// A send failed, and its bytes are lost. If the kernel had no memory for it, the connection is still
    /// open: then the receiving half ends too, or this end would wait for the answer to what the peer
    /// never got, and the close is a reset, or the peer would take the rest for all of it.
    #[cold]
    pub(crate) fn send_failed(&mut self, errno: i32, wakes: &mut Vec<Waker>) {
        self.sending.fail(errno, wakes);
        if matches!(errno, libc::ENOMEM | libc::ENOBUFS) {
            self.receiving.finish(End::Error(errno), wakes);
            self.socket.iter().for_each(reset_on_close);
        }
    }

    /// Called before a close that does not wait for unsent data.
    pub(crate) fn cut_off(&self) {
        if self.sending.must_linger() {
            self.socket.iter().for_each(reset_on_close);
        }
    }

    /// The engine has nothing of the socket any more. A handle that outlives its runtime gets EBADF.
    pub(crate) fn end(&mut self) {
        self.socket = None;
        self.receiving.unread = Unread::default();
        self.receiving.end = Some(End::Gone);
        self.sending.fail(libc::EBADF, &mut Vec::new());
    }

    /// Makes a system call that sends a piece of a file: as much as the socket accepts now, or EAGAIN. This
    /// bypasses the queue.
    pub(crate) fn send_piece(
        &self,
        counters: &Counters,
        send: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let Some(socket) = &self.socket else { return Err(closed()) };
        if let Some(error) = self.sending.error() {
            return Err(error);
        }
        counters.syscalls.add(1);
        let sent = send(socket.as_fd());
        match &sent {
            Ok(_) => counters.sent.add(1),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => counters.eagain.add(1),
            Err(_) => {}
        }
        sent
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer finished sending.
    Stream,
    /// The socket failed with this errno; reported once, then as the end of the stream.
    Error(i32),
    /// The runtime has ended.
    Gone,
}

/// How a stream comes to its next bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Receive {
    #[default]
    Idle,
    /// epoll: a system call may find bytes, or the end. At first, so that the first receive waits for no event.
    Readable,
    /// An event of epoll will report them; or a receive is with the ring, and will post a completion without
    /// F_MORE.
    Armed,
    /// io_uring: the same, and cancelled, because enough is unread or how it ended may be lost; armed again
    /// when the queue is empty.
    Pausing,
    /// io_uring: ended for want of buffers; armed again when one returns.
    Starved,
}

impl Receive {
    #[inline]
    pub(crate) fn is_armed(self) -> bool {
        matches!(self, Receive::Armed | Receive::Pausing)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Receiving {
    /// Bytes that were received and not read; on epoll they stay in the kernel, and here are only those that
    /// readers have put back.
    pub(crate) unread: Unread,
    pub(crate) state: Receive,
    /// epoll: a short receive does not mean that the socket is empty. The peer has finished or the connection
    /// is broken, and a further receive reports which; or there is urgent data, before which a receive ends
    /// (tcp(7)); or it is a Unix socket, where one ends behind a message with descriptors.
    pub(crate) read_on: bool,
    pub(crate) end: Option<End>,
    pub(crate) waiters: WaitQueue,
}

impl Receiving {
    /// Marks the end, unless one is known, and wakes readers.
    pub(crate) fn finish(&mut self, end: End, wakes: &mut Vec<Waker>) {
        self.end.get_or_insert(end);
        self.waiters.wake(wakes);
    }

    /// Puts a piece back before all others, and wakes readers.
    pub(crate) fn put_back(&mut self, piece: RecvBuf, wakes: &mut Vec<Waker>) {
        if !piece.is_empty() {
            self.unread.push_front(piece.detach());
            self.waiters.wake(wakes);
        }
    }

    /// The result of a receive behind the last byte: the error once, then the end of the stream for
    /// ever. Waits while the half is open.
    #[inline]
    pub(crate) fn poll_end(&mut self, waiter: &mut Waiter<'_>) -> Poll<io::Result<RecvBuf>> {
        match self.end {
            None => {
                self.waiters.add(waiter);
                Poll::Pending
            }
            Some(End::Stream) => Poll::Ready(Ok(RecvBuf::empty())),
            Some(End::Error(errno)) => {
                self.end = Some(End::Stream);
                Poll::Ready(Err(io::Error::from_raw_os_error(errno)))
            }
            Some(End::Gone) => Poll::Ready(Err(closed())),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fin {
    #[default]
    No,
    /// FIN goes out behind the queued bytes.
    Queued,
    Sent,
}

/// The next action of an engine that has no send of the stream in progress.
#[derive(Debug)]
pub(crate) enum Next {
    Send(SendBuf),
    ShutDown,
    /// Closing the socket: the program has closed it, and there is nothing left to send.
    Close,
    Nothing,
}

/// The sending half: a connection that is being made, unsent data or a file, and FIN and the close
/// behind them.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    queue: Seldom<SendBuf>,
    /// Bytes that were accepted and are not known to be with the kernel: those queued, and those of
    /// the engine's current send. Ignored once the half has failed.
    pub(crate) unsent: usize,
    /// io_uring: those of a send beside them that succeeds silently, and may be over.
    pub(crate) silent: usize,
    error: Option<i32>,
    fin: Fin,
    /// A file has the half to itself: it bypasses the queue, and all other sends wait.
    file: bool,
    pub(crate) connecting: bool,
    /// A task waits until the socket accepts more.
    pub(crate) awaits_room: bool,
    /// The program has closed the socket.
    pub(crate) closing: bool,
    pub(crate) waiters: WaitQueue,
}

impl Sending {
    pub(crate) fn connecting() -> Sending {
        Sending { connecting: true, ..Sending::default() }
    }

    /// Ready when `ready` says so or the half has failed; otherwise waits until that may have changed.
    pub(crate) fn poll(
        &mut self,
        waiter: &mut Waiter<'_>,
        ready: impl FnOnce(&mut Sending) -> io::Result<bool>,
    ) -> Poll<io::Result<()>> {
        if ready(self)? {
            return Poll::Ready(Ok(()));
        }
        self.waiters.add(waiter);
        Poll::Pending
    }

    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        if self.connecting { Ok(false) } else { self.check().map(|()| true) }
    }

    /// The connection attempt has succeeded, or failed with this errno.
    pub(crate) fn connected(&mut self, failed: Option<i32>, wakes: &mut Vec<Waker>) {
        self.connecting = false;
        if let Some(errno) = failed {
            self.fail(errno, wakes);
        }
        self.waiters.wake(wakes);
    }

    /// True if a buffer may be accepted: sent or queued, and counted as unsent.
    #[inline]
    pub(crate) fn may_accept(&self) -> io::Result<bool> {
        self.check()?;
        Ok(self.has_room())
    }

    pub(crate) fn queue(&mut self, buf: SendBuf) {
        self.queue.items().push_back(buf);
    }

    /// Puts back the part of the next buffer that the kernel did not accept, unless the half has failed.
    pub(crate) fn put_back(&mut self, buf: SendBuf) {
        if !self.failed() {
            self.queue.items().push_front(buf);
        }
    }

    /// Moves queued data out of the receive pool; called when it will stay for a while.
    pub(crate) fn detach(&mut self) {
        self.queue.map_all(SendBuf::detach);
    }

    /// True if accepted buffers wait for those before them.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True if the engine has a send in progress and nothing is queued.
    pub(crate) fn is_in_hand(&self) -> bool {
        self.must_linger() && self.queue.is_empty()
    }

    #[inline]
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.unsent = self.unsent.saturating_sub(bytes);
    }

    pub(crate) fn next(&mut self) -> Next {
        if let Some(buf) = self.queue.pop_front() {
            Next::Send(buf)
        } else if self.take_fin() {
            Next::ShutDown
        } else if self.is_over() {
            Next::Close
        } else {
            Next::Nothing
        }
    }

    #[inline]
    pub(crate) fn wake_if_room(&mut self, wakes: &mut Vec<Waker>) {
        if self.has_room() {
            self.waiters.wake(wakes);
        }
    }

    #[inline]
    fn has_room(&self) -> bool {
        !self.file && self.unsent + self.silent < QUEUED_BYTES_MAX
    }

    /// True if anything waits for the end of the engine's current send.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        let behind = self.is_queued() || self.fin == Fin::Queued || self.closing;
        behind || !self.waiters.is_empty()
    }

    /// The program has ended the half: FIN goes out behind what is queued.
    pub(crate) fn finish(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Queued;
        }
    }

    /// True, once, when FIN is due.
    pub(crate) fn take_fin(&mut self) -> bool {
        let idle = !self.file && !self.must_linger() && !self.failed();
        let due = idle && self.fin == Fin::Queued;
        if due {
            self.fin = Fin::Sent;
        }
        due
    }

    pub(crate) fn is_flushed(&self) -> io::Result<bool> {
        match self.error() {
            Some(error) => Err(error),
            None => Ok(!self.must_linger() && !self.file && self.fin != Fin::Queued),
        }
    }

    /// Reserves the half for a file, once the kernel has all earlier data.
    pub(crate) fn begin_file(&mut self) -> io::Result<bool> {
        self.check()?;
        let free = !self.must_linger() && !self.file;
        self.file |= free;
        Ok(free)
    }

    /// The file was sent, or its task has stopped: the half is free again.
    pub(crate) fn end_file(&mut self, wakes: &mut Vec<Waker>) {
        self.file = false;
        self.waiters.wake(wakes);
    }

    /// The socket accepts more, or is broken.
    pub(crate) fn writable(&mut self, wakes: &mut Vec<Waker>) {
        if self.awaits_room {
            self.awaits_room = false;
            self.waiters.wake(wakes);
        }
    }

    /// Fails the half: queued bytes are dropped, every later send reports the error.
    pub(crate) fn fail(&mut self, errno: i32, wakes: &mut Vec<Waker>) {
        self.error.get_or_insert(errno);
        self.queue.clear();
        self.waiters.wake(wakes);
    }

    #[inline]
    pub(crate) fn failed(&self) -> bool {
        self.error.is_some()
    }

    pub(crate) fn error(&self) -> Option<io::Error> {
        self.error.map(io::Error::from_raw_os_error)
    }

    #[inline]
    pub(crate) fn check(&self) -> io::Result<()> {
        match (self.error, self.fin) {
            (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
            (None, Fin::No) => Ok(()),
            (None, _) => Err(io::Error::from_raw_os_error(libc::EPIPE)),
        }
    }

    /// The meaning of a receive of zero bytes; `sending`: a send is with the kernel. The kernel
    /// reports a reset once, to the first call. If that was a send, the next receive looks like a
    /// clean end of the stream; and a send that had sent a part reports the part instead of the
    /// reset. The state of the connection shows the difference (`is_closed`): after the peer's FIN
    /// alone it is not closed.
    pub(crate) fn end_of_stream(&self, sending: bool, is_closed: impl FnOnce() -> bool) -> End {
        let sending = sending || self.file;
        let may_hide_a_reset = self.fin != Fin::Sent && (sending || self.failed());
        if may_hide_a_reset && is_closed() {
            let told = self.error.filter(|errno| *errno != libc::EPIPE);
            return End::Error(told.unwrap_or(libc::ECONNRESET));
        }
        End::Stream
    }

    /// True while a close has to wait for unsent data.
    pub(crate) fn must_linger(&self) -> bool {
        self.unsent + self.silent > 0 && !self.failed()
    }

    /// True when a closed socket has no unsent data.
    pub(crate) fn is_over(&self) -> bool {
        self.closing && !self.must_linger()
    }
}
