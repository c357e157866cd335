//! The two sides of a run: its workers, and the conductor on the calling thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use twinring::{Runtime, RuntimeError};

/// Runs `work` on the workers of `runtime`, and `conduct` on this thread at the same time; calls
/// `ended` when all workers have ended. Returns their results when both sides have ended.
///
/// # Errors
/// As [`Runtime::run`].
pub(crate) fn beside<T, F>(
    runtime: Runtime,
    work: impl Fn(usize) -> F + Sync + Send,
    ended: impl FnOnce() + Send,
    conduct: impl FnOnce(),
) -> Result<Vec<Option<T>>, RuntimeError>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    #[cfg(feature = "sim")]
    if let Some(world) = twinring::sim::World::current() {
        return simulated::beside(&world, runtime, work, conduct);
    }
    thread::scope(|scope| {
        let engine = scope.spawn(move || {
            // Also after a panic: otherwise the conductor would never know.
            let _ended = Ended(Some(ended));
            runtime.run(work)
        });
        conduct();
        engine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

struct Ended<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Ended<F> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|ended| ended());
    }
}

/// The next note of a worker, waited for at most `limit`.
///
/// # Errors
/// As [`Receiver::recv_timeout`].
pub(crate) fn hear<T>(heard: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(feature = "sim")]
    if let Some(world) = twinring::sim::World::current() {
        return simulated::hear(&world, heard, limit);
    }
    heard.recv_timeout(limit)
}

/// In a simulated world there is one thread: it conducts, and lets the workers continue where it
/// would wait for them.
#[cfg(feature = "sim")]
mod simulated {
    use super::{Duration, Receiver, RecvTimeoutError, Runtime, RuntimeError};
    use twinring::sim::Place;

    /// Longer than any run, in simulated time.
    const LIMIT: Duration = Duration::from_secs(24 * 3600);

    pub(super) fn beside<T, F>(
        world: &Place,
        runtime: Runtime,
        work: impl Fn(usize) -> F,
        conduct: impl FnOnce(),
    ) -> Result<Vec<Option<T>>, RuntimeError>
    where
        F: Future<Output = T> + 'static,
    {
        let running = runtime.start(work)?;
        conduct();
        world.run_until(LIMIT, || running.is_over());
        running.outcome()
    }

    pub(super) fn hear<T>(
        world: &Place,
        heard: &Receiver<T>,
        limit: Duration,
    ) -> Result<T, RecvTimeoutError> {
        let mut note = heard.try_recv().ok();
        if note.is_none() {
            world.run_until(limit, || {
                note = heard.try_recv().ok();
                note.is_some()
            });
        }
        note.ok_or(RecvTimeoutError::Timeout)
    }
}
