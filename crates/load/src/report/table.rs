//! The common parts of all result tables.

use std::fmt;
use twinring_wire::RequestResult;
use twinring_wire::histogram::{Lag, Latency};
use twinring_wire::load::{Cpu, Head, Window};
use twinring_wire::requests::Connections;

/// Thousands separated, as in 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds with a unit that suits them.
pub(crate) fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

pub(crate) fn megabytes_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

pub(crate) fn latency_from(from: &str) -> &'static str {
    match from {
        "send" => "from the send; closed loop, waiting before it does not count",
        "connect" => "from the attempt to connect; closed loop, waiting before it does not count",
        _ => "from the intended send time",
    }
}

pub(crate) fn latency_rows(f: &mut fmt::Formatter<'_>, latency: &Latency) -> fmt::Result {
    let rows = [
        ("min", latency.min),
        ("mean", latency.mean),
        ("p50", latency.p50),
        ("p90", latency.p90),
        ("p99", latency.p99),
        ("p99.9", latency.p99_9),
        ("p99.99", latency.p99_99),
        ("max", latency.max),
    ];
    rows.iter().try_for_each(|(name, value)| writeln!(f, "  {name:<12}{:>12}", time(*value)))
}

pub(crate) fn lag(f: &mut fmt::Formatter<'_>, lag: &Lag) -> fmt::Result {
    let (p50, p99, max) = (time(lag.p50), time(lag.p99), time(lag.max));
    writeln!(f, "schedule lag  p50 {p50}, p99 {p99}, max {max}")
}

/// What an open loop keeps to.
pub(crate) fn open_loop(rate_per_s: u64, arrivals: Option<&str>) -> String {
    format!("open loop at {} requests/s, {}", grouped(rate_per_s), arrivals.unwrap_or("periodic"))
}

pub(crate) fn window(f: &mut fmt::Formatter<'_>, head: &Head, window: &Window) -> fmt::Result {
    let interrupted = if head.interrupted { ", interrupted" } else { "" };
    writeln!(f, "window        {:.3} s{interrupted}", window.seconds)
}

/// Requests and received bytes, which came `how`, and the requests that were not answered, if there
/// are any.
pub(crate) fn rates(
    f: &mut fmt::Formatter<'_>,
    all: &RequestResult,
    received: u64,
    how: &str,
) -> fmt::Result {
    let (requests, whole) = (&all.requests, &all.whole_run);
    writeln!(
        f,
        "requests      {} answered, {} /s, {:.1} MB/s {how}",
        grouped(requests.answered),
        grouped(requests.per_second.round() as u64),
        megabytes_per_s(received, all.window.seconds)
    )?;
    if whole.failed + whole.abandoned + requests.unsent == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "              {} failed, {} never answered, {} due but not sent",
        grouped(whole.failed),
        grouped(whole.abandoned),
        grouped(requests.unsent)
    )
}

pub(crate) fn connections(f: &mut fmt::Formatter<'_>, c: &Connections) -> fmt::Result {
    writeln!(
        f,
        "connections   {} asked, {} established, {} served, {} served at once, {} reconnects",
        grouped(c.asked),
        grouped(c.established),
        grouped(c.served),
        grouped(c.served_at_once_max),
        grouped(c.reconnects)
    )?;
    let (least, most) = (grouped(c.min_answered), grouped(c.max_answered));
    writeln!(f, "fairness      {least} to {most} answers per connection")
}

/// The errors that are not zero, and the first of them in words.
pub(crate) fn errors(
    f: &mut fmt::Formatter<'_>,
    named: &[(&str, u64)],
    verified: &str,
    first: Option<&str>,
) -> fmt::Result {
    let seen: Vec<String> = (named.iter().filter(|(_, count)| *count > 0))
        .map(|(name, count)| format!("{} {name}", grouped(*count)))
        .collect();
    match first {
        None => writeln!(f, "errors        none; {verified}"),
        Some(first) => {
            writeln!(f, "errors        {}; {verified}", seen.join(", "))?;
            writeln!(f, "  first       {first}")
        }
    }
}

/// CPU of the load generator; `limit` is what it means if that was all there is.
pub(crate) fn cpu(f: &mut fmt::Formatter<'_>, cpu: &Cpu, limit: &str) -> fmt::Result {
    let limit = if cpu.saturated { format!(": saturated, {limit}") } else { String::new() };
    write!(
        f,
        "own CPU       {:.2} s user, {:.2} s system; busiest thread {:.1} %{limit}",
        cpu.user_s,
        cpu.system_s,
        100.0 * cpu.busiest_thread_share
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_times_have_units() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(123_456), "123,456");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(time(12.34), "12.3 us");
        assert_eq!(time(12_340.0), "12.34 ms");
        assert_eq!(time(2_500_000.0), "2.50 s");
    }
}
