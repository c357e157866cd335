//! Limits that a run must meet, for use in scripts.

use hdrhistogram::Histogram;
use std::time::Duration;
use twinring_wire::histogram::micros;
use twinring_wire::http::Gate;
use twinring_wire::requests::Requests;

fn gate(name: &str, limit: f64, measured: Option<f64>) -> Gate {
    let breached = measured.is_none_or(|value| value > limit);
    Gate { gate: name.to_owned(), limit, measured, breached }
}

/// Checks the 99th percentile of the latency. Requests that could not be sent, and those that will
/// never be answered, count with the time they have waited: otherwise a server that stops would
/// keep the percentiles from before.
pub(crate) fn slo_p99(
    limit: Duration,
    answers_ns: &Histogram<u64>,
    waits_ns: &[&Histogram<u64>],
) -> Gate {
    let limit_us = limit.as_nanos() as f64 / 1e3;
    let mut all_ns = answers_ns.clone();
    for waits_ns in waits_ns {
        // All have the same bounds, so every value fits.
        let _same_bounds = all_ns.add(*waits_ns);
    }
    let measured = (!answers_ns.is_empty()).then(|| micros(all_ns.value_at_quantile(0.99)));
    gate("slo_p99", limit_us, measured)
}

/// For the share of requests that failed, or were overdue.
pub(crate) fn max_error_rate(limit: f64, requests: &Requests) -> Gate {
    let unanswered = requests.failed + requests.overdue;
    let all = requests.answered + unanswered;
    gate("max_error_rate", limit, (all > 0).then(|| unanswered as f64 / all as f64))
}

/// The outcome of a gate as text.
pub fn in_words(gate: &Gate) -> String {
    let value = |value: f64| match gate.gate.as_str() {
        "slo_p99" => crate::report::table::time(value),
        _ => format!("{:.3} %", 100.0 * value),
    };
    let measured = gate.measured.map_or_else(|| "nothing measured".to_owned(), value);
    let verdict = if gate.breached { "breached" } else { "kept" };
    let name = match gate.gate.as_str() {
        "slo_p99" => "p99 latency",
        _ => "error rate",
    };
    format!("{name} of at most {}: {verdict} ({measured})", value(gate.limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_breached_above_its_limit_and_without_a_measurement() {
        let breached = |measured| gate("slo_p99", 100.0, measured).breached;
        assert_eq!(
            (breached(Some(100.0)), breached(Some(100.1)), breached(None)),
            (false, true, true)
        );
        let gate = gate("max_error_rate", 0.01, Some(0.05));
        assert_eq!(in_words(&gate), "error rate of at most 1.000 %: breached (5.000 %)");
    }

    /// A server that stops has answered quickly before, without a failure.
    #[test]
    fn unsent_requests_count() {
        let times = |count, ms: u64| {
            let mut histogram = crate::recorder::histogram();
            histogram.saturating_record_n(ms * 1_000_000, count);
            histogram
        };
        let p99 = |waits| slo_p99(Duration::from_millis(100), &times(990, 1), &[&waits]);
        let near = |gate: &Gate, us: f64| {
            gate.measured.is_some_and(|value| (value - us).abs() < us / 100.0)
        };
        // One in a hundred may wait, and many may have waited for no longer than the limit.
        for (waits, us, breached) in [
            (times(0, 1), 1e3, false),
            (times(10, 500), 1e3, false),
            (times(11, 500), 500e3, true),
            (times(990, 90), 90e3, false),
        ] {
            let gate = p99(waits);
            assert!(near(&gate, us) && gate.breached == breached, "{us}: {gate:?}");
        }
        let nothing = slo_p99(Duration::MAX, &times(0, 1), &[&times(5, 1)]);
        assert_eq!((nothing.measured, nothing.breached), (None, true));

        let rate = |failed, overdue| {
            let requests = Requests {
                due: None,
                sent: 0,
                answered: 1000,
                failed,
                in_flight_at_end: 0,
                unsent: 5000,
                overdue,
                oldest_in_flight_us: None,
                per_second: 0.0,
            };
            max_error_rate(0.5, &requests).measured
        };
        assert_eq!((rate(0, 0), rate(500, 500), rate(0, 1000)), (Some(0.0), Some(0.5), Some(0.5)));
    }
}
