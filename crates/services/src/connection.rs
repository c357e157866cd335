//! One connection of a TCP service.

use crate::server::{Ending, Tracked, Tracking, WorkerCounters};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use twinring::net::{Recv, Send};
use twinring::{RecvBuf, SendBuf};

/// The activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for data. No data is queued for the peer.
    Receiving,
    /// Sending. It waits if the peer does not read.
    Sending,
}

/// One connection of a TCP service. When the connection must end, its waiting operation fails; a
/// service returns that error.
#[derive(Debug)]
pub struct Connection {
    tracking: Tracking<Phase>,
    counters: Arc<WorkerCounters>,
}

impl Connection {
    pub(crate) fn new(tracking: Tracking<Phase>, counters: &Arc<WorkerCounters>) -> Connection {
        Connection { tracking, counters: Arc::clone(counters) }
    }

    /// The next received bytes; empty at the end of the stream.
    ///
    /// # Errors
    /// When the connection broke or must end.
    pub fn recv(&self) -> Receiving<'_> {
        Receiving { connection: self, recv: self.tracking.stream().recv() }
    }

    /// Sends bytes; waits while too much is queued for a peer that does not read. See
    /// [`TcpStream::send`](twinring::TcpStream::send).
    ///
    /// # Errors
    /// When the connection broke or must end.
    pub fn send(&self, bytes: impl Into<SendBuf>) -> Sending<'_> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        self.tracking.continue_in(Phase::Sending);
        Sending { connection: self, send: self.tracking.stream().send(bytes), length }
    }

    /// Closes the sending half behind all queued data and waits until the kernel has all of it.
    ///
    /// # Errors
    /// When the connection broke or must end.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.tracking.enter(Phase::Sending);
        let finished = self.tracking.stream().shutdown().await;
        self.tracking.enter(Phase::Receiving);
        finished
    }

    fn count_received(&self, chunk: &RecvBuf) {
        self.counters.received_bytes.add(chunk.len() as u64);
        self.tracking.step();
    }

    /// Closes the connection after the service returned `served`, in the way in which it was asked
    /// to end.
    pub(crate) async fn end(&self, served: io::Result<()>) {
        let ended = match (served, self.tracking.ending()) {
            (Err(_), Some(Ending::Drain)) => self.close_in_order().await,
            (served, _) => served,
        };
        if ended.is_ok() {
            return;
        }
        match self.tracking.ending() {
            Some(Ending::TimedOut(_)) => self.counters.idle_closed.add(1),
            Some(Ending::Cut) => self.counters.cut.add(1),
            Some(Ending::Drain | Ending::Failed) | None => return self.counters.reset.add(1),
        }
        self.tracking.reset_if_unsent().await;
    }

    /// Sends FIN behind all queued data and reads until the peer sends FIN too or has been idle.
    /// Closing with unread data, or before late data arrives, would send a reset, which can
    /// overtake data that the peer has not read yet.
    async fn close_in_order(&self) -> io::Result<()> {
        let _drain = self.tracking.take_ending();
        self.shutdown().await?;
        loop {
            match self.tracking.stream().recv().await {
                Ok(chunk) if chunk.is_empty() => return Ok(()),
                Ok(chunk) => self.count_received(&chunk),
                Err(_) if self.tracking.ending() == Some(Ending::Drain) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Tracked for Connection {
    type Phase = Phase;

    fn tracking(&self) -> &Tracking<Phase> {
        &self.tracking
    }

    fn closed(&self) {
        self.counters.closed.add(1);
    }
}

/// The future of [`Connection::recv`]. Like [`Sending`], it is not an async function: one that
/// calls another stores its arguments and the inner future side by side, and every connection pays
/// for that in cache footprint.
#[derive(Debug)]
#[must_use = "receives nothing unless awaited"]
pub struct Receiving<'a> {
    connection: &'a Connection,
    recv: Recv<'a>,
}

impl Future for Receiving<'_> {
    type Output = io::Result<RecvBuf>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connection = self.connection;
        let received = connection.tracking.poll_recv(&mut self.recv, cx);
        if let Poll::Ready(Ok(chunk)) = &received {
            connection.count_received(chunk);
        }
        received
    }
}

/// The future of [`Connection::send`].
#[derive(Debug)]
#[must_use = "sends nothing unless awaited"]
pub struct Sending<'a> {
    connection: &'a Connection,
    send: Send<'a>,
    length: u64,
}

impl Future for Sending<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let sent = Pin::new(&mut self.send).poll(cx);
        if let Poll::Ready(outcome) = &sent {
            self.connection.tracking.enter(Phase::Receiving);
            if outcome.is_ok() {
                self.connection.counters.sent_bytes.add(self.length);
            }
        }
        sent
    }
}
