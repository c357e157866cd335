//! The result of a run as a table for people: at most 80 columns, the answer last.

use super::ratio;
use crate::gates;
use textwrap::{Options, WordSplitter, wrap};
use twinring_wire::histogram::{Lag, Latency};
use twinring_wire::http::Length;
use twinring_wire::load::{Cpu, Gate, Head, Window};
use twinring_wire::{Fields, HttpResult, LoadResult, RequestResult, TcpResult};

const COLUMNS: usize = 80;
/// Width of the names in front of the lines.
const NAME_COLUMNS: usize = 14;
const STATUSES_MAX: usize = 12;

/// The result of a run as a table for people.
pub fn table(result: &LoadResult) -> String {
    let mut lines = Lines::default();
    match result {
        LoadResult::Tcp(it) => tcp(&mut lines, it, &result.shortfall()),
        LoadResult::Http(it) => http(&mut lines, it, &result.shortfall()),
        LoadResult::Udp(it) => crate::udp::table(&mut lines, it, &result.shortfall()),
    }
    lines.0
}

fn tcp(lines: &mut Lines, result: &TcpResult, shortfall: &[String]) {
    let (asked, all) = (&result.settings, &result.all);
    let mut load = format!(
        "{} x {} B, {}",
        count(asked.connections, "connection"),
        grouped(asked.message_bytes),
        match asked.rate_per_s {
            Some(rate) => open_loop(rate, asked.arrivals.as_deref()),
            None => format!("closed loop, depth {}", asked.depth),
        }
    );
    if let Some(churn) = asked.churn {
        load += &format!(", reconnecting after {churn}");
    }
    if asked.idle > 0 {
        load += &format!(", {} idle", grouped(asked.idle));
    }
    lines.row("target", &result.head.target);
    lines.row("load", &load);
    lines.begin(&result.head, asked.threads, &all.window, shortfall);
    let latencies = [(latency_title(&all.latency_from), all.latency_us, all.requests.answered)];
    lines.times("latency", &latencies, all.schedule_lag_us);
    let verified = if asked.verify { "every byte verified" } else { "not verified" };
    lines.requests(all, &Fields::of(&result.errors), verified, result.bytes.received);
}

fn http(lines: &mut Lines, result: &HttpResult, shortfall: &[String]) {
    let (asked, all) = (&result.settings, &result.all);
    let target = match result.urls.as_slice() {
        [only] => only.url.clone(),
        _ => format!("of {} URLs at {}", grouped(asked.urls), result.head.target),
    };
    lines.row("target", &format!("{} {target}", asked.method));
    let in_flight = asked.streams_max.map_or(asked.pipeline, |max| max.min(asked.pipeline));
    let load = format!(
        "{}{}, {}{}",
        count(asked.connections, "connection"),
        if asked.http == "2" { " of HTTP/2" } else { "" },
        match asked.rate_per_s {
            Some(rate) => open_loop(rate, asked.arrivals.as_deref()),
            None => "closed loop".to_owned(),
        },
        match (asked.keepalive, in_flight) {
            (false, _) => ", one for each request".to_owned(),
            (true, fewer) if fewer < asked.pipeline => {
                format!(", up to {fewer} in flight each, as many as the server allows")
            }
            (true, 1) => String::new(),
            (true, pipeline) => format!(", up to {pipeline} in flight each"),
        }
    );
    lines.row("load", &load);
    if let Some(tls) = &asked.tls {
        let protocol = tls.protocol.as_deref().unwrap_or("no handshake");
        let suite = tls.cipher_suite.as_deref().unwrap_or("none");
        let (made, resumed) = (count(tls.handshakes, "handshake"), grouped(tls.resumed));
        lines.row("TLS", &format!("{protocol}, {suite}; {made}, {resumed} resumed"));
    }
    lines.begin(&result.head, asked.threads, &all.window, shortfall);
    let answered = all.requests.answered;
    let opened = all.connections.established + all.connections.reconnects;
    let mut rows = vec![(latency_title(&all.latency_from), all.latency_us, answered)];
    rows.extend(all.raw_latency_us.map(|raw| ("uncorrected", raw, answered)));
    rows.push(("first byte", result.ttfb_us, answered));
    rows.push(("connecting", all.connect_us, opened));
    lines.times("latency", &rows, all.schedule_lag_us);
    let codes = &result.status_codes;
    let shown = codes.iter().take(STATUSES_MAX);
    let mut shown: Vec<String> =
        shown.map(|(status, count)| format!("{} x {status}", grouped(*count))).collect();
    if codes.len() > STATUSES_MAX {
        shown.push(format!("{} others", codes.len() - STATUSES_MAX));
    }
    lines.row("statuses", &listed(&shown));
    let of = match (&asked.length, &asked.verify_body) {
        (_, Some(_)) => ", length and content",
        (Some(Length::Rule(rule)), None) if rule == "any" => "",
        (_, None) => " and length",
    };
    let verified = format!("status{of} of every answer verified");
    lines.requests(all, &Fields::of(&result.errors), &verified, result.bytes.received);
}

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

/// A count of things, `1 thread` or `2 threads`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", grouped(number))
}

/// The counts that are not zero, each with a comma before it.
fn beside(counts: &[(u64, &str)]) -> String {
    let shown = counts.iter().filter(|(number, _)| *number > 0);
    shown.map(|(number, what)| format!(", {} {what}", grouped(*number))).collect()
}

fn listed(all: &[String]) -> String {
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// What an open loop keeps to.
fn open_loop(rate_per_s: u64, arrivals: Option<&str>) -> String {
    format!("open loop, {} requests/s, {}", grouped(rate_per_s), arrivals.unwrap_or("periodic"))
}

/// From where latency counts.
fn latency_title(from: &str) -> &'static str {
    match from {
        "send" => "from send",
        "connect" => "from connect",
        _ => "from due",
    }
}

/// A distribution in two figures: the tail is the longest if there are too few for a percentile.
pub(crate) fn summary(what: &str, times: &Latency, samples: u64) -> String {
    let (name, tail) = if samples < 100 { ("max", times.max) } else { ("p99", times.p99) };
    match samples {
        0 => format!("{what} none"),
        _ => format!("p50 {}, {name} {}", time(times.p50), time(tail)),
    }
}

#[derive(Default)]
pub(crate) struct Lines(pub(crate) String);

impl Lines {
    /// A line with a name, continued on further lines where it would be longer than the screen is wide.
    pub(crate) fn row(&mut self, name: &str, text: &str) {
        let (name, below) = (format!("{name:<NAME_COLUMNS$}"), " ".repeat(NAME_COLUMNS));
        let options = Options::new(COLUMNS).initial_indent(&name).subsequent_indent(&below);
        let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
        wrap(text, options).iter().for_each(|line| self.0 += &format!("{}\n", line.trim_end()));
    }

    /// Where it ran and for how long, and what the load was not.
    pub(crate) fn begin(
        &mut self,
        head: &Head,
        threads: u64,
        window: &Window,
        shortfall: &[String],
    ) {
        let interrupted = if head.interrupted { ", interrupted" } else { "" };
        let (threads, seconds) = (count(threads, "thread"), window.seconds);
        self.row("window", &format!("{seconds:.3} s{interrupted}; {}, {threads}", head.engine));
        shortfall.iter().for_each(|what| self.row("", what));
    }

    /// Times in columns: their names and distributions, and how many there are. A percentile is left out where too
    /// few samples lie beyond it.
    pub(crate) fn times(&mut self, title: &str, all: &[(&str, Latency, u64)], lag: Option<Lag>) {
        let cells = |cells: [String; 6]| cells.map(|cell| format!("{cell:>11}")).concat();
        let heads = ["p50", "p90", "p99", "p99.9", "p99.99", "max"].map(str::to_owned);
        self.0 += &format!("{title:<NAME_COLUMNS$}{}\n", cells(heads));
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
            self.0 += &format!("  {name:<12}{}\n", cells(shown));
        }
        if let Some(lag) = lag {
            let none = String::new;
            let shown = [time(lag.p50), none(), time(lag.p99), none(), none(), time(lag.max)];
            self.0 += &format!("  {:<12}{}\n", "schedule lag", cells(shown));
        }
    }

    /// The errors that are not zero, and the first of them in words.
    pub(crate) fn errors(&mut self, errors: &Fields, rest: &str, first: Option<&str>) {
        let seen = errors.0.iter();
        let seen = seen.filter_map(|(name, it)| Some((name, it.as_u64().filter(|it| *it > 0)?)));
        let seen = seen.map(|(name, it)| format!("{} {}", grouped(it), name.replace('_', " ")));
        let seen = listed(&Vec::from_iter(seen));
        self.row("errors", &format!("{seen} {rest}"));
        first.iter().for_each(|first| self.row("  first", first));
    }

    /// CPU of the load generator, and what `limit` means if that was all there is; then the gates.
    pub(crate) fn cpu_and_gates(&mut self, cpu: &Cpu, limit: &str, gates: &[Gate]) {
        let limit = if cpu.saturated { format!(": saturated, {limit}") } else { String::new() };
        let quota = cpu.quota_cpus.map_or(String::new(), |cpus| format!("; quota {cpus:.2} CPUs"));
        let text = format!(
            "{:.2} s user, {:.2} s system; busiest thread {:.1} %{limit}{quota}",
            cpu.user_s,
            cpu.system_s,
            100.0 * cpu.busiest_thread_share
        );
        self.row("own CPU", &text);
        gates.iter().for_each(|gate| self.row("gate", &gates::in_words(gate)));
    }

    /// The end of a load of requests: their connections, what became of them, and how fast.
    fn requests(&mut self, all: &RequestResult, errors: &Fields, verified: &str, received: u64) {
        let (c, requests) = (&all.connections, &all.requests);
        let text = format!(
            "{} of {} opened, {} served, {} at once; {} to {} answers each{}",
            grouped(c.established),
            grouped(c.asked),
            grouped(c.served),
            grouped(c.served_at_once_max),
            grouped(c.min_answered),
            grouped(c.max_answered),
            beside(&[(c.reconnects, "reconnects"), (c.lost, "lost")])
        );
        self.row("connections", &text);
        let verified = format!("in the whole run; {verified}");
        self.errors(errors, &verified, all.first_error.as_deref());
        self.cpu_and_gates(&all.cpu, "the server could do more", &all.gates);
        let text = format!(
            "{} answered, {} failed{}",
            grouped(requests.answered),
            grouped(requests.failed),
            beside(&[
                (all.whole_run.abandoned, "without an answer at the end"),
                (requests.unsent, "due but not sent")
            ])
        );
        self.row("requests", &text);
        let megabytes = ratio(received as f64 / 1e6, all.window.seconds);
        let latency = summary("latency", &all.latency_us, requests.answered);
        let per_s = grouped(requests.per_second.round() as u64);
        let mut text = format!("{per_s} requests/s, {megabytes:.1} MB/s; {latency}");
        if requests.failed > 0 {
            text += &format!("; {} FAILED", grouped(requests.failed));
        }
        self.row("ANSWER", &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without an answer the latency was 0.0 us; with 100 answers it had a p99.99.
    #[test]
    fn only_what_was_measured_is_shown() {
        let (p50, p90, p99, p99_9, p99_99, max) = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0);
        let latency = Latency { p50, p90, p99, p99_9, p99_99, max, ..Latency::default() };
        for (samples, shown) in [
            (0, "x none none none none none none"),
            (100, "x 1.0 us 2.0 us 3.0 us - - 6.0 us"),
            (10_000, "x 1.0 us 2.0 us 3.0 us 4.0 us 5.0 us 6.0 us"),
        ] {
            let mut lines = Lines::default();
            lines.times("latency", &[("x", latency, samples)], None);
            let words = lines.0.lines().nth(1).unwrap().split_whitespace();
            assert_eq!(words.collect::<Vec<_>>().join(" "), shown);
        }
    }
}
