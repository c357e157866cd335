//! Wakers that are plain numbers: cloning and dropping one does nothing, and no pointer is ever followed.

use std::ptr::without_provenance;
use std::task::{RawWaker, RawWakerVTable, Waker};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("twinring packs task names into 64-bit waker pointers");

/// What such a waker does when it is woken, on any thread.
pub(crate) trait Wake {
    /// The functions of these wakers; always the same object, by which they are recognized.
    fn functions() -> &'static Functions;

    fn wake(number: u64);
}

/// See [`Wake::functions`].
pub(crate) struct Functions(RawWakerVTable);

impl Functions {
    pub(crate) const fn of<W: Wake>() -> Functions {
        Functions(RawWakerVTable::new(clone::<W>, wake::<W>, wake::<W>, drop_nothing))
    }
}

/// The waker with this number.
pub(crate) fn waker<W: Wake>(number: u64) -> Waker {
    // SAFETY: the functions of the table meet the RawWaker contract: they are thread-safe
    // (`Wake::wake` may be called on any thread) and never follow the data pointer.
    unsafe { Waker::from_raw(raw::<W>(number)) }
}

/// The number of a waker, if it is one of these.
#[inline]
pub(crate) fn number_of<W: Wake>(waker: &Waker) -> Option<u64> {
    let ours = std::ptr::eq(waker.vtable(), &W::functions().0);
    ours.then(|| waker.data().addr() as u64)
}

/// Empties a list of wakers of which nothing has to be dropped: the fastest way for these here.
#[inline]
pub(crate) fn forget_all(wakers: &mut Vec<Waker>) {
    // SAFETY: no element is needed below the new length; those that were there are leaked.
    unsafe { wakers.set_len(0) };
}

fn raw<W: Wake>(number: u64) -> RawWaker {
    RawWaker::new(without_provenance(number as usize), &W::functions().0)
}

fn clone<W: Wake>(data: *const ()) -> RawWaker {
    raw::<W>(data.addr() as u64)
}

fn wake<W: Wake>(data: *const ()) {
    W::wake(data.addr() as u64);
}

fn drop_nothing(_: *const ()) {}
