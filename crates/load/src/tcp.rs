//! Requests over TCP to a server that echoes them.
//!
//! A request is a message of a fixed size, its answer the same bytes. Each connection is one task.
//!
//! - Closed loop: a connection keeps `depth` requests in flight and sends another with each
//!   answer. The time of an answer is the time at which the next request begins, so requests in
//!   flight, rate and mean latency obey Little's law exactly.
//! - Open loop: requests leave on a [schedule](crate::schedule) regardless of answers, with up to
//!   `depth` in flight. Latency counts from the scheduled time, so a stalled server is charged for
//!   every request that it delays.

use crate::pattern::Pattern;
use crate::recorder::{Begun, Trouble};
use crate::report::{head, of_requests};
use crate::requests::{Choice, Ending, Lost, Plan, Protocol, Tally, Worker, run_requests};
use crate::run::{Environment, Generator};
use crate::settings::{CONNECTIONS_MAX, Common, RequestSettings, between};
use clap::{ArgAction, Args};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use twinring::{Builder, TcpStream, measure::monotonic_ns};
use twinring_input::quantity::{count, count_u32, size_u32};
use twinring_wire::tcp::{self as wire, Bytes, SCHEMA, TcpErrors};
use twinring_wire::{LoadResult, TcpResult};

/// Requests in flight per connection in an open loop, by default. Large, so that requests leave on
/// schedule while a server stalls; bounded, so that a server that never answers cannot make the
/// queue grow without end.
const OPEN_LOOP_DEPTH: u32 = 1024;

const MESSAGE_BYTES_MAX: u32 = 16 * 1024 * 1024;
const DEPTH_MAX: u32 = 1 << 20;

/// The settings of a load.
#[derive(Args, Clone, Debug)]
pub struct TcpSettings {
    /// Address of the server: IP:PORT or NAME:PORT; IPv6 in brackets.
    #[arg(value_name = "ADDR")]
    pub target: String,
    /// Size of a request and of its answer, such as 128 or 4K.
    #[arg(short, long, value_name = "BYTES", default_value = "128", value_parser = size_u32)]
    pub size: u32,
    /// Connections, rate, times and addresses.
    #[command(flatten)]
    pub requests: RequestSettings,
    /// Requests in flight per connection, at most [default: 1; 1024 with --rate].
    #[arg(long, value_name = "N", value_parser = count_u32, help_heading = "Pattern")]
    pub depth: Option<u32>,
    /// Close each connection after this many answers and make a new one. Above 14,000 a minute from one address to one
    /// port, the kernel has to search for a port that is not in TIME_WAIT: give more addresses with --local.
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Pattern")]
    pub churn: Option<u64>,
    /// Further connections that stay open and send nothing.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count,
          help_heading = "Pattern")]
    pub idle: u64,
    /// Do not verify the content of answers.
    #[arg(long = "no-verify", action = ArgAction::SetFalse, help_heading = "Pattern")]
    pub verify: bool,
}

impl TcpSettings {
    fn depth_in_use(&self) -> u64 {
        let default = if self.requests.is_open() { OPEN_LOOP_DEPTH } else { 1 };
        self.depth.unwrap_or(default).into()
    }

    fn report(&self) -> wire::TcpSettings {
        let asked = &self.requests;
        wire::TcpSettings {
            connections: asked.connections,
            message_bytes: self.size.into(),
            depth: self.depth_in_use(),
            threads: asked.common.workers.threads.into(),
            mode: asked.mode(),
            rate_per_s: asked.rate,
            arrivals: asked.arrivals(),
            churn: self.churn,
            idle: self.idle,
            verify: self.verify,
            messages: asked.requests,
            warmup_s: asked.common.warmup.as_secs_f64(),
            duration_s: asked.common.duration.as_secs_f64(),
        }
    }
}

impl Generator for TcpSettings {
    const UNIT: &'static str = "requests";

    fn common(&mut self) -> &mut Common {
        &mut self.requests.common
    }

    fn check(&self) -> Result<(), String> {
        self.requests.check()?;
        between("--idle", self.idle, 0, CONNECTIONS_MAX)?;
        between("--size", self.size, 1, MESSAGE_BYTES_MAX)?;
        between("--depth", self.depth.unwrap_or(1), 1, DEPTH_MAX)?;
        between("--churn", self.churn.unwrap_or(1), 1, u64::MAX - 1)
    }

    /// Receive buffers that suit the bytes that a connection receives at once: many small ones, or few large ones, so
    /// that the pool stays inside the cache.
    fn runtime(&self) -> Builder {
        let at_once = u64::from(self.size) * u64::from(self.depth.unwrap_or(1));
        let (bytes, most) = if at_once <= 2048 { (2048, 1024) } else { (16 * 1024, 64) };
        self.requests.builder(bytes, most)
    }

    fn run(self, environment: Environment<'_>) -> Result<LoadResult, String> {
        let plan = Arc::new(Plan {
            requests: self.requests.clone(),
            idle: self.idle,
            life: self.churn.unwrap_or(u64::MAX),
            connects_for_each: false,
            choice: Choice::new([1], 0),
            request_bytes: vec![self.size.into()],
            own: self,
        });
        let (own, target) = (&plan.own, plan.requests.common.shown_addresses());
        let (all, ran) = run_requests::<Tcp>(&plan, &target, environment)?;
        let from = if plan.requests.is_open() { "intended" } else { "send" };
        let mut requests = of_requests(&all, &ran, from, &plan.requests);
        requests.connections.kept_open = None;
        let errors = all.errors;
        Ok(LoadResult::Tcp(Box::new(TcpResult {
            head: head(SCHEMA, target, &ran),
            settings: own.report(),
            bytes: Bytes {
                sent: requests.requests.sent * u64::from(own.size),
                received: requests.requests.answered * u64::from(own.size),
            },
            all: requests,
            errors: TcpErrors {
                connect: errors.connect,
                reset: errors.reset,
                closed_early: errors.closed_early,
                timeout: errors.timeout,
                mismatch: errors.hash,
                other: errors.other,
            },
        })))
    }
}

/// The protocol on one connection: its requests, its answers, and its end.
///
/// This is the hot path. An answer costs one clock reading, one comparison of its bytes, and one
/// count in the histogram, without allocations and locks. Answers that arrive together are followed
/// by one send of as many requests, in one slice of the pattern's table.
struct Tcp {
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
    unanswered: VecDeque<(Begun, u64)>,
    in_flight: u64,
    depth: u64,
}

impl Protocol for Tcp {
    type Own = TcpSettings;
    type Local = ();
    type Link = TcpStream;

    const REPLACES_LOST: bool = false;

    fn local(_: &TcpSettings) {}

    fn new(settings: &TcpSettings, number: u64) -> Tcp {
        Tcp {
            number,
            verify: settings.verify,
            pattern: Pattern::new(number, 0),
            message_bytes: u64::from(settings.size),
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

    fn push(&mut self, request: Begun) {
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

    fn unanswered(&self) -> impl Iterator<Item = (Begun, u64)> {
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
                return Err(Lost(|it| &mut it.closed_early, what));
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
            let kind: Trouble = if self.verify { |it| &mut it.hash } else { |it| &mut it.other };
            return Err(Lost(kind, what));
        }
        if self.verify {
            let differs = |difference| Lost(|it| &mut it.hash, difference);
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
