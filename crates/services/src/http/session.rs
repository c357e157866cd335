//! One connection, and the watch over all of a worker.
//!
//! A request costs a connection no timer: it moves through phases, and each change of phase moves
//! a counter. A sweep over all connections compares the counters with those of the sweep before
//! and cancels what has stayed in one phase for longer than that may take. The operation that
//! waited then fails, and [`Session::close`] does what is due. A peer that takes what it was sent,
//! however slowly, is given time: the kernel knows what was acknowledged.
//!
//! A sweep says how many of the next ones can be left out if nothing moves until then, so a server whose
//! connections are idle sleeps, too.

mod secure;

use super::access_log::{SessionLog, WorkerLog};
use super::counters::WorkerCounters;
use super::tls::Encryption;
use crate::activity::Activity;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::ready;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use twinring::fs::{File, SendStrategy};
use twinring::{Either, RecvBuf, SendBuf, TcpStream, race};

/// A peer that acknowledges less than this, in bytes, between two looks takes nothing: who reads an
/// answer byte by byte would otherwise keep a connection for ever.
const TAKEN_BYTES_MIN: u64 = 1024;

/// How often the kernel is asked what was acknowledged, in the time that a phase may take.
const LOOKS_PER_TIMEOUT: u32 = 4;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waiting for the first byte of a handshake.
    Silent,
    /// Agreeing on keys.
    Handshake,
    /// Waiting for a request.
    Idle,
    /// Waiting for the rest of a head.
    Head,
    /// Waiting for the rest of a body.
    Body,
    /// Making an answer.
    Working,
    /// Handing it over; it waits if the peer does not take it.
    Sending,
    /// All is said; waiting for the peer to end too.
    Closing,
}

/// Why a connection was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It stayed in this phase for too long.
    TimedOut(Phase),
    /// The service shuts down, and no request is under way.
    Drain,
    /// The drain timeout is over.
    Cut,
    /// The file of the answer under way was changed.
    Broken,
    /// What came was no TLS.
    BadTls,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    stream: TcpStream,
    /// Between this and the stream, if there is one.
    pub(super) tls: Option<Box<Encryption>>,
    file_strategy: SendStrategy,
    counters: Arc<WorkerCounters>,
    activity: Rc<Activity>,
    phase: Cell<Phase>,
    /// Counts changes of phase.
    moves: Cell<u32>,
    /// `moves` at the last sweep.
    seen: Cell<u32>,
    /// Sweeps since then that found it unchanged.
    quiet_sweeps: Cell<u32>,
    /// Bytes that the peer had acknowledged when it was seen to take something.
    acked_bytes: Cell<u64>,
    ending: Cell<Option<Ending>>,
    /// An answer was begun that is not handed over whole.
    incomplete: Cell<bool>,
    /// Bytes handed over for sending.
    sent: Cell<u64>,
    /// What the access log still has to say, if there is one.
    pub(super) log: Option<Box<SessionLog>>,
}

impl Session {
    /// Goes into a phase. Staying in one is no progress: a head that comes byte by byte has no
    /// more time than one that does not come.
    pub(super) fn enter(&self, phase: Phase) {
        if self.phase.replace(phase) != phase {
            self.moves.set(self.moves.get().wrapping_add(1));
            self.activity.note();
        }
    }

    /// The next received bytes, waited for in a phase; empty when the peer has finished sending.
    ///
    /// # Errors
    /// When the connection broke or has to end.
    pub(super) async fn recv(&self, phase: Phase) -> io::Result<RecvBuf> {
        if let Some(tls) = &self.tls {
            return Box::pin(self.recv_secure(tls, phase)).await;
        }
        self.enter(phase);
        let mut received = self.stream.recv().await;
        if received.is_err() && self.ending.get() == Some(Ending::Drain) {
            // A request that arrived in the moment the drain ended the wait is still answered.
            if let Either::Left(late) = race(self.stream.recv(), ready(())).await {
                self.ending.set(None);
                received = late;
            }
        }
        if let Ok(piece) = &received {
            self.counters.received_bytes.add(piece.len() as u64);
            if phase == Phase::Idle {
                self.phase.set(Phase::Working);
            }
        }
        received
    }

    /// Hands bytes over for sending; waits while too much is queued for a peer that does not
    /// read.
    ///
    /// # Errors
    /// As for [`recv`](Session::recv).
    pub(super) async fn send(&self, bytes: impl Into<SendBuf>) -> io::Result<()> {
        let bytes = bytes.into();
        if let Some(tls) = &self.tls {
            return Box::pin(self.send_secure(tls, bytes)).await;
        }
        let length = bytes.len() as u64;
        self.enter(Phase::Sending);
        self.stream.send(bytes).await?;
        self.enter(Phase::Working);
        self.count_sent(length);
        Ok(())
    }

    /// Returns when the kernel has everything that was handed over.
    ///
    /// # Errors
    /// As for [`recv`](Session::recv).
    pub(super) async fn flush(&self) -> io::Result<()> {
        self.enter(Phase::Sending);
        self.stream.flush().await?;
        self.enter(Phase::Working);
        Ok(())
    }

    /// As [`send`](Session::send), for bytes behind which more follow at once.
    pub(super) async fn send_more(&self, bytes: impl Into<SendBuf>) -> io::Result<()> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        if let Some(tls) = &self.tls {
            self.count_sent(length);
            return tls.put(bytes.as_slice());
        }
        self.enter(Phase::Sending);
        self.stream.send_more(bytes).await?;
        self.enter(Phase::Working);
        self.count_sent(length);
        Ok(())
    }

    /// Sends a part of a file; less than asked for only if the file ends before.
    ///
    /// # Errors
    /// As for [`recv`](Session::recv), and when the file cannot be read.
    pub(super) async fn send_file(&self, file: &File, offset: u64, len: u64) -> io::Result<u64> {
        self.enter(Phase::Sending);
        let before = self.stream.sent_of_files();
        let outcome = self.stream.send_file_by(self.file_strategy, file, offset, len).await;
        // What went out before it failed counts too.
        let sent = self.stream.sent_of_files() - before;
        self.count_sent(sent);
        self.counters.sent_file_bytes.add(sent);
        outcome?;
        self.enter(Phase::Working);
        Ok(sent)
    }

    /// As [`send`](Session::send), for bytes that were read from a file.
    ///
    /// # Errors
    /// As for [`recv`](Session::recv).
    pub(super) async fn send_read(&self, bytes: Vec<u8>) -> io::Result<()> {
        let length = bytes.len() as u64;
        self.send(bytes).await?;
        self.counters.sent_file_bytes.add(length);
        Ok(())
    }

    /// How files are sent here.
    pub(super) fn file_strategy(&self) -> SendStrategy {
        if self.tls.is_some() { SendStrategy::Read } else { self.file_strategy }
    }

    /// Takes note of bytes of answers (before any encryption) that were handed over for sending.
    fn count_sent(&self, bytes: u64) {
        self.counters.sent_bytes.add(bytes);
        self.sent.set(self.sent.get() + bytes);
    }

    /// Bytes of answers that were handed over for sending so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Notes whether an answer is under way. If the connection ends then, it is reset: FIN could
    /// be taken for the end of the answer.
    pub(super) fn set_incomplete(&self, incomplete: bool) {
        self.incomplete.set(incomplete);
    }

    /// Says that the answer under way cannot be completed, because its file was changed.
    pub(super) fn break_off(&self) -> io::Error {
        self.ending.set(Some(Ending::Broken));
        io::Error::other("the file was changed while it was being sent")
    }

    /// Ends the connection in order: sends what is queued and FIN, then reads until the peer ends
    /// too. Closing with unread data, or before late data arrives, would send a reset, which can
    /// overtake the answer (RFC 9112 section 9.6).
    ///
    /// # Errors
    /// When the connection broke or has to end.
    pub(super) async fn finish(&self) -> io::Result<()> {
        if let Some(tls) = &self.tls {
            return self.finish_secure(tls).await;
        }
        self.enter(Phase::Sending);
        self.stream.finish().await?;
        while !self.recv(Phase::Closing).await?.is_empty() {}
        Ok(())
    }

    /// Ends the connection behind the answer to a request of which the client said that it is the
    /// last. Nothing more comes, so the socket can be closed as soon as the kernel has the answer:
    /// no FIN ahead of the close, and no wait for that of the client. What came nevertheless is read.
    ///
    /// # Errors
    /// As for [`finish`](Session::finish).
    pub(super) async fn finish_as_asked(&self) -> io::Result<()> {
        if self.tls.is_some() {
            return self.finish().await;
        }
        self.flush().await?;
        match race(self.stream.recv(), ready(())).await {
            Either::Left(Ok(piece)) if !piece.is_empty() => self.finish().await,
            Either::Left(received) => received.map(drop),
            Either::Right(()) => Ok(()),
        }
    }

    /// Closes after the conversation failed. `timed_out` is what to say to a peer that was too
    /// slow with its request.
    pub(super) async fn close(&self, timed_out: impl FnOnce() -> Vec<u8>) {
        let goodbye = match self.ending.take() {
            None => {
                self.counters.reset.add(1);
                return self.reset_if_unsent().await;
            }
            Some(Ending::TimedOut(Phase::Head)) => {
                self.counters.header_timeouts.add(1);
                timed_out()
            }
            Some(Ending::TimedOut(Phase::Body)) => {
                self.counters.body_timeouts.add(1);
                timed_out()
            }
            Some(Ending::TimedOut(Phase::Sending)) => {
                self.counters.send_timeouts.add(1);
                return self.reset_if_unsent().await;
            }
            Some(Ending::TimedOut(Phase::Idle)) => {
                self.counters.idle_closed.add(1);
                Vec::new()
            }
            Some(Ending::Drain | Ending::BadTls) => Vec::new(),
            Some(Ending::TimedOut(Phase::Silent | Phase::Handshake)) => {
                self.counters.handshake_timeouts.add(1);
                return self.reset_if_unsent().await;
            }
            Some(Ending::Cut) => {
                self.counters.cut.add(1);
                return self.reset_if_unsent().await;
            }
            Some(Ending::Broken) => {
                self.counters.broken_off.add(1);
                return self.reset_if_unsent().await;
            }
            Some(Ending::TimedOut(Phase::Closing | Phase::Working)) => {
                return self.reset_if_unsent().await;
            }
        };
        let said = match goodbye.is_empty() {
            true => Ok(()),
            false => self.send(goodbye).await,
        };
        if said.is_err() || self.finish().await.is_err() {
            self.reset_if_unsent().await;
        }
    }

    /// Makes the close a reset when bytes are left unsent: FIN would tell the peer that it got
    /// everything.
    async fn reset_if_unsent(&self) {
        let is_sent = || race(self.stream.flush(), ready(()));
        if self.incomplete.get() || !matches!(is_sent().await, Either::Left(Ok(()))) {
            // Fails only on a connection that is gone already.
            let _gone = self.stream.set_reset_on_close();
        }
    }

    /// True if the peer took something worth mentioning since this was found last.
    fn has_taken(&self) -> bool {
        // What cannot be asked is no connection any more.
        let acked_bytes = self.stream.acked_bytes().unwrap_or(0);
        let has_taken = acked_bytes >= self.acked_bytes.get() + TAKEN_BYTES_MIN;
        if has_taken {
            self.acked_bytes.set(acked_bytes);
        }
        has_taken
    }

    /// Whether it has been quiet for `sweeps` sweeps, this one included.
    fn is_overdue(&self, sweeps: u32) -> bool {
        let quiet = self.quiet_sweeps.get();
        let is_due = quiet >= sweeps;
        let is_look = is_due || quiet.is_multiple_of(sweeps.div_ceil(LOOKS_PER_TIMEOUT));
        if self.is_sent_to() && (quiet == 1 || is_look) && self.has_taken() && quiet > 1 {
            self.quiet_sweeps.set(0);
            return false;
        }
        is_due
    }

    /// Sweeps until `is_overdue` may find something if nothing moves, the last one included.
    fn sweeps_left(&self, sweeps: u32) -> u32 {
        let quiet = self.quiet_sweeps.get();
        let due = sweeps.saturating_sub(quiet).max(1);
        let interval = sweeps.div_ceil(LOOKS_PER_TIMEOUT).max(1);
        match quiet {
            _ if !self.is_sent_to() => due,
            0 => 1,
            _ => due.min(interval - quiet % interval),
        }
    }

    /// True if its peer may be taking an answer.
    fn is_sent_to(&self) -> bool {
        matches!(self.phase.get(), Phase::Sending | Phase::Idle)
    }

    fn ask_to_end(&self, ending: Ending) {
        self.quiet_sweeps.set(0);
        self.ending.set(Some(ending));
        self.stream.cancel();
    }
}

/// The connections of one worker.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    live: RefCell<Slab<Rc<Session>>>,
    /// Of all of them, since the last sweep.
    pub(super) activity: Rc<Activity>,
}

impl Sessions {
    pub(super) fn is_empty(&self) -> bool {
        self.live.borrow().is_empty()
    }

    /// Takes a connection in.
    pub(super) fn admit(
        self: &Rc<Sessions>,
        stream: TcpStream,
        tls: Option<Box<Encryption>>,
        file_strategy: SendStrategy,
        counters: &Arc<WorkerCounters>,
        log: Option<&Rc<WorkerLog>>,
    ) -> Live {
        counters.accepted.add(1);
        let log = log.map(|log| Box::new(SessionLog::new(log, stream.peer_addr().ok())));
        let session = Rc::new(Session {
            stream,
            tls,
            file_strategy,
            counters: Arc::clone(counters),
            activity: Rc::clone(&self.activity),
            phase: Cell::new(Phase::Idle),
            moves: Cell::new(0),
            // So that its time begins with the first sweep.
            seen: Cell::new(u32::MAX),
            quiet_sweeps: Cell::new(0),
            acked_bytes: Cell::new(0),
            ending: Cell::new(None),
            incomplete: Cell::new(false),
            sent: Cell::new(0),
            log,
        });
        self.activity.note();
        let key = self.live.borrow_mut().insert(Rc::clone(&session));
        Live { sessions: Rc::clone(self), session, key }
    }

    /// Looks at every connection: asks those to end that have been in their phase for the number
    /// of sweeps that `most` allows, this one included, and whose peer took nothing meanwhile;
    /// without a number, nobody. `passed` is 1 and the sweeps that were left out since the last one.
    /// Returns after how many the next one is needed if nothing moves until then; if one is.
    pub(super) fn sweep(
        &self,
        passed: u32,
        most: impl Fn(Phase) -> Option<(u32, Ending)>,
    ) -> Option<u32> {
        self.activity.forget();
        let mut next = None;
        for (_, session) in self.live.borrow().iter() {
            let moves = session.moves.get();
            let moved = session.seen.replace(moves) != moves;
            let quiet = if moved { 0 } else { session.quiet_sweeps.get().saturating_add(passed) };
            session.quiet_sweeps.set(quiet);
            let Some((sweeps, ending)) = most(session.phase.get()) else { continue };
            if !moved && session.is_overdue(sweeps) {
                session.ask_to_end(ending);
            }
            let left = session.sweeps_left(sweeps);
            next = Some(next.map_or(left, |next: u32| next.min(left)));
        }
        next
    }

    /// Asks every connection to end now.
    pub(super) fn cut(&self) {
        for (_, session) in self.live.borrow().iter() {
            session.ask_to_end(Ending::Cut);
        }
    }
}

/// A connection's place among the live ones; dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Live {
    sessions: Rc<Sessions>,
    session: Rc<Session>,
    key: usize,
}

impl Live {
    pub(super) fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(log) = &self.session.log {
            log.end(self.session.sent());
        }
        let session = self.sessions.live.borrow_mut().try_remove(self.key);
        drop(session);
        self.session.counters.closed.add(1);
    }
}
