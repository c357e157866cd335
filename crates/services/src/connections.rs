//! The live connections of a worker: how they are counted, found idle, and asked to end.
//!
//! A message costs a connection no timer and no clock: it moves a step counter. A sweep, which
//! runs only while an idle timeout or a drain needs it, compares the counters with those of the
//! sweep before and cancels what has stood still for long enough. The operation that waited then
//! fails, the service returns, and [`Connection::end`] closes the connection as was asked for.

use crate::activity::Activity;
use crate::counters::WorkerCounters;
use crate::guests::{Guest, Guests, Refused};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::ready;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use twinring::net::{Recv, Send};
use twinring::{Either, RecvBuf, SendBuf, TcpStream, race};

/// Why a connection was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing moved for the idle timeout.
    Idle,
    /// The service shuts down, and the connection has been quiet.
    Drain,
    /// The drain timeout is over.
    Cut,
}

/// One connection of a TCP service. It ends the operation that waits with an error when the
/// connection has to end; a service passes that error on.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    counters: Arc<WorkerCounters>,
    /// Moves with everything that happens here; odd while a send or a flush waits for the peer.
    steps: Cell<u64>,
    /// `steps` at the last sweep; a value that it never takes before the first one.
    seen: Cell<u64>,
    /// Sweeps since then that found it unchanged.
    quiet_sweeps: Cell<u32>,
    ending: Cell<Option<Ending>>,
}

impl Connection {
    /// The next received bytes; empty when the peer has finished sending.
    ///
    /// # Errors
    /// When the connection broke or has to end.
    pub fn recv(&self) -> Receiving<'_> {
        Receiving { connection: self, recv: self.stream.recv() }
    }

    /// Hands bytes over for sending; waits while too much is queued for a peer that does not
    /// read. See [`TcpStream::send`].
    ///
    /// # Errors
    /// When the connection broke or has to end.
    pub fn send(&self, bytes: impl Into<SendBuf>) -> Sending<'_> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        self.steps.set(self.steps.get() + 1);
        Sending { connection: self, send: self.stream.send(bytes), length }
    }

    /// Ends the sending half behind what is queued and waits until the kernel has all of it.
    ///
    /// # Errors
    /// When the connection broke or has to end.
    pub async fn finish(&self) -> io::Result<()> {
        self.steps.set(self.steps.get() + 1);
        let finished = self.stream.finish().await;
        self.steps.set(self.steps.get() + 1);
        finished
    }

    /// Closes after the service returned `served`: as it was asked to, if it was.
    pub(crate) async fn end(&self, served: io::Result<()>) {
        let drained = match (served, self.ending.get()) {
            (Ok(()), _) => return,
            (Err(_), None) => return self.counters.reset.add(1),
            (Err(_), Some(Ending::Drain)) => self.say_goodbye().await,
            (Err(error), Some(Ending::Idle | Ending::Cut)) => Err(error),
        };
        match (drained, self.ending.get()) {
            (Ok(()), _) => {}
            (Err(_), Some(Ending::Idle)) => {
                self.counters.idle_closed.add(1);
                self.reset_if_unsent().await;
            }
            (Err(_), Some(Ending::Cut)) => {
                self.counters.cut.add(1);
                self.reset_if_unsent().await;
            }
            (Err(_), Some(Ending::Drain) | None) => self.counters.reset.add(1),
        }
    }

    /// Sends FIN behind everything queued and reads until the peer ends too or has been quiet.
    /// Closing with unread data, or before late data arrives, would send a reset, which can
    /// overtake what the peer has not read yet.
    async fn say_goodbye(&self) -> io::Result<()> {
        self.ending.set(None);
        self.finish().await?;
        loop {
            match self.stream.recv().await {
                Ok(piece) if piece.is_empty() => return Ok(()),
                Ok(piece) => {
                    self.counters.received_bytes.add(piece.len() as u64);
                    self.steps.set(self.steps.get() + 2);
                }
                Err(_) if self.ending.get() == Some(Ending::Drain) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the close a reset when bytes are left unsent: FIN would tell the peer that it got
    /// everything.
    async fn reset_if_unsent(&self) {
        if !matches!(race(self.stream.flush(), ready(())).await, Either::Left(Ok(()))) {
            // Fails only on a connection that is gone already.
            let _gone = self.stream.set_reset_on_close();
        }
    }

    fn ask_to_end(&self, ending: Ending) {
        self.quiet_sweeps.set(0);
        self.ending.set(Some(ending));
        self.stream.cancel();
    }

    fn waits_for_the_peer_to_read(&self) -> bool {
        !self.steps.get().is_multiple_of(2)
    }
}

/// The future of [`Connection::recv`]. Written out, as [`Sending`] is, because an async function
/// around another keeps its arguments and what it awaits side by side, and every connection pays
/// for that in cache footprint.
#[derive(Debug)]
#[must_use = "receives nothing unless awaited"]
pub struct Receiving<'a> {
    connection: &'a Connection,
    recv: Recv<'a>,
}

impl Future for Receiving<'_> {
    type Output = io::Result<RecvBuf>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connection = self.connection;
        let mut received = Pin::new(&mut self.recv).poll(cx);
        if matches!(received, Poll::Ready(Err(_))) && connection.ending.get() == Some(Ending::Drain)
        {
            // What arrived in the moment the drain ended the wait for it is still to be answered.
            received = connection.stream.poll_recv(cx);
            match &received {
                Poll::Ready(_) => connection.ending.set(None),
                Poll::Pending => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
            }
        }
        if let Poll::Ready(Ok(piece)) = &received {
            connection.counters.received_bytes.add(piece.len() as u64);
            connection.steps.set(connection.steps.get() + 2);
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
            self.connection.steps.set(self.connection.steps.get() + 1);
            if outcome.is_ok() {
                self.connection.counters.sent_bytes.add(self.length);
            }
        }
        sent
    }
}

/// The connections of one worker.
#[derive(Debug)]
pub(crate) struct Connections {
    live: RefCell<Slab<Rc<Connection>>>,
    /// Connections came.
    activity: Activity,
    counters: Arc<WorkerCounters>,
    guests: Arc<Guests>,
}

impl Connections {
    pub(crate) fn new(counters: Arc<WorkerCounters>, guests: Arc<Guests>) -> Rc<Connections> {
        let activity = Activity::default();
        Rc::new(Connections { live: RefCell::default(), activity, counters, guests })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.borrow().is_empty()
    }

    /// Waits until there are connections.
    pub(crate) async fn not_empty(&self) {
        while self.is_empty() {
            self.activity.forget();
            self.activity.wait().await;
        }
    }

    /// Registers an accepted connection if it is let in; otherwise it is closed.
    pub(crate) fn admit(self: &Rc<Connections>, stream: TcpStream) -> Option<Live> {
        let guest = match self.guests.admit(&stream) {
            Ok(guest) => guest,
            Err(why) => {
                let count = match why {
                    Refused::Full => &self.counters.refused,
                    Refused::FullForAddress => &self.counters.refused_of_address,
                    Refused::NotAllowed => &self.counters.not_allowed,
                };
                count.add(1);
                return None;
            }
        };
        self.counters.accepted.add(1);
        self.activity.note();
        let connection = Rc::new(Connection {
            stream,
            counters: Arc::clone(&self.counters),
            steps: Cell::new(0),
            seen: Cell::new(u64::MAX),
            quiet_sweeps: Cell::new(0),
            ending: Cell::new(None),
        });
        let key = self.live.borrow_mut().insert(Rc::clone(&connection));
        Some(Live { connections: Rc::clone(self), connection, key, _guest: guest })
    }

    /// Asks every connection to end that has stood still for `quiet_sweeps` sweeps, this one
    /// included. A drain spares those that still wait for their peer to read.
    pub(crate) fn sweep(&self, ending: Ending, quiet_sweeps: u32) {
        for (_, connection) in self.live.borrow().iter() {
            let steps = connection.steps.get();
            if connection.seen.replace(steps) != steps {
                connection.quiet_sweeps.set(0);
                continue;
            }
            connection.quiet_sweeps.set(connection.quiet_sweeps.get().saturating_add(1));
            let spared = ending == Ending::Drain && connection.waits_for_the_peer_to_read();
            if connection.quiet_sweeps.get() >= quiet_sweeps && !spared {
                connection.ask_to_end(ending);
            }
        }
    }

    /// Asks every connection to end now.
    pub(crate) fn cut(&self) {
        for (_, connection) in self.live.borrow().iter() {
            connection.ask_to_end(Ending::Cut);
        }
    }
}

/// A connection's place among the live ones; dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Live {
    connections: Rc<Connections>,
    connection: Rc<Connection>,
    key: usize,
    _guest: Guest,
}

impl Live {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let connection = self.connections.live.borrow_mut().try_remove(self.key);
        drop(connection);
        self.connections.counters.closed.add(1);
    }
}
