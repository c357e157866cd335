//! Limits that a run has to stay within, for use in scripts.

use crate::report::{Latency, RequestsReport};
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

    /// For the 99th percentile of the latency.
    pub(crate) fn slo_p99(limit: Duration, latency: &Latency, answered: u64) -> Gate {
        let limit_us = limit.as_nanos() as f64 / 1e3;
        Gate::new("slo_p99", limit_us, (answered > 0).then_some(latency.p99))
    }

    /// For the share of requests that failed.
    pub(crate) fn max_error_rate(limit: f64, requests: &RequestsReport) -> Gate {
        let ended = requests.answered + requests.failed;
        let share = (ended > 0).then(|| requests.failed as f64 / ended as f64);
        Gate::new("max_error_rate", limit, share)
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
}
