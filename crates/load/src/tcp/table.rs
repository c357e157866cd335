//! The result of a run as a table for people.

use crate::report::table::{
    cpu, errors, fairness, grouped, lag, latency_from, latency_rows, left_over, megabytes_per_s,
};
use std::fmt;
use twinring_wire::TcpResult;
use twinring_wire::tcp::Errors;

/// The result of a run as a table for people.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a TcpResult);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.rates(f)?;
        self.latencies(f)?;
        self.peers(f)?;
        cpu(f, &self.0.all.cpu)
    }
}

/// The parts of the table.
impl Table<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.0.settings;
        writeln!(f, "target        {}", self.0.head.target)?;
        write!(f, "load          {} connections x {} B, ", asked.connections, asked.message_bytes)?;
        match asked.rate_per_s {
            Some(rate) => {
                let arrivals = asked.arrivals.as_deref().unwrap_or("periodic");
                write!(f, "open loop at {} requests/s, {arrivals}", grouped(rate))?;
            }
            None if asked.slow_reader => write!(f, "slow readers")?,
            None => write!(f, "closed loop, depth {}", asked.depth)?,
        }
        if let Some(churn) = asked.churn {
            write!(f, ", reconnecting after {churn}")?;
        }
        if asked.idle > 0 {
            write!(f, ", {} idle", asked.idle)?;
        }
        writeln!(f, "; {}, {} thread(s)", self.0.head.engine, asked.threads)?;
        let interrupted = if self.0.head.interrupted { ", interrupted" } else { "" };
        writeln!(f, "window        {:.3} s{interrupted}", self.0.all.window.seconds)
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = &self.0.all.requests;
        writeln!(
            f,
            "requests      {} answered, {} /s, {:.1} MB/s each way",
            grouped(requests.answered),
            grouped(requests.per_second.round() as u64),
            megabytes_per_s(self.0.bytes.received, self.0.all.window.seconds)
        )?;
        left_over(f, requests, &self.0.all.whole_run)
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "latency       {}", latency_from(&self.0.all.latency_from))?;
        latency_rows(f, &self.0.all.latency_us)?;
        self.0.all.schedule_lag_us.map_or(Ok(()), |behind| lag(f, &behind))
    }

    fn peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.0.all.connections;
        writeln!(
            f,
            "connections   {} asked, {} established, {} served, {} served at once, {} reconnects",
            grouped(c.asked),
            grouped(c.established),
            grouped(c.served),
            grouped(c.served_at_once_max),
            grouped(c.reconnects)
        )?;
        fairness(f, c.min_answered, c.max_answered)?;
        let verified = if self.0.settings.verify { "every byte verified" } else { "not verified" };
        errors(f, &named(&self.0.errors), verified, self.0.all.first_error.as_deref())
    }
}

fn named(errors: &Errors) -> [(&'static str, u64); 6] {
    [
        ("connect", errors.connect),
        ("reset", errors.reset),
        ("closed early", errors.closed_early),
        ("timeout", errors.timeout),
        ("mismatch", errors.mismatch),
        ("other", errors.other),
    ]
}
