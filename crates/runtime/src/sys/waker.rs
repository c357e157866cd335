//! Wakers that are plain numbers.
//!
//! A task is named by worker, slot and generation, packed into the 64 bits of a waker's data
//! pointer. Cloning and dropping such a waker does nothing, and a waker that outlives its task
//! names a generation that no longer exists, so it wakes no task. No reference counts, no memory
//! to keep alive, and no pointer that is ever followed.

use crate::task::{self, TaskId};
use std::ptr::without_provenance;
use std::task::{RawWaker, RawWakerVTable, Waker};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("twinring packs task names into 64-bit waker pointers");

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, drop_nothing);

/// A waker for `task`.
pub(crate) fn waker(task: TaskId) -> Waker {
    // SAFETY: the functions of the table meet the RawWaker contract: they are thread-safe
    // (`task::wake` may be called on any thread) and never follow the data pointer.
    unsafe { Waker::from_raw(raw(task.to_bits())) }
}

/// A clone; of one of our wakers without the calls through its table.
#[inline]
pub(crate) fn copy(of: &Waker) -> Waker {
    task_of(of).map_or_else(|| of.clone(), waker)
}

/// The task that a waker names, if it is one of ours.
#[inline]
pub(crate) fn task_of(waker: &Waker) -> Option<TaskId> {
    let ours = std::ptr::eq(waker.vtable(), &VTABLE);
    ours.then(|| TaskId::from_bits(waker.data().addr() as u64))
}

fn raw(bits: u64) -> RawWaker {
    RawWaker::new(without_provenance(bits as usize), &VTABLE)
}

fn clone(data: *const ()) -> RawWaker {
    raw(data.addr() as u64)
}

fn wake(data: *const ()) {
    task::wake(TaskId::from_bits(data.addr() as u64));
}

fn drop_nothing(_: *const ()) {}
