//! Starting tasks, and waiting for them.

use super::{WaitToken, Waiter};
use crate::runtime::{Worker, current, with_current};
use crate::slots::Key;
use pin_project_lite::pin_project;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

pub(crate) type Panic = Box<dyn Any + Send>;

/// Why a task has no result: its panic, or none if it was cancelled. A mutex, because a payload need not be
/// `Sync` and an error should be.
pub struct JoinError(Option<Mutex<Panic>>);

impl JoinError {
    pub(crate) fn panicked(payload: Panic) -> JoinError {
        JoinError(Some(Mutex::new(payload)))
    }

    /// True if the task was aborted, or its runtime ended first.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_none()
    }

    /// True if the task panicked.
    pub fn is_panic(&self) -> bool {
        self.0.is_some()
    }

    /// The payload of the task's panic, for [`std::panic::resume_unwind`].
    ///
    /// # Errors
    /// The error itself, if the task did not panic.
    pub fn try_into_panic(self) -> Result<Panic, JoinError> {
        let payload = self.0.ok_or(JoinError(None))?;
        Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(payload) = &self.0 else {
            return f.write_str("the task was aborted, or its runtime ended first");
        };
        let payload = payload.lock().unwrap_or_else(PoisonError::into_inner);
        let formatted = payload.downcast_ref::<String>().map(String::as_str);
        match formatted.or_else(|| payload.downcast_ref::<&str>().copied()) {
            Some(message) => write!(f, "the task panicked: {message}"),
            None => f.write_str("the task panicked"),
        }
    }
}

impl std::error::Error for JoinError {}

enum Progress<T> {
    Running(Option<Waker>),
    Ended(Result<T, JoinError>),
    Taken,
}

/// A panic inside a critical section leaves no inconsistent state here.
fn lock<T>(state: &Arc<Mutex<Progress<T>>>) -> MutexGuard<'_, Progress<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a task, or blocking work, has ended: the side that waits.
pub(crate) struct Outcome<T>(Arc<Mutex<Progress<T>>>);

impl<T> Outcome<T> {
    /// A task that runs, and its end of this, which is dropped with it, finished or not.
    pub(crate) fn new() -> (Outcome<T>, Promise<T>) {
        let state = Arc::new(Mutex::new(Progress::Running(None)));
        (Outcome(Arc::clone(&state)), Promise(state))
    }

    fn is_finished(&self) -> bool {
        !matches!(*lock(&self.0), Progress::Running(_))
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, JoinError>> {
        // Foreign wakers are cloned before the lock and dropped after it.
        let mut nowhere = WaitToken::default();
        let mut waiter = Waiter::new(cx, &mut nowhere);
        let mut state = lock(&self.0);
        if let Progress::Running(waker) = &mut *state {
            waiter.store(waker);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, Progress::Taken) {
            Progress::Ended(outcome) => Poll::Ready(outcome),
            Progress::Running(_) | Progress::Taken => Poll::Ready(Err(JoinError(None))),
        }
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        let waker = match &mut *lock(&self.0) {
            Progress::Running(waker) => waker.take(),
            _ => None,
        };
        drop(waker);
    }
}

/// The side of the task, or of the work.
pub(crate) struct Promise<T>(Arc<Mutex<Progress<T>>>);

impl<T> Promise<T> {
    /// The first call counts.
    pub(crate) fn settle(&self, outcome: Result<T, JoinError>) {
        self.end(outcome).into_iter().for_each(Waker::wake);
    }

    /// Like [`settle`](Promise::settle); returns the waker of the side that waits, for the caller to wake.
    pub(crate) fn end(&self, outcome: Result<T, JoinError>) -> Option<Waker> {
        let mut state = lock(&self.0);
        let Progress::Running(waker) = &mut *state else { return None };
        let waker = waker.take();
        *state = Progress::Ended(outcome);
        waker
    }

    pub(crate) fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.settle(Err(JoinError(None)));
    }
}

pin_project! {
    /// A future and the handle to which it reports. An async block would store the future twice,
    /// once as captured and once as awaited, and the size of tasks is cache footprint.
    struct Tracked<F: Future> {
        #[pin]
        future: F,
        promise: Promise<F::Output>,
    }
}

impl<F: Future> Future for Tracked<F> {
    type Output = ();

    #[unsafe(link_section = ".text.hot")]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        match catch_unwind(AssertUnwindSafe(|| this.future.poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => {
                this.promise.settle(Ok(output));
                Poll::Ready(())
            }
            Err(panic) => {
                let panic = with_current(|worker| worker.executor.task_panicked(panic)).flatten();
                if let Some(panic) = panic {
                    this.promise.settle(Err(JoinError::panicked(panic)));
                }
                Poll::Ready(())
            }
        }
    }
}

/// Waits for a spawned task. Dropping it detaches the task.
///
/// It yields the task's result, or a [`JoinError`] if the task panicked or was aborted.
pub struct JoinHandle<T> {
    outcome: Outcome<T>,
    worker: Weak<Worker>,
    key: Key,
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}

/// The mistake of a program, which no input can cause.
pub(crate) const OUTSIDE: &str =
    "this must run inside a twinring runtime (Runtime::run or block_on)";

/// Starts a task on the current worker.
///
/// A task that panics ends alone, and drops what it owns: its connections are closed. The
/// [`JoinHandle`] yields the panic, [`CounterSnapshot::panics`](crate::measure::CounterSnapshot::panics)
/// counts it, and the panic hook prints it as usual. If the program cannot continue without the
/// task, make the whole runtime stop: [`Builder::stop_on_panic`](crate::Builder::stop_on_panic).
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    JoinHandle::spawn(&current(), future)
}

impl<T: 'static> JoinHandle<T> {
    pub(crate) fn spawn(
        worker: &Rc<Worker>,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        let (outcome, promise) = Outcome::new();
        let key = worker.executor.spawn(Box::pin(Tracked { future, promise }));
        JoinHandle { outcome, worker: Rc::downgrade(worker), key }
    }
}

impl<T> JoinHandle<T> {
    /// Ends the task at its current await point and drops what it owns. Has no effect on a finished
    /// task.
    pub fn abort(&self) {
        if let Some(worker) = self.worker.upgrade() {
            worker.executor.abort(self.key);
        }
    }

    /// True once the task has finished or was aborted.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_finished()
    }

    /// The payload of its panic, if it panicked.
    pub(crate) fn take_panic(&self) -> Option<Panic> {
        match self.outcome.poll(&Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => error.try_into_panic().ok(),
            _ => None,
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.outcome.poll(cx)
    }
}
