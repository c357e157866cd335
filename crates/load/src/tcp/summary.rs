//! From what the threads counted to the report.

use super::worker::Outcome;
use super::{LoadError, Settings};
use crate::recorder::Recorder;
use crate::report::{
    Bytes, Connections, EncodedHistogram, Lag, Latency, Report, RequestsReport, WholeRun, Window,
};
use twinring::{CounterSnapshot, Features, monotonic_ns};

/// What is known of a run beside what its threads counted.
pub(super) struct Run<'a> {
    pub(super) settings: &'a Settings,
    pub(super) features: Features,
    pub(super) why_not: Option<String>,
    pub(super) window: std::ops::Range<u64>,
    pub(super) interrupted: bool,
    pub(super) served_at_once_max: u64,
    pub(super) counters: CounterSnapshot,
}

impl Run<'_> {
    /// Puts together what the threads handed in.
    ///
    /// # Errors
    /// Without a single connection there is nothing to report.
    pub(super) fn report(self, outcomes: Vec<Outcome>) -> Result<Report, LoadError> {
        let settings = self.settings;
        let threads: Vec<_> = outcomes.iter().map(|outcome| outcome.cpu).collect();
        let cpu = crate::cpu::report(&threads);
        let connections = self.connections_of(&outcomes);
        let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        let unsent = sum(|outcome| outcome.unsent);
        let oldest_ns = outcomes.iter().map(|outcome| outcome.oldest_ns).max().unwrap_or(0);
        let mut all = Recorder::new();
        outcomes.into_iter().for_each(|outcome| all.merge(outcome.recorder));
        let first_error = all.first_error.map(|(_, what)| what);
        if connections.established == 0 && !self.interrupted {
            return Err(LoadError::NoConnection {
                target: settings.target.to_string(),
                why: first_error.unwrap_or_else(|| "no reason is known".into()),
                attempts: connections.asked,
            });
        }
        let window = self.window();
        let per_second = match window.seconds > 0.0 {
            true => all.window.answered as f64 / window.seconds,
            false => 0.0,
        };
        let open = settings.rate_per_s.is_some();
        let message_bytes = u64::from(settings.message_bytes);
        Ok(Report {
            event: "result",
            schema: "twinring.load.tcp/1",
            target: settings.target.to_string(),
            engine: self.features.engine().to_string(),
            features: self.features,
            why_not: self.why_not,
            interrupted: self.interrupted,
            settings: settings.report(),
            window,
            requests: RequestsReport {
                sent: all.window.sent,
                answered: all.window.answered,
                failed: all.window.failed,
                in_flight_at_end: all.until_end.in_flight(),
                unsent,
                oldest_in_flight_us: oldest_ns as f64 / 1e3,
                per_second,
            },
            whole_run: WholeRun {
                sent: all.whole.sent,
                answered: all.whole.answered,
                failed: all.whole.failed,
                abandoned: all.whole.in_flight(),
            },
            bytes: Bytes {
                sent: all.window.sent * message_bytes,
                received: all.window.answered * message_bytes,
            },
            latency_us: Latency::of(&all.latency_ns),
            latency_from: if open { "intended" } else { "send" },
            schedule_lag_us: open.then(|| Lag::of(&all.lag_ns)),
            histogram: EncodedHistogram::of(&all.latency_ns),
            connections,
            errors: all.errors,
            first_error,
            cpu,
            runtime_counters: self.counters,
        })
    }

    /// The window as it was. One that never began is empty and lies where the run ended.
    fn window(&self) -> Window {
        let now_ns = monotonic_ns();
        let end_monotonic_ns = self.window.end.min(now_ns);
        let start_monotonic_ns = self.window.start.min(end_monotonic_ns);
        let seconds = (end_monotonic_ns - start_monotonic_ns) as f64 / 1e9;
        Window { start_monotonic_ns, end_monotonic_ns, seconds }
    }

    fn connections_of(&self, outcomes: &[Outcome]) -> Connections {
        let answered = || outcomes.iter().flat_map(|outcome| &outcome.answered).copied();
        let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        Connections {
            asked: self.settings.connections,
            established: answered().count() as u64,
            served: sum(|outcome| outcome.served),
            served_at_once_max: self.served_at_once_max,
            lost: sum(|outcome| outcome.lost),
            reconnects: sum(|outcome| outcome.reconnects),
            idle_established: sum(|outcome| outcome.idle_established),
            min_answered: answered().min().unwrap_or(0),
            max_answered: answered().max().unwrap_or(0),
        }
    }
}
