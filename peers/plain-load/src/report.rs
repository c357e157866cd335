//! What is counted, and the line that says it.

use std::io;

use hdrhistogram::Histogram;
use twinring_wire::histogram::{Latency, micros};
use twinring_wire::load::{Cpu, Head, SATURATED_SHARE, Window};
use twinring_wire::requests::{Connections, Requests, WholeRun};
use twinring_wire::tcp::{Bytes, Errors, SCHEMA, Settings};
use twinring_wire::{EncodedHistogram, RequestResult, TcpResult};

use crate::Options;
use crate::connection::{Connection, Loss};

/// The longest latency that is told from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Counts of the window.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    failed: u64,
}

pub(crate) struct Report {
    is_open: bool,
    bounds_ns: [u64; 2],
    cpu_s: [[f64; 2]; 2],
    pub(crate) window: Counts,
    failed: u64,
    latency_ns: Histogram<u64>,
    errors: Errors,
    first_error: Option<String>,
    /// Answers of each connection, and requests begun by all, when the window opened.
    answered_before: Vec<u64>,
    begun_before: u64,
    answered_inside: Vec<u64>,
    begun_inside: u64,
    in_flight_at_end: u64,
    oldest_ns: u64,
}

impl Report {
    pub(crate) fn new() -> Report {
        Report {
            is_open: false,
            bounds_ns: [0; 2],
            cpu_s: [[0.0; 2]; 2],
            window: Counts::default(),
            failed: 0,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid bounds"),
            errors: Errors::default(),
            first_error: None,
            answered_before: Vec::new(),
            begun_before: 0,
            answered_inside: Vec::new(),
            begun_inside: 0,
            in_flight_at_end: 0,
            oldest_ns: 0,
        }
    }

    pub(crate) fn open(&mut self, at_ns: u64, connections: &[Connection], cpu_s: [f64; 2]) {
        (self.is_open, self.bounds_ns[0], self.cpu_s[0]) = (true, at_ns, cpu_s);
        self.answered_before = connections.iter().map(|it| it.answered).collect();
        self.begun_before = connections.iter().map(Connection::begun).sum();
    }

    pub(crate) fn close(&mut self, at_ns: u64, connections: &[Connection], cpu_s: [f64; 2]) {
        (self.is_open, self.bounds_ns[1], self.cpu_s[1]) = (false, at_ns, cpu_s);
        let inside = connections.iter().zip(&self.answered_before);
        self.answered_inside = inside.map(|(it, before)| it.answered - before).collect();
        self.begun_inside = connections.iter().map(Connection::begun).sum::<u64>()
            + self.window.failed
            - self.begun_before;
        self.in_flight_at_end = connections.iter().map(|it| it.unanswered().0).sum();
    }

    pub(crate) fn answered(&mut self, latency_ns: u64, in_time: bool) {
        if self.is_open && in_time {
            self.window.answered += 1;
            self.latency_ns.saturating_record(latency_ns.max(1));
        }
    }

    pub(crate) fn lost(&mut self, number: usize, loss: &Loss, failed: u64) {
        let (count, why) = match loss {
            Loss::ClosedEarly => (&mut self.errors.closed_early, "closed early".to_owned()),
            Loss::Mismatch => (&mut self.errors.mismatch, "other bytes than were sent".to_owned()),
            Loss::Failed(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                (&mut self.errors.reset, error.to_string())
            }
            Loss::Failed(error) => (&mut self.errors.other, error.to_string()),
        };
        *count += 1;
        self.first_error.get_or_insert_with(|| format!("connection {number}: {why}"));
        self.failed += failed;
        if self.is_open {
            self.window.failed += failed;
        }
    }

    /// Takes note of what has no answer at the end of the run.
    pub(crate) fn oldest(&mut self, connections: &[Connection], now_ns: u64) {
        let oldest = connections.iter().filter_map(|it| it.unanswered().1).min();
        self.oldest_ns = oldest.map_or(0, |sent_ns| now_ns.saturating_sub(sent_ns));
    }

    pub(crate) fn result(&self, options: &Options, connections: &[Connection]) -> TcpResult {
        let [start_ns, end_ns] = self.bounds_ns;
        let seconds = (end_ns - start_ns) as f64 / 1e9;
        let answered: u64 = connections.iter().map(|it| it.answered).sum();
        let abandoned: u64 = connections.iter().map(|it| it.unanswered().0).sum();
        let lost = connections.iter().filter(|it| it.socket.is_none()).count() as u64;
        let served = connections.iter().filter(|it| it.answered > 0).count() as u64;
        let inside = &self.answered_inside;
        let size = u64::from(options.size);
        let [user_s, system_s] = [0, 1].map(|part| self.cpu_s[1][part] - self.cpu_s[0][part]);
        let busiest_thread_share = (user_s + system_s) / seconds;
        TcpResult {
            head: Head {
                event: "result".to_owned(),
                schema: SCHEMA.to_owned(),
                target: options.address.to_string(),
                engine: "bare epoll".to_owned(),
                ..Head::default()
            },
            settings: Settings {
                connections: options.connections.into(),
                message_bytes: size,
                depth: options.depth.into(),
                threads: 1,
                mode: "closed".to_owned(),
                verify: true,
                warmup_s: options.warmup.as_secs_f64(),
                duration_s: options.duration.as_secs_f64(),
                ..Settings::default()
            },
            all: RequestResult {
                window: Window { start_monotonic_ns: start_ns, end_monotonic_ns: end_ns, seconds },
                requests: Requests {
                    sent: self.begun_inside,
                    answered: self.window.answered,
                    failed: self.window.failed,
                    in_flight_at_end: self.in_flight_at_end,
                    oldest_in_flight_us: Some(micros(self.oldest_ns)),
                    per_second: self.window.answered as f64 / seconds,
                    ..Requests::default()
                },
                whole_run: WholeRun {
                    sent: answered + self.failed + abandoned,
                    answered,
                    failed: self.failed,
                    abandoned,
                },
                latency_us: Latency::of(&self.latency_ns),
                latency_from: "send".to_owned(),
                histogram: EncodedHistogram::of(&self.latency_ns),
                connections: Connections {
                    asked: options.connections.into(),
                    established: options.connections.into(),
                    served,
                    served_at_once_max: served,
                    lost,
                    min_answered: inside.iter().copied().min().unwrap_or(0),
                    max_answered: inside.iter().copied().max().unwrap_or(0),
                    ..Connections::default()
                },
                first_error: self.first_error.clone(),
                cpu: Cpu {
                    user_s,
                    system_s,
                    busiest_thread_share,
                    saturated: busiest_thread_share >= SATURATED_SHARE,
                },
                ..RequestResult::default()
            },
            bytes: Bytes { sent: self.begun_inside * size, received: self.window.answered * size },
            errors: self.errors,
        }
    }
}
