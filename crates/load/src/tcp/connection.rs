//! One connection under load: its requests, its answers, and its end.
//!
//! This is the hot path. An answer costs one clock reading, one comparison of its bytes, and one
//! count in the histogram, without allocations and locks. Answers that arrive together are followed
//! by one send of as many requests, in one slice of the pattern's table.

use super::settings::{Pace, SLOW_READ_BYTES_PER_S, Settings};
use crate::pattern::{Difference, Pattern};
use crate::recorder::Trouble;
use crate::run::{Loaded, Thread};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use twinring::{Sleep, TcpStream, monotonic_ns, sleep};

/// Bytes that a slow reader sends at once, at least one message.
const SLOW_SEND_BYTES: u64 = 64 * 1024;

/// State of the thread that its tasks share.
pub(super) struct Worker {
    pub(super) thread: Thread,
    pub(super) settings: Arc<Settings>,
    pub(super) pace: Pace,
}

/// Requests that began at the same time.
struct Batch {
    /// Where latency counts from: when they were sent, or in an open loop were to be sent.
    since_ns: u64,
    sent_ns: u64,
    requests: u64,
    /// Taken from the quota of `--messages`.
    drawn: bool,
}

/// How a connection, or one life of it, ended.
pub(super) enum Ending {
    /// It has sent its number of requests: another one replaces it.
    Churned,
    /// The window has ended and all requests are answered.
    Finished,
    /// It failed.
    Lost(Trouble, String),
}

/// A place in the list of connections. With churn, one stream after the other uses it; each is a
/// life of the connection.
pub(super) struct Connection {
    worker: Rc<Worker>,
    /// Among all connections of the run, from 0.
    number: u64,
    life: u64,
    pattern: Pattern,
    message_bytes: u64,
    /// Bytes of all requests of this life, of which `handed` are the stream's already.
    begun: u64,
    handed: u64,
    received: u64,
    /// Bytes received of the answer that is coming in.
    partial: u64,
    unanswered: VecDeque<Batch>,
    in_flight: u64,
    depth: u64,
    /// Requests that this life may still send; without churn more than can ever be sent.
    life_left: u64,
    /// Requests sent in all lives.
    sent: u64,
    answered_in_window: u64,
    was_served: bool,
    life_served: bool,
    overdue: bool,
    /// A slow reader reads on after this.
    pause: Option<Sleep>,
    /// Of the task that runs this connection.
    waker: Option<Waker>,
}

impl Connection {
    pub(super) fn new(worker: &Rc<Worker>, number: u64) -> Connection {
        let settings = &worker.settings;
        Connection {
            worker: Rc::clone(worker),
            number,
            life: 0,
            pattern: Pattern::new(number, 0),
            message_bytes: u64::from(settings.message_bytes),
            begun: 0,
            handed: 0,
            received: 0,
            partial: 0,
            unanswered: VecDeque::new(),
            in_flight: 0,
            depth: settings.depth_in_use(),
            life_left: settings.churn.unwrap_or(u64::MAX),
            sent: 0,
            answered_in_window: 0,
            was_served: false,
            life_served: false,
            overdue: false,
            pause: None,
            waker: None,
        }
    }

    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// Prepares the next life on a new stream.
    pub(super) fn begin_life(&mut self) {
        self.life += 1;
        self.pattern = Pattern::new(self.number, self.life);
        (self.begun, self.handed, self.received, self.partial) = (0, 0, 0, 0);
        self.life_left = self.worker.settings.churn.unwrap_or(u64::MAX);
    }

    /// Counts a life that has ended; its requests in flight have failed.
    pub(super) fn end_life(&mut self) {
        if std::mem::take(&mut self.life_served) {
            self.worker.thread.control.no_longer_served();
        }
        if self.in_flight > 0 {
            let (now_ns, window) = (monotonic_ns(), self.worker.thread.control.window());
            self.worker.thread.recorder.borrow_mut().failed(self.in_flight, now_ns, &window);
            for batch in self.unanswered.drain(..).filter(|batch| batch.drawn) {
                self.worker.thread.control.settle(batch.requests, now_ns);
            }
            self.in_flight = 0;
        }
    }

    /// Receives available data, then sends the next requests.
    pub(super) fn poll(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<Ending> {
        self.waker.get_or_insert_with(|| cx.waker().clone());
        let window = self.worker.thread.control.window();
        match self.advance(stream, cx, &window) {
            Ok(None) => Poll::Pending,
            Ok(Some(ending)) => Poll::Ready(ending),
            Err((trouble, what)) => Poll::Ready(Ending::Lost(trouble, what)),
        }
    }

    fn advance(
        &mut self,
        stream: &TcpStream,
        cx: &mut Context<'_>,
        window: &Range<u64>,
    ) -> Result<Option<Ending>, (Trouble, String)> {
        if self.overdue {
            return Err((Trouble::Timeout, "no answer within the timeout".into()));
        }
        let answered_ns = self.receive(stream, cx, window)?;
        loop {
            if self.in_flight < self.depth {
                let now_ns = answered_ns.unwrap_or_else(monotonic_ns);
                let over = now_ns >= window.end;
                if self.in_flight == 0 && (over || self.life_left == 0) {
                    return Ok(Some(if over { Ending::Finished } else { Ending::Churned }));
                }
                if !over {
                    self.begin_requests(now_ns, window);
                }
            }
            if self.handed == self.begun {
                return Ok(None);
            }
            self.hand_over(stream, cx)?;
            // A slow reader's sender stops only when the sockets are full.
            if self.handed < self.begun || self.worker.pace != Pace::SlowReader {
                return Ok(None);
            }
        }
    }

    /// Reads until no data is left. Returns when the last answer arrived, if one did.
    fn receive(
        &mut self,
        stream: &TcpStream,
        cx: &mut Context<'_>,
        window: &Range<u64>,
    ) -> Result<Option<u64>, (Trouble, String)> {
        let mut answered_ns = None;
        while !self.is_pausing(cx, window) {
            let chunk = match stream.poll_recv(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(error)) => return Err(lost("receiving", &error)),
            };
            if chunk.is_empty() {
                let what = format!("the server closed it, {} answers short", self.in_flight);
                return Err((Trouble::ClosedEarly, what));
            }
            answered_ns = self.take(&chunk, window)?.or(answered_ns);
            if self.worker.pace == Pace::SlowReader {
                let wait_s = chunk.len() as f64 / SLOW_READ_BYTES_PER_S as f64;
                self.pause = Some(sleep(Duration::from_secs_f64(wait_s)));
            }
        }
        Ok(answered_ns)
    }

    /// True while a slow reader waits. When the window is over it reads on without waiting.
    fn is_pausing(&mut self, cx: &mut Context<'_>, window: &Range<u64>) -> bool {
        let Some(pause) = &mut self.pause else { return false };
        let pausing = monotonic_ns() < window.end && Pin::new(pause).poll(cx).is_pending();
        if !pausing {
            self.pause = None;
        }
        pausing
    }

    /// Checks received bytes and counts the answers they complete. Returns the time if any.
    fn take(
        &mut self,
        chunk: &[u8],
        window: &Range<u64>,
    ) -> Result<Option<u64>, (Trouble, String)> {
        let verify = self.worker.settings.verify;
        let bytes = chunk.len() as u64;
        if self.received + bytes > self.handed {
            let surplus = self.received + bytes - self.handed;
            let what = format!("received {surplus} bytes that were never sent");
            return Err((if verify { Trouble::Mismatch } else { Trouble::Other }, what));
        }
        if verify {
            let differs = |difference: Difference| (Trouble::Mismatch, difference.to_string());
            self.pattern.check(self.received, chunk).map_err(differs)?;
        }
        self.received += bytes;
        self.partial += bytes;
        if self.partial < self.message_bytes {
            return Ok(None);
        }
        let answers = match self.partial == self.message_bytes {
            true => 1,
            // Divided only here: a division costs as much as all else in this function.
            false => self.partial / self.message_bytes,
        };
        self.partial -= answers * self.message_bytes;
        let now_ns = monotonic_ns();
        self.answered(answers, now_ns, window);
        Ok(Some(now_ns))
    }

    fn answered(&mut self, answers: u64, now_ns: u64, window: &Range<u64>) {
        let worker = &*self.worker;
        let mut recorder = worker.thread.recorder.borrow_mut();
        let mut left = answers;
        while left > 0
            && let Some(batch) = self.unanswered.front_mut()
        {
            let of_batch = left.min(batch.requests);
            if recorder.answered(of_batch, batch.since_ns, now_ns, window) {
                self.answered_in_window += of_batch;
            }
            if batch.drawn {
                worker.thread.control.settle(of_batch, now_ns);
            }
            left -= of_batch;
            batch.requests -= of_batch;
            if batch.requests == 0 {
                self.unanswered.pop_front();
            }
        }
        self.in_flight -= answers;
        worker.thread.show_progress(&recorder);
        if !self.life_served {
            (self.life_served, self.was_served) = (true, true);
            worker.thread.control.served();
        }
    }

    /// Decides which requests leave now.
    fn begin_requests(&mut self, now_ns: u64, window: &Range<u64>) {
        let room = (self.depth - self.in_flight).min(self.life_left);
        let wanted = match &self.worker.pace {
            Pace::Closed => room,
            Pace::SlowReader if self.handed < self.begun => 0,
            Pace::SlowReader => room.min((SLOW_SEND_BYTES / self.message_bytes).max(1)),
            Pace::Open => {
                let schedule = self.worker.thread.schedule.get();
                let due = schedule.map_or(0, |schedule| schedule.due(self.number, now_ns));
                room.min(due.saturating_sub(self.sent))
            }
        };
        let drawn = now_ns >= window.start;
        let requests = match drawn && wanted > 0 {
            true => self.worker.thread.control.draw(wanted),
            false => wanted,
        };
        if requests == 0 {
            return;
        }
        let mut recorder = self.worker.thread.recorder.borrow_mut();
        recorder.sent(requests, now_ns, window);
        match self.worker.thread.schedule.get() {
            None => {
                let batch = Batch { since_ns: now_ns, sent_ns: now_ns, requests, drawn };
                self.unanswered.push_back(batch);
            }
            Some(schedule) => {
                for sequence in self.sent..self.sent + requests {
                    let since_ns = schedule.intended_ns(self.number, sequence);
                    recorder.lagged(since_ns, now_ns, window);
                    let batch = Batch { since_ns, sent_ns: now_ns, requests: 1, drawn };
                    self.unanswered.push_back(batch);
                }
            }
        }
        self.in_flight += requests;
        self.sent += requests;
        self.begun += requests * self.message_bytes;
        self.life_left -= requests;
    }

    /// Passes the bytes of the begun requests to the stream, as far as it accepts them.
    fn hand_over(
        &mut self,
        stream: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Result<(), (Trouble, String)> {
        while self.handed < self.begun {
            let slice = self.pattern.slice(self.handed, (self.begun - self.handed) as usize);
            match stream.poll_send(cx, &mut Some(slice.into())) {
                Poll::Ready(Ok(())) => self.handed += slice.len() as u64,
                Poll::Ready(Err(error)) => return Err(lost("sending", &error)),
                Poll::Pending => break,
            }
        }
        Ok(())
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
        self.unanswered.front().map(|batch| batch.sent_ns)
    }

    fn unanswered(&self, each: &mut dyn FnMut(u64, u64)) {
        self.unanswered.iter().for_each(|batch| each(batch.since_ns, batch.requests));
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

fn lost(doing: &str, error: &io::Error) -> (Trouble, String) {
    let trouble = match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Trouble::Reset,
        io::ErrorKind::TimedOut => Trouble::Timeout,
        _ => Trouble::Other,
    };
    (trouble, format!("{doing}: {error}"))
}
