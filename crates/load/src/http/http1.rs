//! HTTP/1.1 on a connection: answers come in the order of the requests.
//!
//! This is the hot path. Bytes that arrive together cost one clock reading; an answer costs a
//! comparison of its head with the last one, and a few counts, without allocations and locks.
//! Answers that arrive together are followed by one send of as many requests.

use super::answer::{Answer, AnswerParser};
use super::client::{self, HttpLoad, Outbox};
use super::link::Link;
use crate::recorder::{Begun, Recorder};
use crate::requests::{Ending, Lost, Protocol, Tally, Worker};
use http::Method;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use twinring::{TcpStream, measure::monotonic_ns, sleep, time::Sleep};

/// How long a server may take to close a connection without outstanding answers.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Http1 {
    parser: AnswerParser,
    crc: crc32fast::Hasher,
    /// In the order of the answers; the first `handed` of them are the stream's already.
    unanswered: VecDeque<Begun>,
    handed: usize,
    /// No further request is sent in this life.
    closing: bool,
    /// The server must close until then.
    patience: Option<Sleep>,
}

impl Protocol for Http1 {
    type Own = HttpLoad;
    type Local = Outbox;
    type Link = Link;

    const REPLACES_LOST: bool = true;

    fn local(own: &HttpLoad) -> Outbox {
        let requests = own.settings.targets.iter().map(|it| it.bytes(own.settings.keepalive));
        Outbox(requests.map(Into::into).collect())
    }

    fn prepare(own: &HttpLoad) -> Result<(), Lost> {
        own.prepare()
    }

    fn new(_: &HttpLoad, _: u64) -> Http1 {
        Http1::default()
    }

    async fn agree(worker: &Rc<Worker<Http1>>, stream: TcpStream) -> Result<Link, Lost> {
        client::secure(worker, stream).await
    }

    fn begin_life(&mut self, _: u64) {
        self.parser = AnswerParser::default();
        self.crc.reset();
        self.patience = None;
        self.closing = false;
    }

    fn push(&mut self, request: Begun) {
        self.unanswered.push_back(request);
    }

    fn unanswered(&self) -> impl Iterator<Item = (Begun, u64)> {
        self.unanswered.iter().map(|request| (*request, 1))
    }

    fn abandon(&mut self) {
        self.handed = 0;
        self.unanswered.clear();
    }

    fn oldest_ns(&self) -> Option<u64> {
        self.unanswered.front().map(|request| request.began_ns)
    }

    fn poll(
        &mut self,
        tally: &mut Tally<Http1>,
        link: &mut Link,
        cx: &mut Context<'_>,
        end_ns: u64,
    ) -> Result<Option<Ending>, Lost> {
        let (answered_ns, is_end) = self.receive(tally, link, cx)?;
        if is_end {
            return self.ended(tally, link).map(Some);
        }
        let in_flight = self.unanswered.len();
        let pipeline = u64::from(tally.worker.plan.own.settings.pipeline);
        let room = pipeline.saturating_sub(in_flight as u64);
        let may_begin = !self.closing && tally.may_begin() && room > 0;
        if may_begin || in_flight == 0 {
            let now_ns = answered_ns.unwrap_or_else(monotonic_ns);
            if now_ns >= end_ns {
                if in_flight == 0 {
                    return Ok(Some(Ending::Finished));
                }
            } else if may_begin {
                tally.begin(room, now_ns, |request| self.unanswered.push_back(request));
            } else {
                return Ok(self.await_close(tally, link, cx));
            }
        }
        self.hand_over(tally, link, cx)?;
        Ok(None)
    }

    async fn close(link: Link) {
        link.close().await;
    }
}

impl Http1 {
    /// Reads until no data is left. Returns when the last answer arrived, and whether the connection has ended.
    fn receive(
        &mut self,
        tally: &mut Tally<Http1>,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Result<(Option<u64>, bool), Lost> {
        let mut answered_ns = None;
        loop {
            let chunk = match link.poll_recv(cx) {
                Poll::Pending => return Ok((answered_ns, false)),
                Poll::Ready(Ok(chunk)) => chunk,
                // An idle connection may be ended at any time, and in any way.
                Poll::Ready(Err(_)) if self.unanswered.is_empty() => {
                    return Ok((answered_ns, true));
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
            };
            if chunk.is_empty() {
                return Ok((answered_ns, true));
            }
            let now_ns = monotonic_ns();
            link.take(&chunk, |bytes| {
                if self.take(tally, bytes, now_ns)? {
                    answered_ns = Some(now_ns);
                }
                Ok::<(), Lost>(())
            })?;
            if link.has_ended() {
                return Ok((answered_ns, true));
            }
        }
    }

    /// Processes received bytes. True if they completed an answer.
    fn take(&mut self, tally: &mut Tally<Http1>, bytes: &[u8], now_ns: u64) -> Result<bool, Lost> {
        let worker = Rc::clone(&tally.worker);
        let mut recorder = worker.recorder.borrow_mut();
        let verify = worker.plan.own.settings.verify_body.is_some();
        let (mut rest, mut answered) = (bytes, false);
        while !rest.is_empty() {
            let Some(request) = self.unanswered.front().filter(|_| self.handed > 0) else {
                let what = format!("received {} bytes that belong to no request", rest.len());
                return Err(Lost(|it| &mut it.malformed, what));
            };
            let method = &worker.plan.own.settings.target(request.target).request.method;
            let to_head = *method == Method::HEAD;
            let crc = &mut self.crc;
            let taken = self.parser.take(rest, now_ns, to_head, |content| {
                if verify {
                    crc.update(content);
                }
            });
            let (taken, answer) = taken?;
            rest = &rest[taken..];
            if let Some(answer) = answer {
                answered = true;
                self.answered(tally, &answer, now_ns, &mut recorder);
            }
        }
        worker.show_progress(&recorder);
        Ok(answered)
    }

    fn answered(
        &mut self,
        tally: &mut Tally<Http1>,
        answer: &Answer,
        now_ns: u64,
        recorder: &mut Recorder,
    ) {
        let Some(request) = self.unanswered.pop_front() else { return };
        self.handed -= 1;
        let settings = &tally.worker.plan.own.settings;
        self.closing |= !answer.keep_alive || !settings.keepalive;
        let crc = match settings.verify_body {
            Some(_) => std::mem::take(&mut self.crc).finalize(),
            None => 0,
        };
        client::answered(tally, &request, answer, crc, now_ns, recorder);
    }

    /// The server has closed: right if all was answered, and for some answers their end.
    fn ended(&mut self, tally: &mut Tally<Http1>, link: &Link) -> Result<Ending, Lost> {
        let worker = Rc::clone(&tally.worker);
        if link.end_is_meant()
            && let Some(answer) = self.parser.finish()
        {
            let mut recorder = worker.recorder.borrow_mut();
            self.answered(tally, &answer, monotonic_ns(), &mut recorder);
        }
        let place = if self.parser.is_inside() { "inside an answer" } else { "before an answer" };
        match self.unanswered.len() {
            0 => Ok(Ending::Renewed),
            open => {
                let what = format!("the server closed {place}, with {open} requests in flight");
                Err(Lost(|it| &mut it.closed_early, what))
            }
        }
    }

    /// All requests are answered, and the server closes first: TIME_WAIT, and its port, then stay
    /// with the server.
    fn await_close(
        &mut self,
        tally: &Tally<Http1>,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Option<Ending> {
        let patience = self.patience.get_or_insert_with(|| sleep(CLOSE_PATIENCE));
        if Pin::new(patience).poll(cx).is_pending() {
            return None;
        }
        link.reset();
        *tally.worker.recorder.borrow_mut().connections.kept_open.get_or_insert(0) += 1;
        Some(Ending::Renewed)
    }

    /// Passes the begun requests to the stream, as far as it accepts them.
    fn hand_over(
        &mut self,
        tally: &Tally<Http1>,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Result<(), Lost> {
        while self.handed < self.unanswered.len() {
            let waiting = self.unanswered.range(self.handed..).map(|request| request.target);
            let (bytes, count) = tally.worker.local.batch(waiting);
            match link.poll_send(cx, &mut Some(bytes)) {
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
