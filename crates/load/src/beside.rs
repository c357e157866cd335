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
    heard.recv_timeout(limit)
}
