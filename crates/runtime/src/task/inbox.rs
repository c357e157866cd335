//! Wakes from other threads.
//!
//! Each worker registers one inbox under a number. A wake from another thread stores the task and
//! signals the worker's eventfd, which its driver watches. Tasks that another thread starts here come the
//! same way. The order matters: the worker clears
//! `signalled` *before* it empties the queue, a waker fills the queue *before* it reads
//! `signalled`, so a wake is seen by the current drain or signals the next one.

#[cfg(all(test, loom))]
use super::eventfd_model::EventFd;
use super::join::Starter;
use crate::slots::Key;
use crate::sync::{AtomicBool, Mutex, MutexGuard, RwLock};
#[cfg(not(all(test, loom)))]
use crate::sys::EventFd;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Wakes that an inbox stores individually; beyond that it wakes every task of the worker once,
/// which is always correct because a task tolerates unnecessary polls. Models reach it quickly.
const WAKES_MAX: usize = if cfg!(loom) { 2 } else { 4096 };

/// Concurrent workers in one process: the number must fit into a task's name beside its key.
const WORKERS_MAX: usize = 1 << (64 - Key::BITS);

#[cfg(not(all(test, loom)))]
static INBOXES: RwLock<Vec<Option<Arc<Inbox>>>> = RwLock::new(Vec::new());
#[cfg(all(test, loom))]
loom::lazy_static! {
    static ref INBOXES: RwLock<Vec<Option<Arc<Inbox>>>> = RwLock::new(Vec::new());
}

/// Tasks of other threads that an inbox holds until its worker starts them.
const STARTERS_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Pending {
    /// Tasks to wake; all of them if it overflowed.
    pub(super) tasks: Vec<Key>,
    pub(super) overflowed: bool,
    /// Tasks to start.
    pub(super) starters: Vec<Starter>,
    /// The worker starts no further tasks of others.
    closed: bool,
}

/// Requests of other threads to this worker.
pub(crate) struct Inbox {
    pending: Mutex<Pending>,
    signalled: AtomicBool,
    /// Becomes readable when something was pushed.
    pub(crate) eventfd: EventFd,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        // The critical sections below cannot leave the list inconsistent, so a panic elsewhere does
        // not make it unusable.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the worker return from its wait, without naming a task.
    pub(crate) fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            self.eventfd.signal();
        }
    }

    fn push(&self, task: Key) {
        {
            let mut pending = self.lock();
            if pending.tasks.len() < WAKES_MAX {
                pending.tasks.push(task);
            } else {
                pending.overflowed = true;
            }
        }
        self.signal();
    }

    /// Makes the worker start a task. Fails when it has ended, or has not started the last 1,024.
    pub(crate) fn start(&self, starter: Starter) -> io::Result<()> {
        {
            let mut pending = self.lock();
            if pending.closed {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the worker has ended"));
            }
            if pending.starters.len() == STARTERS_MAX {
                let what = format!("the worker has not started the last {STARTERS_MAX} tasks yet");
                return Err(io::Error::new(io::ErrorKind::WouldBlock, what));
            }
            pending.starters.push(starter);
        }
        self.signal();
        Ok(())
    }

    /// Drops the tasks that were not started, and refuses further ones.
    pub(crate) fn close(&self) {
        let starters = {
            let mut pending = self.lock();
            pending.closed = true;
            std::mem::take(&mut pending.starters)
        };
        // Foreign code: what the tasks own.
        drop(starters);
    }

    /// True if wakes may be waiting; cheap, so it can be called before every wait.
    pub(crate) fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Acquire)
    }

    /// Takes what is pending.
    pub(super) fn drain(&self) -> Pending {
        self.eventfd.clear();
        // A swap and not a store: it also acquires what a signaller did before, which may be
        // something other than a push (the stage of the runtime), and is not ordered by a lock.
        self.signalled.swap(false, Ordering::AcqRel);
        let mut pending = self.lock();
        let closed = pending.closed;
        std::mem::replace(&mut *pending, Pending { closed, ..Pending::default() })
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
            pending: Mutex::new(Pending::default()),
            signalled: AtomicBool::new(false),
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

/// Wakes a task of another worker. An unused number wakes no task; one that was reassigned to a
/// newer worker wakes at most one task there unnecessarily.
pub(super) fn wake_remote(task: Key) {
    let inboxes = INBOXES.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(Some(inbox)) = inboxes.get(task.mark()) {
        inbox.push(task);
    }
}
