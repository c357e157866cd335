//! Rules for requests over connections, of any protocol.

use super::finding::{Audit, DUE_TOLERANCE, Severity, differ};
use super::kinds::Kind;
use crate::contract::requests::RequestResult;
use crate::contract::sum;

/// How far the requests in flight may be from Little's law, as a share.
pub const LITTLE_TOLERANCE: f64 = 0.10;

/// A request without an answer for this share of the window, and not shorter than
/// [`STALLED_LEAST_US`], is lost.
pub const STALLED_SHARE: f64 = 0.25;

/// See [`STALLED_SHARE`]; twice the longest delayed acknowledgement of Linux.
pub const STALLED_LEAST_US: f64 = 400_000.0;

/// In an open loop, how late the 99th percentile of requests may leave, in microseconds.
pub const SCHEDULE_LAG_LIMIT_US: f64 = 1000.0;

/// How far the number of random arrivals in a window may be from rate x window, in standard
/// deviations of a Poisson process: once in two million runs it is further.
const DUE_DEVIATIONS: f64 = 5.0;

/// An open loop of which more than this share was not answered in the window is overloaded.
const OVERLOAD_SHARE: f64 = 0.01;

/// A CPU that is used less than this has time to spare.
const SPARE_SHARE: f64 = 0.5;

/// From this many requests in flight on, a subject with time to spare is waiting for something.
const MANY_IN_FLIGHT: u64 = 10;

/// What a load of requests was to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loop {
    /// Connections asked for.
    pub(crate) connections: u64,
    /// Requests kept in flight on each.
    pub(crate) depth: u64,
    /// The next request waits for an answer.
    pub(crate) closed: bool,
    /// Requests per second, where they do not wait for answers.
    pub(crate) rate_per_s: u32,
    /// Requests arrive independently of each other, so their number in a window varies.
    pub(crate) random: bool,
    /// A connection stays for all of the run.
    pub(crate) keepalive: bool,
}

impl Loop {
    fn in_flight(self) -> u64 {
        self.connections * self.depth
    }

    /// Whether the rate is more than was answered. Then requests wait longer and longer, on every
    /// connection; that the subject does not keep up is an outcome and no fault of the run.
    fn is_overloaded(self, load: &RequestResult) -> bool {
        let due = load.due(self.rate_per_s);
        (load.requests.answered as f64) < due * (1.0 - OVERLOAD_SHARE)
    }
}

impl Audit<'_> {
    pub(crate) fn requests(&mut self, load: &RequestResult, wanted: Loop) {
        self.balance(load);
        self.due(load, wanted);
        self.admission(load, wanted);
        if !wanted.is_overloaded(load) {
            self.stalled(load);
        }
        self.latency(load, wanted);
        self.overflows();
        self.waiting(load, wanted);
    }

    fn balance(&mut self, load: &RequestResult) {
        let whole = &load.whole_run;
        let accounted = sum([whole.answered, whole.failed, whole.abandoned]);
        if whole.sent != accounted {
            self.void(
                Kind::Unbalanced,
                format!(
                    "{} sent, but {} answered + {} failed + {} abandoned = {accounted}",
                    whole.sent, whole.answered, whole.failed, whole.abandoned
                ),
            );
        }
        if load.requests.answered == 0 {
            self.void_unless_starved(
                Kind::NothingAnswered,
                "no answer inside the window".to_owned(),
            );
        }
        let rate = load.requests.answered as f64 / load.window.seconds;
        let spans = load.window.between_marks_s();
        if differ(rate, load.requests.per_second) || differ(spans, load.window.seconds) {
            self.void(
                Kind::BadResult,
                format!(
                    "{} answers in {} s ({spans} s between the marks) are not {} per second",
                    load.requests.answered, load.window.seconds, load.requests.per_second
                ),
            );
        }
    }

    /// The schedule is the one that was asked for. Without this a load generator that asks for less
    /// would make any subject keep the rate.
    fn due(&mut self, load: &RequestResult, wanted: Loop) {
        let Some(due) = load.requests.due.filter(|_| !wanted.closed) else { return };
        let expected = f64::from(wanted.rate_per_s) * load.window.seconds;
        let random = if wanted.random { DUE_DEVIATIONS * expected.sqrt() } else { 0.0 };
        let margin = DUE_TOLERANCE * expected + wanted.connections as f64 + random;
        if (due as f64 - expected).abs() > margin {
            self.void(
                Kind::BadResult,
                format!("{due} requests were due in the window, {expected:.0} were asked for"),
            );
        }
    }

    /// With a connection for each request, those that were served are counted by their place.
    fn admission(&mut self, load: &RequestResult, wanted: Loop) {
        let asked = wanted.connections;
        let connections = &load.connections;
        let (served, how) = match wanted.keepalive {
            true => (connections.served_at_once_max, "at most "),
            false => (connections.served, ""),
        };
        if served < asked {
            let at_once = if wanted.keepalive { " at once" } else { "" };
            self.void_unless_starved(
                Kind::UnequalAdmission,
                format!("{asked} connections asked for, {how}{served} served{at_once}"),
            );
        } else if connections.min_answered == 0
            && load.requests.answered > 10 * asked
            && !wanted.is_overloaded(load)
        {
            let what = "a connection got no answer while the average got more than 10".to_owned();
            self.void_unless_starved(Kind::StarvedConnection, what);
        }
    }

    fn stalled(&mut self, load: &RequestResult) {
        let oldest_us = load.requests.oldest_in_flight_us.unwrap_or(0.0);
        let limit_us = STALLED_LEAST_US.max(STALLED_SHARE * load.window.seconds * 1e6);
        if oldest_us > limit_us + self.taken_s() * 1e6 {
            let what = format!("a request had waited {:.0} ms when the run ended", oldest_us / 1e3);
            self.void(Kind::StalledRequest, what);
        }
    }

    fn latency(&mut self, load: &RequestResult, wanted: Loop) {
        let max_us = match load.histogram.decode() {
            Err(why) => return self.void(Kind::BadResult, why),
            Ok(latencies) => {
                let count = latencies.len();
                let p99_us = latencies.value_at_quantile(0.99) as f64 / 1e3;
                if count != load.requests.answered || differ(p99_us, load.latency_us.p99) {
                    self.void(
                        Kind::BadResult,
                        format!(
                            "the histogram holds {count} answers with p99 {p99_us} us, the result \
                             says {} with {} us",
                            load.requests.answered, load.latency_us.p99
                        ),
                    );
                }
                latencies.max() as f64 / 1e3
            }
        };
        if wanted.closed {
            self.littles_law(load, wanted, max_us);
        } else if let Some(lag) = &load.schedule_lag_us
            // As late as the time that others took, a request may be without anybody's fault.
            && lag.p99 > SCHEDULE_LAG_LIMIT_US + self.taken_s() * 1e6
            // A subject that does not read leaves the load generator nowhere to put its requests.
            && (load.cpu.saturated || !wanted.is_overloaded(load))
        {
            let what = format!("1 % of the requests left more than {:.0} us late", lag.p99);
            // Nothing that a subject does makes the load generator late. In most runs it is no noise:
            // see `Kind::ScheduleLag`. Results of before `due` was counted stay as they were judged.
            let counted = load.requests.due.is_some();
            let severity = if counted { Severity::Noise } else { Severity::Void };
            self.find(severity, Kind::ScheduleLag, what);
        }
    }

    /// In a closed loop as many requests as asked for are in flight at any time. Not in flight are
    /// those that the load generator has in its hands between an answer and the next request:
    /// working on one takes CPU, so on average there cannot be more of them than it used CPUs; while
    /// others have its CPU, it may have all of them in its hands. And
    /// each place in flight has two requests that cross the ends of the window, which are counted
    /// with all of their time or with none of it.
    ///
    /// With a connection for each request, a place is also empty from an answer until the server
    /// has closed the connection. That is the server's time, and no latency tells how long: then
    /// only too many in flight are a contradiction.
    fn littles_law(&mut self, load: &RequestResult, wanted: Loop, max_us: f64) {
        let asked = wanted.in_flight() as f64;
        let in_hand = self.run.cpu.as_ref().map_or(0.0, |cpu| {
            // Of load generators elsewhere, what they say themselves.
            cpu.client.as_ref().map_or(load.cpu.user_s + load.cpu.system_s, |it| it.cpu_s) / cpu.window_s
        });
        let margin = asked * (LITTLE_TOLERANCE + max_us / 1e6 / load.window.seconds);
        let held = asked * self.taken_s() / load.window.seconds;
        let least = if wanted.keepalive { asked - margin - in_hand - held } else { 0.0 };
        let expected = least..=asked + margin;
        let seen = load.requests.per_second * load.latency_us.mean / 1e6;
        if load.requests.answered > 0 && !expected.contains(&seen) {
            self.void(
                Kind::LittlesLaw,
                format!(
                    "{:.0} per second x mean {:.1} us = {seen:.1} in flight, but {asked} were kept \
                     in flight",
                    load.requests.per_second, load.latency_us.mean
                ),
            );
        }
    }

    /// A subject with time to spare on both CPUs, although requests wait for it.
    fn waiting(&mut self, load: &RequestResult, wanted: Loop) {
        let Some(cpu) = &self.run.cpu else { return };
        let in_flight = wanted.in_flight();
        let server_share = cpu.server_busy_share();
        let client_share = cpu.client_busy_share().unwrap_or(load.cpu.busiest_thread_share);
        let idle = server_share < SPARE_SHARE && client_share < SPARE_SHARE;
        if idle && in_flight >= MANY_IN_FLIGHT && wanted.closed {
            self.find(
                Severity::Warning,
                Kind::SubjectWaits,
                format!(
                    "{in_flight} requests were in flight, mean {:.0} us, but the server's CPU was \
                     {:.0} % busy and the client's {:.0} %",
                    load.latency_us.mean,
                    server_share * 100.0,
                    client_share * 100.0
                ),
            );
        }
    }
}
