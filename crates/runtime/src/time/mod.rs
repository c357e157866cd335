//! Sleeping and deadlines, on the timers of a worker that both engines share.

mod interval;

pub use interval::{Interval, Tick};

use crate::runtime::{Worker, current};
use crate::sys;
use crate::task::{WaitToken, Waiter};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Waits for `duration`, to the precision of the kernel's timers (tens of microseconds).
pub fn sleep(duration: Duration) -> Sleep {
    let now = sys::now();
    // A deadline beyond the clock's range counts as 30 years ahead.
    sleep_until(now.checked_add(duration).unwrap_or(now + Duration::from_secs(946_080_000)))
}

/// Waits until `deadline`; at once if it has passed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, registered: None }
}

/// The future of [`sleep`] and [`sleep_until`]. Dropping it removes its timer.
pub struct Sleep {
    deadline: Instant,
    /// The number of its timer.
    registered: Option<(Rc<Worker>, u64)>,
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Sleep {
    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut nowhere = WaitToken::default();
        let mut waiter = Waiter::new(cx, &mut nowhere);
        if let Some((worker, number)) = &self.registered
            && let Some(waker) = worker.timers.queue.borrow_mut().get_mut(&(self.deadline, *number))
        {
            waiter.store(waker);
            return Poll::Pending;
        }
        self.registered = None;
        if sys::now() >= self.deadline {
            return Poll::Ready(());
        }
        let worker = current();
        let number = worker.timers.add(self.deadline, waiter.waker());
        self.registered = Some((worker, number));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((worker, number)) = self.registered.take() {
            let waker = worker.timers.remove(self.deadline, number);
            drop(waker);
        }
    }
}

/// The timers of one worker, by deadline and then in the order in which they were added.
#[derive(Default)]
pub(crate) struct Timers {
    queue: RefCell<BTreeMap<(Instant, u64), Option<Waker>>>,
    /// When the first of them is due.
    first: Cell<Option<Instant>>,
    /// The number of the last one.
    last: Cell<u64>,
}

impl Timers {
    #[inline]
    pub(crate) fn first(&self) -> Option<Instant> {
        self.first.get()
    }

    fn update_first(&self, queue: &BTreeMap<(Instant, u64), Option<Waker>>) {
        self.first.set(queue.first_key_value().map(|((deadline, _), _)| *deadline));
    }

    /// Adds a timer that wakes `waker`, and numbers it.
    fn add(&self, deadline: Instant, waker: Waker) -> u64 {
        self.last.set(self.last.get() + 1);
        let mut queue = self.queue.borrow_mut();
        queue.insert((deadline, self.last.get()), Some(waker));
        self.update_first(&queue);
        self.last.get()
    }

    /// Removes a timer, if it has not fired. Drop its waker when nothing is borrowed.
    fn remove(&self, deadline: Instant, number: u64) -> Option<Waker> {
        let mut queue = self.queue.borrow_mut();
        let removed = queue.remove(&(deadline, number));
        self.update_first(&queue);
        removed.flatten()
    }

    /// Collects the wakers of the timers that are due.
    pub(crate) fn fire(&self, now: Instant, wakes: &mut Vec<Waker>) {
        let mut queue = self.queue.borrow_mut();
        while let Some(timer) = queue.first_entry()
            && timer.key().0 <= now
        {
            wakes.extend(timer.remove());
        }
        self.update_first(&queue);
    }
}

/// A deadline passed before the future was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline passed first")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Runs `future` for at most `duration`. A future that is ready in time wins even if the deadline
/// passes at the same moment.
///
/// # Errors
/// [`Elapsed`] if the deadline comes first. The future is then dropped: a receive loses no data
/// that way, a send drops its waiting buffer ([`TcpStream::send`](crate::TcpStream::send)).
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    match crate::race(future, sleep(duration)).await {
        crate::Either::Left(output) => Ok(output),
        crate::Either::Right(()) => Err(Elapsed),
    }
}

/// Like [`timeout`], with a point in time.
///
/// # Errors
/// [`Elapsed`] if the deadline came first.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    let future = pin!(future);
    match crate::race(future, sleep_until(deadline)).await {
        crate::Either::Left(output) => Ok(output),
        crate::Either::Right(()) => Err(Elapsed),
    }
}
