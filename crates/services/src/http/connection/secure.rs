//! The same over TLS, with an encryption between the connection and its stream.

use super::super::exchange::Exchange;
use super::super::tls::Encryption;
use super::Connection;
use crate::server::Phase;
use std::io;
use twinring::{RecvBuf, SendBuf};

/// Bytes of an answer that are encrypted at once; together with the queue of the stream, a
/// connection holds this much for a peer that does not read.
const CHUNK_BYTES: usize = 64 * 1024;

/// The first byte of a TLS connection: a record of type handshake.
const HANDSHAKE_RECORD: u8 = 22;

impl Connection {
    /// Performs the handshake, before the first request. `in_the_open` is the answer to a client
    /// that speaks HTTP without TLS.
    pub(in super::super) async fn shake_hands(
        &self,
        tls: &Encryption,
        in_the_open: impl FnOnce() -> (SendBuf, Exchange),
    ) -> io::Result<()> {
        self.tracking.enter(Phase::Silent);
        let mut is_first = true;
        while tls.is_handshaking() {
            let chunk = self.recv_raw().await?;
            // The time for it runs since the accept.
            self.tracking.continue_in(Phase::Handshake);
            if chunk.is_empty() {
                self.tracking.fail();
                // A client that sent nothing has only checked the port.
                self.counters.tls_failures.add(u64::from(!is_first));
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            if std::mem::replace(&mut is_first, false) && chunk[0] != HANDSHAKE_RECORD {
                self.counters.tls_failures.add(1);
                self.tracking.fail();
                if chunk[0].is_ascii_uppercase() {
                    let (answer, mut exchange) = in_the_open();
                    let length = answer.len() as u64;
                    self.tracking.stream().send(answer).await?;
                    self.count_sent(length);
                    exchange.sent_whole();
                }
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let taken = self.take_in(tls, &chunk).await;
            // Before an error, which may be about data behind the handshake.
            if !tls.is_handshaking() {
                self.counters.tls_handshakes.add(1);
                self.counters.tls_resumed.add(u64::from(tls.was_resumed()));
            }
            taken?;
        }
        Ok(())
    }

    pub(super) async fn recv_secure(&self, tls: &Encryption, phase: Phase) -> io::Result<RecvBuf> {
        self.tracking.enter(phase);
        let mut plain = tls.opened.take();
        while plain.is_empty() && !tls.ended.get() {
            let chunk = self.recv_raw().await?;
            if chunk.is_empty() {
                self.end_truncated(tls);
            }
            self.take_in(tls, &chunk).await?;
            plain = tls.opened.take();
        }
        self.counters.received_bytes.add(plain.len() as u64);
        if phase == Phase::Idle {
            self.tracking.continue_in(Phase::Working);
        }
        Ok(RecvBuf::from(plain))
    }

    /// Processes received data, and sends the output of TLS itself: handshake messages, tickets,
    /// new keys, or alerts.
    async fn take_in(&self, tls: &Encryption, bytes: &[u8]) -> io::Result<()> {
        let opened = tls.open(bytes);
        let answer = tls.take()?;
        if !answer.is_empty() {
            self.tracking.stream().send(answer).await?;
        }
        opened.map_err(|error| self.fail_tls(tls, error))
    }

    /// Records that the stream ended without close_notify: a third party may have cut it. Complete
    /// requests are answered nevertheless: each states its length.
    pub(in super::super) fn end_truncated(&self, tls: &Encryption) {
        tls.ended.set(true);
        self.counters.tls_truncated.add(1);
    }

    pub(in super::super) fn fail_tls(&self, tls: &Encryption, error: rustls::Error) -> io::Error {
        tls.failed.set(true);
        self.counters.tls_failures.add(1);
        self.tracking.fail();
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    pub(super) async fn send_secure(&self, tls: &Encryption, bytes: SendBuf) -> io::Result<()> {
        self.tracking.enter(Phase::Sending);
        let mut left = bytes.as_slice();
        loop {
            let (chunk, rest) = left.split_at(left.len().min(CHUNK_BYTES));
            tls.put(chunk)?;
            self.tracking.stream().send(tls.take()?).await?;
            self.count_sent(chunk.len() as u64);
            left = rest;
            if left.is_empty() {
                break;
            }
            self.tracking.enter(Phase::Working);
            self.tracking.enter(Phase::Sending);
        }
        self.tracking.enter(Phase::Working);
        Ok(())
    }

    /// Like [`shutdown`](Connection::shutdown): announces the end, so that the peer can distinguish it
    /// from a cut connection.
    pub(super) async fn shutdown_tls(&self, tls: &Encryption) -> io::Result<()> {
        self.tracking.enter(Phase::Sending);
        self.tracking.stream().flush().await?;
        let close = async {
            tls.put_end();
            let end = tls.take()?;
            if !end.is_empty() {
                self.tracking.stream().send(end).await?;
            }
            self.tracking.stream().shutdown().await?;
            self.close_in_stages().await
        };
        match close.await {
            // A peer that has ended may have left, and then answers with a reset.
            Err(_) if tls.ended.get() && self.tracking.ending().is_none() => Ok(()),
            closed => closed,
        }
    }
}
