//! Limits that a run must meet, for use in scripts.

use crate::recorder::Durations;
use crate::report::time;
use clap::Args;
use std::str::FromStr;
use std::time::Duration;
use twinring_input::quantity;
use twinring_wire::histogram::micros;
use twinring_wire::load::Gate;

const ERROR_RATE: &str = "max_error_rate";
const SLO: &str = "slo_";

/// The limits of a run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Gates")]
pub struct Gates {
    /// Exit code 3 if a percentile of the latency is longer, such as p99=20ms, p99.9=1s or max=5s; of `load udp`, of
    /// the round trip.
    #[arg(long, value_name = "PERCENTILE=TIME,...", value_delimiter = ',')]
    pub slo: Vec<Slo>,
    /// Exit code 3 if a larger share failed or stayed without an answer, such as 1%. Without it, any failed request
    /// ends with exit code 1; of `load udp`, loss is a result.
    #[arg(long, value_name = "SHARE", value_parser = quantity::share)]
    pub max_error_rate: Option<f64>,
}

/// The longest that a percentile of the latency may be, such as `p99=20ms`, `p99.9=1s` or `max=5s`.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    /// `p99` or `max`.
    percentile: String,
    /// From 0 to 1.
    share: f64,
    limit: Duration,
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Slo, String> {
        let wrong =
            || format!("`{text}` is not a gate: expected one such as p99=20ms, p99.9=1s or max=5s");
        let (percentile, limit) = text.split_once('=').ok_or_else(wrong)?;
        let percent = match (percentile, percentile.strip_prefix('p')) {
            ("max", _) => 100.0,
            (_, Some(digits)) if digits.starts_with(|c: char| c.is_ascii_digit()) => {
                digits.parse().ok().filter(|it| (0.0..100.0).contains(it)).ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        };
        let limit = quantity::duration(limit)?;
        Ok(Slo { percentile: percentile.to_owned(), share: percent / 100.0, limit })
    }
}

impl Gates {
    /// `waits_ns`: how long those waited that could not be sent, or will never be answered. Without them a server that
    /// stops would keep the percentiles from before. `unanswered` requests failed, or were never answered.
    pub(crate) fn judge(
        &self,
        answers_ns: &Durations,
        waits_ns: &[&Durations],
        answered: u64,
        unanswered: u64,
    ) -> Vec<Gate> {
        let mut all_ns = answers_ns.clone();
        waits_ns.iter().for_each(|waits_ns| all_ns.merge(waits_ns));
        let slo = self.slo.iter().map(|slo| {
            let value_ns = match slo.share {
                share if share < 1.0 => all_ns.value_at_quantile(share),
                _ => all_ns.max(),
            };
            let measured = (answered > 0).then(|| micros(value_ns));
            gate(format!("{SLO}{}", slo.percentile), slo.limit.as_nanos() as f64 / 1e3, measured)
        });
        let all = answered + unanswered;
        let rate = (all > 0).then(|| unanswered as f64 / all as f64);
        let errors = self.max_error_rate.map(|limit| gate(ERROR_RATE.to_owned(), limit, rate));
        slo.chain(errors).collect()
    }
}

fn gate(name: String, limit: f64, measured: Option<f64>) -> Gate {
    Gate { gate: name, limit, measured, breached: measured.is_none_or(|value| value > limit) }
}

/// The outcome of a gate as text.
pub fn in_words(gate: &Gate) -> String {
    let percentile = gate.gate.strip_prefix(SLO);
    let value = |value: f64| match percentile {
        Some(_) => time(value),
        None => format!("{:.3} %", 100.0 * value),
    };
    let measured = gate.measured.map_or_else(|| "nothing measured".to_owned(), value);
    let verdict = if gate.breached { "BREACHED" } else { "kept" };
    let name = percentile.map_or("error rate".to_owned(), |it| format!("{it} latency"));
    format!("{name} of at most {}: {verdict} ({measured})", value(gate.limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(count: u64, ms: u64) -> Durations {
        let mut histogram = Durations::default();
        histogram.saturating_record_n(ms * 1_000_000, count);
        histogram
    }

    fn judge(gates: &[&str], answers: &Durations, waits: &Durations, failed: u64) -> Vec<Gate> {
        let slo = gates.iter().map(|text| text.parse().unwrap()).collect();
        let gates = Gates { slo, max_error_rate: Some(0.05) };
        gates.judge(answers, &[waits], answers.len(), failed)
    }

    #[test]
    fn gates_are_read_and_wrong_ones_are_refused() {
        for text in ["p50=1ms", "p99.9=20ms", "max=1s", "p0=1s"] {
            let slo: Slo = text.parse().unwrap();
            assert_eq!(format!("{}={:?}", slo.percentile, slo.limit), text);
        }
        for wrong in
            ["", "p99", "99=1s", "p100=1s", "pinf=1s", "p-1=1s", "p99=1", "p99=10KB", "min=1s"]
        {
            assert!(wrong.parse::<Slo>().is_err(), "{wrong}");
        }
    }

    /// Requests that wait count: a server that stops has answered quickly before, without a failure. An answer after
    /// 75 s was recorded as one of 60 s, and passed a gate of 70 s.
    #[test]
    fn a_gate_is_breached_above_its_limit_and_without_a_measurement() {
        let (none, fast) = (times(0, 1), times(990, 1));
        for (gate, answers, waits, breached) in [
            ("p99=100ms", &fast, times(10, 500), false),
            ("p99=100ms", &fast, times(11, 500), true),
            ("p99=100ms", &fast, times(990, 90), false),
            ("p50=100ms", &fast, times(500, 500), false),
            ("p99.9=100ms", &fast, times(2, 500), true),
            ("max=499ms", &fast, times(1, 500), true),
            ("max=70s", &times(1, 75_000), none.clone(), true),
            ("max=80s", &times(1, 75_000), none.clone(), false),
            ("p99=100ms", &none, times(5, 1), true),
        ] {
            let found = &judge(&[gate], answers, &waits, 0)[0];
            assert_eq!(found.breached, breached, "{gate}: {found:?}");
        }
    }
}
