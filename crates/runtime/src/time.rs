//! Sleeping and deadlines, on the timers of a worker that both engines share.

use crate::runtime::{Worker, current};
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
    let now = Instant::now();
    // A deadline beyond the clock's range counts as 30 years ahead.
    sleep_until(now.checked_add(duration).unwrap_or(now + Duration::from_secs(946_080_000)))
}

/// Waits until `deadline`; at once if it has passed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, registered: None }
}

/// The future of [`sleep`] and [`sleep_until`]. Dropping it removes its timer.
#[derive(Debug)]
pub struct Sleep {
    pub(crate) deadline: Instant,
    /// The number of its timer.
    registered: Option<(Rc<Worker>, u64)>,
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
        if Instant::now() >= self.deadline {
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
    pub(crate) queue: RefCell<BTreeMap<(Instant, u64), Option<Waker>>>,
    /// When the first of them is due.
    first: Cell<Option<Instant>>,
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
/// passes at the same moment. Fails with [`Elapsed`] if the deadline comes first. The future is
/// then dropped: a receive loses no data that way, a send drops its waiting buffer
/// ([`TcpStream::send`](crate::TcpStream::send)).
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    match crate::race(future, sleep(duration)).await {
        crate::Either::Left(output) => Ok(output),
        crate::Either::Right(()) => Err(Elapsed),
    }
}

/// Like [`timeout`], with a point in time.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    let future = pin!(future);
    match crate::race(future, sleep_until(deadline)).await {
        crate::Either::Left(output) => Ok(output),
        crate::Either::Right(()) => Err(Elapsed),
    }
}

/// Shortest period of a [`Interval`].
const PERIOD_MIN: Duration = Duration::from_micros(1);

/// Times at equal distances, fixed from the start: a late tick does not delay the following ones.
#[derive(Debug)]
pub struct Interval {
    next: Instant,
    period: Duration,
}

/// One tick of a [`Interval`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// When it was due.
    pub deadline: Instant,
    /// How late the wait for it ended. `None` if there was no wait, because the task was busy until
    /// this tick was due.
    pub overrun: Option<Duration>,
}

impl Interval {
    /// The first tick is one period (at least 1 us) from now.
    pub fn new(period: Duration) -> Interval {
        let period = period.max(PERIOD_MIN);
        Interval { next: sleep(period).deadline, period }
    }

    /// Waits for the next tick. If several have passed, it returns the last of them, at once.
    pub async fn tick(&mut self) -> Tick {
        let waits = Instant::now() < self.next;
        sleep_until(self.next).await;
        let late = Instant::now().saturating_duration_since(self.next);
        let since_last = Duration::from_nanos((late.as_nanos() % self.period.as_nanos()) as u64);
        let deadline = self.next + (late - since_last);
        // A time beyond the clock's range never comes; the one before it serves as well.
        self.next = deadline.checked_add(self.period).unwrap_or(deadline);
        Tick { deadline, overrun: waits.then_some(late) }
    }
}
