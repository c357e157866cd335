//! One connection under load, whatever its protocol: which requests begin, what becomes of them,
//! and the streams that serve the connection one after the other.

use super::answer::Answer;
use super::counts::{Begin, Books};
use super::head::Malformed;
use super::link::Link;
use super::settings::Settings;
use super::worker::Worker;
use crate::recorder::Trouble;
use crate::run::Loaded;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use twinring::monotonic_ns;

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) begin: Begin,
    pub(super) target: u32,
    /// Taken from the quota of `--requests`.
    pub(super) drawn: bool,
}

/// How a connection, or one life of it, ended.
pub(super) enum Ending {
    /// In order: another one replaces it.
    Renewed,
    /// The window has ended and all requests are answered.
    Finished,
    /// It broke.
    Lost(Lost),
}

/// The reason for which a connection broke.
#[derive(Debug)]
pub(super) struct Lost(pub(super) Trouble, pub(super) String);

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        let trouble = match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Trouble::Reset,
            io::ErrorKind::TimedOut => Trouble::Timeout,
            io::ErrorKind::InvalidData => Trouble::Tls,
            _ => Trouble::Other,
        };
        Lost(trouble, error.to_string())
    }
}

impl From<Malformed> for Lost {
    fn from(Malformed(what): Malformed) -> Lost {
        Lost(Trouble::Malformed, what)
    }
}

/// A protocol as one connection speaks it.
pub(super) trait Protocol: 'static {
    /// An open stream, ready for requests.
    type Link: 'static;

    fn new(settings: &Settings) -> Self;

    /// Agrees on the protocol over a new stream.
    ///
    /// # Errors
    /// When the server does not speak it, or the stream broke.
    async fn agree(worker: &Rc<Worker>, link: Link) -> Result<Self::Link, Lost>;

    /// Prepares for another stream. Requests that have begun are kept.
    fn begin_life(&mut self);

    /// Takes over a request that has begun.
    fn push(&mut self, request: Request);

    fn unanswered(&self) -> impl Iterator<Item = Request>;

    /// Drops all unanswered requests.
    fn abandon(&mut self);

    /// When the oldest unanswered request began.
    fn oldest_ns(&self) -> Option<u64> {
        self.unanswered().map(|request| request.begin.began_ns).min()
    }

    /// Receives available data, then begins and sends the next requests.
    ///
    /// # Errors
    /// When the stream broke.
    fn poll(
        &mut self,
        tally: &mut Tally,
        link: &mut Self::Link,
        cx: &mut Context<'_>,
        window: &Range<u64>,
    ) -> Result<Option<Ending>, Lost>;

    /// Closes the stream in order, without waiting for the server.
    async fn close(link: Self::Link);
}

/// What a connection has sent, and what became of it.
pub(super) struct Tally {
    pub(super) worker: Rc<Worker>,
    /// Among all connections of the run, from 0.
    number: u64,
    life: u64,
    /// Requests that this life may still begin.
    life_left: u64,
    sent: u64,
    answered_in_window: u64,
    was_served: bool,
    life_served: bool,
    overdue: bool,
    /// Of the task that runs this connection.
    waker: Option<Waker>,
}

impl Tally {
    fn new(worker: &Rc<Worker>, number: u64) -> Tally {
        Tally {
            worker: Rc::clone(worker),
            number,
            life: 0,
            life_left: if worker.settings.keepalive { u64::MAX } else { 1 },
            sent: 0,
            answered_in_window: 0,
            was_served: false,
            life_served: false,
            overdue: false,
            waker: None,
        }
    }

    /// True if this life may begin another request.
    pub(super) fn may_begin(&self) -> bool {
        self.life_left > 0
    }

    /// Begins the requests that are due now, at most `room`, and passes them on.
    pub(super) fn begin(
        &mut self,
        room: u64,
        now_ns: u64,
        window: &Range<u64>,
        mut each: impl FnMut(Request),
    ) {
        let worker = &*self.worker;
        let control = &worker.thread.control;
        let schedule = worker.thread.schedule.get();
        let room = room.min(self.life_left);
        let wanted = match schedule {
            None => room,
            Some(schedule) => room.min(schedule.due(self.number, now_ns).saturating_sub(self.sent)),
        };
        let drawn = now_ns >= window.start;
        let requests = if drawn && wanted > 0 { control.draw(wanted) } else { wanted };
        if requests == 0 {
            return;
        }
        let Books { mut recorder, mut counts } = worker.books();
        recorder.sent(requests, now_ns, window);
        for sequence in self.sent..self.sent + requests {
            let since_ns = match schedule {
                None => now_ns,
                Some(schedule) => {
                    let since_ns = schedule.intended_ns(self.number, sequence);
                    recorder.lagged(since_ns, now_ns, window);
                    since_ns
                }
            };
            let target = worker.choice.pick(self.number, sequence);
            counts.sent(target, worker.outbox.request_bytes(target), now_ns, window);
            each(Request { begin: Begin { since_ns, began_ns: now_ns }, target, drawn });
        }
        self.sent += requests;
        self.life_left -= requests;
    }

    /// Counts the answer to a request, whose content has this CRC.
    pub(super) fn answered(
        &mut self,
        request: Request,
        answer: &Answer,
        crc: u32,
        now_ns: u64,
        window: &Range<u64>,
        books: &mut Books<'_>,
    ) {
        let Request { begin, target, drawn } = request;
        let worker = &*self.worker;
        let Books { recorder, counts } = books;
        counts.came(answer, now_ns, window);
        match worker.expectation.check(target, answer, crc) {
            Ok(()) => {
                let inside = recorder.answered(1, begin.since_ns, now_ns, window);
                self.answered_in_window += u64::from(inside);
                counts.answered(target, begin, answer.first_byte_ns, now_ns, window);
            }
            Err(wrong) => {
                recorder.failed(1, now_ns, window);
                counts.failed(target, now_ns, window);
                let what = || format!("{}: {wrong}", worker.url(target));
                worker.thread.trouble_in(recorder, self.number, wrong.kind(), what);
            }
        }
        if drawn {
            worker.thread.control.settle(1, now_ns);
        }
        if !self.life_served {
            (self.life_served, self.was_served) = (true, true);
            worker.thread.control.served();
        }
    }

    /// Counts a request that gets no answer.
    pub(super) fn failed(
        &self,
        request: Request,
        now_ns: u64,
        window: &Range<u64>,
        books: &mut Books<'_>,
    ) {
        books.recorder.failed(1, now_ns, window);
        books.counts.failed(request.target, now_ns, window);
        if request.drawn {
            self.worker.thread.control.settle(1, now_ns);
        }
    }

    /// Counts what went wrong with a single request.
    pub(super) fn trouble(&self, kind: Trouble, what: &str, target: u32, books: &mut Books<'_>) {
        let what = || format!("{}: {what}", self.worker.url(target));
        self.worker.thread.trouble_in(&mut books.recorder, self.number, kind, what);
    }
}

/// A place in the list of connections, used by one stream after the other; each is a life of it.
pub(super) struct Connection<P> {
    tally: Tally,
    protocol: P,
}

impl<P: Protocol> Connection<P> {
    pub(super) fn new(worker: &Rc<Worker>, number: u64) -> Connection<P> {
        Connection { tally: Tally::new(worker, number), protocol: P::new(&worker.settings) }
    }

    pub(super) fn life(&self) -> u64 {
        self.tally.life
    }

    /// Prepares the next life, which may already have its first request.
    pub(super) fn begin_life(&mut self) {
        self.tally.life += 1;
        self.protocol.begin_life();
    }

    /// Counts a life that has ended; its requests in flight have failed. True if it had an answer.
    pub(super) fn end_life(&mut self) -> bool {
        let worker = Rc::clone(&self.tally.worker);
        let served = std::mem::take(&mut self.tally.life_served);
        if served {
            worker.thread.control.no_longer_served();
        }
        self.tally.overdue = false;
        let (now_ns, window) = (monotonic_ns(), worker.thread.control.window());
        let mut books = worker.books();
        for request in self.protocol.unanswered() {
            self.tally.failed(request, now_ns, &window, &mut books);
        }
        drop(books);
        self.protocol.abandon();
        served
    }

    /// Begins the request for which a new connection is opened. False if there is none.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Connection { tally, protocol } = self;
        tally.waker.get_or_insert_with(|| cx.waker().clone());
        let window = tally.worker.thread.control.window();
        let now_ns = monotonic_ns();
        if now_ns >= window.end {
            return Poll::Ready(false);
        }
        tally.life_left = 1;
        tally.begin(1, now_ns, &window, |request| protocol.push(request));
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
        let window = tally.worker.thread.control.window();
        match protocol.poll(tally, link, cx, &window) {
            Ok(None) => Poll::Pending,
            Ok(Some(ending)) => Poll::Ready(ending),
            Err(lost) => Poll::Ready(Ending::Lost(lost)),
        }
    }
}

impl<P: Protocol> Loaded for Connection<P> {
    fn number(&self) -> u64 {
        self.tally.number
    }

    fn wake(&self) {
        self.tally.waker.iter().for_each(Waker::wake_by_ref);
    }

    fn oldest_ns(&self) -> Option<u64> {
        self.protocol.oldest_ns()
    }

    fn unanswered(&self, each: &mut dyn FnMut(u64, u64)) {
        self.protocol.unanswered().for_each(|request| each(request.begin.since_ns, 1));
    }

    fn give_up(&mut self) {
        self.tally.overdue = true;
        self.wake();
    }

    fn sent(&self) -> u64 {
        self.tally.sent
    }

    fn answered_in_window(&self) -> u64 {
        self.tally.answered_in_window
    }

    fn was_served(&self) -> bool {
        self.tally.was_served
    }
}
