//! The open connections of a worker: how long each has been in its phase, and how it is ended.
//!
//! A message costs a connection no timer and no clock: progress increments a step counter. A sweep over all connections
//! compares the counters with those of the previous sweep, and cancels connections that have stayed in one phase for
//! longer than the service allows. The waiting operation then fails, the service returns the error, and the connection is
//! closed as its [`Ending`] requires. A peer that takes its answer slowly can get more time: the kernel reports the
//! acknowledged bytes. Without activity most sweeps are skipped, so a server with idle connections sleeps.

use super::admission::Permit;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::{poll_fn, ready};
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use twinring::net::Recv;
use twinring::{Either, RecvBuf, TcpStream, race};

/// A peer that acknowledges less than this, in bytes, between two samples counts as stalled:
/// otherwise a peer that reads an answer byte by byte would keep a connection for ever.
const ACKED_BYTES_MIN: u64 = 1024;

/// Sweeps within the time limit of a phase that are not skipped. Each of them reads the
/// acknowledged bytes from the kernel, and a pause of the whole process counts as no more than the
/// time between two of them.
pub(super) const SWEEPS_PER_LIMIT: u32 = 4;

/// The activity of a connection. The echo is `Idle` or `Sending`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for the first byte of a handshake.
    Silent,
    Handshake,
    /// Waiting for a request, with nothing queued for the peer.
    Idle,
    Head,
    Body,
    Working,
    /// Sending; waits if the peer does not read.
    Sending,
    /// The last answer was sent; waiting for the peer's FIN.
    Closing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It stayed in this phase for too long.
    TimedOut(Phase),
    /// The service shuts down, and no request is in progress.
    Drain,
    Cut,
    Failed,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) time: Duration,
    pub(crate) ending: Ending,
    /// The time begins again when the peer acknowledges bytes.
    pub(crate) restarts_on_ack: bool,
}

#[derive(Debug)]
pub(crate) struct Tracking {
    pub(crate) stream: TcpStream,
    activity: Rc<Activity>,
    phase: Cell<Phase>,
    /// Moves with all progress.
    steps: Cell<u32>,
    /// `steps` at the last sweep. Before the first sweep, a value that never occurs, so that the
    /// time of the connection begins with that sweep.
    seen: Cell<u32>,
    /// Sweeps since then that found it unchanged.
    idle_sweeps: Cell<u32>,
    /// Bytes that the peer had acknowledged when it last made progress.
    acked_bytes: Cell<u64>,
    /// Bytes of answers that were handed over for it, for services whose limits restart when they are taken.
    pub(crate) sent_bytes: Cell<u64>,
    /// The same when its phase was first seen.
    owed_bytes: Cell<u64>,
    /// Why it is being ended; it continues if that is taken. The service may fail it, and must return an error next.
    pub(crate) ending: Cell<Option<Ending>>,
}

impl Tracking {
    /// A connection that begins idle; `activity` is that of its [`Connections`].
    pub(crate) fn new(stream: TcpStream, activity: &Rc<Activity>) -> Tracking {
        Tracking {
            stream,
            activity: Rc::clone(activity),
            phase: Cell::new(Phase::Idle),
            steps: Cell::new(0),
            seen: Cell::new(u32::MAX),
            idle_sweeps: Cell::new(0),
            acked_bytes: Cell::new(0),
            sent_bytes: Cell::new(0),
            owed_bytes: Cell::new(0),
            ending: Cell::new(None),
        }
    }

    /// Notes progress: the time of the phase begins again.
    pub(crate) fn step(&self) {
        self.steps.set(self.steps.get().wrapping_add(1));
        self.activity.note();
    }

    /// Enters a phase. Staying in one is no progress: a head that arrives byte by byte gets no more
    /// time than one that does not arrive.
    pub(crate) fn enter(&self, phase: Phase) {
        if self.phase.replace(phase) != phase {
            self.step();
        }
    }

    /// Enters a phase whose time began with the previous phase.
    pub(crate) fn continue_in(&self, phase: Phase) {
        self.phase.set(phase);
    }

    /// Polls a receive of this stream. Data that arrived at the moment at which a drain ended the
    /// wait is still received, and the connection continues.
    #[inline(always)]
    pub(crate) fn poll_recv(
        &self,
        recv: &mut Recv<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<RecvBuf>> {
        let received = Pin::new(recv).poll(cx);
        if matches!(received, Poll::Ready(Err(_)))
            && self.ending.get() == Some(Ending::Drain)
            && let late @ Poll::Ready(_) = self.stream.poll_recv(cx)
        {
            self.ending.set(None);
            return late;
        }
        received
    }

    pub(crate) async fn recv(&self) -> io::Result<RecvBuf> {
        let mut recv = self.stream.recv();
        poll_fn(|cx| self.poll_recv(&mut recv, cx)).await
    }

    /// Makes the close a reset if data is left unsent: FIN would tell the peer that the answer is
    /// complete.
    pub(crate) async fn reset_if_unsent(&self) {
        if !matches!(race(self.stream.flush(), ready(())).await, Either::Left(Ok(()))) {
            self.reset_on_close();
        }
    }

    pub(crate) fn reset_on_close(&self) {
        // Fails only if the connection has already ended.
        let _gone = self.stream.set_reset_on_close();
    }

    /// True if the peer took something worth mentioning since this was found last. Of an idle one only what was owed to it
    /// counts: answers to PINGs that it sends meanwhile, or new keys that it asks for, are no progress.
    fn has_taken(&self) -> bool {
        // A connection whose state cannot be read has ended.
        let mut acked_bytes = self.stream.acked_bytes().unwrap_or(0);
        if self.phase.get() == Phase::Idle {
            acked_bytes = acked_bytes.min(self.owed_bytes.get());
        }
        let has_taken = acked_bytes >= self.acked_bytes.get() + ACKED_BYTES_MIN;
        if has_taken {
            self.acked_bytes.set(acked_bytes);
        }
        has_taken
    }

    /// See [`Connections::sweep`].
    fn sweep(
        &self,
        passed: u32,
        period: Duration,
        limit: impl Fn(Phase) -> Option<Limit>,
    ) -> Option<u32> {
        let steps = self.steps.get();
        let moved = self.seen.replace(steps) != steps;
        if moved {
            self.owed_bytes.set(self.sent_bytes.get());
        }
        let idle = if moved { 0 } else { self.idle_sweeps.get().saturating_add(passed) };
        self.idle_sweeps.set(idle);
        let Limit { time, ending, restarts_on_ack } = limit(self.phase.get())?;
        let most = time.as_nanos().div_ceil(period.as_nanos()).try_into().unwrap_or(u32::MAX);
        let interval = most.div_ceil(SWEEPS_PER_LIMIT).max(1);
        let is_due = !moved && idle >= most;
        let is_sample = is_due || idle == 1 || idle.is_multiple_of(interval);
        if restarts_on_ack && !moved && is_sample && self.has_taken() && idle > 1 {
            self.idle_sweeps.set(0);
        } else if is_due {
            self.ask_to_end(ending);
        }
        let idle = self.idle_sweeps.get();
        let due = most.saturating_sub(idle).max(1);
        Some(match idle {
            0 if restarts_on_ack => 1,
            _ => due.min(interval - idle % interval),
        })
    }

    fn ask_to_end(&self, ending: Ending) {
        self.idle_sweeps.set(0);
        self.ending.set(Some(ending));
        self.stream.cancel();
    }
}

#[derive(Default)]
pub(crate) struct Connections {
    open: RefCell<Slab<Rc<dyn AsRef<Tracking>>>>,
    /// Of all of them, since the last sweep.
    pub(crate) activity: Rc<Activity>,
}

impl Connections {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.borrow().is_empty()
    }

    pub(crate) fn insert<C: AsRef<Tracking> + 'static>(
        self: &Rc<Connections>,
        connection: C,
        permit: Permit,
    ) -> Open<C> {
        let connection = Rc::new(connection);
        self.activity.note();
        let key = self.open.borrow_mut().insert(connection.clone());
        Open { connections: Rc::clone(self), connection, key, _permit: permit }
    }

    /// Ends the connections that have been in their phase for longer than `limit` allows. A phase
    /// without a limit may take any time. `passed` is 1 plus the number of sweeps skipped since the
    /// last one. Returns after how many sweeps the next one is needed without activity, or `None`
    /// if none is.
    pub(super) fn sweep(
        &self,
        passed: u32,
        period: Duration,
        limit: impl Fn(Phase) -> Option<Limit>,
    ) -> Option<u32> {
        self.activity.forget();
        let open = self.open.borrow();
        let tracked = open.iter().map(|(_, connection)| (**connection).as_ref());
        tracked.filter_map(|tracking| tracking.sweep(passed, period, &limit)).min()
    }

    pub(super) fn end_all(&self, ending: Ending) {
        for (_, connection) in self.open.borrow().iter() {
            (**connection).as_ref().ask_to_end(ending);
        }
    }
}

/// A connection among the open ones; dropping it closes the connection.
pub(crate) struct Open<C> {
    connections: Rc<Connections>,
    connection: Rc<C>,
    key: usize,
    _permit: Permit,
}

impl<C> Deref for Open<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.connection
    }
}

impl<C> Drop for Open<C> {
    fn drop(&mut self) {
        let connection = self.connections.open.borrow_mut().try_remove(self.key);
        drop(connection);
    }
}

/// Set by many tasks, awaited by one.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    happened: Cell<bool>,
    changed: Notify,
}

impl Activity {
    /// Records activity. Called for each request; it costs one load until the next check.
    pub(crate) fn note(&self) {
        if !self.happened.replace(true) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn forget(&self) {
        self.happened.set(false);
    }

    /// Waits until something has happened since [`forget`](Activity::forget).
    pub(crate) async fn wait(&self) {
        while !self.happened.get() {
            self.changed.notified().await;
        }
    }
}
