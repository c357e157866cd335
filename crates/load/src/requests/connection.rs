//! One connection under load, whatever its protocol: which requests begin, and what becomes of them.

use super::Worker;
use crate::recorder::{Recorder, Request, Trouble};
use crate::settings::Common;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use twinring::{TcpStream, measure::monotonic_ns};

/// How a connection, or one life of it, ended.
pub(crate) enum Ending {
    /// In order: another one replaces it.
    Renewed,
    /// The window has ended and all requests are answered.
    Finished,
    /// It broke.
    Lost(Lost),
}

/// The reason for which a connection broke.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) Trouble, pub(crate) String);

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        Lost::of("", &error)
    }
}

impl Lost {
    pub(crate) fn of(doing: &str, error: &io::Error) -> Lost {
        let trouble = match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Trouble::Reset,
            io::ErrorKind::TimedOut => Trouble::Timeout,
            io::ErrorKind::InvalidData => Trouble::Tls,
            _ => Trouble::Other,
        };
        Lost(trouble, format!("{doing}{error}"))
    }
}

/// Settings of a kind of load, and what follows from them: of all threads.
pub(crate) trait Shared: Send + Sync + 'static {
    /// State of a thread.
    type Local;

    fn common(&self) -> &Common;

    /// Different requests.
    fn urls(&self) -> usize {
        0
    }

    /// Connections that only stay open.
    fn idle(&self) -> u64 {
        0
    }

    /// Requests of one life of a connection.
    fn life(&self) -> u64;

    /// A request begins with the attempt to connect.
    fn connects_for_each(&self) -> bool {
        false
    }

    fn local(&self) -> Self::Local;

    /// What takes time once, before the first connection: its time would count as the server's.
    fn prepare(&self) -> Result<(), Lost> {
        Ok(())
    }

    /// Which request is the next of a connection, and its bytes that count as sent when it begins.
    fn pick(&self, local: &Self::Local, connection: u64, sequence: u64) -> (u32, u64);
}

/// A protocol as one connection speaks it.
pub(crate) trait Protocol: Sized + 'static {
    type Shared: Shared;
    /// An open stream, ready for requests.
    type Link: 'static;

    /// A connection that broke is replaced.
    const REPLACES_LOST: bool;

    fn new(worker: &Worker<Self>, number: u64) -> Self;

    /// Agrees on the protocol over a new stream.
    async fn agree(worker: &Rc<Worker<Self>>, stream: TcpStream) -> Result<Self::Link, Lost>;

    /// Prepares for another stream. Requests that have begun are kept.
    fn begin_life(&mut self, life: u64);

    fn push(&mut self, request: Request);

    /// Requests without an answer, and how many began alike.
    fn unanswered(&self) -> impl Iterator<Item = (Request, u64)>;

    /// Drops all unanswered requests.
    fn abandon(&mut self);

    /// When the oldest unanswered request began.
    fn oldest_ns(&self) -> Option<u64> {
        self.unanswered().map(|(request, _)| request.began_ns).min()
    }

    /// Receives available data, then begins and sends the next requests; none from `end_ns` on, the end of the window.
    fn poll(
        &mut self,
        tally: &mut Tally<Self>,
        link: &mut Self::Link,
        cx: &mut Context<'_>,
        end_ns: u64,
    ) -> Result<Option<Ending>, Lost>;

    /// Closes the stream in order, without waiting for the server.
    async fn close(link: Self::Link);
}

/// What a connection has sent, and what became of it.
pub(crate) struct Tally<P: Protocol> {
    pub(crate) worker: Rc<Worker<P>>,
    /// Among all connections of the run, from 0.
    pub(super) number: u64,
    pub(super) life: u64,
    /// Requests that this life may still begin.
    life_left: u64,
    pub(super) sent: u64,
    pub(super) answered_in_window: u64,
    pub(super) was_served: bool,
    life_served: bool,
    overdue: bool,
    /// Of the task that runs this connection.
    waker: Option<Waker>,
}

impl<P: Protocol> Tally<P> {
    fn new(worker: &Rc<Worker<P>>, number: u64) -> Tally<P> {
        Tally {
            worker: Rc::clone(worker),
            number,
            life: 0,
            life_left: worker.shared.life(),
            sent: 0,
            answered_in_window: 0,
            was_served: false,
            life_served: false,
            overdue: false,
            waker: None,
        }
    }

    pub(crate) fn may_begin(&self) -> bool {
        self.life_left > 0
    }

    /// Begins the requests that are due now, at most `room`, and passes them on.
    pub(crate) fn begin(&mut self, room: u64, now_ns: u64, mut each: impl FnMut(Request)) {
        let worker = &*self.worker;
        let schedule = worker.schedule.get();
        let room = room.min(self.life_left);
        let wanted = match schedule {
            None => room,
            Some(schedule) => room.min(schedule.due(self.number, now_ns).saturating_sub(self.sent)),
        };
        let drawn = now_ns >= worker.control.window().start;
        let requests = if drawn && wanted > 0 { worker.control.draw(wanted) } else { wanted };
        if requests == 0 {
            return;
        }
        let mut recorder = worker.recorder.borrow_mut();
        for sequence in self.sent..self.sent + requests {
            let since_ns = schedule.map_or(now_ns, |it| it.intended_ns(self.number, sequence));
            let (target, bytes) = worker.shared.pick(&worker.local, self.number, sequence);
            let request = Request { since_ns, began_ns: now_ns, target, drawn };
            recorder.sent(&request, bytes);
            each(request);
        }
        self.sent += requests;
        self.life_left -= requests;
    }

    /// `count` requests that began alike were answered as they should. True if that is inside the window.
    pub(crate) fn answered(
        &mut self,
        request: &Request,
        count: u64,
        now_ns: u64,
        recorder: &mut Recorder,
    ) -> bool {
        let inside = recorder.answered(request, count, now_ns);
        self.answered_in_window += if inside { count } else { 0 };
        self.settle(request, count, now_ns);
        self.served();
        inside
    }

    /// `count` requests that began alike got a wrong answer, or get none.
    pub(crate) fn failed(
        &self,
        request: &Request,
        count: u64,
        now_ns: u64,
        recorder: &mut Recorder,
    ) {
        recorder.failed(request, count, now_ns);
        self.settle(request, count, now_ns);
    }

    fn settle(&self, request: &Request, count: u64, now_ns: u64) {
        if request.drawn {
            self.worker.control.settle(count, now_ns);
        }
    }

    /// An answer arrived, right or wrong.
    pub(crate) fn served(&mut self) {
        if !self.life_served {
            (self.life_served, self.was_served) = (true, true);
            self.worker.control.served();
        }
    }

    /// Counts what went wrong with a request, while its connection stays in use.
    pub(crate) fn trouble(
        &self,
        kind: Trouble,
        what: impl FnOnce() -> String,
        recorder: &mut Recorder,
    ) {
        self.worker.trouble_in(recorder, self.number, kind, what);
    }
}

/// A place in the list of connections. Streams use it one after the other; each is a life of it.
pub(crate) struct Connection<P: Protocol> {
    pub(super) tally: Tally<P>,
    pub(super) protocol: P,
}

impl<P: Protocol> Connection<P> {
    pub(super) fn new(worker: &Rc<Worker<P>>, number: u64) -> Connection<P> {
        Connection { tally: Tally::new(worker, number), protocol: P::new(worker, number) }
    }

    /// Prepares the next life, which may already have its first request.
    pub(super) fn begin_life(&mut self) {
        self.tally.life += 1;
        if !self.tally.worker.shared.connects_for_each() {
            self.tally.life_left = self.tally.worker.shared.life();
        }
        self.protocol.begin_life(self.tally.life);
    }

    /// Counts a life that has ended; its requests in flight have failed. True if it had an answer.
    pub(super) fn end_life(&mut self) -> bool {
        let worker = Rc::clone(&self.tally.worker);
        let served = std::mem::take(&mut self.tally.life_served);
        if served {
            worker.control.no_longer_served();
        }
        self.tally.overdue = false;
        let now_ns = monotonic_ns();
        worker.look();
        let mut recorder = worker.recorder.borrow_mut();
        for (request, count) in self.protocol.unanswered() {
            self.tally.failed(&request, count, now_ns, &mut recorder);
        }
        self.protocol.abandon();
        served
    }

    /// Begins the request for which a new connection is opened. False if there is none.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Connection { tally, protocol } = self;
        tally.waker.get_or_insert_with(|| cx.waker().clone());
        let now_ns = monotonic_ns();
        if now_ns >= tally.worker.look() {
            return Poll::Ready(false);
        }
        tally.life_left = 1;
        tally.begin(1, now_ns, |request| protocol.push(request));
        if tally.life_left > 0 { Poll::Pending } else { Poll::Ready(true) }
    }

    /// Receives available data, then sends the next requests.
    pub(super) fn poll(&mut self, link: &mut P::Link, cx: &mut Context<'_>) -> Poll<Ending> {
        let Connection { tally, protocol } = self;
        tally.waker.get_or_insert_with(|| cx.waker().clone());
        if tally.overdue {
            let what = "no answer within the timeout".to_owned();
            return Poll::Ready(Ending::Lost(Lost(Trouble::Timeout, what)));
        }
        let end_ns = tally.worker.look();
        match protocol.poll(tally, link, cx, end_ns) {
            Ok(None) => Poll::Pending,
            Ok(Some(ending)) => Poll::Ready(ending),
            Err(lost) => Poll::Ready(Ending::Lost(lost)),
        }
    }

    pub(super) fn wake(&self) {
        self.tally.waker.iter().for_each(Waker::wake_by_ref);
    }

    /// Ends it because an answer took too long.
    pub(super) fn give_up(&mut self) {
        self.tally.overdue = true;
        self.wake();
    }
}
