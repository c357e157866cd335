//! Wakes that come from other threads.
//!
//! Each worker registers one inbox under a number. A wake from another thread stores the task and
//! signals the worker's eventfd, which its driver watches. The order matters: the worker clears
//! `signalled` *before* it empties the queue, a waker fills the queue *before* it looks at
//! `signalled`, so a wake is seen by the running drain or signals the next one.

use super::TaskId;
use super::eventfd::EventFd;
use crate::driver::slots::Key;
use crate::sync::{AtomicBool, Mutex, MutexGuard, RwLock};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Wakes an inbox remembers one by one; beyond that it wakes every task of the worker once, which
/// is always correct because a task tolerates being polled without need. Models get there quickly.
const WAKES_MAX: usize = if cfg!(loom) { 2 } else { 4096 };

/// Workers alive at once in one process: what fits into a task's name beside its key.
const WORKERS_MAX: usize = 1 << (64 - Key::BITS);

#[cfg(not(all(test, loom)))]
static INBOXES: RwLock<Vec<Option<Arc<Inbox>>>> = RwLock::new(Vec::new());
#[cfg(all(test, loom))]
loom::lazy_static! {
    static ref INBOXES: RwLock<Vec<Option<Arc<Inbox>>>> = RwLock::new(Vec::new());
}

#[derive(Default)]
struct Pending {
    tasks: Vec<Key>,
    overflowed: bool,
}

/// What other threads want this worker to do.
pub(crate) struct Inbox {
    pending: Mutex<Pending>,
    signalled: AtomicBool,
    eventfd: EventFd,
}

/// What [`Inbox::drain`] found.
pub(crate) enum Drained {
    /// Wake these tasks.
    Tasks(Vec<Key>),
    /// More than fit: wake every task.
    All,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        // The critical sections below cannot leave the list half-changed, so a panic elsewhere
        // does not make it unusable.
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

    /// The descriptor that becomes readable when something was pushed.
    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }

    /// True if something may be waiting; cheap, so it can be asked before every wait.
    pub(crate) fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Acquire)
    }

    /// Takes everything that was pushed.
    pub(crate) fn drain(&self) -> Drained {
        self.eventfd.clear();
        // A swap and not a store: it also takes over what a signaller did before, which may be
        // something else than a push (the stage of the runtime), and which no lock orders.
        self.signalled.swap(false, Ordering::AcqRel);
        let mut pending = self.lock();
        let tasks = std::mem::take(&mut pending.tasks);
        if std::mem::take(&mut pending.overflowed) { Drained::All } else { Drained::Tasks(tasks) }
    }
}

/// Holds a worker's number; gives it back when dropped.
pub(crate) struct Registration {
    worker: u16,
    inbox: Arc<Inbox>,
}

impl Registration {
    /// Takes a free worker number.
    ///
    /// # Errors
    /// When no eventfd can be made, or 4,096 workers are alive already.
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
        Ok(Registration { worker: free as u16, inbox })
    }

    pub(crate) fn worker(&self) -> u16 {
        self.worker
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut inboxes = INBOXES.write().unwrap_or_else(PoisonError::into_inner);
        inboxes[usize::from(self.worker)] = None;
    }
}

/// Wakes a task of another worker. A number that is no longer in use wakes nobody; one that was
/// given to a newer worker wakes at most a task there that did not ask for it.
pub(super) fn wake_remote(task: TaskId) {
    let inboxes = INBOXES.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(Some(inbox)) = inboxes.get(usize::from(task.worker)) {
        inbox.push(task.key);
    }
}
