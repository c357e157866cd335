//! The tasks of a worker: accepting until a shutdown, and sweeps over its connections, which end those that take too
//! long, and all of them at shutdown.

use super::WorkerService;
use super::connections::Ending;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::task::JoinSet;
use twinring::{
    Either, Handle, TcpListener, TcpStream, race, shutdown_requested, sleep, sleep_until,
};

/// How long a shutdown continues to accept connections that the kernel has already established.
/// Closing the listener would reset those.
const ACCEPT_GRACE: Duration = Duration::from_millis(10);

/// Passes accepted connections to `start` until a shutdown is requested, then calls `at_shutdown`,
/// and continues for [`ACCEPT_GRACE`].
pub(super) async fn accept(
    listener: &TcpListener,
    start: impl Fn(TcpStream),
    at_shutdown: impl FnOnce(),
) -> io::Result<()> {
    let mut shutdown = pin!(shutdown_requested());
    while let Either::Left(accepted) = race(listener.accept(), shutdown.as_mut()).await {
        start(accepted?);
    }
    at_shutdown();
    let mut grace = pin!(sleep(ACCEPT_GRACE));
    while let Either::Left(accepted) = race(listener.accept(), grace.as_mut()).await {
        start(accepted?);
    }
    Ok(())
}

/// Waits for the tasks that are vital to a service, until only the `endless` ones are left, which it ends. If one fails,
/// all workers are asked to shut down: a panic in a connection's task ends that connection only, but a panic in one of
/// these would leave a service that looks alive and is not.
pub(crate) async fn join_vital(
    mut tasks: JoinSet<io::Result<()>>,
    endless: usize,
    handle: &Handle,
) -> io::Result<()> {
    let mut outcome = Ok(());
    while tasks.len() > endless
        && let Some(ended) = tasks.join_next().await
    {
        let ended = ended.unwrap_or_else(|gone| Err(io::Error::other(gone)));
        if ended.is_err() {
            handle.shutdown();
        }
        outcome = outcome.and(ended);
    }
    outcome
}

pub(crate) const DRAIN_SWEEP: Duration = Duration::from_millis(25);

/// How long connections that were cut may take to end. A wait for the network ends at once; a
/// request that waits for a filesystem that does not answer is left to the shutdown of the runtime.
const CUT_GRACE: Duration = Duration::from_millis(100);

/// Ends connections that take too long, and runs the housekeeping. Sweeps are at multiples of
/// `period`; sweeps that cannot find a timeout are skipped.
pub(super) async fn watch<S: WorkerService>(service: Rc<S>, period: Duration) -> io::Result<()> {
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
        let activity = connections.activity.wait();
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
