//! What h2load wrote, and the line that says it.

use std::io;
use std::time::Duration;

use hdrhistogram::Histogram;
use twinring_wire::histogram::Latency;
use twinring_wire::http::{Bytes, Errors, SCHEMA, Settings, Statuses, Tls};
use twinring_wire::load::{Cpu, Head, SATURATED_SHARE, Window};
use twinring_wire::requests::{Connections, Requests, WholeRun};
use twinring_wire::{EncodedHistogram, HttpResult, RequestResult};

use crate::{Moment, Options};

/// The longest latency that is told from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// A request of h2load's log: when it ended and how long it took, in microseconds, and its status.
pub(crate) struct Answer {
    end_us: u64,
    latency_us: u64,
    status: u64,
}

impl Answer {
    /// Start, status and duration, set apart by tabs.
    pub(crate) fn read(line: &str) -> io::Result<Answer> {
        let mut numbers = line.split('\t').map(str::parse::<i64>);
        let (Some(Ok(start_us)), Some(Ok(status)), Some(Ok(latency_us))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return Err(io::Error::other(format!("a line of h2load's log: {line:?}")));
        };
        let [start_us, latency_us] = [start_us, latency_us].map(|it| it.max(0) as u64);
        // -1 is a request without an answer; here 0.
        let status = u64::try_from(status).unwrap_or(0);
        Ok(Answer { end_us: start_us + latency_us, latency_us, status })
    }
}

/// Counts that h2load prints at its end.
#[derive(Default)]
pub(crate) struct Totals {
    errored: u64,
    timed_out: u64,
    /// Content of all answers, those of the warm-up included.
    bodies: u64,
}

impl Totals {
    pub(crate) fn read(&mut self, line: &str) {
        let before = |what: &str| {
            let (start, _) = line.split_once(what)?;
            let digits = start.rsplit(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<u64>().ok()
        };
        if line.starts_with("requests:") {
            self.errored = before(" errored").unwrap_or(0);
            self.timed_out = before(" timeout").unwrap_or(0);
        } else if line.starts_with("traffic:") {
            self.bodies = before(") data").unwrap_or(0);
        }
    }
}

pub(crate) fn result(
    options: &Options,
    version: String,
    [start, end]: [Moment; 2],
    totals: &Totals,
    answers: &[Answer],
) -> HttpResult {
    let inside = |it: &&Answer| (start.real_us..end.real_us).contains(&it.end_us);
    let good = |it: &&Answer| (200..300).contains(&it.status);
    let mut latency_ns =
        Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid bounds");
    for it in answers.iter().filter(inside).filter(good) {
        latency_ns.saturating_record((it.latency_us * 1_000).max(1));
    }
    let answered = latency_ns.len();
    let all_answered = answers.iter().filter(good).count() as u64;
    let failed = answers.len() as u64 - all_answered;
    let wrong = failed - answers.iter().filter(|it| it.status == 0).count() as u64;
    let seconds = (end.monotonic_ns - start.monotonic_ns) as f64 / 1e9;
    // h2load counts the bytes of all answers together, those of the warm-up included: they must be
    // whole files.
    let size = u64::from(options.size);
    let is_whole =
        size > 0 && totals.bodies.is_multiple_of(size) && totals.bodies >= answered * size;
    let bodies = if is_whole { answered * size } else { totals.bodies };
    let connections = u64::from(options.connections);
    let tls = options.url.starts_with("https:").then(|| Tls { insecure: true, ..Tls::default() });
    HttpResult {
        head: Head {
            event: "result".to_owned(),
            schema: SCHEMA.to_owned(),
            target: options.url.clone(),
            engine: version,
            ..Head::default()
        },
        settings: Settings {
            urls: 1,
            method: "GET".to_owned(),
            connections,
            http: "1.1".to_owned(),
            pipeline: options.depth.into(),
            keepalive: true,
            threads: 1,
            mode: "closed".to_owned(),
            expect_status: "2xx".to_owned(),
            tls,
            ..Settings::default()
        },
        all: RequestResult {
            window: Window {
                start_monotonic_ns: start.monotonic_ns,
                end_monotonic_ns: end.monotonic_ns,
                seconds,
            },
            requests: Requests {
                sent: answered + failed,
                answered,
                failed,
                per_second: answered as f64 / seconds,
                ..Requests::default()
            },
            whole_run: WholeRun {
                sent: answers.len() as u64,
                answered: all_answered,
                failed,
                abandoned: 0,
            },
            latency_us: Latency::of(&latency_ns),
            latency_from: "send".to_owned(),
            histogram: EncodedHistogram::of(&latency_ns),
            connections: connections_of(connections, totals, answered),
            cpu: cpu(Duration::from_nanos(end.monotonic_ns - start.monotonic_ns)),
            ..RequestResult::default()
        },
        bytes: Bytes { bodies, ..Bytes::default() },
        statuses: Statuses { of_2xx: all_answered, other: wrong, ..Statuses::default() },
        errors: Errors {
            status: wrong,
            timeout: totals.timed_out,
            other: totals.errored.max(failed - wrong),
            ..Errors::default()
        },
        ..HttpResult::default()
    }
}

/// h2load does not count by connection: the mean stands for each.
fn connections_of(asked: u64, totals: &Totals, answered: u64) -> Connections {
    let served = if totals.errored == 0 { asked } else { 0 };
    let mean = answered.checked_div(asked).unwrap_or(0);
    Connections {
        asked,
        established: asked,
        served,
        served_at_once_max: served,
        min_answered: mean,
        max_answered: mean,
        ..Connections::default()
    }
}

/// CPU of h2load over its whole run, warm-up included, in relation to the window: never less than
/// it took there.
fn cpu(window: Duration) -> Cpu {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Cpu::default() };
    let [user_s, system_s] =
        [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds() as f64 / 1e6);
    let busiest_thread_share = ((user_s + system_s) / window.as_secs_f64()).min(1.0);
    let saturated = busiest_thread_share >= SATURATED_SHARE;
    Cpu { user_s, system_s, busiest_thread_share, saturated }
}
