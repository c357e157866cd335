//! One connection under load: its requests, its answers, and its end.
//!
//! This is the hot path. Bytes that arrive together cost one clock reading; an answer costs a
//! comparison of its head with the last one, and a few counts, without allocations and locks.
//! Answers that arrive together are followed by one send of as many requests.

use super::answer::{Answer, AnswerParser};
use super::counts::{Begin, Counts};
use super::head::Malformed;
use super::link::Link;
use super::worker::Worker;
use crate::recorder::{Recorder, Trouble};
use crate::run::Loaded;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use twinring::{Sleep, monotonic_ns, sleep};

/// How long a server may take to close a connection without outstanding answers.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
struct Request {
    begin: Begin,
    target: u32,
    /// Taken from the quota of `--requests`.
    drawn: bool,
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

/// The result of receiving.
enum Received {
    /// All available data; when the last answer arrived, if one did.
    Everything(Option<u64>),
    /// All data, and the end of the connection.
    End,
}

/// A place in the list of connections, used by one stream after the other; each is a life of it.
pub(super) struct Connection {
    worker: Rc<Worker>,
    /// Among all connections of the run, from 0.
    number: u64,
    life: u64,
    parser: AnswerParser,
    crc: crc32fast::Hasher,
    /// In the order of the answers; the first `handed` of them are the stream's already.
    unanswered: VecDeque<Request>,
    handed: usize,
    /// Requests that this life may still begin.
    life_left: u64,
    /// No further request is sent in this life.
    closing: bool,
    /// The server must close until then.
    patience: Option<Sleep>,
    sent: u64,
    answered_in_window: u64,
    was_served: bool,
    life_served: bool,
    overdue: bool,
    /// Of the task that runs this connection.
    waker: Option<Waker>,
}

impl Connection {
    pub(super) fn new(worker: &Rc<Worker>, number: u64) -> Connection {
        Connection {
            worker: Rc::clone(worker),
            number,
            life: 0,
            parser: AnswerParser::new(),
            crc: crc32fast::Hasher::new(),
            unanswered: VecDeque::new(),
            handed: 0,
            life_left: if worker.settings.keepalive { u64::MAX } else { 1 },
            closing: false,
            patience: None,
            sent: 0,
            answered_in_window: 0,
            was_served: false,
            life_served: false,
            overdue: false,
            waker: None,
        }
    }

    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// Prepares the next life, which may already have its first request.
    pub(super) fn begin_life(&mut self) {
        self.life += 1;
        self.parser = AnswerParser::new();
        self.crc.reset();
        self.patience = None;
        self.closing = false;
    }

    /// Counts a life that has ended; its requests in flight have failed. True if it had an answer.
    pub(super) fn end_life(&mut self) -> bool {
        let worker = &*self.worker;
        let served = std::mem::take(&mut self.life_served);
        if served {
            worker.thread.control.no_longer_served();
        }
        self.overdue = false;
        self.handed = 0;
        if !self.unanswered.is_empty() {
            let (now_ns, window) = (monotonic_ns(), worker.thread.control.window());
            let mut counts = worker.counts.borrow_mut();
            let mut recorder = worker.thread.recorder.borrow_mut();
            for request in self.unanswered.drain(..) {
                recorder.failed(1, now_ns, &window);
                counts.failed(request.target, now_ns, &window);
                if request.drawn {
                    worker.thread.control.settle(1, now_ns);
                }
            }
        }
        served
    }

    /// Begins the request for which a new connection is opened. False if there is none.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.waker.get_or_insert_with(|| cx.waker().clone());
        let window = self.worker.thread.control.window();
        let now_ns = monotonic_ns();
        if now_ns >= window.end {
            return Poll::Ready(false);
        }
        self.life_left = 1;
        self.begin_requests(now_ns, &window);
        if self.unanswered.is_empty() { Poll::Pending } else { Poll::Ready(true) }
    }

    /// Receives available data, then sends the next requests.
    pub(super) fn poll(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Poll<Ending> {
        self.waker.get_or_insert_with(|| cx.waker().clone());
        let window = self.worker.thread.control.window();
        match self.advance(link, cx, &window) {
            Ok(None) => Poll::Pending,
            Ok(Some(ending)) => Poll::Ready(ending),
            Err(lost) => Poll::Ready(Ending::Lost(lost)),
        }
    }

    fn advance(
        &mut self,
        link: &mut Link,
        cx: &mut Context<'_>,
        window: &Range<u64>,
    ) -> Result<Option<Ending>, Lost> {
        if self.overdue {
            return Err(Lost(Trouble::Timeout, "no answer within the timeout".into()));
        }
        let answered_ns = match self.receive(link, cx, window)? {
            Received::Everything(answered_ns) => answered_ns,
            Received::End => return self.ended(link, window).map(Some),
        };
        let in_flight = self.unanswered.len();
        let may_begin = !self.closing && self.life_left > 0 && in_flight < self.worker.pipeline;
        if may_begin || in_flight == 0 {
            let now_ns = answered_ns.unwrap_or_else(monotonic_ns);
            if now_ns >= window.end {
                if in_flight == 0 {
                    return Ok(Some(Ending::Finished));
                }
            } else if may_begin {
                self.begin_requests(now_ns, window);
            } else {
                return Ok(self.await_close(link, cx));
            }
        }
        self.hand_over(link, cx)?;
        Ok(None)
    }

    /// Reads until no data is left.
    fn receive(
        &mut self,
        link: &mut Link,
        cx: &mut Context<'_>,
        window: &Range<u64>,
    ) -> Result<Received, Lost> {
        let mut answered_ns = None;
        loop {
            let chunk = match link.poll_recv(cx) {
                Poll::Pending => return Ok(Received::Everything(answered_ns)),
                Poll::Ready(Ok(chunk)) => chunk,
                // An idle connection may be ended at any time, and in any way.
                Poll::Ready(Err(_)) if self.unanswered.is_empty() => return Ok(Received::End),
                Poll::Ready(Err(error)) => return Err(error.into()),
            };
            if chunk.is_empty() {
                return Ok(Received::End);
            }
            let now_ns = monotonic_ns();
            link.take(&chunk, |bytes| {
                if self.take(bytes, now_ns, window)? {
                    answered_ns = Some(now_ns);
                }
                Ok::<(), Lost>(())
            })?;
            if link.has_ended() {
                return Ok(Received::End);
            }
        }
    }

    /// Processes received bytes. True if they completed an answer.
    fn take(&mut self, bytes: &[u8], now_ns: u64, window: &Range<u64>) -> Result<bool, Lost> {
        let worker = Rc::clone(&self.worker);
        let mut heads = worker.heads.borrow_mut();
        let mut counts = worker.counts.borrow_mut();
        let mut recorder = worker.thread.recorder.borrow_mut();
        let verify = worker.expectation.verify_body;
        let (mut rest, mut answered) = (bytes, false);
        while !rest.is_empty() {
            let Some(request) = self.unanswered.front().filter(|_| self.handed > 0) else {
                let what = format!("received {} bytes that belong to no request", rest.len());
                return Err(Lost(Trouble::Malformed, what));
            };
            let at = request.target as usize & (heads.len() - 1);
            let crc = &mut self.crc;
            let taken = self.parser.take(rest, now_ns, &mut heads[at], |content| {
                if verify {
                    crc.update(content);
                }
            });
            let (taken, answer) = taken?;
            rest = &rest[taken..];
            if let Some(answer) = answer {
                answered = true;
                self.answered(&answer, now_ns, window, &mut recorder, &mut counts);
            }
        }
        worker.thread.show_progress(&recorder);
        Ok(answered)
    }

    /// Counts the answer to the oldest request.
    fn answered(
        &mut self,
        answer: &Answer,
        now_ns: u64,
        window: &Range<u64>,
        recorder: &mut Recorder,
        counts: &mut Counts,
    ) {
        let Some(Request { begin, target, drawn }) = self.unanswered.pop_front() else { return };
        self.handed -= 1;
        let worker = &*self.worker;
        let crc = match worker.expectation.verify_body {
            true => std::mem::take(&mut self.crc).finalize(),
            false => 0,
        };
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
        self.closing |= !answer.keep_alive || !worker.settings.keepalive;
        if !self.life_served {
            (self.life_served, self.was_served) = (true, true);
            worker.thread.control.served();
        }
    }

    /// The server has closed: right if all was answered, and for some answers their end.
    fn ended(&mut self, link: &Link, window: &Range<u64>) -> Result<Ending, Lost> {
        let worker = Rc::clone(&self.worker);
        if link.end_is_meant()
            && let Some(answer) = self.parser.finish()
        {
            let mut counts = worker.counts.borrow_mut();
            let mut recorder = worker.thread.recorder.borrow_mut();
            self.answered(&answer, monotonic_ns(), window, &mut recorder, &mut counts);
        }
        let place = if self.parser.is_inside() { "inside an answer" } else { "before an answer" };
        match self.unanswered.len() {
            0 => Ok(Ending::Renewed),
            open => {
                let what = format!("the server closed {place}, with {open} requests in flight");
                Err(Lost(Trouble::ClosedEarly, what))
            }
        }
    }

    /// All requests are answered, and the server closes first: TIME_WAIT, and its port, then stay
    /// with the server.
    fn await_close(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Option<Ending> {
        let patience = self.patience.get_or_insert_with(|| sleep(CLOSE_PATIENCE));
        if Pin::new(patience).poll(cx).is_pending() {
            return None;
        }
        link.reset();
        self.worker.counts.borrow_mut().kept_open += 1;
        Some(Ending::Renewed)
    }

    /// Decides which requests begin now.
    fn begin_requests(&mut self, now_ns: u64, window: &Range<u64>) {
        let worker = &*self.worker;
        let control = &worker.thread.control;
        let schedule = worker.thread.schedule.get();
        let room = ((worker.pipeline - self.unanswered.len()) as u64).min(self.life_left);
        let wanted = match schedule {
            None => room,
            Some(schedule) => room.min(schedule.due(self.number, now_ns).saturating_sub(self.sent)),
        };
        let drawn = now_ns >= window.start;
        let requests = if drawn && wanted > 0 { control.draw(wanted) } else { wanted };
        if requests == 0 {
            return;
        }
        let mut counts = worker.counts.borrow_mut();
        let mut recorder = worker.thread.recorder.borrow_mut();
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
            let begin = Begin { since_ns, began_ns: now_ns };
            self.unanswered.push_back(Request { begin, target, drawn });
        }
        self.sent += requests;
        self.life_left -= requests;
    }

    /// Passes the begun requests to the stream, as far as it accepts them.
    fn hand_over(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Result<(), Lost> {
        while self.handed < self.unanswered.len() {
            let waiting = self.unanswered.range(self.handed..).map(|request| request.target);
            let (bytes, count) = self.worker.outbox.batch(waiting);
            match link.poll_send(cx, bytes) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => return Ok(()),
            }
            self.handed += count;
        }
        match link.poll_flush(cx) {
            Poll::Ready(flushed) => Ok(flushed?),
            Poll::Pending => Ok(()),
        }
    }
}

impl Loaded for Connection {
    fn number(&self) -> u64 {
        self.number
    }

    fn wake(&self) {
        self.waker.iter().for_each(Waker::wake_by_ref);
    }

    fn oldest_ns(&self) -> Option<u64> {
        self.unanswered.front().map(|request| request.begin.began_ns)
    }

    fn unanswered(&self, each: &mut dyn FnMut(u64, u64)) {
        self.unanswered.iter().for_each(|request| each(request.begin.since_ns, 1));
    }

    fn give_up(&mut self) {
        self.overdue = true;
        self.wake();
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn answered_in_window(&self) -> u64 {
        self.answered_in_window
    }

    fn was_served(&self) -> bool {
        self.was_served
    }
}
