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

#[cfg(test)]
mod tests {
    use crate::recorder::histogram;

    #[test]
    fn percentiles_rise_to_the_last_latency() {
        let mut latency_ns = histogram();
        (1..=10_000).for_each(|n| latency_ns.saturating_record(n * 1000));
        let mut text = Vec::new();
        super::write(&latency_ns, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let number = |column: &str| column.parse::<f64>().unwrap();
        let rows: Vec<Vec<f64>> = (text.lines().skip(2))
            .take_while(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(number).collect())
            .collect();
        assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1]));
        let median = rows.iter().find(|row| row[1] >= 0.5).unwrap();
        assert!((median[0] - 5000.0).abs() < 10.0, "{median:?}");
        let last = rows.last().unwrap();
        assert_eq!((last[1], last[2]), (1.0, 10_000.0));
        assert!(text.contains("Total count    =        10000]"), "{text}");
    }
}
