//! From what the threads counted to the report.

use super::Settings;
use super::worker::Outcome;
use crate::report::{
    Bytes, Connections, EncodedHistogram, ErrorCounts, Lag, Latency, Report, RequestsReport,
    WholeRun,
};
use crate::run::{LoadError, Ran, Share};

/// Puts together what the threads handed in.
///
/// # Errors
/// Without a single connection there is nothing to report.
pub(super) fn report(
    settings: &Settings,
    ran: Ran,
    outcomes: Vec<Outcome>,
) -> Result<Report, LoadError> {
    let (mut all, mut idle_established) = (Share::nothing(), 0);
    for outcome in outcomes {
        all.merge(outcome.share);
        idle_established += outcome.idle_established;
    }
    let target = settings.target.to_string();
    ran.check_connected(&all, &target, settings.connections)?;
    let window = ran.window();
    let counted = &all.recorder;
    let open = settings.rate_per_s.is_some();
    let message_bytes = u64::from(settings.message_bytes);
    let connections =
        Connections::of(&all, settings.connections, ran.served_at_once_max, idle_established);
    Ok(Report {
        event: "result",
        schema: "twinring.load.tcp/1",
        target,
        engine: ran.features.engine().to_string(),
        features: ran.features,
        why_not: ran.why_not,
        interrupted: ran.interrupted,
        settings: settings.report(),
        window,
        requests: RequestsReport::of(&all, window.seconds),
        whole_run: WholeRun::of(counted),
        bytes: Bytes {
            sent: counted.window.sent * message_bytes,
            received: counted.window.answered * message_bytes,
        },
        latency_us: Latency::of(&counted.latency_ns),
        latency_from: if open { "intended" } else { "send" },
        schedule_lag_us: open.then(|| Lag::of(&counted.lag_ns)),
        histogram: EncodedHistogram::of(&counted.latency_ns),
        connections,
        errors: ErrorCounts::of(&counted.troubles),
        cpu: crate::cpu::report(&all.cpu),
        first_error: all.recorder.first_error.map(|(_, what)| what),
        runtime_counters: ran.counters,
    })
}
