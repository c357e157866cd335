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

/// Bytes of frames that are gathered: the plain text of the largest record of TLS.
const GATHERED_BYTES_MAX: usize = 16 * 1024;

/// Bytes in records of TLS that leave together.
const ENCRYPTED_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Wire<'c> {
    connection: &'c Connection,
    /// Received before HTTP/2 was recognised.
    first: RefCell<Option<RecvBuf>>,
    /// Frames that were not sent yet; at most [`GATHERED_BYTES_MAX`].
    gathered: RefCell<Vec<u8>>,
    /// Bytes that were encrypted and are no output yet; below [`ENCRYPTED_BYTES_MAX`].
    encrypted: Cell<usize>,
    /// Output that the stream has not taken; at most one, and nothing more is encrypted meanwhile.
    output: RefCell<Option<SendBuf>>,
    frames: Cell<Frames>,
    /// The queue of the stream is full.
    is_blocked: Cell<bool>,
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
            encrypted: Cell::default(),
            output: RefCell::default(),
            frames: Cell::new(Frames::new()),
            is_blocked: Cell::new(false),
            is_busy: Cell::new(false),
            has_ended: Cell::new(false),
            quiet_turns: Cell::new(None),
        }
    }

    /// A turn of the connection begins; streams are open or not.
    pub(super) fn begin_turn(&self, is_busy: bool) {
        let quiet = match !is_busy && self.has_ended.get() {
            true => self.quiet_turns.get().unwrap_or(0) + 1,
            false => 0,
        };
        self.quiet_turns.set(Some(quiet));
        self.is_busy.set(is_busy);
    }

    /// The end of the stream, which the h2 crate takes for the end of all requests: a client that has said
    /// all it has to say still gets its answers. So the crate hears of it only behind a whole turn without open
    /// streams, in which it has written what was left. In the handshake there are no turns yet.
    fn poll_end(&self, cx: &Context<'_>) -> Poll<io::Result<RecvBuf>> {
        self.has_ended.set(true);
        match self.quiet_turns.get() {
            None | Some(2..) => Poll::Ready(Ok(RecvBuf::from(Vec::new()))),
            Some(_) => {
                // The end of a stream wakes as well.
                if !self.is_busy.get() {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    /// The peer is in the middle of a frame, or of the fields of a request.
    pub(super) fn is_in_frame(&self) -> bool {
        self.frames.get().is_incomplete()
    }

    /// True if the peer does not take what was written.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.get() || self.output.borrow().is_some()
    }

    /// Sends what was gathered; ready when the stream has taken all output.
    pub(super) fn poll_send_gathered(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_output(cx))?;
        self.put_gathered(cx)?;
        if self.encrypted.get() > 0 {
            ready!(self.poll_output(cx))?;
            self.send_encrypted(cx)?;
        }
        self.poll_output(cx)
    }

    fn poll_output(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = self.output.borrow_mut();
        match output.is_some() {
            true => self.connection.tracking.stream().poll_send(cx, &mut output),
            false => Poll::Ready(Ok(())),
        }
    }

    /// As [`put`](Wire::put), of what was gathered.
    fn put_gathered(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let gathered = mem::take(&mut *self.gathered.borrow_mut());
        if gathered.is_empty() { Ok(()) } else { self.put(cx, gathered.into()) }
    }

    /// Sends frames, or encrypts them for the next send. The stream has taken the output before.
    fn put(&self, cx: &mut Context<'_>, frames: SendBuf) -> io::Result<()> {
        let Some(tls) = &self.connection.tls else { return self.send_output(cx, frames) };
        tls.put(frames.as_slice())?;
        self.encrypted.set(self.encrypted.get() + frames.len());
        if self.encrypted.get() < ENCRYPTED_BYTES_MAX { Ok(()) } else { self.send_encrypted(cx) }
    }

    fn send_encrypted(&self, cx: &mut Context<'_>) -> io::Result<()> {
        self.encrypted.set(0);
        match &self.connection.tls {
            Some(tls) => self.send_output(cx, tls.take()?.into()),
            None => Ok(()),
        }
    }

    /// Hands over output. The stream has taken that before it.
    fn send_output(&self, cx: &mut Context<'_>, output: SendBuf) -> io::Result<()> {
        if output.is_empty() {
            return Ok(());
        }
        *self.output.borrow_mut() = Some(output);
        match self.poll_output(cx) {
            Poll::Ready(sent) => sent,
            // It is tried again before anything else is sent or received.
            Poll::Pending => Ok(()),
        }
    }

    fn poll_plain(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        let Some(tls) = &self.connection.tls else {
            return self.connection.tracking.stream().poll_recv(cx);
        };
        loop {
            let opened = tls.opened();
            if !opened.is_empty() || tls.has_ended() {
                return Poll::Ready(Ok(RecvBuf::from(opened)));
            }
            ready!(self.poll_output(cx))?;
            let chunk = ready!(self.connection.tracking.stream().poll_recv(cx))?;
            if chunk.is_empty() {
                self.connection.end_truncated(tls);
            }
            let opened = tls.open(&chunk);
            self.send_encrypted(cx)?;
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
        if received.is_empty() {
            return self.poll_end(cx);
        }
        self.connection.counters.received_bytes.add(received.len() as u64);
        self.note(&received);
        Poll::Ready(Ok(received))
    }

    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_blocked.set(true);
        ready!(self.poll_output(cx))?;
        ready!(self.connection.tracking.stream().poll_send_ready(cx))?;
        self.is_blocked.set(false);
        Poll::Ready(Ok(()))
    }

    fn poll_send(&self, cx: &mut Context<'_>, buf: &mut Option<SendBuf>) -> Poll<io::Result<()>> {
        let bytes = buf.as_ref().map_or(0, SendBuf::len);
        if self.gathered.borrow().len() + bytes > GATHERED_BYTES_MAX {
            ready!(self.poll_output(cx))?;
            self.put_gathered(cx)?;
            ready!(self.poll_output(cx))?;
        }
        match buf.take() {
            Some(frames) if bytes > GATHERED_BYTES_MAX => self.put(cx, frames)?,
            Some(frames) => self.gathered.borrow_mut().extend_from_slice(frames.as_slice()),
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

impl Wire<'_> {
    fn note(&self, bytes: &[u8]) {
        let mut frames = self.frames.get();
        frames.advance(bytes);
        self.frames.set(frames);
    }
}

/// The client's connection preface, before its first frame.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The frames of a client, as far as they have arrived.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    header: [u8; HEADER_BYTES],
    /// Bytes of `header` that are there.
    header_bytes: usize,
    /// Bytes of the preface or of the payload that are still to come.
    left: usize,
    /// The payload is content of a request.
    is_data: bool,
    /// The fields of a request have begun, and their last frame has not.
    in_fields: bool,
}

impl Frames {
    /// Before the preface.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Frames {
        Frames {
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            left: PREFACE.len(),
            is_data: false,
            in_fields: false,
        }
    }

    /// Notes received bytes.
    pub fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (HEADER_BYTES - self.header_bytes).min(bytes.len());
            let (part, rest) = bytes.split_at(taken);
            self.header[self.header_bytes..self.header_bytes + taken].copy_from_slice(part);
            self.header_bytes += taken;
            bytes = rest;
            if self.header_bytes == HEADER_BYTES {
                self.begin_payload();
            }
        }
    }

    fn begin_payload(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.is_data = kind == DATA;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.in_fields = flags & END_HEADERS == 0;
        }
        self.header_bytes = 0;
    }

    /// True if the preface, the fields of a request, or a frame of another type than DATA has begun
    /// and not ended.
    pub fn is_incomplete(&self) -> bool {
        self.in_fields || self.header_bytes > 0 || (self.left > 0 && !self.is_data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn a_frame_is_incomplete_until_its_last_byte() {
        let mut bytes = PREFACE.to_vec();
        // Complete after each of these.
        let mut ends = vec![bytes.len()];
        for part in [
            frame(4, 0, b"settings"),
            frame(4, 1, b""),
            frame(HEADERS, END_HEADERS, b"fields"),
            [frame(HEADERS, 0, b"fiel"), frame(CONTINUATION, END_HEADERS, b"ds")].concat(),
        ] {
            bytes.extend(part);
            ends.push(bytes.len());
        }
        let mut frames = Frames::new();
        assert!(frames.is_incomplete());
        for (at, byte) in bytes.iter().enumerate() {
            frames.advance(&[*byte]);
            assert_eq!(frames.is_incomplete(), !ends.contains(&(at + 1)), "at {at}");
        }
        let mut at_once = Frames::new();
        at_once.advance(&bytes);
        assert!(!at_once.is_incomplete());
        // Content has a time limit of its own, from its first byte.
        frames.advance(&frame(DATA, 0, b"content")[..HEADER_BYTES + 1]);
        assert!(!frames.is_incomplete());
    }
}
