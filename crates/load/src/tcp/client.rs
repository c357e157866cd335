//! The echo protocol on one connection: its requests, its answers, and its end.
//!
//! This is the hot path. An answer costs one clock reading, one comparison of its bytes, and one
//! count in the histogram, without allocations and locks. Answers that arrive together are followed
//! by one send of as many requests, in one slice of the pattern's table.

use super::settings::Settings;
use crate::pattern::Pattern;
use crate::recorder::{Request, Trouble};
use crate::requests::{Ending, Lost, Protocol, Shared, Tally, Worker};
use crate::settings::Common;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};
use twinring::{TcpStream, measure::monotonic_ns};

pub(super) struct Tcp {
    number: u64,
    verify: bool,
    pattern: Pattern,
    message_bytes: u64,
    /// Bytes of all requests of this life, of which `handed` are the stream's already.
    begun: u64,
    handed: u64,
    received: u64,
    /// Bytes received of the answer that is coming in.
    partial: u64,
    /// Requests that began at the same time, and how many they are.
    unanswered: VecDeque<(Request, u64)>,
    in_flight: u64,
    depth: u64,
}

impl Shared for Settings {
    type Local = ();

    fn common(&self) -> &Common {
        &self.common
    }

    fn idle(&self) -> u64 {
        self.idle
    }

    fn life(&self) -> u64 {
        self.churn.unwrap_or(u64::MAX)
    }

    fn local(&self) {}

    fn pick(&self, (): &(), _: u64, _: u64) -> (u32, u64) {
        (0, self.message_bytes.into())
    }
}

impl Protocol for Tcp {
    type Shared = Settings;
    type Link = TcpStream;

    const REPLACES_LOST: bool = false;

    fn new(worker: &Worker<Tcp>, number: u64) -> Tcp {
        let settings = &worker.shared;
        Tcp {
            number,
            verify: settings.verify,
            pattern: Pattern::new(number, 0),
            message_bytes: u64::from(settings.message_bytes),
            begun: 0,
            handed: 0,
            received: 0,
            partial: 0,
            unanswered: VecDeque::new(),
            in_flight: 0,
            depth: settings.depth_in_use(),
        }
    }

    async fn agree(_: &Rc<Worker<Tcp>>, stream: TcpStream) -> Result<TcpStream, Lost> {
        Ok(stream)
    }

    fn begin_life(&mut self, life: u64) {
        self.pattern = Pattern::new(self.number, life);
        (self.begun, self.handed, self.received, self.partial) = (0, 0, 0, 0);
    }

    fn push(&mut self, request: Request) {
        self.in_flight += 1;
        self.begun += self.message_bytes;
        match self.unanswered.back_mut() {
            Some((last, count))
                if last.since_ns == request.since_ns && last.drawn == request.drawn =>
            {
                *count += 1;
            }
            _ => self.unanswered.push_back((request, 1)),
        }
    }

    fn unanswered(&self) -> impl Iterator<Item = (Request, u64)> {
        self.unanswered.iter().copied()
    }

    fn abandon(&mut self) {
        self.unanswered.clear();
        self.in_flight = 0;
    }

    fn oldest_ns(&self) -> Option<u64> {
        self.unanswered.front().map(|(request, _)| request.began_ns)
    }

    fn poll(
        &mut self,
        tally: &mut Tally<Tcp>,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        end_ns: u64,
    ) -> Result<Option<Ending>, Lost> {
        let answered_ns = self.receive(tally, stream, cx)?;
        if self.in_flight < self.depth {
            let now_ns = answered_ns.unwrap_or_else(monotonic_ns);
            let over = now_ns >= end_ns;
            if self.in_flight == 0 && (over || !tally.may_begin()) {
                return Ok(Some(if over { Ending::Finished } else { Ending::Renewed }));
            }
            if !over {
                let room = self.depth - self.in_flight;
                tally.begin(room, now_ns, |request| self.push(request));
            }
        }
        self.hand_over(stream, cx)?;
        Ok(None)
    }

    async fn close(stream: TcpStream) {
        drop(stream);
    }
}

impl Tcp {
    /// Reads until no data is left. Returns when the last answer arrived, if one did.
    fn receive(
        &mut self,
        tally: &mut Tally<Tcp>,
        stream: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Result<Option<u64>, Lost> {
        let mut answered_ns = None;
        loop {
            let chunk = match stream.poll_recv(cx) {
                Poll::Pending => return Ok(answered_ns),
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(error)) => return Err(Lost::of("receiving: ", &error)),
            };
            if chunk.is_empty() {
                let what = format!("the server closed it, {} answers short", self.in_flight);
                return Err(Lost(Trouble::ClosedEarly, what));
            }
            answered_ns = self.take(tally, &chunk)?.or(answered_ns);
        }
    }

    /// Checks received bytes and counts the answers they complete. Returns the time if any.
    fn take(&mut self, tally: &mut Tally<Tcp>, chunk: &[u8]) -> Result<Option<u64>, Lost> {
        let bytes = chunk.len() as u64;
        if self.received + bytes > self.handed {
            let surplus = self.received + bytes - self.handed;
            let what = format!("received {surplus} bytes that were never sent");
            return Err(Lost(if self.verify { Trouble::Mismatch } else { Trouble::Other }, what));
        }
        if self.verify {
            let differs = |difference| Lost(Trouble::Mismatch, difference);
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
        self.answered(tally, answers, now_ns);
        Ok(Some(now_ns))
    }

    fn answered(&mut self, tally: &mut Tally<Tcp>, answers: u64, now_ns: u64) {
        let worker = Rc::clone(&tally.worker);
        let mut recorder = worker.recorder.borrow_mut();
        let mut left = answers;
        while left > 0
            && let Some((request, count)) = self.unanswered.front_mut()
        {
            let of_batch = left.min(*count);
            tally.answered(request, of_batch, now_ns, &mut recorder);
            left -= of_batch;
            *count -= of_batch;
            if *count == 0 {
                self.unanswered.pop_front();
            }
        }
        self.in_flight -= answers;
        worker.show_progress(&recorder);
    }

    /// Passes the bytes of the begun requests to the stream, as far as it accepts them.
    fn hand_over(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Result<(), Lost> {
        while self.handed < self.begun {
            let slice = self.pattern.slice(self.handed, (self.begun - self.handed) as usize);
            match stream.poll_send(cx, &mut Some(slice.into())) {
                Poll::Ready(Ok(())) => self.handed += slice.len() as u64,
                Poll::Ready(Err(error)) => return Err(Lost::of("sending: ", &error)),
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}
