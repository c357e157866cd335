//! Requests over TCP to a server that echoes them.
//!
//! A request is a message of a fixed size, its answer the same bytes. Each connection is one task (`client.rs`).
//!
//! - Closed loop: a connection keeps `depth` requests in flight and sends another with each
//!   answer. The time of an answer is the time at which the next request begins, so requests in
//!   flight, rate and mean latency obey Little's law exactly.
//! - Open loop: requests leave on a [schedule](crate::schedule) regardless of answers, with up to
//!   `depth` in flight. Latency counts from the scheduled time, so a stalled server is charged for
//!   every request that it delays.

mod client;
mod settings;

pub use self::settings::{OPEN_LOOP_DEPTH, Settings};

use self::client::Tcp;
use crate::observer::Observer;
use crate::recorder::{Trouble, Troubles};
use crate::report::table::{
    self, answer, connections, count, cpu, errors as error_row, gates, grouped, open_loop, row,
    times,
};
use crate::report::{head, of_requests};
use crate::requests::{Share, run_thread};
use crate::run::{LoadError, run};
use std::fmt;
use std::io;
use std::sync::Arc;
use twinring_wire::tcp::{Bytes, Errors, SCHEMA};
use twinring_wire::{Fields, TcpResult};

/// A load that is ready to run.
pub type Load = crate::Load<Settings>;

impl Load {
    /// Chooses the engine. The settings must have been [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a requested feature is refused.
    pub fn new(settings: Settings) -> io::Result<Load> {
        let runtime = settings.common.workers.builder(settings.tuned_uring()).build()?;
        Ok(Load::of(settings, runtime))
    }

    /// Connects, loads, measures. Returns when all connections have ended.
    ///
    /// # Errors
    /// When the engine fails or no connection can be opened.
    pub fn run(self, observer: &mut dyn Observer) -> Result<TcpResult, LoadError> {
        let settings = Arc::new(self.settings);
        let (common, stopper) = (&settings.common, &self.stopper);
        let (shares, ran) = run(self.runtime, stopper, common, observer, |index, control| {
            run_thread::<Tcp>(index, control, Arc::clone(&settings))
        })?;
        let target = settings.common.shown_addresses();
        let all = Share::sum(shares, &ran, &target)?;
        let message_bytes = u64::from(settings.message_bytes);
        let latency_from = if settings.common.is_open() { "intended" } else { "send" };
        let mut requests = of_requests(&all, &ran, latency_from, &settings.common);
        requests.connections.kept_open = None;
        Ok(TcpResult {
            head: head(SCHEMA, target, &ran),
            settings: settings.report(),
            all: requests,
            bytes: Bytes {
                sent: all.recorder.window.sent * message_bytes,
                received: all.recorder.window.answered * message_bytes,
            },
            errors: errors(&all.recorder.troubles),
        })
    }
}

fn errors(troubles: &Troubles) -> Errors {
    Errors {
        connect: troubles.count(Trouble::Connect),
        reset: troubles.count(Trouble::Reset),
        closed_early: troubles.count(Trouble::ClosedEarly),
        timeout: troubles.count(Trouble::Timeout),
        mismatch: troubles.count(Trouble::Mismatch),
        other: troubles.count(Trouble::Other),
    }
}

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
        error_row(f, &Fields::of(&result.errors), verified, all.first_error.as_deref())?;
        cpu(f, &all.cpu, "the server could do more")?;
        gates(f, &all.gates)?;
        answer(f, all, result.bytes.received)
    }
}
