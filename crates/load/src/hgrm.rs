//! Latencies as a table of percentiles, as HdrHistogram's plotters read it (`.hgrm`).

use hdrhistogram::Histogram;
use std::io::{self, Write};

/// Rows for each halving of the distance to 100 %.
const ROWS_PER_HALVING: u32 = 5;

/// Writes latencies, recorded in nanoseconds, in microseconds.
///
/// # Errors
/// Those of `out`.
pub fn write(latency_ns: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
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
