//! Sleeping and deadlines, on one timer wheel per worker that both engines share.

mod interval;
pub(crate) mod wheel;

pub use interval::{Interval, Tick};

use crate::runtime::{Worker, current};
use crate::slots::Key;
use crate::sys;
use crate::task::{WaitToken, Waiter};
use std::fmt;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Waits for `duration`, to the precision of the kernel's timers (tens of microseconds).
///
/// # Panics
/// When polled outside a twinring runtime.
pub fn sleep(duration: Duration) -> Sleep {
    let now = sys::now();
    // A deadline beyond the clock's range counts as 30 years ahead.
    sleep_until(now.checked_add(duration).unwrap_or(now + Duration::from_secs(946_080_000)))
}

/// Waits until `deadline`; at once if it has passed.
///
/// # Panics
/// When polled outside a twinring runtime.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, registered: None }
}

/// The future of [`sleep`] and [`sleep_until`]. Dropping it removes its timer.
pub struct Sleep {
    deadline: Instant,
    registered: Option<(Rc<Worker>, Key)>,
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
        if let Some((worker, key)) = &self.registered
            && worker.timers.borrow_mut().renew(*key, &mut waiter)
        {
            return Poll::Pending;
        }
        self.registered = None;
        if sys::now() >= self.deadline {
            return Poll::Ready(());
        }
        let worker = current();
        let deadline_ns = worker.since_start_ns(self.deadline);
        let key = worker.timers.borrow_mut().insert(deadline_ns, waiter.waker());
        self.registered = Some((worker, key));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((worker, key)) = self.registered.take() {
            let waker = worker.timers.borrow_mut().remove(key);
            drop(waker);
        }
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
