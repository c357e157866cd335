//! Tasks that another thread starts on a worker.

use super::{JoinError, WaitToken, Waiter, spawn};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Starts a task when its worker calls it.
pub(crate) type Starter = Box<dyn FnOnce() + Send>;

enum State<T> {
    Running(Option<Waker>),
    Ended(Result<T, JoinError>),
    Taken,
}

/// A panic inside a critical section leaves no inconsistent state here.
fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The task's end of a [`RemoteHandle`]: dropped with the task, finished or not.
struct Completion<T> {
    state: Arc<Mutex<State<T>>>,
}

impl<T> Completion<T> {
    fn settle(&self, outcome: Result<T, JoinError>) {
        let before = {
            let mut state = lock(&self.state);
            if !matches!(*state, State::Running(_)) {
                return;
            }
            std::mem::replace(&mut *state, State::Ended(outcome))
        };
        if let State::Running(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        self.settle(Err(JoinError::cancelled()));
    }
}

/// Waits, on any thread and in any runtime, for a task that
/// [`Handle::spawn_on`](crate::Handle::spawn_on) started. Dropping it detaches the task.
///
/// It yields the task's result, or a [`JoinError`] if the task panicked or its runtime ended first.
#[must_use = "dropping it detaches the task"]
pub struct RemoteHandle<T> {
    state: Arc<Mutex<State<T>>>,
}

impl<T> fmt::Debug for RemoteHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteHandle")
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

impl<T> RemoteHandle<T> {
    /// True once the task has finished.
    pub fn is_finished(&self) -> bool {
        !matches!(*lock(&self.state), State::Running(_))
    }
}

impl<T> Future for RemoteHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Foreign wakers are cloned before the lock and dropped after it.
        let mut nowhere = WaitToken::default();
        let mut waiter = Waiter::new(cx, &mut nowhere);
        let mut state = lock(&self.state);
        if let State::Running(waker) = &mut *state {
            waiter.store(waker);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Ended(outcome) => Poll::Ready(outcome),
            State::Running(_) | State::Taken => Poll::Ready(Err(JoinError::cancelled())),
        }
    }
}

/// A task for another worker: how to start it there, and how to wait for it here.
pub(crate) fn task_for<F, Fut>(task: F) -> (Starter, RemoteHandle<Fut::Output>)
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    let state = Arc::new(Mutex::new(State::Running(None)));
    let completion = Completion { state: Arc::clone(&state) };
    let starter = move || {
        // The outer task reports how the inner one has ended, a panic included.
        drop(spawn(async move {
            let outcome = spawn(async move { task().await }).await;
            completion.settle(outcome);
        }));
    };
    (Box::new(starter), RemoteHandle { state })
}
