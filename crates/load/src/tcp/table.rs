//! The result of a run as a table for people.

use crate::report::table::{
    connections, cpu, errors, lag, latency_from, latency_rows, open_loop, rates, window,
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
        rates(f, &self.0.all, self.0.bytes.received, "each way")?;
        self.latencies(f)?;
        self.peers(f)?;
        cpu(f, &self.0.all.cpu, "the server could do more")
    }
}

/// The parts of the table.
impl Table<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.0.settings;
        writeln!(f, "target        {}", self.0.head.target)?;
        write!(f, "load          {} connections x {} B, ", asked.connections, asked.message_bytes)?;
        match asked.rate_per_s {
            Some(rate) => f.write_str(&open_loop(rate, asked.arrivals.as_deref()))?,
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
        window(f, &self.0.head, &self.0.all.window)
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "latency       {}", latency_from(&self.0.all.latency_from))?;
        latency_rows(f, &self.0.all.latency_us)?;
        self.0.all.schedule_lag_us.map_or(Ok(()), |behind| lag(f, &behind))
    }

    fn peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        connections(f, &self.0.all.connections)?;
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
