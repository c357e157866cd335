//! Whether a run may count.
//!
//! Each audit looks at one run record and returns findings. A [`Severity::Void`] finding takes the
//! subject out of its cell: its numbers are not what they claim to be. A [`Severity::Noise`]
//! finding spoils the block, which is run again if the experiment has blocks to spare. A
//! [`Severity::Warning`] is printed and changes nothing.

use serde::{Deserialize, Serialize};

use crate::contract::{self, LoadResult};
use crate::result::{Failure, RunRecord};

/// How far the requests in flight may be from Little's law, as a share.
pub const LITTLE_TOLERANCE: f64 = 0.10;

/// The share of the window that the hypervisor may take from a CPU.
pub const STEAL_LIMIT: f64 = 0.02;

/// The share of all CPUs that other processes may use: 6 % of one on a machine with two.
pub const OTHERS_LIMIT: f64 = 0.03;

/// How late the lab may sample after a mark, as a share of the window.
pub const SAMPLE_DELAY_LIMIT: f64 = 0.02;

/// A request without an answer for this share of the window, and not shorter than
/// [`STALLED_LEAST_US`], is lost.
pub const STALLED_SHARE: f64 = 0.25;

/// See [`STALLED_SHARE`]; twice the longest delayed acknowledgement of Linux.
pub const STALLED_LEAST_US: f64 = 400_000.0;

/// In an open loop, how late the 99th percentile of requests may leave, in microseconds.
pub const SCHEDULE_LAG_LIMIT_US: f64 = 1000.0;

/// How far a printed figure may be from the one recomputed from the histogram: hdr histograms of
/// three digits are good to 0.1 %.
const RECOMPUTED_TOLERANCE: f64 = 0.005;

/// A CPU that is used less than this has time to spare.
const SPARE_SHARE: f64 = 0.5;

/// From this many requests in flight on, a subject with time to spare is waiting for something.
const MANY_IN_FLIGHT: u64 = 10;

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which rule.
    pub kind: Kind,
    /// What follows from it.
    pub severity: Severity,
    /// The subject it is about.
    pub subject: String,
    /// The run, if it is about one.
    pub run: Option<usize>,
    /// What was seen, with figures.
    pub what: String,
}

/// What follows from a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is said.
    Warning,
    /// The block does not count.
    Noise,
    /// The subject does not count in this cell.
    Void,
}

/// The rules, causes before their consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The server could not be used.
    ServerNotReady,
    /// The server ended before it was asked to.
    ServerDied,
    /// Bytes came back other than they were sent.
    PayloadMismatch,
    /// Fewer connections were served at once than were asked for.
    UnequalAdmission,
    /// The load generator met errors.
    ClientErrors,
    /// A request was never answered.
    StalledRequest,
    /// A connection got no answer inside the window.
    StarvedConnection,
    /// A promised line is missing, unreadable, or contradicts itself.
    BadResult,
    /// Requests are unaccounted for: sent is not answered + failed + abandoned.
    Unbalanced,
    /// No request was answered inside the window.
    NothingAnswered,
    /// Rate, latency and requests in flight contradict each other.
    LittlesLaw,
    /// An open loop did not keep its schedule.
    ScheduleLag,
    /// The server did not end well when it was asked to.
    ServerDidNotStop,
    /// The load generator failed or did not finish.
    ClientFailed,
    /// CPU use could not be established.
    NoAccounting,
    /// The hypervisor took CPU time away.
    Steal,
    /// Other processes used CPU time.
    OtherProcesses,
    /// The lab sampled too late.
    LateSample,
    /// Nobody looked at the bytes that came back.
    UnverifiedPayload,
    /// The completion queue overflowed.
    CqOverflow,
    /// The subject left both CPUs idle although requests were waiting.
    SubjectWaits,
}

impl Kind {
    /// The rule in words.
    pub fn title(self) -> &'static str {
        match self {
            Kind::ServerNotReady => "server not ready",
            Kind::ServerDied => "server died",
            Kind::ServerDidNotStop => "server did not stop",
            Kind::ClientFailed => "load generator failed",
            Kind::BadResult => "bad result",
            Kind::NoAccounting => "no CPU accounting",
            Kind::NothingAnswered => "nothing answered",
            Kind::PayloadMismatch => "payload mismatch",
            Kind::UnverifiedPayload => "payload not verified",
            Kind::Unbalanced => "requests unaccounted for",
            Kind::ClientErrors => "client errors",
            Kind::UnequalAdmission => "unequal admission",
            Kind::StarvedConnection => "starved connection",
            Kind::StalledRequest => "stalled request",
            Kind::LittlesLaw => "Little's law broken",
            Kind::ScheduleLag => "late schedule",
            Kind::CqOverflow => "completion queue overflow",
            Kind::Steal => "steal time",
            Kind::OtherProcesses => "other processes",
            Kind::LateSample => "late sample",
            Kind::SubjectWaits => "the subject waits",
        }
    }

    /// What the reader can do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Kind::ServerNotReady => "run the server's command by hand and read what it says",
            Kind::ServerDied => "run the server's command by hand under the same load",
            Kind::ServerDidNotStop => "a server should end with code 0 soon after SIGTERM",
            Kind::ClientFailed => "run the load's command by hand; check descriptors and ports",
            Kind::BadResult => "compare the load's output with docs/json.md",
            Kind::NoAccounting => {
                "a soaker got no turn around the ends of the window: stop what else runs here"
            }
            Kind::NothingAnswered => "make window and warm-up longer, or check the server",
            Kind::PayloadMismatch => "the server loses, repeats or swaps bytes: fix it first",
            Kind::UnverifiedPayload => "leave out --no-verify to make sure that it really echoes",
            Kind::Unbalanced => "the load generator miscounts: its other figures are doubtful",
            Kind::ClientErrors => "check limits on connections and descriptors of the server",
            Kind::UnequalAdmission => "raise the server's backlog, connection or descriptor limit",
            Kind::StarvedConnection => "the server forgets or starves connections",
            Kind::StalledRequest => "the server lost bytes of it, or forgot it",
            Kind::LittlesLaw => "latencies or counts are wrong, or connections hang",
            Kind::ScheduleLag => "the load generator cannot keep this rate: lower it",
            Kind::CqOverflow => "give the ring a larger completion queue",
            Kind::Steal => "another guest uses this CPU: measure at a quieter time",
            Kind::OtherProcesses => "stop what else runs on this machine",
            Kind::LateSample => "something kept the lab from running: stop what else runs here",
            Kind::SubjectWaits => "it sleeps or waits for timers: see its latency",
        }
    }
}

/// Audits one run.
pub fn audit(run: &RunRecord) -> Vec<Finding> {
    let mut audit = Audit { run, findings: Vec::new() };
    for failure in &run.failures {
        audit.failure(failure);
    }
    if let Some(line) = &run.load
        && let Ok(load) = LoadResult::read(line)
    {
        audit.counts(&load);
        audit.connections(&load);
        audit.latency(&load);
        audit.bottleneck(&load);
    }
    audit.environment();
    audit.findings
}

struct Audit<'a> {
    run: &'a RunRecord,
    findings: Vec<Finding>,
}

impl Audit<'_> {
    fn find(&mut self, severity: Severity, kind: Kind, what: String) {
        let (subject, run) = (self.run.subject.clone(), Some(self.run.index));
        self.findings.push(Finding { kind, severity, subject, run, what });
    }

    fn void(&mut self, kind: Kind, what: String) {
        self.find(Severity::Void, kind, what);
    }

    fn failure(&mut self, failure: &Failure) {
        let (kind, what) = match failure {
            Failure::ServerNotReady { why } => (Kind::ServerNotReady, why.clone()),
            Failure::ServerDied { why } => (Kind::ServerDied, why.clone()),
            Failure::ServerDidNotStop { why } => (Kind::ServerDidNotStop, why.clone()),
            Failure::ClientFailed { why } => (Kind::ClientFailed, why.clone()),
            Failure::ClientTimeout { limit_s } => {
                (Kind::ClientFailed, format!("not finished after {limit_s} s"))
            }
            Failure::BadLine { why } => (Kind::BadResult, why.clone()),
            Failure::NoAccounting { why } => (Kind::NoAccounting, why.clone()),
        };
        let severity = match failure {
            // A foreign server that ends badly has served well; ours has to end well.
            Failure::ServerDidNotStop { .. } if self.run.ready.is_none() => Severity::Warning,
            // The soaker gets no turn when others take the CPU.
            Failure::NoAccounting { .. } => Severity::Noise,
            _ => Severity::Void,
        };
        self.find(severity, kind, what);
    }

    fn counts(&mut self, load: &LoadResult) {
        let whole = &load.whole_run;
        let accounted = whole.answered + whole.failed + whole.abandoned;
        if whole.sent != accounted {
            self.void(
                Kind::Unbalanced,
                format!(
                    "{} sent, but {} answered + {} failed + {} abandoned = {accounted}",
                    whole.sent, whole.answered, whole.failed, whole.abandoned
                ),
            );
        }
        if load.errors.mismatch > 0 {
            let count = load.errors.mismatch;
            self.void(Kind::PayloadMismatch, format!("{count} answers differ from what was sent"));
        }
        if !load.settings.verify {
            let what = "answers were counted, not compared".to_owned();
            self.find(Severity::Warning, Kind::UnverifiedPayload, what);
        }
        let failures = load.errors.failures();
        if failures > 0 {
            let contract::Errors { connect, reset, closed_early, timeout, other, .. } = load.errors;
            let first = load.first_error.as_deref().unwrap_or("not told");
            self.void(
                Kind::ClientErrors,
                format!(
                    "{failures} errors (connect {connect}, reset {reset}, closed early \
                     {closed_early}, timeout {timeout}, other {other}); the first: {first}"
                ),
            );
        }
        if load.requests.answered == 0 {
            self.void(Kind::NothingAnswered, "no answer inside the window".to_owned());
        }
        let rate = load.requests.answered as f64 / load.window.seconds;
        let spans = (load.window.end_monotonic_ns.saturating_sub(load.window.start_monotonic_ns))
            as f64
            / 1e9;
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

    fn connections(&mut self, load: &LoadResult) {
        let asked = u64::from(self.run.cell.connections);
        let at_once = load.connections.served_at_once_max;
        if at_once < asked || load.settings.connections != asked {
            self.void(
                Kind::UnequalAdmission,
                format!("{asked} connections asked for, at most {at_once} served at once"),
            );
        } else if load.connections.min_answered == 0 && load.requests.answered > 10 * asked {
            let what = "a connection got no answer while the average got more than 10".to_owned();
            self.void(Kind::StarvedConnection, what);
        }
        let oldest_us = load.requests.oldest_in_flight_us.unwrap_or(0.0);
        if oldest_us > STALLED_LEAST_US.max(STALLED_SHARE * load.window.seconds * 1e6) {
            let what = format!("a request had waited {:.0} ms when the run ended", oldest_us / 1e3);
            self.void(Kind::StalledRequest, what);
        }
    }

    fn latency(&mut self, load: &LoadResult) {
        let max_us = match load.latencies() {
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
        if load.settings.mode == "closed" {
            self.littles_law(load, max_us);
        } else if let Some(lag) = &load.schedule_lag_us
            && lag.p99 > SCHEDULE_LAG_LIMIT_US
        {
            let what = format!("1 % of the requests left more than {:.0} us late", lag.p99);
            self.void(Kind::ScheduleLag, what);
        }
    }

    /// In a closed loop as many requests as asked for are in flight at any time. Not in flight are
    /// those that the load generator has in its hands between an answer and the next request:
    /// working on one takes CPU, so on average there cannot be more of them than it used CPUs. And
    /// each place in flight has two requests that cross the ends of the window, which are counted
    /// with all of their time or with none of it.
    fn littles_law(&mut self, load: &LoadResult, max_us: f64) {
        let asked = (load.settings.connections * load.settings.depth) as f64;
        let in_hand = self.run.cpu.as_ref().map_or(0.0, |cpu| cpu.client.cpu_s / cpu.window_s);
        let margin = asked * (LITTLE_TOLERANCE + max_us / 1e6 / load.window.seconds);
        let expected = asked - margin - in_hand..=asked + margin;
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

    fn bottleneck(&mut self, load: &LoadResult) {
        let overflows = contract::runtime_counter(self.run.server_final.as_ref(), "cq_overflows");
        if let Some(overflows @ 1.0..) = overflows {
            let what = format!("{overflows} completions overflowed the server's queue");
            self.find(Severity::Warning, Kind::CqOverflow, what);
        }
        let Some(cpu) = &self.run.cpu else { return };
        let in_flight = load.settings.connections * load.settings.depth;
        let server_share = cpu.server_cpu.busy_s / cpu.window_s;
        let client_share = cpu.client_cpu.busy_s / cpu.window_s;
        let idle = server_share < SPARE_SHARE && client_share < SPARE_SHARE;
        if idle && in_flight >= MANY_IN_FLIGHT && load.settings.mode == "closed" {
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

    fn environment(&mut self) {
        if let Some(cpu) = &self.run.cpu {
            for busy in [&cpu.server_cpu, &cpu.client_cpu] {
                // One tick is the least that can be told from nothing.
                let limit = (STEAL_LIMIT * cpu.window_s).max(0.011);
                if busy.steal_coarse_s > limit {
                    let taken = busy.steal_coarse_s * 1e3;
                    let what = format!("{taken:.0} ms of CPU {} went to other guests", busy.cpu);
                    self.find(Severity::Noise, Kind::Steal, what);
                }
            }
            let delay_us = cpu.sample_delay_us.into_iter().fold(0.0, f64::max);
            if delay_us > SAMPLE_DELAY_LIMIT * cpu.window_s * 1e6 {
                let what = format!("sampled {delay_us:.0} us after the mark");
                self.find(Severity::Noise, Kind::LateSample, what);
            }
        }
        if let Some(others) = &self.run.others
            && others.cpu_s > (OTHERS_LIMIT * others.cpus as f64 * others.span_s).max(0.03)
        {
            let share = others.cpu_s / others.span_s * 100.0;
            let most = others.largest.as_deref().unwrap_or("one that has ended");
            let what = format!("{share:.0} % of a CPU went to other processes, most to {most}");
            self.find(Severity::Noise, Kind::OtherProcesses, what);
        }
    }
}

/// Whether two figures that should be one are further apart than rounding. What is not a number
/// differs from everything.
fn differ(a: f64, b: f64) -> bool {
    let apart = (a - b).abs();
    apart.is_nan() || apart > RECOMPUTED_TOLERANCE * a.abs().max(b.abs()) + 1e-9
}
