//! Threads for blocking work: a few for files on an engine, or a filesystem, that cannot be used
//! otherwise, and more for what the program asks for ([`spawn_blocking`]).
//!
//! The threads belong to the runtime, are started on demand, and inherit the CPU of the worker that
//! starts them. A job that waits for a thread belongs to its future and ends with it, so there are no
//! more of them than tasks; only those that close a file have none, and no more of them than
//! descriptors. A job owns all that it uses, so a running one keeps its memory when its future is
//! dropped.

use crate::runtime::current;
use crate::sys::Mapping;
use crate::task::{JoinError, JoinHandle, Outcome};
use crate::time::sleep;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The names of threads for files begin so, and how many there are at most: a few more than a disk serves in
/// parallel.
pub(crate) const FILES: (&str, usize) = ("twinring-file", 4);
/// The same of threads for the program's own blocking work. A job may wait half a minute for a name server.
pub(crate) const SPAWNED: (&str, usize) = ("twinring-blocking", 64);
/// Memory that must be left for another thread to be started: a stack of 2 MiB and its overhead.
/// The standard library starts a thread with an alternative signal stack, and ends the process if
/// it cannot allocate that (std/src/sys/pal/unix/stack_overflow.rs).
const THREAD_BYTES: usize = 4 << 20;

type Work = Box<dyn FnOnce() + Send>;

pub(crate) struct ThreadPool {
    name: &'static str,
    threads_max: usize,
    state: Mutex<PoolState>,
    /// Work was queued, or the pool closed.
    work: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct PoolState {
    /// By their numbers, so in the order in which they came.
    queue: BTreeMap<u64, Work>,
    last: u64,
    threads: Vec<thread::JoinHandle<()>>,
    /// Running threads, and those among them that wait for work.
    alive: usize,
    idle: usize,
    closed: bool,
}

impl ThreadPool {
    pub(crate) fn new((name, threads_max): (&'static str, usize)) -> ThreadPool {
        let (state, work, ended) = Default::default();
        ThreadPool { name, threads_max, state, work, ended }
    }

    /// Runs work, which is queued when this is polled first. If it is dropped, work that has begun
    /// continues. Fails if the runtime has ended or no thread can be started.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<ThreadPool>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (work, outcome) = job(work);
        let number = self.queue(&mut Some(work))?;
        let _queued = Queued { pool: Arc::clone(self), number };
        ended(outcome).await.ok_or_else(|| io::Error::from_raw_os_error(libc::ECANCELED))
    }

    /// Queues the work and returns its number. Fails as [`run`](ThreadPool::run), and leaves it then.
    fn queue(self: &Arc<ThreadPool>, work: &mut Option<Work>) -> io::Result<u64> {
        let mut state = self.lock();
        if state.closed {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        if !self.has_thread(&mut state) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        state.last += 1;
        let number = state.last;
        state.queue.extend(work.take().map(|work| (number, work)));
        drop(state);
        self.work.notify_one();
        Ok(number)
    }

    /// Has `last` dropped by a thread, or here if there is none.
    pub(crate) fn drop_there(self: &Arc<ThreadPool>, last: impl Send + 'static) {
        let _or_dropped_here = self.queue(&mut Some(Box::new(move || drop(last))));
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
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        while state.alive > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
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
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread if no thread is free for one more job; false without any thread.
    fn has_thread(self: &Arc<ThreadPool>, state: &mut PoolState) -> bool {
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
            let Some((_, work)) = state.queue.pop_first() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            // Of what the work returned or owned, if nobody waits for it.
            let _a_destructor_panicked = catch_unwind(AssertUnwindSafe(work));
            state = self.lock();
        }
        state.alive -= 1;
        drop(state);
        self.ended.notify_all();
    }
}

/// A job that may still be in the queue, and leaves it when this is dropped.
struct Queued {
    pool: Arc<ThreadPool>,
    number: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        let work = self.pool.lock().queue.remove(&self.number);
        drop(work);
    }
}

/// Work for a thread, and how it ends.
fn job<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Work, Outcome<T>) {
    let (outcome, completion) = Outcome::new();
    let work = move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        completion.settle(done.map_err(JoinError::panicked));
    };
    (Box::new(work), outcome)
}

/// The output of work; `None` if it did not run because the runtime ends. Its panic is passed on.
async fn ended<T>(outcome: Outcome<T>) -> Option<T> {
    match poll_fn(|cx| outcome.poll(cx)).await.map_err(JoinError::try_into_panic) {
        Ok(output) => Some(output),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_did_not_run)) => None,
    }
}

/// How long work waits until another thread is tried, if not even one can be started.
const NO_THREAD_PAUSE: Duration = Duration::from_millis(100);

/// Runs blocking work on another thread: calls that wait, or that compute for more than a fraction
/// of a millisecond, would hold up all connections of a worker.
///
/// A runtime has at most 64 such threads, started on demand; further jobs wait for one. A thread can
/// only be used once the caller awaits something. Dropping the handle detaches the work.
/// [`JoinHandle::abort`] gives it up: it does not begin, or its result is dropped. When the runtime
/// ends, running work has a second to end (half of one after a requested shutdown); then its thread
/// is abandoned, see [`Event::BlockingStuck`](crate::Event::BlockingStuck).
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
        let _queued = loop {
            // The pool outlives the tasks: an error says that there is no memory for any thread.
            match pool.queue(&mut work) {
                Ok(number) => break Queued { pool, number },
                Err(_) => sleep(NO_THREAD_PAUSE).await,
            }
        };
        match ended(outcome).await {
            Some(output) => output,
            None => std::future::pending().await,
        }
    })
}
