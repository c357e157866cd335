//! A connection as bytes of HTTP, with TLS or without.

use super::tls::TlsSession;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use twinring::{RecvBuf, SendBuf, TcpStream, yield_now};

pub(super) struct Link {
    stream: TcpStream,
    tls: Option<Box<TlsSession>>,
    /// Encrypted, and not yet accepted by the stream.
    encrypted: Option<Rc<[u8]>>,
    /// Received with the end of the TLS handshake: a server of HTTP/2 speaks without being asked.
    early: Vec<u8>,
}

impl Link {
    pub(super) fn new(stream: TcpStream, session: Option<TlsSession>) -> Link {
        Link { stream, tls: session.map(Box::new), encrypted: None, early: Vec::new() }
    }

    pub(super) fn tls(&self) -> Option<&TlsSession> {
        self.tls.as_deref()
    }

    pub(super) async fn handshake(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        loop {
            let bytes = tls.pending()?;
            if !bytes.is_empty() {
                self.stream.send(bytes).await?;
            }
            if !tls.client.is_handshaking() {
                return Ok(());
            }
            let chunk = self.stream.recv().await?;
            if chunk.is_empty() {
                let what = "the server closed the connection during the TLS handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            let early = &mut self.early;
            let refused = tls.decrypt(&chunk, |bytes| {
                early.extend_from_slice(bytes);
                Ok::<(), io::Error>(())
            });
            let refused = refused.err();
            if let Some(error) = refused {
                // The alert that gives the server the reason.
                let alert = tls.pending()?;
                self.stream.send(alert).await?;
                return Err(error);
            }
        }
    }

    pub(super) fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.early)
    }

    /// The next bytes of the connection; empty at its end.
    pub(super) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        self.stream.poll_recv(cx)
    }

    /// Passes on the plain text of received bytes.
    pub(super) fn take<E: From<io::Error>>(
        &mut self,
        bytes: &[u8],
        mut plain: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match &mut self.tls {
            None => plain(bytes),
            Some(tls) => tls.decrypt(bytes, plain),
        }
    }

    /// True after the server's close_notify.
    pub(super) fn has_ended(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.ended)
    }

    /// True if the server intended the end of the connection: without TLS always.
    pub(super) fn end_is_meant(&self) -> bool {
        self.tls.is_none() || self.has_ended()
    }

    /// Ready when [`poll_send`](Link::poll_send) would take bytes.
    pub(super) fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        self.stream.poll_send_ready(cx)
    }

    /// Sends `bytes`, or leaves them in place while the stream is full.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Option<SendBuf>,
    ) -> Poll<io::Result<()>> {
        if self.tls.is_none() {
            return self.stream.poll_send(cx, bytes);
        }
        ready!(self.poll_flush(cx))?;
        if let (Some(tls), Some(plain)) = (&mut self.tls, bytes.take()) {
            self.encrypted = Some(tls.encrypt(plain.as_slice())?.into());
        }
        match self.poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // They are accepted, even if the stream does not have them yet.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    /// Continues to send the output of TLS.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(tls) = &mut self.tls {
            if self.encrypted.is_none() {
                self.encrypted =
                    Some(tls.pending()?.into()).filter(|bytes: &Rc<[u8]>| !bytes.is_empty());
            }
            let Some(bytes) = &self.encrypted else { break };
            ready!(self.stream.poll_send(cx, &mut Some(Rc::clone(bytes).into())))?;
            self.encrypted = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Closes with a reset instead of waiting for the server's end.
    pub(super) fn reset(&mut self) {
        // Fails if the connection has already ended, which is the aim.
        let _gone = self.stream.set_reset_on_close();
    }

    /// Sends close_notify, if TLS is used and the stream accepts it without waiting for the server.
    pub(super) async fn close(mut self) {
        let Some(tls) = self.tls.as_mut().filter(|_| self.encrypted.is_none()) else { return };
        tls.client.send_close_notify();
        self.encrypted = Some(tls.pending().unwrap_or_default().into());
        for _attempt in 0..2 {
            let flushed = poll_fn(|cx| Poll::Ready(self.poll_flush(cx))).await;
            if flushed.is_ready() {
                return;
            }
            // The task may only have used up its budget.
            yield_now().await;
        }
    }
}
