//! What the h2 crate reads from and writes to: the connection, through TLS if that is spoken.

use super::frames::Frames;
use crate::http::connection::Connection;
use std::cell::{Cell, RefCell};
use std::io;
use std::task::{Context, Poll, ready};
use twinring::{RecvBuf, SendBuf};
use twinring_compat::Socket;

/// See the module.
#[derive(Debug)]
pub(super) struct Wire<'c> {
    connection: &'c Connection,
    /// Received before HTTP/2 was recognised.
    first: RefCell<Option<RecvBuf>>,
    /// Output of TLS that the stream has not taken; at most one, and nothing more is encrypted
    /// meanwhile.
    encrypted: RefCell<Option<SendBuf>>,
    frames: Cell<Frames>,
    /// The queue of the stream is full.
    is_blocked: Cell<bool>,
}

impl<'c> Wire<'c> {
    pub(super) fn new(connection: &'c Connection, first: RecvBuf) -> Wire<'c> {
        Wire {
            connection,
            first: RefCell::new(Some(first).filter(|first| !first.is_empty())),
            encrypted: RefCell::default(),
            frames: Cell::new(Frames::new()),
            is_blocked: Cell::new(false),
        }
    }

    /// The peer is in the middle of a frame, or of the fields of a request.
    pub(super) fn is_in_frame(&self) -> bool {
        self.frames.get().is_incomplete()
    }

    /// True if the peer does not take what was written.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.get()
    }

    /// Ready when the stream has taken the output of TLS.
    pub(super) fn poll_encrypted(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut encrypted = self.encrypted.borrow_mut();
        match encrypted.is_some() {
            true => self.connection.stream().poll_send(cx, &mut encrypted),
            false => Poll::Ready(Ok(())),
        }
    }

    /// Hands over what TLS has to send. The stream has taken the output before.
    fn send_encrypted(&self, cx: &mut Context<'_>, output: Vec<u8>) -> io::Result<()> {
        if output.is_empty() {
            return Ok(());
        }
        *self.encrypted.borrow_mut() = Some(output.into());
        match self.poll_encrypted(cx) {
            Poll::Ready(sent) => sent,
            // It is tried again before anything else is sent or received.
            Poll::Pending => Ok(()),
        }
    }

    fn poll_plain(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        let Some(tls) = &self.connection.tls else {
            return self.connection.stream().poll_recv(cx);
        };
        loop {
            let opened = tls.opened();
            if !opened.is_empty() || tls.has_ended() {
                return Poll::Ready(Ok(RecvBuf::from(opened)));
            }
            ready!(self.poll_encrypted(cx))?;
            let chunk = ready!(self.connection.stream().poll_recv(cx))?;
            if chunk.is_empty() {
                self.connection.end_truncated(tls);
            }
            let opened = tls.open(&chunk);
            self.send_encrypted(cx, tls.take()?)?;
            opened.map_err(|error| self.connection.fail_tls(error))?;
        }
    }
}

impl Socket for &Wire<'_> {
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        if let Some(first) = self.first.borrow_mut().take() {
            self.note(&first);
            return Poll::Ready(Ok(first));
        }
        let received = ready!(self.poll_plain(cx))?;
        self.connection.count_received(received.len() as u64);
        self.note(&received);
        Poll::Ready(Ok(received))
    }

    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_blocked.set(true);
        ready!(self.poll_encrypted(cx))?;
        ready!(self.connection.stream().poll_send_ready(cx))?;
        self.is_blocked.set(false);
        Poll::Ready(Ok(()))
    }

    fn poll_send(&self, cx: &mut Context<'_>, buf: &mut Option<SendBuf>) -> Poll<io::Result<()>> {
        let bytes = buf.as_ref().map_or(0, SendBuf::len) as u64;
        match &self.connection.tls {
            None => ready!(self.connection.stream().poll_send(cx, buf))?,
            Some(tls) => {
                ready!(self.poll_encrypted(cx))?;
                if let Some(plain) = buf.take() {
                    tls.put(plain.as_slice())?;
                    self.send_encrypted(cx, tls.take()?)?;
                }
            }
        }
        self.connection.count_sent(bytes);
        Poll::Ready(Ok(()))
    }

    /// The end is announced by the connection, with the limits of its time.
    fn poll_shutdown_write(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_encrypted(cx)
    }
}

impl Wire<'_> {
    fn note(&self, bytes: &[u8]) {
        let mut frames = self.frames.get();
        frames.advance(bytes);
        self.frames.set(frames);
    }
}
