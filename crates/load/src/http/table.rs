//! The result of a run as a table for people.

use crate::gates;
use crate::report::table;
use crate::report::table::{grouped, time};
use std::fmt;
use twinring_wire::HttpResult;
use twinring_wire::histogram::Latency;
use twinring_wire::http::{Errors, Length};

/// The result of a run as a table for people.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a HttpResult);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        table::rates(f, &self.0.all, self.0.bytes.received, "received")?;
        self.latencies(f)?;
        self.peers(f)?;
        self.0
            .gates
            .iter()
            .try_for_each(|gate| writeln!(f, "gate          {}", gates::in_words(gate)))?;
        table::cpu(f, &self.0.all.cpu, "the server could do more")
    }
}

/// The parts of the table.
impl Table<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.0.settings;
        match self.0.urls.as_slice() {
            [only] => writeln!(f, "target        {} {}", asked.method, only.url)?,
            _ => {
                let (urls, method) = (grouped(asked.urls), &asked.method);
                writeln!(f, "target        {method} of {urls} URLs at {}", self.0.head.target)?;
            }
        }
        let protocol = if asked.http == "2" { " of HTTP/2" } else { "" };
        write!(f, "load          {} connections{protocol}, ", grouped(asked.connections))?;
        match asked.rate_per_s {
            Some(rate) => f.write_str(&table::open_loop(rate, asked.arrivals.as_deref()))?,
            None => write!(f, "closed loop")?,
        }
        let in_flight = asked.streams_max.map_or(asked.pipeline, |max| max.min(asked.pipeline));
        match (asked.keepalive, in_flight) {
            (false, _) => write!(f, ", one for each request")?,
            (true, fewer) if fewer < asked.pipeline => {
                write!(f, ", up to {fewer} in flight each, as many as the server allows")?;
            }
            (true, 1) => {}
            (true, pipeline) => write!(f, ", up to {pipeline} in flight each")?,
        }
        writeln!(f, "; {}, {} thread(s)", self.0.head.engine, asked.threads)?;
        if let Some(tls) = &asked.tls {
            let protocol = tls.protocol.as_deref().unwrap_or("no handshake");
            let suite = tls.cipher_suite.as_deref().unwrap_or("none");
            let (made, resumed) = (grouped(tls.handshakes), grouped(tls.resumed));
            writeln!(f, "TLS           {protocol}, {suite}; {made} handshakes, {resumed} resumed")?;
        }
        table::window(f, &self.0.head, &self.0.all.window)
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "latency       {}", table::latency_from(&self.0.all.latency_from))?;
        table::latency_rows(f, &self.0.all.latency_us)?;
        let mut line = |name: &str, latency: &Latency| {
            let (p50, p99, max) = (time(latency.p50), time(latency.p99), time(latency.max));
            writeln!(f, "{name:<14}p50 {p50}, p99 {p99}, max {max}")
        };
        if let Some(raw) = &self.0.raw_latency_us {
            line("  uncorrected", raw)?;
        }
        line("first byte", &self.0.ttfb_us)?;
        line("connecting", &self.0.connect_us)?;
        self.0.all.schedule_lag_us.map_or(Ok(()), |behind| table::lag(f, &behind))
    }

    fn peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table::connections(f, &self.0.all.connections)?;
        let of = match (&self.0.settings.length, &self.0.settings.verify_body) {
            (_, Some(_)) => ", length and content",
            (Some(Length::Rule(rule)), None) if rule == "any" => "",
            (_, None) => " and length",
        };
        let verified = format!("status{of} of every answer verified");
        table::errors(f, &named(&self.0.errors), &verified, self.0.all.first_error.as_deref())
    }
}

fn named(errors: &Errors) -> [(&'static str, u64); 13] {
    [
        ("connect", errors.connect),
        ("tls", errors.tls),
        ("reset", errors.reset),
        ("closed early", errors.closed_early),
        ("timeout", errors.timeout),
        ("malformed", errors.malformed),
        ("status", errors.status),
        ("length", errors.length),
        ("hash", errors.hash),
        ("GOAWAY", errors.goaway),
        ("stream reset", errors.stream_reset),
        ("refused stream", errors.refused_stream),
        ("other", errors.other),
    ]
}
