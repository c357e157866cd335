//! What the h2 crate reads from and writes to: the connection, through TLS if that is spoken.
//!
//! The crate writes and flushes each frame by itself. Frames are gathered here until its task has no
//! more of them, and leave together: small answers share a record of TLS and a send.

use crate::http::connection::Connection;
use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, ready};
use std::{io, mem};
use twinring::{RecvBuf, SendBuf};
use twinring_compat::Socket;

const GATHERED_BYTES_MAX: usize = 64 * 1024;

/// A longer write is sent as it is, unless it must be encrypted, which copies it anyway.
const COPIED_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug)]
pub(super) struct Wire<'c> {
    connection: &'c Connection,
    /// Received before HTTP/2 was recognised.
    first: RefCell<Option<RecvBuf>>,
    /// Frames that were not sent yet; at most [`GATHERED_BYTES_MAX`].
    gathered: RefCell<Vec<u8>>,
    /// Output that the stream has not taken; nothing more is encrypted meanwhile.
    output: RefCell<Option<SendBuf>>,
    is_full: Cell<bool>,
    is_busy: Cell<bool>,
    has_ended: Cell<bool>,
    /// Turns since then that began without an open stream; none before the first turn.
    quiet_turns: Cell<Option<u32>>,
}

impl<'c> Wire<'c> {
    pub(super) fn new(connection: &'c Connection, first: RecvBuf) -> Wire<'c> {
        Wire {
            connection,
            first: RefCell::new(Some(first).filter(|first| !first.is_empty())),
            gathered: RefCell::default(),
            output: RefCell::default(),
            is_full: Cell::default(),
            is_busy: Cell::default(),
            has_ended: Cell::default(),
            quiet_turns: Cell::default(),
        }
    }

    /// A turn of the connection begins; streams are open or not.
    pub(super) fn begin_turn(&self, is_busy: bool) {
        let quiet = match !is_busy && !self.is_blocked() && self.has_ended.get() {
            true => self.quiet_turns.get().unwrap_or(0) + 1,
            false => 0,
        };
        self.quiet_turns.set(Some(quiet));
        self.is_busy.set(is_busy);
    }

    /// The end of the stream, which the h2 crate takes for the end of all requests: a client that has said
    /// all it has to say still gets its answers. So the crate hears of it only behind a whole turn without open
    /// streams, in which the network has taken what was left. In the handshake there are no turns yet.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        self.has_ended.set(true);
        match self.quiet_turns.get() {
            None | Some(2..) => Poll::Ready(Ok(RecvBuf::from(Vec::new()))),
            Some(_) => {
                // The end of a stream wakes as well.
                if !self.is_busy.get() {
                    ready!(self.poll_send_ready(cx))?;
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_full.get() || self.output.borrow().is_some()
    }

    /// Sends what was gathered; ready when the stream has taken all output.
    pub(super) fn poll_send_gathered(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_output(cx))?;
        let mut gathered = mem::take(&mut *self.gathered.borrow_mut());
        if let Some(tls) = &self.connection.tls {
            tls.put(&gathered)?;
            gathered = tls.take()?;
        }
        self.send_output(cx, gathered.into())
    }

    fn poll_output(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = self.output.borrow_mut();
        match output.is_some() {
            true => self.connection.tracking.stream.poll_send(cx, &mut output),
            false => Poll::Ready(Ok(())),
        }
    }

    /// Hands over output. The stream has taken that before it; if it does not take this yet, it is tried again before
    /// anything else is sent or received.
    fn send_output(&self, cx: &mut Context<'_>, output: SendBuf) -> Poll<io::Result<()>> {
        *self.output.borrow_mut() = Some(output).filter(|output| !output.is_empty());
        self.poll_output(cx)
    }

    fn poll_plain(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        let Some(tls) = &self.connection.tls else {
            return self.connection.tracking.stream.poll_recv(cx);
        };
        loop {
            let opened = tls.opened.take();
            if !opened.is_empty() || tls.ended.get() {
                return Poll::Ready(Ok(RecvBuf::from(opened)));
            }
            ready!(self.poll_output(cx))?;
            let chunk = ready!(self.connection.tracking.stream.poll_recv(cx))?;
            if chunk.is_empty() {
                self.connection.end_truncated(tls);
            }
            let opened = tls.open(&chunk);
            if let Poll::Ready(sent) = self.send_output(cx, tls.take()?.into()) {
                sent?;
            }
            opened.map_err(|_| self.connection.fail_tls(tls))?;
        }
    }
}

impl Socket for &Wire<'_> {
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(first));
        }
        let received = ready!(self.poll_plain(cx))?;
        if received.is_empty() {
            return self.poll_end(cx);
        }
        self.connection.counters.received_bytes.add(received.len() as u64);
        Poll::Ready(Ok(received))
    }

    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_full.set(true);
        ready!(self.poll_output(cx))?;
        ready!(self.connection.tracking.stream.poll_send_ready(cx))?;
        self.is_full.set(false);
        Poll::Ready(Ok(()))
    }

    fn poll_send(&self, cx: &mut Context<'_>, buf: &mut Option<SendBuf>) -> Poll<io::Result<()>> {
        let bytes = buf.as_ref().map_or(0, SendBuf::len);
        let is_copied = bytes <= COPIED_BYTES_MAX || self.connection.tls.is_some();
        if !is_copied || self.gathered.borrow().len() + bytes > GATHERED_BYTES_MAX {
            ready!(self.poll_send_gathered(cx))?;
        }
        match buf.take() {
            Some(frames) if is_copied => {
                self.gathered.borrow_mut().extend_from_slice(frames.as_slice());
            }
            Some(frames) => {
                if let Poll::Ready(sent) = self.send_output(cx, frames) {
                    sent?;
                }
            }
            None => {}
        }
        self.connection.count_sent(bytes as u64);
        Poll::Ready(Ok(()))
    }

    /// The end is announced by the connection, with the limits of its time.
    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send_gathered(cx)
    }
}
