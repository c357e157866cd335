//! What the h2 crate reads from and writes to: the stream, through TLS if that is spoken.

use super::Http2;
use crate::http::link::Link;
use crate::requests::Worker;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use twinring::{RecvBuf, SendBuf, measure::monotonic_ns};
use twinring_compat::Socket;

/// See the module. Counts the bytes of all frames.
pub(super) struct Wire {
    pub(super) link: RefCell<Link>,
    pub(super) worker: Rc<Worker<Http2>>,
}

impl Wire {
    /// Continues to send the output of TLS that the stream has not taken. h2 does not: for it, what was
    /// written is sent.
    pub(super) fn poll_encrypted(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.borrow_mut().poll_flush(cx)
    }
}

impl Socket for Wire {
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        let mut link = self.link.borrow_mut();
        let early = link.take_early();
        if !early.is_empty() {
            return Poll::Ready(Ok(RecvBuf::from(early)));
        }
        let received = loop {
            if link.has_ended() {
                return Poll::Ready(Ok(RecvBuf::from(Vec::new())));
            }
            let chunk = ready!(link.poll_recv(cx))?;
            if link.tls().is_none() || chunk.is_empty() {
                break chunk;
            }
            let mut plain = Vec::new();
            link.take(&chunk, |bytes| {
                plain.extend_from_slice(bytes);
                Ok::<(), io::Error>(())
            })?;
            // Answers of TLS itself are sent with the next frame, if not now.
            if let Poll::Ready(flushed) = link.poll_flush(cx) {
                flushed?;
            }
            if !plain.is_empty() {
                break RecvBuf::from(plain);
            }
        };
        let window = self.worker.control.window();
        if window.contains(&monotonic_ns()) {
            self.worker.recorder.borrow_mut().received_bytes += received.len() as u64;
        }
        Poll::Ready(Ok(received))
    }

    fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.borrow_mut().poll_send_ready(cx)
    }

    fn poll_send(&self, cx: &mut Context<'_>, buf: &mut Option<SendBuf>) -> Poll<io::Result<()>> {
        let bytes = buf.as_ref().map_or(0, SendBuf::len) as u64;
        ready!(self.link.borrow_mut().poll_send(cx, buf))?;
        let window = self.worker.control.window();
        if window.contains(&monotonic_ns()) {
            self.worker.recorder.borrow_mut().sent_bytes += bytes;
        }
        Poll::Ready(Ok(()))
    }

    /// The stream is closed by its owner.
    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.borrow_mut().poll_flush(cx)
    }
}
