//! Sweeps over the connections of a worker: they end connections that take too long, and all of
//! them at shutdown.

use super::WorkerService;
use super::connections::Ending;
use std::convert::Infallible;
use std::io;
use std::time::{Duration, Instant};
use twinring::{Either, race, sleep, sleep_until};

/// Time between two sweeps of a drain.
pub(crate) const DRAIN_SWEEP: Duration = Duration::from_millis(25);

/// How long connections that were cut may take to end. A wait for the network ends at once; a
/// request that waits for a filesystem that does not answer is left to the shutdown of the runtime.
const CUT_GRACE: Duration = Duration::from_millis(100);

/// Ends connections that take too long, and runs the housekeeping. Sweeps are at multiples of
/// `period`; sweeps that cannot find a timeout are skipped.
pub(super) async fn watch<S: WorkerService>(
    service: &S,
    period: Duration,
) -> io::Result<Infallible> {
    let connections = service.connections();
    let start = Instant::now();
    let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
    let sweep_at = |number: u64| start + Duration::from_nanos(period_ns.saturating_mul(number));
    let swept = || (start.elapsed().as_nanos() / period.as_nanos()) as u64;
    let (mut last, mut left) = (0, None);
    loop {
        let (housekeeping, next) = (service.housekeeping(), swept());
        // A pause of the whole process counts against no connection.
        let passed = (next - last).min(u64::from(left.unwrap_or(1))) as u32;
        last = next;
        left = connections.sweep(passed, period, |phase| service.limit(phase));
        let sweep = left.map(|left| sweep_at(last + u64::from(left)));
        let due = [housekeeping, sweep].into_iter().flatten().min();
        let activity = connections.activity().wait();
        let moved = match due {
            Some(due) => matches!(race(activity, sleep_until(due)).await, Either::Left(())),
            None => {
                activity.await;
                true
            }
        };
        if moved {
            sleep_until(sweep_at(swept() + 1)).await;
        }
    }
}

/// Waits until the connections of a worker have ended, within the limits of a drain, and cuts the
/// others at the timeout. Returns at most [`CUT_GRACE`] later, even if a connection has not ended.
pub(super) async fn drain<S: WorkerService>(service: &S) {
    let (connections, timeout) = (service.connections(), service.drain_timeout());
    let started = Instant::now();
    while !connections.is_empty() && started.elapsed() < timeout {
        sleep(DRAIN_SWEEP.min(timeout.saturating_sub(started.elapsed()))).await;
        let _next = connections.sweep(1, DRAIN_SWEEP, |phase| service.drain_limit(phase));
    }
    let cut_at = Instant::now();
    while !connections.is_empty() && cut_at.elapsed() < CUT_GRACE {
        // Repeated: a task that had not run yet was not waiting.
        connections.end_all(Ending::Cut);
        sleep(Duration::from_millis(1)).await;
    }
}
