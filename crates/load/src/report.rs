//! From the threads' counts to the result line, for all loads over connections, and tables for
//! people.

mod table;

pub use self::table::table;
pub(crate) use self::table::{Lines, count, grouped, summary, time};

use crate::recorder::Recorder;
use crate::requests::LATE;
use crate::run::Ran;
use crate::settings::RequestSettings;
use hdrhistogram::Histogram;
use std::io::{self, Write};
use twinring_wire::Fields;
use twinring_wire::histogram::{EncodedHistogram, Lag, Latency, micros};
use twinring_wire::load::{Head, RATE_TOLERANCE};
use twinring_wire::requests::{Connections, RequestResult, Requests, WholeRun};

pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// How a result of this schema begins.
pub(crate) fn head(schema: &str, target: String, ran: &Ran) -> Head {
    Head {
        event: "result".to_owned(),
        schema: schema.to_owned(),
        target,
        engine: ran.features.engine().to_string(),
        features: Fields::of(&ran.features),
        fallback_reason: ran.fallback_reason.clone(),
        interrupted: ran.interrupted,
    }
}

/// The common part of the results of loads over connections.
pub(crate) fn of_requests(
    all: &Recorder,
    ran: &Ran,
    latency_from: &str,
    asked: &RequestSettings,
) -> RequestResult {
    let (window, open, counted) = (ran.window, asked.is_open(), &all.window);
    let hopeless_ns = all.hopeless_ns();
    let overdue = all.unsent.overdue + hopeless_ns.len();
    let rate_reached = match all.due {
        Some(due) => Some(all.unsent.late as f64 <= RATE_TOLERANCE * due as f64),
        // A number of requests: if they leave more slowly than asked for, half of them are ever later.
        None if open => {
            let behind_s = all.lag_ns.value_at_quantile(0.5) as f64 / 1e9;
            Some(behind_s <= LATE.as_secs_f64() + RATE_TOLERANCE * window.seconds)
        }
        None => None,
    };
    RequestResult {
        window,
        requests: Requests {
            due: all.due,
            sent: counted.sent,
            answered: counted.answered,
            failed: counted.failed,
            in_flight_at_end: all.until_end.in_flight(),
            unsent: all.unsent.count,
            overdue,
            oldest_in_flight_us: Some(micros(all.oldest_ns)),
            per_second: ratio(counted.answered as f64, window.seconds),
            rate_reached,
        },
        whole_run: WholeRun {
            sent: all.whole.sent,
            answered: all.whole.answered,
            failed: all.whole.failed,
            abandoned: all.whole.in_flight(),
        },
        latency_us: Latency::of(&all.latency_ns),
        latency_from: latency_from.to_owned(),
        raw_latency_us: open.then(|| Latency::of(&all.raw_ns)),
        connect_us: Latency::of(&all.connect_ns),
        schedule_lag_us: open.then(|| Lag::of(&all.lag_ns)),
        histogram: EncodedHistogram::of(&all.latency_ns),
        connections: Connections {
            asked: asked.connections,
            served_at_once_max: ran.served_at_once_max,
            min_answered: match all.connections.established {
                0 => 0,
                _ => all.connections.min_answered,
            },
            ..all.connections
        },
        gates: asked.common.gates.judge(
            &all.latency_ns,
            &[&all.unsent.waited_ns, &hopeless_ns],
            counted.answered,
            counted.failed + overdue,
        ),
        first_error: all.first_error.as_ref().map(|(_, what)| what.clone()),
        cpu: ran.cpu(all.cpu),
        runtime_counters: Fields::of(&ran.counters),
    }
}

/// Rows for each halving of the distance to 100 %.
const ROWS_PER_HALVING: u32 = 5;

/// Writes latencies, recorded in nanoseconds, as a table of percentiles in microseconds, as HdrHistogram's plotters
/// read it (`.hgrm`).
///
/// # Errors
/// Those of `out`.
pub fn write_hgrm(latency_ns: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    let micros = |ns: f64| ns / 1e3;
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut count = 0;
    for row in latency_ns.iter_quantiles(ROWS_PER_HALVING) {
        count += row.count_since_last_iteration();
        let (value, quantile) =
            (micros(row.value_iterated_to() as f64), row.quantile_iterated_to());
        write!(out, "{value:>12.3} {quantile:>14.12} {count:>10}")?;
        match quantile < 1.0 {
            true => writeln!(out, " {:>14.2}", 1.0 / (1.0 - quantile))?,
            false => writeln!(out)?,
        }
    }
    let (mean, deviation) = (micros(latency_ns.mean()), micros(latency_ns.stdev()));
    let (max, total) = (micros(latency_ns.max() as f64), latency_ns.len());
    writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]")?;
    writeln!(out, "#[Max     = {max:>12.3}, Total count    = {total:>12}]")
}
