//! Wakers that name a task.
//!
//! A task is named by worker, slot and generation, packed into the 64 bits of a waker's data
//! pointer. A waker that outlives its task names a generation that no longer exists, so it wakes no
//! task. No reference counts, no memory to keep alive.

use super::inbox;
use crate::runtime::with_current;
use crate::slots::Key;
use crate::sys::waker::{self as sys, Functions, Wake};
use std::task::Waker;

/// Names a task in this process: the worker it lives on and its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) worker: u16,
    pub(crate) key: Key,
}

impl TaskId {
    fn to_bits(self) -> u64 {
        self.key.to_bits() | u64::from(self.worker) << Key::BITS
    }

    fn from_bits(bits: u64) -> TaskId {
        TaskId { worker: (bits >> Key::BITS) as u16, key: Key::from_bits(bits) }
    }
}

struct Tasks;

impl Wake for Tasks {
    fn functions() -> &'static Functions {
        static FUNCTIONS: Functions = Functions::of::<Tasks>();
        &FUNCTIONS
    }

    fn wake(number: u64) {
        wake(TaskId::from_bits(number));
    }
}

/// A waker for `task`.
pub(crate) fn waker(task: TaskId) -> Waker {
    sys::waker::<Tasks>(task.to_bits())
}

/// A clone; of one of our wakers without the calls through its table.
#[inline]
pub(super) fn copy(of: &Waker) -> Waker {
    task_of(of).map_or_else(|| of.clone(), waker)
}

/// The task that a waker names, if it is one of ours.
#[inline]
pub(crate) fn task_of(waker: &Waker) -> Option<TaskId> {
    sys::number_of::<Tasks>(waker).map(TaskId::from_bits)
}

/// Wakes a task from any thread.
fn wake(task: TaskId) {
    let local = with_current(|worker| {
        let here = worker.executor.worker == task.worker;
        if here {
            worker.executor.wake(task.key);
        }
        here
    });
    if local != Some(true) {
        inbox::wake_remote(task);
    }
}
