//! Wakes from other threads.
//!
//! Each worker registers one inbox under a number. A wake from another thread stores the task and
//! signals the worker's eventfd, which its driver watches. The order matters: the worker clears
//! `signalled` *before* it empties the queue, a waker fills the queue *before* it reads
//! `signalled`, so a wake is seen by the current drain or signals the next one.

use crate::runtime::with_current;
use crate::slots::Key;
use crate::sync::{AtomicBool, EventFd, Mutex, MutexGuard, RwLock};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Wakes that an inbox stores individually; beyond that it wakes every task of the worker once,
/// which is always correct because a task tolerates unnecessary polls. Models reach it quickly.
pub(super) const WAKES_MAX: usize = if cfg!(loom) { 2 } else { 4096 };

/// Concurrent workers in one process: the number must fit into a task's name beside its key.
const WORKERS_MAX: usize = 1 << (64 - Key::BITS);

#[cfg(not(all(test, loom)))]
static INBOXES: RwLock<Vec<Option<Arc<Inbox>>>> = RwLock::new(Vec::new());
#[cfg(all(test, loom))]
loom::lazy_static! {
    static ref INBOXES: RwLock<Vec<Option<Arc<Inbox>>>> = RwLock::new(Vec::new());
}

/// Requests of other threads to this worker.
pub(crate) struct Inbox {
    /// Tasks to wake: all of them if there are more than [`WAKES_MAX`].
    requests: Mutex<Vec<Key>>,
    signalled: AtomicBool,
    /// A worker takes the requests.
    running: AtomicBool,
    /// Becomes readable when something was pushed.
    pub(crate) eventfd: EventFd,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Vec<Key>> {
        // The critical sections below cannot leave the list inconsistent, so a panic elsewhere does
        // not make it unusable.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the worker return from its wait, without naming a task.
    pub(crate) fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            self.eventfd.signal();
        }
    }

    fn push(&self, task: Key) {
        {
            let mut requests = self.lock();
            if requests.len() <= WAKES_MAX {
                requests.push(task);
            }
        }
        self.signal();
    }

    /// A worker takes what comes from now on, until [`end`](Inbox::end). False if another one does.
    pub(crate) fn open(&self) -> bool {
        !self.running.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn end(&self) {
        self.running.store(false, Ordering::Release);
    }

    /// True if wakes may be waiting; cheap, so it can be called before every wait.
    pub(crate) fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Acquire)
    }

    pub(super) fn drain(&self) -> Vec<Key> {
        self.eventfd.clear();
        // A swap and not a store: it also acquires what a signaller did before, which may be
        // something other than a push (the stage of the runtime), and is not ordered by a lock.
        self.signalled.swap(false, Ordering::AcqRel);
        std::mem::take(&mut *self.lock())
    }
}

/// Holds a worker's number; releases it when dropped.
pub(crate) struct Registration {
    pub(crate) worker: usize,
    pub(crate) inbox: Arc<Inbox>,
}

impl Registration {
    /// Takes a free worker number. Fails when no eventfd can be created, or 4,096 workers are
    /// already alive.
    pub(crate) fn new() -> io::Result<Registration> {
        let inbox = Arc::new(Inbox {
            requests: Mutex::new(Vec::new()),
            signalled: AtomicBool::new(false),
            running: AtomicBool::new(false),
            eventfd: EventFd::new()?,
        });
        let mut inboxes = INBOXES.write().unwrap_or_else(PoisonError::into_inner);
        let free = inboxes.iter().position(Option::is_none).unwrap_or(inboxes.len());
        if free == WORKERS_MAX {
            return Err(io::Error::other("more than 4096 workers are alive in this process"));
        }
        if free == inboxes.len() {
            inboxes.push(None);
        }
        inboxes[free] = Some(Arc::clone(&inbox));
        Ok(Registration { worker: free, inbox })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut inboxes = INBOXES.write().unwrap_or_else(PoisonError::into_inner);
        inboxes[self.worker] = None;
    }
}

/// Wakes a task from any thread. An unused number of a worker wakes no task; one that was reassigned to a
/// newer worker wakes at most one task there unnecessarily.
pub(crate) fn wake(task: Key) {
    let local = with_current(|worker| {
        let here = worker.registration.worker == task.mark();
        if here {
            worker.executor.wake(task);
        }
        here
    });
    if local == Some(true) {
        return;
    }
    let inboxes = INBOXES.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(Some(inbox)) = inboxes.get(task.mark()) {
        inbox.push(task);
    }
}
