//! Limits that a run has to stay within, for use in scripts.

use crate::report::{RequestsReport, micros};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// A limit, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// `"slo_p99"` in microseconds, or `"max_error_rate"` as a share.
    pub gate: &'static str,
    /// The largest value that passes.
    pub limit: f64,
    /// What was measured; `None` if nothing was.
    pub measured: Option<f64>,
    /// The measured value is above the limit, or nothing was measured.
    pub breached: bool,
}

impl Gate {
    fn new(gate: &'static str, limit: f64, measured: Option<f64>) -> Gate {
        Gate { gate, limit, measured, breached: measured.is_none_or(|value| value > limit) }
    }

    /// For the 99th percentile of the latency. What could not even be sent, and what will never be
    /// answered, counts with the time it had waited: otherwise a server that stops would have the
    /// percentiles of the time before.
    pub(crate) fn slo_p99(
        limit: Duration,
        answers_ns: &Histogram<u64>,
        waits_ns: &[&Histogram<u64>],
    ) -> Gate {
        let limit_us = limit.as_nanos() as f64 / 1e3;
        let mut all_ns = answers_ns.clone();
        for waits_ns in waits_ns {
            // All have the same bounds, so every value of one fits into the other.
            let _same_bounds = all_ns.add(*waits_ns);
        }
        let measured = (!answers_ns.is_empty()).then(|| micros(all_ns.value_at_quantile(0.99)));
        Gate::new("slo_p99", limit_us, measured)
    }

    /// For the share of requests that failed, or were overdue.
    pub(crate) fn max_error_rate(limit: f64, requests: &RequestsReport) -> Gate {
        let unanswered = requests.failed + requests.overdue;
        let all = requests.answered + unanswered;
        Gate::new("max_error_rate", limit, (all > 0).then(|| unanswered as f64 / all as f64))
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: f64| match self.gate {
            "slo_p99" => crate::report::table::time(value),
            _ => format!("{:.3} %", 100.0 * value),
        };
        let measured = self.measured.map_or_else(|| "nothing measured".to_owned(), value);
        let verdict = if self.breached { "breached" } else { "kept" };
        let name = match self.gate {
            "slo_p99" => "p99 latency",
            _ => "error rate",
        };
        write!(f, "{name} of at most {}: {verdict} ({measured})", value(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_breached_above_its_limit_and_without_a_measurement() {
        let breached = |measured| Gate::new("slo_p99", 100.0, measured).breached;
        assert_eq!(
            (breached(Some(100.0)), breached(Some(100.1)), breached(None)),
            (false, true, true)
        );
        let gate = Gate::new("max_error_rate", 0.01, Some(0.05));
        assert_eq!(gate.to_string(), "error rate of at most 1.000 %: breached (5.000 %)");
    }

    /// A server that stops has answered quickly before, and nothing of that failed.
    #[test]
    fn what_could_not_be_sent_counts() {
        let times = |count, ms: u64| {
            let mut histogram = crate::recorder::histogram();
            histogram.saturating_record_n(ms * 1_000_000, count);
            histogram
        };
        let p99 = |waits| Gate::slo_p99(Duration::from_millis(100), &times(990, 1), &[&waits]);
        let near = |gate: &Gate, us: f64| {
            gate.measured.is_some_and(|value| (value - us).abs() < us / 100.0)
        };
        // One in a hundred may wait, and those that waited for no longer than the limit may be many.
        for (waits, us, breached) in [
            (times(0, 1), 1e3, false),
            (times(10, 500), 1e3, false),
            (times(11, 500), 500e3, true),
            (times(990, 90), 90e3, false),
        ] {
            let gate = p99(waits);
            assert!(near(&gate, us) && gate.breached == breached, "{us}: {gate:?}");
        }
        let nothing = Gate::slo_p99(Duration::MAX, &times(0, 1), &[&times(5, 1)]);
        assert_eq!((nothing.measured, nothing.breached), (None, true));

        let rate = |failed, overdue| {
            let requests = RequestsReport {
                sent: 0,
                answered: 1000,
                failed,
                in_flight_at_end: 0,
                unsent: 5000,
                overdue,
                oldest_in_flight_us: 0.0,
                per_second: 0.0,
            };
            Gate::max_error_rate(0.5, &requests).measured
        };
        assert_eq!((rate(0, 0), rate(500, 500), rate(0, 1000)), (Some(0.0), Some(0.5), Some(0.5)));
    }
}
