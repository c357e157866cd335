//! Wakers that name a task.
//!
//! A task is named by its key, marked with the number of its worker, in the 64 bits of a waker's data
//! pointer. A waker that outlives its task names a generation that no longer exists, so it wakes no
//! task. No reference counts, no memory to keep alive.

use super::inbox;
use crate::runtime::with_current;
use crate::slots::Key;
use crate::sys::waker::{self as sys, Functions, Wake};
use std::task::Waker;

struct Tasks;

impl Wake for Tasks {
    fn functions() -> &'static Functions {
        static FUNCTIONS: Functions = Functions::of::<Tasks>();
        &FUNCTIONS
    }

    fn wake(number: u64) {
        wake(Key::from_all_bits(number));
    }
}

/// A waker for `task`.
pub(crate) fn waker(task: Key) -> Waker {
    sys::waker::<Tasks>(task.to_bits())
}

/// A clone; of one of our wakers without the calls through its table.
#[inline]
pub(super) fn copy(of: &Waker) -> Waker {
    task_of(of).map_or_else(|| of.clone(), waker)
}

/// The task that a waker names, if it is one of ours.
#[inline]
pub(crate) fn task_of(waker: &Waker) -> Option<Key> {
    sys::number_of::<Tasks>(waker).map(Key::from_all_bits)
}

/// Wakes a task from any thread.
fn wake(task: Key) {
    let local = with_current(|worker| {
        let here = worker.registration.worker == task.mark();
        if here {
            worker.executor.wake(task);
        }
        here
    });
    if local != Some(true) {
        inbox::wake_remote(task);
    }
}
