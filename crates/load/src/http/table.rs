//! The result of a run as a table for people.

use crate::report::table::{self, count, grouped, row};
use std::fmt;
use twinring_wire::http::Length;
use twinring_wire::{Fields, HttpResult};

const STATUSES_MAX: usize = 12;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a>(pub(crate) &'a HttpResult);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = &self.0.all;
        self.head(f)?;
        self.latencies(f)?;
        self.statuses(f)?;
        table::connections(f, all)?;
        let of = match (&self.0.settings.length, &self.0.settings.verify_body) {
            (_, Some(_)) => ", length and content",
            (Some(Length::Rule(rule)), None) if rule == "any" => "",
            (_, None) => " and length",
        };
        let verified = format!("status{of} of every answer verified");
        table::errors(f, &Fields::of(&self.0.errors), &verified, all.first_error.as_deref())?;
        table::cpu(f, &all.cpu, "the server could do more")?;
        table::gates(f, &all.gates)?;
        table::answer(f, all, self.0.bytes.received)
    }
}

impl Table<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.0.settings;
        let target = match self.0.urls.as_slice() {
            [only] => format!("{} {}", asked.method, only.url),
            _ => format!(
                "{} of {} URLs at {}",
                asked.method,
                grouped(asked.urls),
                self.0.head.target
            ),
        };
        row(f, "target", &target)?;
        let protocol = if asked.http == "2" { " of HTTP/2" } else { "" };
        let mut load = format!("{}{protocol}, ", count(asked.connections, "connection"));
        load += &match asked.rate_per_s {
            Some(rate) => table::open_loop(rate, asked.arrivals.as_deref()),
            None => "closed loop".to_owned(),
        };
        let in_flight = asked.streams_max.map_or(asked.pipeline, |max| max.min(asked.pipeline));
        load += &match (asked.keepalive, in_flight) {
            (false, _) => ", one for each request".to_owned(),
            (true, fewer) if fewer < asked.pipeline => {
                format!(", up to {fewer} in flight each, as many as the server allows")
            }
            (true, 1) => String::new(),
            (true, pipeline) => format!(", up to {pipeline} in flight each"),
        };
        row(f, "load", &load)?;
        if let Some(tls) = &asked.tls {
            let protocol = tls.protocol.as_deref().unwrap_or("no handshake");
            let suite = tls.cipher_suite.as_deref().unwrap_or("none");
            let (made, resumed) = (count(tls.handshakes, "handshake"), grouped(tls.resumed));
            row(f, "TLS", &format!("{protocol}, {suite}; {made}, {resumed} resumed"))?;
        }
        let window = &self.0.all.window;
        table::begin(f, &self.0.head, asked.threads, window, &self.0.shortfall())
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = &self.0.all;
        let answered = all.requests.answered;
        let from = table::latency_title(&all.latency_from);
        let opened = all.connections.established + all.connections.reconnects;
        let mut rows = vec![(from, all.latency_us, answered)];
        rows.extend(all.raw_latency_us.map(|raw| ("uncorrected", raw, answered)));
        rows.push(("first byte", self.0.ttfb_us, answered));
        rows.push(("connecting", all.connect_us, opened));
        table::times(f, "latency", &rows, all.schedule_lag_us)
    }

    fn statuses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codes = &self.0.status_codes;
        let shown = codes.iter().take(STATUSES_MAX);
        let mut shown: Vec<String> =
            shown.map(|(status, count)| format!("{} x {status}", grouped(*count))).collect();
        if codes.len() > STATUSES_MAX {
            shown.push(format!("{} others", codes.len() - STATUSES_MAX));
        }
        let text = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
        row(f, "statuses", &text)
    }
}
