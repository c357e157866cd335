//! One connection under load, whatever its protocol: which requests begin, and what becomes of them.

use super::Worker;
use crate::recorder::{Begun, Recorder, Trouble};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use twinring::{TcpStream, measure::monotonic_ns};

/// How a connection, or one life of it, ended if it did not break.
pub(crate) enum Ending {
    /// In order: another one replaces it.
    Renewed,
    /// The window has ended and all requests are answered.
    Finished,
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
        let trouble: Trouble = match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => |it| &mut it.reset,
            io::ErrorKind::TimedOut => |it| &mut it.timeout,
            io::ErrorKind::InvalidData => |it| &mut it.tls,
            _ => |it| &mut it.other,
        };
        Lost(trouble, format!("{doing}{error}"))
    }
}

/// A protocol as one connection speaks it.
pub(crate) trait Protocol: Sized + 'static {
    /// What it needs besides the common part of a plan.
    type Own: Send + Sync + 'static;
    /// State of a thread.
    type Local: 'static;
    /// An open stream, ready for requests.
    type Link: 'static;

    /// A connection that broke is replaced.
    const REPLACES_LOST: bool;

    fn local(own: &Self::Own) -> Self::Local;

    /// What takes time once, before the first connection: its time would count as the server's.
    fn prepare(_: &Self::Own) -> Result<(), Lost> {
        Ok(())
    }

    fn new(own: &Self::Own, number: u64) -> Self;

    /// Agrees on the protocol over a new stream.
    async fn agree(worker: &Rc<Worker<Self>>, stream: TcpStream) -> Result<Self::Link, Lost>;

    /// Prepares for another stream. Requests that have begun are kept.
    fn begin_life(&mut self, life: u64);

    fn push(&mut self, request: Begun);

    /// Requests without an answer, and how many began alike.
    fn unanswered(&self) -> impl Iterator<Item = (Begun, u64)>;

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
    async fn close(link: Self::Link) {
        drop(link);
    }
}

/// What a connection has sent, and what became of it.
pub(crate) struct Tally<P: Protocol> {
    pub(crate) worker: Rc<Worker<P>>,
    /// Among all connections of the run, from 0.
    pub(crate) number: u64,
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
    pub(crate) fn may_begin(&self) -> bool {
        self.life_left > 0
    }

    /// Begins the requests that are due now, at most `room`, and passes them on.
    pub(crate) fn begin(&mut self, room: u64, now_ns: u64, mut each: impl FnMut(Begun)) {
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
            let target = worker.plan.choice.pick(self.number, sequence);
            let bytes = worker.plan.request_bytes[target as usize];
            let request = Begun { since_ns, began_ns: now_ns, target, drawn };
            recorder.sent(&request, bytes);
            each(request);
        }
        self.sent += requests;
        self.life_left -= requests;
    }

    /// `count` requests that began alike were answered as they should. True if that is inside the window.
    pub(crate) fn answered(
        &mut self,
        request: &Begun,
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
    pub(crate) fn failed(&self, request: &Begun, count: u64, now_ns: u64, recorder: &mut Recorder) {
        recorder.failed(request, count, now_ns);
        self.settle(request, count, now_ns);
    }

    fn settle(&self, request: &Begun, count: u64, now_ns: u64) {
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
}

/// A place in the list of connections. Streams use it one after the other; each is a life of it.
pub(crate) struct Connection<P: Protocol> {
    pub(super) tally: Tally<P>,
    pub(super) protocol: P,
}

impl<P: Protocol> Connection<P> {
    pub(super) fn new(worker: &Rc<Worker<P>>, number: u64) -> Connection<P> {
        let tally = Tally {
            worker: Rc::clone(worker),
            number,
            life: 0,
            life_left: worker.plan.life,
            sent: 0,
            answered_in_window: 0,
            was_served: false,
            life_served: false,
            overdue: false,
            waker: None,
        };
        Connection { tally, protocol: P::new(&worker.plan.own, number) }
    }

    /// Prepares the next life, which may already have its first request.
    pub(super) fn begin_life(&mut self) {
        self.tally.life += 1;
        let plan = &self.tally.worker.plan;
        if !plan.connects_for_each {
            self.tally.life_left = plan.life;
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
    pub(super) fn poll(
        &mut self,
        link: &mut P::Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Ending, Lost>> {
        let Connection { tally, protocol } = self;
        tally.waker.get_or_insert_with(|| cx.waker().clone());
        if tally.overdue {
            let what = "no answer within the timeout".to_owned();
            return Poll::Ready(Err(Lost(|it| &mut it.timeout, what)));
        }
        let end_ns = tally.worker.look();
        protocol.poll(tally, link, cx, end_ns).transpose().map_or(Poll::Pending, Poll::Ready)
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
