//! One connection: bytes in and out, encrypted or not, in phases with time limits; and its end.
//! `crate::server` watches the phases.

use super::counters::WorkerCounters;
use super::exchange::Exchange;
use super::options::SendStrategy;
use super::proxies::{ProxyHeader, Transport};
use super::tls::Encryption;
use super::worker::Worker;
use crate::server::{AddressPermit, Count, Ending, Phase, Tracking};
use std::cell::{Cell, OnceCell};
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::fs::File;
use twinring::{Either, RecvBuf, SendBuf, race, sleep};

/// Pauses between two looks at what the peer has acknowledged behind FIN.
const ACKED_CHECK_MIN: Duration = Duration::from_millis(10);
const ACKED_CHECK_MAX: Duration = Duration::from_millis(200);

/// How long a peer may go on sending after the last answer. Without reading, the close would be a reset, which can
/// overtake the answer.
const DISCARD_MAX: Duration = Duration::from_secs(30);

/// What it must send, in bytes, to get more time.
const DISCARD_BYTES_MIN: usize = 1024;

/// Bytes of an answer that are encrypted at once; together with the queue of the stream, a
/// connection holds this much for a peer that does not read.
const CHUNK_BYTES: usize = 64 * 1024;

/// The first byte of a TLS connection: a record of type handshake.
const HANDSHAKE_RECORD: u8 = 22;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) tracking: Tracking,
    pub(super) tls: Option<Box<Encryption>>,
    /// Who sends the requests, if that matters.
    peer: Cell<Option<SocketAddr>>,
    pub(super) head_began: Cell<Option<Instant>>,
    pub(super) file_strategy: SendStrategy,
    pub(super) counters: Arc<WorkerCounters>,
    /// An answer was begun that is not handed over whole. If the connection ends then, it is reset: FIN could be taken
    /// for the end of the answer.
    pub(super) incomplete: Cell<bool>,
    /// Of answers, before encryption.
    pub(super) answer_bytes: Cell<u64>,
    /// It begins with a header by which a proxy names the client.
    pub(super) is_proxied: bool,
    /// Counts the connection for that client.
    permit: OnceCell<Box<AddressPermit>>,
}

impl Connection {
    pub(super) fn new(
        tracking: Tracking,
        tls: Option<Box<Encryption>>,
        is_proxied: bool,
        worker: &Worker,
    ) -> Connection {
        let settings = &worker.generation().settings;
        let names_clients = worker.http.log.is_some() || !settings.forwarded_from.is_empty();
        let peer = names_clients.then(|| tracking.stream.peer_addr().ok()).flatten();
        let has_tls = tls.is_some();
        Connection {
            tracking,
            tls,
            peer: Cell::new(peer),
            head_began: Cell::default(),
            file_strategy: if has_tls { SendStrategy::Read } else { settings.send },
            counters: Arc::clone(&worker.counters),
            incomplete: Cell::new(false),
            answer_bytes: Cell::new(0),
            is_proxied,
            permit: OnceCell::new(),
        }
    }

    pub(super) fn transport(&self) -> Transport {
        Transport { has_tls: self.tls.is_some(), peer: self.peer.get() }
    }

    /// Finds out who sends the requests: a rule may ask for it, or a message about one of them.
    pub(super) fn learn_peer(&self) {
        self.peer.set(self.peer.get().or_else(|| self.tracking.stream.peer_addr().ok()));
    }

    /// Reads the header of the PROXY protocol, by which a proxy names the client. `count` counts the
    /// connection for the client, or refuses it.
    pub(super) async fn read_proxy_header(
        &self,
        count: impl FnOnce(SocketAddr) -> Option<AddressPermit>,
    ) -> io::Result<()> {
        self.tracking.enter(Phase::Silent);
        let failures = &self.counters.proxy_failures;
        let mut bytes = Vec::new();
        let header = loop {
            let chunk = self.recv_handshake(bytes.is_empty(), failures).await?;
            bytes.extend_from_slice(&chunk);
            match ProxyHeader::parse(&bytes) {
                Ok(Some(header)) => break header,
                Ok(None) => {}
                Err(_) => {
                    failures.add(1);
                    return Err(self.fail(io::ErrorKind::InvalidData));
                }
            }
        };
        if let Some(client) = header.client {
            self.peer.set(Some(client));
            let Some(permit) = count(client) else {
                self.counters.refused_of_address.add(1);
                return Err(self.fail(io::ErrorKind::ConnectionRefused));
            };
            let _is_the_first = self.permit.set(Box::new(permit));
        }
        bytes.drain(..header.length);
        self.tracking.stream.put_back(bytes);
        Ok(())
    }

    /// More bytes before the first request. A peer that sent none at all has only checked the port; another one has
    /// failed.
    async fn recv_handshake(&self, is_first: bool, failures: &Count) -> io::Result<RecvBuf> {
        let chunk = self.tracking.recv().await?;
        // The time for it runs since the accept.
        self.tracking.continue_in(Phase::Handshake);
        if chunk.is_empty() {
            failures.add(u64::from(!is_first));
            return Err(self.fail(io::ErrorKind::UnexpectedEof));
        }
        Ok(chunk)
    }

    fn fail(&self, kind: io::ErrorKind) -> io::Error {
        self.tracking.ending.set(Some(Ending::Failed));
        kind.into()
    }

    /// The next received bytes, awaited in a phase; empty at the end of the stream.
    pub(super) async fn recv(&self, phase: Phase) -> io::Result<RecvBuf> {
        self.tracking.enter(phase);
        let chunk = match &self.tls {
            Some(tls) => Box::pin(self.recv_secure(tls)).await?,
            None => self.tracking.recv().await?,
        };
        self.counters.received_bytes.add(chunk.len() as u64);
        if phase == Phase::Idle {
            self.tracking.continue_in(Phase::Working);
        }
        Ok(chunk)
    }

    /// Sends bytes; waits while too much is queued for a peer that does not read.
    pub(super) async fn send(&self, bytes: impl Into<SendBuf>) -> io::Result<()> {
        let bytes = bytes.into();
        if let Some(tls) = &self.tls {
            return Box::pin(self.send_secure(tls, bytes)).await;
        }
        let length = bytes.len() as u64;
        self.tracking.enter(Phase::Sending);
        self.tracking.stream.send(bytes).await?;
        self.tracking.enter(Phase::Working);
        self.count_sent(length);
        Ok(())
    }

    /// Returns when the kernel has all bytes of earlier sends.
    pub(super) async fn flush(&self) -> io::Result<()> {
        self.tracking.enter(Phase::Sending);
        self.tracking.stream.flush().await?;
        self.tracking.enter(Phase::Working);
        Ok(())
    }

    /// Like [`send`](Connection::send), for bytes that are followed by more at once.
    pub(super) async fn send_corked(&self, bytes: impl Into<SendBuf>) -> io::Result<()> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        if let Some(tls) = &self.tls {
            self.count_sent(length);
            return tls.put(bytes.as_slice());
        }
        self.tracking.enter(Phase::Sending);
        self.tracking.stream.send_corked(bytes).await?;
        self.tracking.enter(Phase::Working);
        self.count_sent(length);
        Ok(())
    }

    /// Sends a part of a file; less than requested only if the file ends before.
    pub(super) async fn send_file(&self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        self.tracking.enter(Phase::Sending);
        let before = self.tracking.stream.sent_of_files();
        let outcome = self.tracking.stream.send_file(file, offset, len).await;
        // Bytes that were sent before the failure count too.
        let sent = self.tracking.stream.sent_of_files() - before;
        self.count_sent(sent);
        self.counters.sent_file_bytes.add(sent);
        outcome?;
        self.tracking.enter(Phase::Working);
        Ok(sent)
    }

    /// Counts bytes of answers (before encryption).
    pub(super) fn count_sent(&self, bytes: u64) {
        self.counters.sent_bytes.add(bytes);
        self.answer_bytes.set(self.answer_bytes.get() + bytes);
        let sent_bytes = &self.tracking.sent_bytes;
        // The peer acknowledges what the network carries.
        let before_encryption = || sent_bytes.get() + bytes;
        sent_bytes
            .set(self.tls.as_ref().map_or_else(before_encryption, |tls| tls.taken_bytes.get()));
    }

    /// Records that the current answer cannot be completed, because its file was changed.
    pub(super) fn break_off(&self) -> io::Error {
        self.counters.broken_off.add(1);
        self.fail(io::ErrorKind::Other)
    }

    pub(super) fn must_end(&self) -> bool {
        self.tracking.ending.get().is_some()
    }

    /// True if it must end for a reason of which the peer can be told before. The reason is then counted, and the
    /// connection continues until the peer was told.
    pub(super) fn takes_leave(&self, is_polite: fn(Ending) -> bool) -> bool {
        let is_polite = self.tracking.ending.get().is_some_and(is_polite);
        if is_polite {
            self.count(self.tracking.ending.take());
        }
        is_polite
    }

    /// Closes the connection in order: sends queued data and FIN, then reads until the peer's FIN.
    /// Closing with unread data, or before late data arrives, would send a reset, which can
    /// overtake the answer (RFC 9112 section 9.6).
    pub(super) async fn shutdown(&self) -> io::Result<()> {
        self.tracking.enter(Phase::Sending);
        let Some(tls) = &self.tls else { return self.close_in_stages().await };
        self.tracking.stream.flush().await?;
        // Announces the end, so that the peer can distinguish it from a cut connection.
        tls.put_end();
        let close = async {
            self.send_output(tls).await?;
            self.close_in_stages().await
        };
        match close.await {
            // A peer that has ended may have left, and then answers with a reset.
            Err(_) if tls.ended.get() && !self.must_end() => Ok(()),
            closed => closed,
        }
    }

    /// Sends FIN, then reads and drops what comes until the peer ends as well. As long as the peer has not
    /// acknowledged everything it has the time that sending has; then it has little, but more if it is still
    /// sending, such as a body that was refused.
    async fn close_in_stages(&self) -> io::Result<()> {
        self.tracking.stream.shutdown().await?;
        let mut pause = ACKED_CHECK_MIN;
        while !self.tracking.stream.is_acked().unwrap_or(true) {
            self.tracking.enter(Phase::Sending);
            match race(self.tracking.recv(), sleep(pause)).await {
                Either::Left(chunk) => {
                    if chunk?.is_empty() {
                        return Ok(());
                    }
                }
                Either::Right(()) => pause = (2 * pause).min(ACKED_CHECK_MAX),
            }
        }
        self.tracking.enter(Phase::Closing);
        let (began, mut discarded) = (Instant::now(), 0);
        loop {
            let chunk = self.tracking.recv().await?;
            if chunk.is_empty() {
                return Ok(());
            }
            discarded += chunk.len();
            // One that sends byte by byte gets no more time.
            if discarded >= DISCARD_BYTES_MIN && began.elapsed() < DISCARD_MAX {
                discarded = 0;
                self.tracking.step();
            }
        }
    }

    /// Closes the connection behind its last answer. If it is that to the client's last request, the client sends no
    /// further one, so the socket can be closed as soon as the kernel has the answer: without a
    /// separate FIN, and without waiting for that of the client. Data that arrived nevertheless is
    /// read.
    pub(super) async fn end(&self, as_asked: bool) -> io::Result<()> {
        if !as_asked || self.tls.is_some() {
            return self.shutdown().await;
        }
        self.flush().await?;
        match race(self.tracking.stream.recv(), ready(())).await {
            Either::Left(Ok(chunk)) if !chunk.is_empty() => self.shutdown().await,
            Either::Left(received) => received.map(drop),
            Either::Right(()) => Ok(()),
        }
    }

    /// Closes after serving failed. `timed_out` is the answer to a peer that was too slow with the head of a
    /// request, and its record.
    pub(super) async fn close(&self, timed_out: impl FnOnce() -> (SendBuf, Exchange)) {
        let ending = self.tracking.ending.take();
        self.count(ending);
        let said = match ending {
            Some(Ending::TimedOut(Phase::Head)) => {
                let (message, mut exchange) = timed_out();
                let said = self.send(message).await;
                if said.is_ok() {
                    exchange.sent_whole();
                }
                said
            }
            Some(Ending::TimedOut(Phase::Idle) | Ending::Drain) => Ok(()),
            Some(Ending::Failed) if !self.incomplete.get() => Ok(()),
            _ => Err(io::ErrorKind::Other.into()),
        };
        if said.is_err() || self.shutdown().await.is_err() {
            // If data is unsent, or still to be produced.
            match self.incomplete.get() {
                true => self.tracking.reset_on_close(),
                false => self.tracking.reset_if_unsent().await,
            }
        }
    }

    fn count(&self, ending: Option<Ending>) {
        let counters = &self.counters;
        let count = match ending {
            None => &counters.reset,
            Some(Ending::Cut) => &counters.cut,
            Some(Ending::TimedOut(phase)) => match phase {
                Phase::Silent | Phase::Handshake => &counters.handshake_timeouts,
                Phase::Idle => &counters.idle_closed,
                Phase::Head => &counters.header_timeouts,
                Phase::Body => &counters.body_timeouts,
                Phase::Sending => &counters.send_timeouts,
                Phase::Working | Phase::Closing => return,
            },
            // Counted where it was found out, if at all.
            Some(Ending::Drain | Ending::Failed) => return,
        };
        count.add(1);
    }
}

/// The same over TLS, with an encryption between the connection and its stream.
impl Connection {
    /// Performs the handshake, before the first request. `in_the_open` is the answer to a client
    /// that speaks HTTP without TLS.
    pub(super) async fn shake_hands(
        &self,
        tls: &Encryption,
        in_the_open: impl FnOnce() -> (SendBuf, Exchange),
    ) -> io::Result<()> {
        self.tracking.enter(Phase::Silent);
        let failures = &self.counters.tls_failures;
        let mut is_first = true;
        while tls.is_handshaking() {
            let chunk = self.recv_handshake(is_first, failures).await?;
            if std::mem::take(&mut is_first) && chunk[0] != HANDSHAKE_RECORD {
                failures.add(1);
                let failed = self.fail(io::ErrorKind::InvalidData);
                if chunk[0].is_ascii_uppercase() {
                    let (answer, mut exchange) = in_the_open();
                    let length = answer.len() as u64;
                    self.tracking.stream.send(answer).await?;
                    self.count_sent(length);
                    exchange.sent_whole();
                }
                return Err(failed);
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

    async fn recv_secure(&self, tls: &Encryption) -> io::Result<RecvBuf> {
        let mut plain = tls.opened.take();
        while plain.is_empty() && !tls.ended.get() {
            let chunk = self.tracking.recv().await?;
            if chunk.is_empty() {
                self.end_truncated(tls);
            }
            self.take_in(tls, &chunk).await?;
            plain = tls.opened.take();
        }
        Ok(RecvBuf::from(plain))
    }

    /// Processes received data, and sends the output of TLS itself: handshake messages, tickets,
    /// new keys, or alerts.
    async fn take_in(&self, tls: &Encryption, bytes: &[u8]) -> io::Result<()> {
        let opened = tls.open(bytes);
        self.send_output(tls).await?;
        opened.map_err(|_| self.fail_tls(tls))
    }

    async fn send_output(&self, tls: &Encryption) -> io::Result<()> {
        match tls.take()? {
            nothing if nothing.is_empty() => Ok(()),
            output => self.tracking.stream.send(output).await,
        }
    }

    /// Records that the stream ended without close_notify: a third party may have cut it. Complete
    /// requests are answered nevertheless: each states its length.
    pub(super) fn end_truncated(&self, tls: &Encryption) {
        tls.ended.set(true);
        self.counters.tls_truncated.add(1);
    }

    pub(super) fn fail_tls(&self, tls: &Encryption) -> io::Error {
        tls.failed.set(true);
        self.counters.tls_failures.add(1);
        self.fail(io::ErrorKind::InvalidData)
    }

    async fn send_secure(&self, tls: &Encryption, bytes: SendBuf) -> io::Result<()> {
        for chunk in bytes.as_slice().chunks(CHUNK_BYTES) {
            self.tracking.enter(Phase::Sending);
            tls.put(chunk)?;
            self.tracking.stream.send(tls.take()?).await?;
            self.count_sent(chunk.len() as u64);
            self.tracking.enter(Phase::Working);
        }
        Ok(())
    }
}

impl AsRef<Tracking> for Connection {
    fn as_ref(&self) -> &Tracking {
        &self.tracking
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters.closed.add(1);
    }
}
