//! Threads for blocking work: a few for files on an engine, or a filesystem, that cannot be used
//! otherwise, and more for what the program asks for ([`spawn_blocking`]).
//!
//! The threads belong to the runtime, are started on demand, and inherit the CPU of the worker that
//! starts them. Work arrives through a bounded queue; callers wait while it is full. A job owns all
//! that it uses, so a running job keeps its memory when its future is dropped.

use crate::runtime::current;
use crate::sys;
use crate::sys::Mapping;
use crate::task::{JoinError, JoinHandle, Outcome, WaitQueue, WaitToken, Waiter};
use crate::time::sleep;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

/// The names of threads for files begin so, and how many there are at most. Jobs wait for a disk, so
/// a few more than a disk serves in parallel.
pub(crate) const FILES: (&str, usize) = ("twinring-file", 4);
/// The same of threads for the program's own blocking work. Name servers that do not answer, for
/// which a job waits up to half a minute, do not soon hold up all of them.
pub(crate) const SPAWNED: (&str, usize) = ("twinring-blocking", 64);
/// Memory that must be left for another thread to be started: a stack of 2 MiB and its overhead.
/// The standard library starts a thread with an alternative signal stack, and ends the process if
/// it cannot allocate that (std/src/sys/pal/unix/stack_overflow.rs).
const THREAD_BYTES: usize = 4 << 20;
/// Jobs that wait for a thread; further ones wait in their tasks.
const QUEUE_MAX: usize = 256;

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Threads of one runtime.
pub(crate) struct Pool {
    name: &'static str,
    threads_max: usize,
    state: Mutex<State>,
    /// Work was queued, or the pool closed.
    work: Condvar,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Running threads, and those among them that wait for work.
    alive: usize,
    idle: usize,
    /// Tasks that found the queue full.
    waiters: WaitQueue,
    closed: bool,
}

impl State {
    /// True if a job must wait. FIFO: newcomers queue behind waiters, which are woken when half of
    /// the queue is free.
    fn is_full(&self) -> bool {
        let least = if self.waiters.is_empty() { QUEUE_MAX } else { QUEUE_MAX / 2 + 1 };
        self.queue.len() >= least
    }
}

impl Pool {
    /// [`FILES`] or [`SPAWNED`].
    pub(crate) fn new((name, threads_max): (&'static str, usize)) -> Pool {
        let (state, work, ended) = Default::default();
        Pool { name, threads_max, state, work, ended }
    }

    /// Runs work, which is queued when this is polled first. If it is dropped, work that has begun
    /// continues. Fails if the runtime has ended or no thread can be started.
    pub(crate) fn run<T, W>(
        self: &Arc<Pool>,
        work: W,
    ) -> impl Future<Output = io::Result<T>> + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (pool, (work, outcome)) = (Arc::clone(self), job(work));
        async move {
            pool.queue(&mut Some(work)).await?;
            match poll_fn(|cx| outcome.poll(cx)).await.map_err(JoinError::try_into_panic) {
                Ok(output) => Ok(output),
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                Err(Err(_never_ran)) => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            }
        }
    }

    /// Queues the work; waits while the queue is full.
    ///
    /// # Errors
    /// As [`run`](Pool::run); the work is left.
    pub(crate) async fn queue(self: &Arc<Pool>, work: &mut Option<Work>) -> io::Result<()> {
        let mut place = Place { pool: self, token: WaitToken::default() };
        poll_fn(|cx| {
            let mut waiter = Waiter::new(cx, &mut place.token);
            let mut state = self.lock();
            if state.closed {
                return Poll::Ready(Err(io::Error::from_raw_os_error(libc::ECANCELED)));
            }
            if state.is_full() {
                state.waiters.add(&mut waiter);
                return Poll::Pending;
            }
            if !self.has_thread(&mut state) {
                return Poll::Ready(Err(io::Error::from_raw_os_error(libc::EAGAIN)));
            }
            state.waiters.leave(&mut waiter);
            state.queue.extend(work.take());
            drop(state);
            self.work.notify_one();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Queues work without a future; returns it if the queue is full.
    pub(crate) fn run_detached(self: &Arc<Pool>, work: Work) -> Result<(), Work> {
        let mut state = self.lock();
        if state.closed || state.queue.len() >= QUEUE_MAX || !self.has_thread(&mut state) {
            return Err(work);
        }
        state.queue.push_back(work);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Ends the threads. Queued jobs are dropped, running ones have `patience` to end. Returns how
    /// many threads are abandoned because their job does not end. They own what they use and end
    /// with it, or with the process.
    pub(crate) fn close(&self, patience: Duration) -> usize {
        let mut state = self.lock();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        drop(queue);
        self.work.notify_all();
        let deadline = sys::now() + patience;
        let mut state = self.lock();
        while state.alive > 0 {
            let left = deadline.saturating_duration_since(sys::now());
            if left.is_zero() {
                break;
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let stuck = state.alive;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        for thread in threads {
            // Without stuck threads, all others are about to return.
            if stuck == 0 || thread.is_finished() {
                let _its_job_kept_the_panic = thread.join();
            }
        }
        stuck
    }

    /// A panic inside a critical section leaves no inconsistent state here.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread if no thread is free for one more job; false without any thread.
    fn has_thread(self: &Arc<Pool>, state: &mut State) -> bool {
        let needs_one = state.queue.len() >= state.idle && state.alive < self.threads_max;
        if needs_one && Mapping::fits(THREAD_BYTES) {
            let pool = Arc::clone(self);
            let name = format!("{}-{}", self.name, state.alive);
            let started = thread::Builder::new().name(name).spawn(move || pool.serve());
            if let Ok(thread) = started {
                state.threads.push(thread);
                state.alive += 1;
            }
        }
        state.alive > 0
    }

    fn serve(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some(work) = state.queue.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            let mut wakes = Vec::new();
            if state.queue.len() == QUEUE_MAX / 2 {
                state.waiters.wake(&mut wakes);
            }
            drop(state);
            wakes.into_iter().for_each(Waker::wake);
            work();
            state = self.lock();
        }
        state.alive -= 1;
        drop(state);
        self.ended.notify_all();
    }
}

/// A place among those who wait for room in the queue.
struct Place<'a> {
    pool: &'a Pool,
    token: WaitToken,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.token.may_wait() {
            let waker = self.pool.lock().waiters.remove(&mut self.token);
            drop(waker);
        }
    }
}

/// Work for a thread, and how it ends. It does not begin if nobody waits for it then.
pub(crate) fn job<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> (Work, Outcome<T>) {
    let (outcome, completion) = Outcome::new();
    let work = move || {
        if completion.is_awaited() {
            let done = catch_unwind(AssertUnwindSafe(work));
            completion.settle(done.map_err(JoinError::panicked));
        }
    };
    (Box::new(work), outcome)
}

/// How long work waits until another thread is tried, if not even one can be started.
const NO_THREAD_PAUSE: Duration = Duration::from_millis(100);

/// Runs blocking work on another thread: calls that wait, or that compute for more than a fraction
/// of a millisecond, would hold up all connections of a worker.
///
/// A runtime has at most 64 such threads, started on demand, and queues 256 jobs; further ones wait
/// in their tasks. A thread can only be used once the caller awaits something. Dropping the handle
/// detaches the work. [`JoinHandle::abort`] gives it up: it does not begin, or its result is
/// dropped. When the runtime ends, running work has a second to end (half of one after a requested
/// shutdown); then its thread is abandoned, see
/// [`Event::BlockingStuck`](crate::Event::BlockingStuck).
///
/// A panic of `work` is that of a task, see [`spawn`](crate::spawn).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let text = twinring::spawn_blocking(|| std::fs::read_to_string("/etc/hosts")).await??;
/// # Ok(())
/// # }
/// ```
pub fn spawn_blocking<T>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T>
where
    T: Send + 'static,
{
    let (worker, (work, outcome)) = (current(), job(work));
    let pool = Arc::clone(&worker.shared.spawned);
    JoinHandle::spawn(&worker, async move {
        let mut work = Some(work);
        // The pool outlives the tasks: an error says that there is no memory for any thread.
        while pool.queue(&mut work).await.is_err() {
            sleep(NO_THREAD_PAUSE).await;
        }
        match poll_fn(|cx| outcome.poll(cx)).await {
            Ok(output) => output,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_the_runtime_ends) => std::future::pending().await,
            },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::task::{Context, Wake};

    /// A job that reports that it has begun, and then blocks as on a dead server.
    fn stuck(begun: &mpsc::Sender<()>, gate: &Arc<Mutex<mpsc::Receiver<()>>>) -> Work {
        let (begun, gate) = (begun.clone(), Arc::clone(gate));
        Box::new(move || {
            begun.send(()).unwrap_or_default();
            gate.lock().unwrap().recv().unwrap_or_default();
        })
    }

    #[derive(Default)]
    struct Called(AtomicBool);

    impl Wake for Called {
        fn wake(self: Arc<Called>) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Newcomers took the place that had just become free, while the waiters were woken only when
    /// half of the queue was: under constant load, never.
    #[test]
    fn newcomers_queue_behind_waiters() {
        let (end, gate) = mpsc::channel();
        let (begun, begins) = mpsc::channel();
        let gate = Arc::new(Mutex::new(gate));
        let pool = Arc::new(Pool::new(FILES));
        let called = Arc::new(Called::default());
        let waker = Waker::from(Arc::clone(&called));
        let mut cx = Context::from_waker(&waker);
        for _ in 0..FILES.1 {
            assert!(pool.run_detached(stuck(&begun, &gate)).is_ok());
            begins.recv().unwrap();
        }
        for _ in 0..QUEUE_MAX {
            assert!(pool.run_detached(stuck(&begun, &gate)).is_ok());
        }
        assert!(pool.run_detached(stuck(&begun, &gate)).is_err(), "full");
        let mut first = std::pin::pin!(pool.run(|| ()));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        let one_ends = || {
            end.send(()).unwrap();
            begins.recv().unwrap();
        };
        one_ends();
        let mut late = std::pin::pin!(pool.run(|| ()));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(pool.lock().queue.len(), QUEUE_MAX - 1, "it waits behind the other");
        (1..QUEUE_MAX / 2).for_each(|_| one_ends());
        assert!(called.0.load(Ordering::Acquire));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert_eq!(pool.lock().queue.len(), QUEUE_MAX / 2 + 1, "it is queued");
        drop(end);
        assert_eq!(pool.close(Duration::from_secs(60)), 0);
    }
}
