//! Wakers that name a task.
//!
//! A task is named by its key, marked with the number of its worker, in the 64 bits of a waker's data
//! pointer, which is never followed: cloning and dropping one does nothing. A waker that outlives its task
//! names a generation that no longer exists, so it wakes no task.

use crate::slots::Key;
use crate::task::wake;
use std::ptr::without_provenance;
use std::task::{RawWaker, RawWakerVTable, Waker};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("twinring packs task names into 64-bit waker pointers");

/// The functions of these wakers, by which they are recognized.
static FUNCTIONS: RawWakerVTable = RawWakerVTable::new(clone, wake_named, wake_named, drop_nothing);

pub(crate) fn waker(task: Key) -> Waker {
    // SAFETY: the functions of the table meet the RawWaker contract: they are thread-safe and never follow
    // the data pointer.
    unsafe { Waker::from_raw(clone(without_provenance(task.to_bits() as usize))) }
}

/// The task that a waker names, if it is one of these.
#[inline]
pub(crate) fn task_of(waker: &Waker) -> Option<Key> {
    std::ptr::eq(waker.vtable(), &FUNCTIONS).then(|| named(waker.data()))
}

/// Empties a list of wakers of which nothing has to be dropped: the fastest way for these here.
#[inline]
pub(crate) fn forget_all(wakers: &mut Vec<Waker>) {
    // SAFETY: no element is needed below the new length; those that were there are leaked.
    unsafe { wakers.set_len(0) };
}

fn named(data: *const ()) -> Key {
    Key::from_all_bits(data.addr() as u64)
}

fn clone(data: *const ()) -> RawWaker {
    RawWaker::new(data, &FUNCTIONS)
}

fn wake_named(data: *const ()) {
    wake(named(data));
}

fn drop_nothing(_: *const ()) {}
