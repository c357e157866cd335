//! The join handle that `spawn` returns.

use super::{WaitToken, Waiter};
use crate::runtime::{Worker, current, with_current};
use crate::slots::Key;
use pin_project_lite::pin_project;
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Why a task has no result.
pub struct JoinError(Repr);

enum Repr {
    Cancelled,
    /// A mutex, because a payload need not be `Sync` and an error should be.
    Panic(Mutex<Panic>),
}

/// The payload of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

impl JoinError {
    pub(crate) fn cancelled() -> JoinError {
        JoinError(Repr::Cancelled)
    }

    /// True if the task was aborted, or its runtime ended first.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Repr::Cancelled)
    }

    /// True if the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.0, Repr::Panic(_))
    }

    /// The payload of the task's panic, for [`std::panic::resume_unwind`].
    ///
    /// # Errors
    /// The error itself, if the task did not panic.
    pub fn try_into_panic(self) -> Result<Panic, JoinError> {
        match self.0 {
            Repr::Panic(payload) => {
                Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            Repr::Cancelled => Err(self),
        }
    }

    /// As [`try_into_panic`](JoinError::try_into_panic).
    ///
    /// # Panics
    /// If the task did not panic.
    pub fn into_panic(self) -> Panic {
        self.try_into_panic().expect("the task was cancelled and did not panic")
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Cancelled => f.write_str("the task was aborted, or its runtime ended first"),
            Repr::Panic(payload) => {
                let payload = payload.lock().unwrap_or_else(PoisonError::into_inner);
                match message(&**payload) {
                    Some(message) => write!(f, "the task panicked: {message}"),
                    None => f.write_str("the task panicked"),
                }
            }
        }
    }
}

/// The message of a panic, unless its payload is unusual.
fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

impl std::error::Error for JoinError {}

enum State<T> {
    Running(Option<Waker>),
    Finished(T),
    Panicked(Panic),
    Gone,
}

/// The task's end of a [`JoinHandle`]: dropped with the task, finished or not.
struct Completion<T> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Completion<T> {
    fn settle(&self, outcome: State<T>) {
        let previous = self.state.replace(outcome);
        if let State::Running(Some(waker)) = previous {
            waker.wake();
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        let running = matches!(*self.state.borrow(), State::Running(_));
        if running {
            self.settle(State::Gone);
        }
    }
}

pin_project! {
    /// A future and the handle to which it reports. An async block would store the future twice,
    /// once as captured and once as awaited, and the size of tasks is cache footprint.
    struct Tracked<F: Future> {
        #[pin]
        future: F,
        completion: Completion<F::Output>,
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
                this.completion.settle(State::Finished(output));
                Poll::Ready(())
            }
            Err(panic) => {
                let panic = with_current(|worker| worker.executor.task_panicked(panic)).flatten();
                panic.into_iter().for_each(|panic| this.completion.settle(State::Panicked(panic)));
                Poll::Ready(())
            }
        }
    }
}

/// Waits for a spawned task. Dropping it detaches the task.
///
/// It yields the task's result, or a [`JoinError`] if the task panicked or was aborted.
pub struct JoinHandle<T> {
    state: Rc<RefCell<State<T>>>,
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
///
/// # Panics
/// Outside a twinring runtime.
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
        let state = Rc::new(RefCell::new(State::Running(None)));
        let completion = Completion { state: Rc::clone(&state) };
        let key = worker.executor.spawn(Box::pin(Tracked { future, completion }));
        JoinHandle { state, worker: Rc::downgrade(worker), key }
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
        !matches!(*self.state.borrow(), State::Running(_))
    }

    /// The payload of its panic, if it panicked.
    pub(crate) fn take_panic(&self) -> Option<Panic> {
        match self.state.replace(State::Gone) {
            State::Panicked(panic) => Some(panic),
            _ => None,
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut nowhere = WaitToken::default();
        let mut waiter = Waiter::new(cx, &mut nowhere);
        let mut state = self.state.borrow_mut();
        if let State::Running(waker) = &mut *state {
            waiter.store(waker);
            return Poll::Pending;
        }
        Poll::Ready(match std::mem::replace(&mut *state, State::Gone) {
            State::Finished(output) => Ok(output),
            State::Panicked(panic) => Err(JoinError(Repr::Panic(Mutex::new(panic)))),
            State::Gone | State::Running(_) => Err(JoinError(Repr::Cancelled)),
        })
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let waker = match &mut *self.state.borrow_mut() {
            State::Running(waker) => waker.take(),
            _ => None,
        };
        drop(waker);
    }
}
