//! The pool of receive buffers.

#[cfg(debug_assertions)]
use super::quarantine::{self, Quarantined};
use crate::sys::Mapping;
use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
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

/// Whether a buffer has a reader, and how much of it, from its start, readers ever had. Only that is poison while the
/// buffer is released: to fill all of a pool takes longer than most tests.
#[cfg(debug_assertions)]
#[derive(Default)]
struct Written {
    in_use: Cell<bool>,
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

    /// True if readers hold more than three quarters of the buffers, those aside that are about to come back.
    #[inline]
    pub(crate) fn is_short(self: &Rc<BufPool>, about_to_return: usize) -> bool {
        (self.available() + about_to_return) * 4 < self.count()
    }

    /// If no more buffers are free, data is copied out before a task can keep it, so that this many always
    /// return.
    pub(crate) fn low(&self) -> usize {
        self.count() / 8
    }

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

    /// Debug builds keep a sixteenth of the pool back, so that a buffer is in quarantine for a while even when
    /// buffers are short. That must be less than [`low`](BufPool::low) keeps in circulation.
    pub(crate) fn kept_back(&self) -> usize {
        if cfg!(debug_assertions) { self.count() / 16 } else { 0 }
    }

    /// How many buffers the kernel may be given, so that `reserve` are left.
    pub(crate) fn spare(&self, reserve: usize) -> usize {
        self.released().saturating_sub(self.kept_back().max(reserve))
    }

    #[inline]
    pub(crate) fn released(&self) -> usize {
        self.released_count.get()
    }

    /// A buffer that was filled up to `end` gets a reader.
    #[cfg(debug_assertions)]
    pub(super) fn retain(&self, id: u16, end: usize) {
        let Written { in_use, filled } = &self.written[usize::from(id)];
        filled.set(filled.get().max(end));
        assert!(!in_use.replace(true), "a buffer has one reader");
    }

    #[inline]
    pub(super) fn release(&self, id: u16) {
        #[cfg(debug_assertions)]
        {
            let was_in_use = self.written[usize::from(id)].in_use.replace(false);
            assert!(was_in_use, "a buffer is released twice");
            self.poison(id);
        }
        let count = self.released();
        self.released[count].set(id);
        self.released_count.set(count + 1);
    }

    #[cfg(debug_assertions)]
    fn poison(&self, id: u16) {
        let filled = self.written[usize::from(id)].filled.get();
        // SAFETY: a part of the buffer, inside the mapping. Without references, and not owned by the
        // engine, it has no other user.
        unsafe { std::slice::from_raw_parts_mut(self.address(id), filled) }
            .fill(quarantine::POISON);
    }

    #[cfg(debug_assertions)]
    fn check_poison(&self, id: u16) {
        let filled = self.written[usize::from(id)].filled.get();
        // SAFETY: as in `poison`; only read.
        let used = unsafe { std::slice::from_raw_parts(self.address(id), filled) };
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
            let filled = &self.written[id].filled;
            filled.set(filled.get().max(self.buffer_bytes.min(quarantine::START_BYTES)));
            self.poison(id as u16);
            let start = id * self.buffer_bytes;
            start..start + filled.get()
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
