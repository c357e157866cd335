//! The state of a socket that both engines keep in the same way: what was received and not yet
//! read, what was handed over and not yet sent, and who waits for either.

use crate::buf::{RecvBuf, SendBuf};
use crate::sys;
use crate::task::{WaitQueue, Waiter};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Poll, Waker};

/// Bytes a socket may hold received and unread before its receive is paused. What one turn of the
/// driver delivers, at most the pool, comes on top.
pub(crate) const RECEIVED_BYTES_MAX: usize = 128 * 1024;
/// Pieces a socket may hold received and unread before its receive is paused.
pub(crate) const RECEIVED_PIECES_MAX: usize = 64;
/// Bytes a socket may hold queued for sending before `send` waits. One further buffer of any
/// size is accepted while less than this is queued.
pub(crate) const QUEUED_BYTES_MAX: usize = 256 * 1024;

/// A queue that is empty most of the time, and then no more than a pointer.
#[derive(Debug)]
struct Seldom<T>(Option<Box<Items<T>>>);

#[derive(Debug)]
struct Items<T>(VecDeque<T>);

impl<T> Default for Seldom<T> {
    fn default() -> Seldom<T> {
        Seldom(None)
    }
}

impl<T> Seldom<T> {
    fn items(&mut self) -> &mut VecDeque<T> {
        &mut self.0.get_or_insert_with(|| Box::new(Items(VecDeque::new()))).0
    }

    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |items| items.0.len())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn pop_front(&mut self) -> Option<T> {
        self.0.as_mut()?.0.pop_front()
    }

    fn clear(&mut self) {
        self.0 = None;
    }

    fn map_all(&mut self, change: impl Fn(T) -> T) {
        if let Some(items) = &mut self.0 {
            items.0 = std::mem::take(&mut items.0).into_iter().map(change).collect();
        }
    }
}

/// How a direction of a socket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer finished sending.
    Stream,
    /// The socket failed with this errno; reported once, then as the end of the stream.
    Error(i32),
}

/// What a receive finds behind the last byte: the error once, then the end of the stream for
/// ever; `None` while the direction goes on.
pub(crate) fn next_end(end: &mut Option<End>) -> Option<io::Result<RecvBuf>> {
    match (*end)? {
        End::Stream => Some(Ok(RecvBuf::empty())),
        End::Error(errno) => {
            *end = Some(End::Stream);
            Some(Err(io::Error::from_raw_os_error(errno)))
        }
    }
}

/// Received and unread.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The oldest piece, in the socket's own memory because there is rarely a second one.
    first: Option<RecvBuf>,
    /// Those behind it; empty without a first.
    more: Seldom<RecvBuf>,
    bytes: usize,
    /// The driver's turn in which the oldest piece arrived.
    oldest_turn: u32,
    pub(crate) end: Option<End>,
    pub(crate) waiters: WaitQueue,
}

impl Received {
    pub(crate) fn push(&mut self, piece: RecvBuf, turn: u32) {
        self.bytes += piece.len();
        if self.first.is_none() {
            self.oldest_turn = turn;
            self.first = Some(piece);
        } else {
            self.more.items().push_back(piece);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// True when the socket holds as much as it may, although its reader had a turn to take it: a
    /// large batch that has just come says nothing about the reader.
    pub(crate) fn is_full(&self, turn: u32) -> bool {
        self.oldest_turn != turn
            && (self.bytes >= RECEIVED_BYTES_MAX || self.more.len() >= RECEIVED_PIECES_MAX)
    }

    /// The next piece, then the end; `None` while there is neither.
    pub(crate) fn next(&mut self) -> Option<io::Result<RecvBuf>> {
        if let Some(piece) = self.first.take() {
            self.first = self.more.pop_front();
            self.bytes -= piece.len();
            return Some(Ok(piece));
        }
        next_end(&mut self.end)
    }

    /// Marks the end, unless one is known, and wakes readers.
    pub(crate) fn finish(&mut self, end: End, wakes: &mut Vec<Waker>) {
        self.end.get_or_insert(end);
        self.waiters.wake(wakes);
    }

    /// Moves the unread pieces out of the pool: called when they will stay for a while.
    pub(crate) fn detach(&mut self) -> u64 {
        let moved = u64::from(self.first.is_some()) + self.more.len() as u64;
        self.first = self.first.take().map(RecvBuf::detach);
        self.more.map_all(RecvBuf::detach);
        moved
    }
}

/// Whether and how the sending half is being closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fin {
    #[default]
    No,
    /// FIN goes out behind the queued bytes.
    Queued,
    Sent,
}

/// Handed over and not yet sent.
#[derive(Debug, Default)]
pub(crate) struct Queued {
    buffers: Seldom<SendBuf>,
    bytes: usize,
    error: Option<i32>,
    /// A file is being sent, piece by piece and past this queue: everything else waits.
    exclusive: bool,
    pub(crate) fin: Fin,
    pub(crate) waiters: WaitQueue,
}

impl Queued {
    pub(crate) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    pub(crate) fn push(&mut self, buf: SendBuf) {
        self.bytes += buf.len();
        self.buffers.items().push_back(buf);
    }

    pub(crate) fn push_front(&mut self, buf: SendBuf) {
        self.bytes += buf.len();
        self.buffers.items().push_front(buf);
    }

    pub(crate) fn pop(&mut self) -> Option<SendBuf> {
        let buf = self.buffers.pop_front()?;
        self.bytes -= buf.len();
        Some(buf)
    }

    /// Moves what is queued out of the receive pool: called when it will stay for a while.
    pub(crate) fn detach(&mut self) {
        self.buffers.map_all(SendBuf::detach);
    }

    /// True while a further buffer is accepted, with `in_flight` bytes in the kernel's hands.
    pub(crate) fn has_room(&self, in_flight: usize) -> bool {
        !self.exclusive && self.bytes + in_flight < QUEUED_BYTES_MAX
    }

    /// True when FIN has its turn, if nothing is in flight.
    pub(crate) fn is_fin_due(&self) -> bool {
        self.fin == Fin::Queued && !self.exclusive && self.buffers.is_empty() && !self.failed()
    }

    /// Ready with the direction reserved once all before is with the kernel. `idle` says that
    /// nothing is in flight.
    pub(crate) fn poll_exclusive(
        &mut self,
        waiter: &mut Waiter<'_>,
        idle: bool,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        if idle && self.buffers.is_empty() && !self.exclusive {
            self.exclusive = true;
            return Poll::Ready(Ok(()));
        }
        self.waiters.add(waiter);
        Poll::Pending
    }

    /// Ends what [`poll_exclusive`](Queued::poll_exclusive) began.
    pub(crate) fn end_exclusive(&mut self, wakes: &mut Vec<Waker>) {
        self.exclusive = false;
        self.waiters.wake(wakes);
    }

    /// The error that ended the direction.
    pub(crate) fn error(&self) -> Option<io::Error> {
        self.error.map(io::Error::from_raw_os_error)
    }

    /// Fails the direction: queued bytes are dropped, every later send reports the error.
    pub(crate) fn fail(&mut self, errno: i32, wakes: &mut Vec<Waker>) {
        self.error.get_or_insert(errno);
        self.buffers.clear();
        self.bytes = 0;
        self.waiters.wake(wakes);
    }

    pub(crate) fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// What a receive of nothing on `socket` means, with `sending` saying that a send is with
    /// the kernel. The kernel tells of a reset only once, to whichever call asks first. If that
    /// was a send, the next receive looks like a clean end of the stream; and a send that had
    /// sent a part reports the part instead of the reset. The state of the connection tells: after
    /// the peer's FIN alone it is not closed.
    pub(crate) fn end_of_stream(&self, socket: &OwnedFd, sending: bool) -> End {
        let sending = sending || self.exclusive;
        let may_hide_a_reset = self.fin != Fin::Sent && (sending || self.failed());
        if may_hide_a_reset && sys::tcp_is_closed(socket.as_raw_fd()) {
            let told = self.error.filter(|errno| *errno != libc::EPIPE);
            return End::Error(told.unwrap_or(libc::ECONNRESET));
        }
        End::Stream
    }

    /// The reason why no send is possible, if there is one.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match (self.error, self.fin) {
            (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
            (None, Fin::No) => Ok(()),
            (None, _) => Err(io::Error::from_raw_os_error(libc::EPIPE)),
        }
    }

    /// Ready once everything is with the kernel, or failed. `idle` says that nothing is in flight.
    pub(crate) fn poll_flushed(
        &mut self,
        waiter: &mut Waiter<'_>,
        idle: bool,
    ) -> Poll<io::Result<()>> {
        if let Some(errno) = self.error {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno)));
        }
        if idle && self.buffers.is_empty() && !self.exclusive && self.fin != Fin::Queued {
            return Poll::Ready(Ok(()));
        }
        self.waiters.add(waiter);
        Poll::Pending
    }
}
