//! The result of a run as a table for people.

use super::report::{Length, Report};
use crate::report::table;
use crate::report::table::{grouped, time};
use std::fmt;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.rates(f)?;
        self.latencies(f)?;
        self.peers(f)?;
        self.gates.iter().try_for_each(|gate| writeln!(f, "gate          {gate}"))?;
        table::cpu(f, &self.cpu)
    }
}

/// The parts of the table.
impl Report {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.settings;
        match self.urls.as_slice() {
            [only] => writeln!(f, "target        {} {}", asked.method, only.url)?,
            _ => {
                let (urls, method) = (grouped(asked.urls), &asked.method);
                writeln!(f, "target        {method} of {urls} URLs at {}", self.target)?;
            }
        }
        write!(f, "load          {} connections, ", grouped(asked.connections))?;
        match asked.rate_per_s {
            Some(rate) => write!(f, "open loop at {} requests/s", grouped(rate))?,
            None => write!(f, "closed loop")?,
        }
        match (asked.keepalive, asked.pipeline) {
            (false, _) => write!(f, ", one for each request")?,
            (true, 1) => {}
            (true, pipeline) => write!(f, ", up to {pipeline} in flight each")?,
        }
        writeln!(f, "; {}, {} thread(s)", self.engine, asked.threads)?;
        if let Some(tls) = &asked.tls {
            let protocol = tls.protocol.as_deref().unwrap_or("no handshake");
            let suite = tls.cipher_suite.as_deref().unwrap_or("none");
            let (made, resumed) = (grouped(tls.handshakes), grouped(tls.resumed));
            writeln!(f, "TLS           {protocol}, {suite}; {made} handshakes, {resumed} resumed")?;
        }
        let interrupted = if self.interrupted { ", interrupted" } else { "" };
        writeln!(f, "window        {:.3} s{interrupted}", self.window.seconds)
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = &self.requests;
        writeln!(
            f,
            "requests      {} answered, {} /s, {:.1} MB/s received",
            grouped(requests.answered),
            grouped(requests.per_second.round() as u64),
            table::megabytes_per_s(self.bytes.received, self.window.seconds)
        )?;
        table::left_over(f, requests, &self.whole_run)
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "latency       {}", table::latency_from(self.latency_from))?;
        table::latency_rows(f, &self.latency_us)?;
        let mut line = |name: &str, latency: &crate::report::Latency| {
            let (p50, p99, max) = (time(latency.p50), time(latency.p99), time(latency.max));
            writeln!(f, "{name:<14}p50 {p50}, p99 {p99}, max {max}")
        };
        if let Some(raw) = &self.raw_latency_us {
            line("  uncorrected", raw)?;
        }
        line("first byte", &self.ttfb_us)?;
        line("connecting", &self.connect_us)?;
        self.schedule_lag_us.map_or(Ok(()), |behind| table::lag(f, &behind))
    }

    fn peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.connections;
        writeln!(
            f,
            "connections   {} asked, {} established, {} served, {} served at once, {} reconnects",
            grouped(c.asked),
            grouped(c.established),
            grouped(c.served),
            grouped(c.served_at_once_max),
            grouped(c.reconnects)
        )?;
        table::fairness(f, c.min_answered, c.max_answered)?;
        let of = match (&self.settings.length, self.settings.verify_body) {
            (_, Some(_)) => ", length and content",
            (Length::Rule("any"), None) => "",
            (_, None) => " and length",
        };
        let verified = format!("status{of} of every answer verified");
        table::errors(f, &self.errors.named(), &verified, self.first_error.as_deref())
    }
}
