//! Blocking work of the program.

use crate::blocking::job;
use crate::runtime::current;
use crate::task::JoinHandle;
use crate::time::sleep;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

/// How long work waits until another thread is tried, if not even one can be started.
const NO_THREAD_PAUSE: Duration = Duration::from_millis(100);

/// Runs blocking work on another thread: calls that wait, or that compute for more than a fraction
/// of a millisecond, would hold up all connections of a worker.
///
/// A runtime has at most 64 such threads, started on demand, and queues 256 jobs; further ones wait
/// in their tasks. A thread can only be used once the caller awaits something. Dropping the handle
/// detaches the work. [`JoinHandle::abort`] gives it up: it does not begin, or its result is
/// dropped. When the runtime ends, running work has a second to end (half of one after a requested
/// shutdown); then its thread is abandoned, see
/// [`Event::BlockingStuck`](crate::Event::BlockingStuck).
///
/// A panic of `work` is that of a task, see [`spawn`](crate::spawn).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let text = twinring::spawn_blocking(|| std::fs::read_to_string("/etc/hosts")).await??;
/// # Ok(())
/// # }
/// ```
pub fn spawn_blocking<T>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T>
where
    T: Send + 'static,
{
    let (worker, (work, outcome)) = (current(), job(work));
    let pool = Arc::clone(&worker.shared.spawned);
    JoinHandle::spawn(&worker, async move {
        let mut work = Some(work);
        // The pool outlives the tasks: an error says that there is no memory for any thread.
        while pool.queue(&mut work).await.is_err() {
            sleep(NO_THREAD_PAUSE).await;
        }
        match poll_fn(|cx| outcome.poll(cx)).await {
            Ok(output) => output,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_the_runtime_ends) => std::future::pending().await,
            },
        }
    })
}
