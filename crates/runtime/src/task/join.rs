//! What `spawn` returns.

use crate::driver::slots::Key;
use crate::runtime::Worker;
use pin_project_lite::pin_project;
use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// Why a task has no result: it was aborted, or its runtime ended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinError;

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task ended without a result: it was aborted or its runtime shut down")
    }
}

impl std::error::Error for JoinError {}

enum State<T> {
    Running(Option<Waker>),
    Finished(T),
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
    /// A future and the handle it reports to. An async block would keep the future twice, once as
    /// captured and once as awaited, and the size of tasks is cache footprint.
    struct Tracked<F: Future> {
        #[pin]
        future: F,
        completion: Completion<F::Output>,
    }
}

impl<F: Future> Future for Tracked<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.future.poll(cx).map(|output| this.completion.settle(State::Finished(output)))
    }
}

/// Waits for a spawned task. Dropping it lets the task run on by itself.
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
    /// Ends the task at its current await point and drops what it owns. Does nothing to a task
    /// that has finished.
    pub fn abort(&self) {
        if let Some(worker) = self.worker.upgrade() {
            worker.executor.abort(self.key);
        }
    }

    /// True once the task has finished or was aborted.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.state.borrow(), State::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        match &mut *state {
            State::Running(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            State::Finished(_) | State::Gone => match std::mem::replace(&mut *state, State::Gone) {
                State::Finished(output) => Poll::Ready(Ok(output)),
                _ => Poll::Ready(Err(JoinError)),
            },
        }
    }
}
