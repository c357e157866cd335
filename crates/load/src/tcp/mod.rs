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
mod table;

pub use self::settings::{OPEN_LOOP_DEPTH, Settings};
pub(crate) use self::table::Table;

use self::client::Tcp;
use crate::observer::Observer;
use crate::recorder::{Trouble, Troubles};
use crate::report::{head, of_requests};
use crate::requests::{Share, run_thread};
use crate::run::{LoadError, run};
use std::io;
use std::sync::Arc;
use twinring_wire::TcpResult;
use twinring_wire::tcp::{Bytes, Errors, SCHEMA};

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
