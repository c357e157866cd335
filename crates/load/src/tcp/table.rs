//! The result of a run as a table for people.

use crate::report::table::{
    self, answer, connections, count, cpu, errors, gates, grouped, open_loop, row, times,
};
use std::fmt;
use twinring_wire::{Fields, TcpResult};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a>(pub(crate) &'a TcpResult);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (result, asked) = (self.0, &self.0.settings);
        row(f, "target", &result.head.target)?;
        let connected = count(asked.connections, "connection");
        let mut load = format!("{connected} x {} B, ", grouped(asked.message_bytes));
        load += &match asked.rate_per_s {
            Some(rate) => open_loop(rate, asked.arrivals.as_deref()),
            None => format!("closed loop, depth {}", asked.depth),
        };
        if let Some(churn) = asked.churn {
            load += &format!(", reconnecting after {churn}");
        }
        if asked.idle > 0 {
            load += &format!(", {} idle", grouped(asked.idle));
        }
        row(f, "load", &load)?;
        let all = &result.all;
        table::begin(f, &result.head, asked.threads, &all.window, &result.shortfall())?;
        let name = table::latency_title(&all.latency_from);
        let latencies = [(name, all.latency_us, all.requests.answered)];
        times(f, "latency", &latencies, all.schedule_lag_us)?;
        connections(f, all)?;
        let verified = if asked.verify { "every byte verified" } else { "not verified" };
        errors(f, &Fields::of(&result.errors), verified, all.first_error.as_deref())?;
        cpu(f, &all.cpu, "the server could do more")?;
        gates(f, &all.gates)?;
        answer(f, all, result.bytes.received)
    }
}
