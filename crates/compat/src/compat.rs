//! The adapter, without any foreign trait: what all of them come down to.

use crate::Socket;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use twinring::{RecvBuf, SendBuf};

/// Bytes that one write takes at most. A longer one is short: the caller writes the rest next.
pub const WRITE_BYTES_MAX: usize = 64 * 1024;

/// A connection with the traits that libraries for tokio, futures-io and hyper expect.
///
/// - *Reading* copies received bytes to the caller's buffer. `AsyncBufRead` shows them without a
///   copy; `lines()` and `read_until` need no `BufReader`. A read that is dropped loses nothing.
/// - *Writing* copies bytes and queues them. It waits while 256 KiB are queued, and takes at most
///   [`WRITE_BYTES_MAX`] at once. Vectored writes are gathered into one buffer. An error of an
///   earlier write is reported by the next one.
/// - *Flushing* returns at once: nothing is held back here. Queued bytes are sent by the runtime
///   without further calls, even if the stream is dropped (within the linger limit of the runtime).
///   To wait until the kernel has them, call [`TcpStream::flush`](twinring::TcpStream::flush) of
///   [`get_ref`](Compat::get_ref); before [`std::process::exit`], for example.
/// - *Shutting down* (`poll_shutdown`, `poll_close`) sends FIN behind all queued bytes, and is done
///   when the kernel has them. Reading continues.
/// - *Dropping* closes the connection, behind all queued bytes.
///
/// A reader and a writer in two tasks: split it with `tokio::io::split` or futures' `split`, or
/// wrap clones of an [`Rc`](std::rc::Rc) of the stream, one for each direction.
#[derive(Debug)]
pub struct Compat<S> {
    pub(crate) socket: S,
    /// Received and not yet read; never empty.
    unread: Option<RecvBuf>,
}

impl<S> Compat<S> {
    /// Adapts a connection.
    pub fn new(socket: S) -> Compat<S> {
        Compat { socket, unread: None }
    }

    /// The connection, for its addresses, options, and methods that are not in the traits. Bytes
    /// that the adapter has received and not passed on are not seen by its `recv`.
    pub fn get_ref(&self) -> &S {
        &self.socket
    }

    /// The connection, and the bytes that were received but not read through the adapter, if any.
    pub fn into_inner(self) -> (S, Option<RecvBuf>) {
        (self.socket, self.unread)
    }
}

impl<S> From<S> for Compat<S> {
    fn from(socket: S) -> Compat<S> {
        Compat::new(socket)
    }
}

impl<S: Socket> Compat<S> {
    /// Passes received bytes, at most `room`, to `take`. It is not called at the end of the stream,
    /// nor if there is no room.
    pub(crate) fn poll_read_with(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut chunk = match self.unread.take() {
            Some(chunk) => chunk,
            None => ready!(self.socket.poll_recv(cx))?,
        };
        let bytes = chunk.len().min(room);
        if bytes > 0 {
            take(&chunk[..bytes]);
            chunk.advance(bytes);
            self.keep(chunk);
        }
        Poll::Ready(Ok(bytes))
    }

    /// Received bytes, at least one, or none at the end of the stream.
    #[cfg(any(feature = "tokio", feature = "futures"))]
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.unread.is_none() {
            let chunk = ready!(self.socket.poll_recv(cx))?;
            self.unread = Some(chunk).filter(|chunk| !chunk.is_empty());
        }
        Poll::Ready(Ok(self.unread.as_deref().unwrap_or_default()))
    }

    /// The first bytes of those that `poll_fill` showed were used.
    #[cfg(any(feature = "tokio", feature = "futures"))]
    pub(crate) fn consume_filled(&mut self, bytes: usize) {
        if let Some(mut chunk) = self.unread.take() {
            chunk.advance(bytes);
            self.keep(chunk);
        }
    }

    /// Keeps what the reader did not take yet. It may take long, so the bytes leave the pool, of
    /// which other connections would otherwise have less.
    fn keep(&mut self, chunk: RecvBuf) {
        self.unread = Some(chunk).filter(|chunk| !chunk.is_empty()).map(RecvBuf::detach);
    }

    /// Waits for room, and may wait once more if the task has used up its turn; the caller then
    /// writes the same bytes again.
    pub(crate) fn poll_write_slices(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.socket.poll_send_ready(cx))?;
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut copy = Vec::with_capacity(bytes.min(WRITE_BYTES_MAX));
        for slice in slices {
            let room = WRITE_BYTES_MAX - copy.len();
            copy.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        let bytes = copy.len();
        if bytes > 0 {
            ready!(self.socket.poll_send(cx, &mut Some(SendBuf::from(copy))))?;
        }
        Poll::Ready(Ok(bytes))
    }
}
