//! The common parts of all result tables: at most 80 columns, the answer last.

use crate::gates;
use std::fmt;
use textwrap::{Options, WordSplitter, wrap};
use twinring_wire::histogram::{Lag, Latency};
use twinring_wire::load::{Cpu, Gate, Head, Window};
use twinring_wire::{Fields, LoadResult, RequestResult};

/// The result of a run as a table for people.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a LoadResult);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            LoadResult::Tcp(result) => crate::tcp::Table(result).fmt(f),
            LoadResult::Http(result) => crate::http::Table(result).fmt(f),
            LoadResult::Udp(result) => crate::udp::Table(result).fmt(f),
        }
    }
}

const COLUMNS: usize = 80;
/// Width of the names in front of the lines.
const NAME_COLUMNS: usize = 14;

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

/// A count of things, `1 thread` or `2 threads`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", grouped(number))
}

/// A line with a name, continued on further lines where it would be longer than the screen is wide.
pub(crate) fn row(f: &mut fmt::Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    let (name, below) = (format!("{name:<NAME_COLUMNS$}"), " ".repeat(NAME_COLUMNS));
    let options = Options::new(COLUMNS).initial_indent(&name).subsequent_indent(&below);
    let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
    wrap(text, options).iter().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
}

/// What an open loop keeps to.
pub(crate) fn open_loop(rate_per_s: u64, arrivals: Option<&str>) -> String {
    format!("open loop, {} /s, {}", grouped(rate_per_s), arrivals.unwrap_or("periodic"))
}

/// Where it ran and for how long, and what the load was not.
pub(crate) fn begin(
    f: &mut fmt::Formatter<'_>,
    head: &Head,
    threads: u64,
    window: &Window,
    shortfall: &[String],
) -> fmt::Result {
    let interrupted = if head.interrupted { ", interrupted" } else { "" };
    let threads = count(threads, "thread");
    let text = format!("{:.3} s{interrupted}; {}, {threads}", window.seconds, head.engine);
    row(f, "window", &text)?;
    shortfall.iter().try_for_each(|what| row(f, "", what))
}

/// Name and distribution of times, and how many there are.
pub(crate) type Times<'a> = (&'a str, Latency, u64);

/// Times in columns. A percentile is left out where too few samples lie beyond it.
pub(crate) fn times(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    all: &[Times<'_>],
    lag: Option<Lag>,
) -> fmt::Result {
    let cells = |cells: [String; 6]| cells.map(|cell| format!("{cell:>11}")).concat();
    let heads = ["p50", "p90", "p99", "p99.9", "p99.99", "max"].map(str::to_owned);
    writeln!(f, "{title:<NAME_COLUMNS$}{}", cells(heads))?;
    for (name, values, samples) in all {
        let values = [
            (values.p50, 1),
            (values.p90, 10),
            (values.p99, 100),
            (values.p99_9, 1_000),
            (values.p99_99, 10_000),
            (values.max, 1),
        ];
        let shown = values.map(|(us, least)| match *samples {
            0 => "none".to_owned(),
            samples if samples < least => "-".to_owned(),
            _ => time(us),
        });
        writeln!(f, "  {name:<12}{}", cells(shown))?;
    }
    let Some(lag) = lag else { return Ok(()) };
    let none = String::new;
    let shown = [time(lag.p50), none(), time(lag.p99), none(), none(), time(lag.max)];
    writeln!(f, "  {:<12}{}", "schedule lag", cells(shown))
}

/// From where latency counts.
pub(crate) fn latency_title(from: &str) -> &'static str {
    match from {
        "send" => "from send",
        "connect" => "from connect",
        _ => "from due",
    }
}

pub(crate) fn connections(f: &mut fmt::Formatter<'_>, all: &RequestResult) -> fmt::Result {
    let c = &all.connections;
    let mut text = format!(
        "{} of {} opened, {} served, {} at once; {} to {} answers each",
        grouped(c.established),
        grouped(c.asked),
        grouped(c.served),
        grouped(c.served_at_once_max),
        grouped(c.min_answered),
        grouped(c.max_answered)
    );
    for (number, what) in [(c.reconnects, "reconnects"), (c.lost, "lost")] {
        if number > 0 {
            text += &format!(", {} {what}", grouped(number));
        }
    }
    row(f, "connections", &text)
}

/// The errors of the whole run that are not zero, and the first of them in words.
pub(crate) fn errors(
    f: &mut fmt::Formatter<'_>,
    errors: &Fields,
    verified: &str,
    first: Option<&str>,
) -> fmt::Result {
    let seen: Vec<String> = (errors.0.iter())
        .filter_map(|(name, count)| Some((name, count.as_u64().filter(|count| *count > 0)?)))
        .map(|(name, count)| format!("{} {}", grouped(count), name.replace('_', " ")))
        .collect();
    let seen = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
    row(f, "errors", &format!("{seen} in the whole run; {verified}"))?;
    first.map_or(Ok(()), |first| row(f, "  first", first))
}

/// CPU of the load generator; `limit` is what it means if that was all there is.
pub(crate) fn cpu(f: &mut fmt::Formatter<'_>, cpu: &Cpu, limit: &str) -> fmt::Result {
    let limit = if cpu.saturated { format!(": saturated, {limit}") } else { String::new() };
    let quota = cpu.quota_cpus.map_or(String::new(), |cpus| format!("; quota {cpus:.2} CPUs"));
    let text = format!(
        "{:.2} s user, {:.2} s system; busiest thread {:.1} %{limit}{quota}",
        cpu.user_s,
        cpu.system_s,
        100.0 * cpu.busiest_thread_share
    );
    row(f, "own CPU", &text)
}

pub(crate) fn gates(f: &mut fmt::Formatter<'_>, gates: &[Gate]) -> fmt::Result {
    gates.iter().try_for_each(|gate| row(f, "gate", &gates::in_words(gate)))
}

/// A distribution in two figures: the tail is the longest if there are too few for a percentile.
pub(crate) fn summary(latency: &Latency, samples: u64) -> String {
    let (name, tail) = if samples < 100 { ("max", latency.max) } else { ("p99", latency.p99) };
    format!("p50 {}, {name} {}", time(latency.p50), time(tail))
}

/// The last lines of a load of requests: what became of them, and how fast.
pub(crate) fn answer(
    f: &mut fmt::Formatter<'_>,
    all: &RequestResult,
    received: u64,
) -> fmt::Result {
    let (requests, whole) = (&all.requests, &all.whole_run);
    let mut text =
        format!("{} answered, {} failed", grouped(requests.answered), grouped(requests.failed));
    for (number, what) in
        [(whole.abandoned, "without an answer at the end"), (requests.unsent, "due but not sent")]
    {
        if number > 0 {
            text += &format!(", {} {what}", grouped(number));
        }
    }
    row(f, "requests", &text)?;
    let latency = match requests.answered {
        0 => "latency none".to_owned(),
        samples => summary(&all.latency_us, samples),
    };
    let mut text = format!(
        "{} requests/s, {:.1} MB/s; {latency}",
        grouped(requests.per_second.round() as u64),
        megabytes_per_s(received, all.window.seconds)
    );
    if requests.failed > 0 {
        text += &format!("; {} FAILED", grouped(requests.failed));
    }
    row(f, "ANSWER", &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Show<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result>(F);

    impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Show<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (self.0)(f)
        }
    }

    /// Without an answer the latency was 0.0 us; with 100 answers it had a p99.99.
    #[test]
    fn only_what_was_measured_is_shown() {
        let latency = Latency {
            p50: 1.0,
            p90: 2.0,
            p99: 3.0,
            p99_9: 4.0,
            p99_99: 5.0,
            max: 6.0,
            ..Latency::default()
        };
        let shown = |samples| {
            let show = Show(|f| times(f, "latency", &[("x", latency, samples)], None));
            show.to_string()
                .lines()
                .nth(1)
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(0), "x none none none none none none");
        assert_eq!(shown(100), "x 1.0 us 2.0 us 3.0 us - - 6.0 us");
        assert_eq!(shown(10_000), "x 1.0 us 2.0 us 3.0 us 4.0 us 5.0 us 6.0 us");
    }
}
