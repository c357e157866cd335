//! From the threads' counts to the report.

use super::settings::Settings;
use super::worker::Outcome;
use crate::recorder::{Trouble, Troubles};
use crate::report::{connections, head, of_requests};
use crate::run::{LoadError, Ran, Share};
use twinring_wire::TcpResult;
use twinring_wire::requests::Connections;
use twinring_wire::tcp::{Bytes, Errors, SCHEMA};

/// Combines the threads' results.
///
/// # Errors
/// Without a single connection there is nothing to report.
pub(super) fn report(
    settings: &Settings,
    ran: &Ran,
    outcomes: Vec<Outcome>,
) -> Result<TcpResult, LoadError> {
    let (mut all, mut idle_established) = (Share::nothing(), 0);
    for outcome in outcomes {
        all.merge(outcome.share);
        idle_established += outcome.idle_established;
    }
    let target = settings.target.to_string();
    ran.check_connected(&all, &target, settings.connections)?;
    let message_bytes = u64::from(settings.message_bytes);
    let connections = Connections {
        idle_established: Some(idle_established),
        ..connections(&all, ran, settings.connections)
    };
    let latency_from = if settings.rate_per_s.is_some() { "intended" } else { "send" };
    Ok(TcpResult {
        head: head(SCHEMA, target, ran.engine(), ran.interrupted),
        settings: settings.report(),
        all: of_requests(&all, ran, latency_from, connections, &settings.gates),
        bytes: Bytes {
            sent: all.recorder.window.sent * message_bytes,
            received: all.recorder.window.answered * message_bytes,
        },
        errors: errors(&all.recorder.troubles),
    })
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
