//! Blocking code on other threads, and counts of what is alive.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Runs blocking code, usually a peer's, on a thread of its own. Awaiting the result exercises
/// wakes from other threads; a panic in there is passed on.
pub(crate) fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    let state = Arc::new(Mutex::new(OutcomeState { waker: None, finished: false }));
    let theirs = Arc::clone(&state);
    let thread = std::thread::spawn(move || {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let waker = {
            let mut state = theirs.lock().expect("no panic with the lock");
            state.finished = true;
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Outcome { state, thread: Some(thread) }
}

struct OutcomeState {
    waker: Option<Waker>,
    finished: bool,
}

/// The result of `on_thread`.
pub(crate) struct Outcome<T> {
    state: Arc<Mutex<OutcomeState>>,
    thread: Option<std::thread::JoinHandle<T>>,
}

impl<T> Future for Outcome<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        {
            let mut state = self.state.lock().expect("no panic with the lock");
            if !state.finished {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        let thread = self.thread.take().expect("polled once after it was ready");
        Poll::Ready(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

/// Counts how many of its clones are alive: for what must be dropped with a task.
#[derive(Clone, Default)]
pub(crate) struct Live(Rc<Cell<()>>);

impl Live {
    pub(crate) fn count(&self) -> usize {
        Rc::strong_count(&self.0) - 1
    }
}

/// A count that threads share.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<AtomicUsize>);

impl Tally {
    pub(crate) fn add(&self, amount: usize) {
        self.0.fetch_add(amount, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}
