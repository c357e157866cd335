//! The pool of receive buffers.

#[cfg(debug_assertions)]
use super::quarantine::{self, Quarantined};
use crate::sys::Mapping;
use std::cell::Cell;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
#[cfg(debug_assertions)]
use std::ops::Range;
use std::rc::Rc;

/// Equal buffers in one mapping, and the list of released ones.
///
/// Ownership: a buffer with a reader belongs to that and is never written; a buffer on the released
/// list has no owner; a buffer taken from that list belongs to the engine, which may let the kernel
/// write until it creates the reader. Debug builds check both, see `quarantine`.
pub(crate) struct BufPool {
    /// Taken out when the pool is dropped.
    memory: ManuallyDrop<Mapping>,
    buffer_bytes: usize,
    /// Released buffers, most recent last: the first so many of these.
    released: Box<[Cell<u16>]>,
    released_count: Cell<usize>,
    #[cfg(debug_assertions)]
    written: Box<[Written]>,
}

/// Whether a buffer has a reader, and how much of it, from its start, readers ever had. Only that is filled with poison: to fill all of a pool takes
/// longer than most tests.
#[cfg(debug_assertions)]
#[derive(Default)]
struct Written {
    in_use: Cell<bool>,
    /// So much is poison while the buffer is released.
    poisoned: Cell<usize>,
    /// So much has been filled since it was taken.
    filled: Cell<usize>,
}

impl BufPool {
    /// A pool of `count` (1 to 32,768) buffers of `buffer_bytes` each, all released. Fails when
    /// there is not enough memory; the message says for what.
    pub(crate) fn new(count: u16, buffer_bytes: usize) -> io::Result<BufPool> {
        let memory = Mapping::new(usize::from(count) * buffer_bytes).map_err(|error| {
            let why = format!(
                "no memory for {count} receive buffers of {buffer_bytes} bytes ({error}): take \
                 fewer or smaller ones, or allow more memory (`ulimit -v`)"
            );
            io::Error::new(error.kind(), why)
        })?;
        Ok(BufPool {
            memory: ManuallyDrop::new(memory),
            buffer_bytes,
            released: (0..count).rev().map(Cell::new).collect(),
            released_count: Cell::new(usize::from(count)),
            #[cfg(debug_assertions)]
            written: (0..count).map(|_| Written::default()).collect(),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.released.len()
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Buffers without readers: released ones and those that the kernel may fill.
    #[inline]
    pub(crate) fn available(self: &Rc<BufPool>) -> usize {
        self.count() - self.in_use()
    }

    /// Buffers with readers. Each reader holds a reference to the pool, and so does one owner.
    #[inline]
    pub(crate) fn in_use(self: &Rc<BufPool>) -> usize {
        Rc::strong_count(self) - 1
    }

    /// If no more buffers are free, data is copied out before a task can keep it, so that this many always
    /// return.
    pub(crate) fn low(&self) -> usize {
        self.count() / 8
    }

    /// Address of buffer `id`, for the kernel.
    #[inline]
    pub(crate) fn address(&self, id: u16) -> *mut u8 {
        assert!(usize::from(id) < self.count(), "a buffer of another pool");
        // SAFETY: `id` is below the count, so the offset is inside the mapping.
        unsafe { self.memory.start().as_ptr().add(usize::from(id) * self.buffer_bytes) }
    }

    /// Takes the buffer that was released last, which is still in the cache, to fill it at once.
    /// Debug builds take the one that was released first, which was in quarantine for longest.
    #[inline]
    pub(crate) fn take(&self) -> Option<u16> {
        let left = self.released().checked_sub(1)?;
        self.released_count.set(left);
        if cfg!(debug_assertions) {
            (0..left).for_each(|at| self.released[at].swap(&self.released[at + 1]));
        }
        let id = self.released[left].get();
        #[cfg(debug_assertions)]
        {
            assert!(!self.written[usize::from(id)].in_use.get(), "buffer {id} has a reader");
            self.check_poison(id);
        }
        Some(id)
    }

    /// Buffers that are kept from the kernel while readers release the others: one more than make
    /// the pool low.
    pub(crate) fn reserve(&self) -> usize {
        self.low() + 1
    }

    /// Takes a buffer for the kernel, unless only `reserve` are left: the one that was released
    /// last, which is still in the cache. Debug builds take the one that was released first, and
    /// keep a sixteenth of the pool back, so that a buffer is in quarantine for a while even when
    /// buffers are short. That must be less than [`low`](BufPool::low) keeps in circulation.
    pub(crate) fn take_for_kernel(&self, reserve: usize) -> Option<u16> {
        let kept_back = if cfg!(debug_assertions) { self.count() / 16 } else { 0 };
        if self.released() <= kept_back.max(reserve) { None } else { self.take() }
    }

    #[inline]
    pub(crate) fn released(&self) -> usize {
        self.released_count.get()
    }

    /// A buffer that was filled up to `end` gets a reader.
    #[cfg(debug_assertions)]
    pub(super) fn retain(&self, id: u16, end: usize) {
        self.note_filled(id, end);
        assert!(!self.written[usize::from(id)].in_use.replace(true), "a buffer has one reader");
    }

    /// Its reader has gone.
    #[inline]
    pub(super) fn release(&self, id: u16) {
        #[cfg(debug_assertions)]
        assert!(self.written[usize::from(id)].in_use.replace(false), "a buffer is released twice");
        self.put_back(id);
    }

    /// Returns a buffer that was taken and never referenced.
    pub(crate) fn give_back(&self, id: u16) {
        // How much of it the kernel has written to is not known.
        #[cfg(debug_assertions)]
        self.note_filled(id, self.buffer_bytes);
        self.put_back(id);
    }

    #[inline]
    fn put_back(&self, id: u16) {
        #[cfg(debug_assertions)]
        self.poison(id);
        let count = self.released();
        self.released[count].set(id);
        self.released_count.set(count + 1);
    }

    /// The whole buffer, writable, for a receive by system call.
    ///
    /// The closure gets exclusive memory: `id` was taken and has no reference.
    pub(crate) fn with_writable<R>(
        &self,
        id: u16,
        write: impl FnOnce(&mut [MaybeUninit<u8>]) -> R,
    ) -> R {
        #[cfg(debug_assertions)]
        assert!(
            !self.written[usize::from(id)].in_use.get(),
            "a buffer with a reader is not writable"
        );
        // SAFETY: inside the mapping (`address` checks), and taken by the caller, so neither a reader nor
        // another writer exists for the time of the call.
        write(unsafe { std::slice::from_raw_parts_mut(self.address(id).cast(), self.buffer_bytes) })
    }

    /// The buffer is filled up to `end`.
    #[cfg(debug_assertions)]
    fn note_filled(&self, id: u16, end: usize) {
        let filled = &self.written[usize::from(id)].filled;
        filled.set(filled.get().max(end));
    }

    #[cfg(debug_assertions)]
    fn poison(&self, id: u16) {
        let Written { poisoned, filled, .. } = &self.written[usize::from(id)];
        poisoned.set(poisoned.get().max(filled.take()));
        // SAFETY: a part of the buffer, inside the mapping. Without references, and not owned by the
        // engine, it has no other user.
        let used = unsafe { std::slice::from_raw_parts_mut(self.address(id), poisoned.get()) };
        quarantine::poison(used);
    }

    #[cfg(debug_assertions)]
    fn check_poison(&self, id: u16) {
        let poisoned = self.written[usize::from(id)].poisoned.get();
        // SAFETY: as in `poison`; only read.
        let used = unsafe { std::slice::from_raw_parts(self.address(id), poisoned) };
        quarantine::check(used, || format!("buffer {id} of {}", self.count()));
    }

    /// Verifies what was released, and has at least the start of each buffer be poison, where a late write would
    /// begin. Returns where the poison is.
    #[cfg(debug_assertions)]
    fn poison_all(&self) -> Vec<Range<usize>> {
        if !std::thread::panicking() {
            let released = &self.released[..self.released()];
            released.iter().for_each(|id| self.check_poison(id.get()));
        }
        let poison = |id: usize| {
            self.note_filled(id as u16, self.buffer_bytes.min(quarantine::START_BYTES));
            self.poison(id as u16);
            let start = id * self.buffer_bytes;
            start..start + self.written[id].poisoned.get()
        };
        (0..self.count()).map(poison).collect()
    }
}

impl Drop for BufPool {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        let poisoned = self.poison_all();
        // SAFETY: taken once, here, and not used any more.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        #[cfg(debug_assertions)]
        quarantine::add(Quarantined::Pages(memory, poisoned));
        #[cfg(not(debug_assertions))]
        drop(memory);
    }
}
