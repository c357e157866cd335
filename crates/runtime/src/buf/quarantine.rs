//! Quarantine for memory that the kernel must not write to any more, in debug builds: it is filled
//! with poison, kept for as long as buffers suffice, and verified before it leaves: to be filled
//! again, or back to the system.
//!
//! Address sanitizer sees the writes of the program, not those of the kernel. This finds a buffer
//! that was released while an operation could still write to it, as a panic that names the buffer
//! and the place. It does not find a late write that comes when the buffer is in use again, that begins behind all
//! that the buffer was ever filled with, or that writes the poison's own bytes.

use crate::sys::Mapping;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;

/// A byte that neither text nor the patterns of tests consist of.
const POISON: u8 = 0xDB;

/// Compared as a whole, because a loop over bytes is slow in the builds that this is for.
const POISONED: [u8; 4096] = [POISON; 4096];

/// So much of a buffer that was never filled is poison once its pool has ended.
pub(super) const START_BYTES: usize = 64;

/// Freed memory that a thread keeps at most, in blocks and in bytes. A whole pool of 256 buffers of 64 KB
/// fits.
const BLOCKS_MAX: usize = 8;
const BYTES_MAX: usize = 32 << 20;

/// Fills memory that was released.
pub(super) fn poison(memory: &mut [u8]) {
    memory.fill(POISON);
}

/// Verifies memory that leaves the quarantine. `what` names it.
///
/// # Panics
/// If it was written to.
pub(crate) fn check(memory: &[u8], what: impl FnOnce() -> String) {
    let intact = |chunk: &[u8]| *chunk == POISONED[..chunk.len()];
    if memory.chunks(POISONED.len()).all(intact) {
        return;
    }
    let changed = |byte: &u8| *byte != POISON;
    let first = memory.iter().position(changed).unwrap_or(0);
    let last = memory.iter().rposition(changed).unwrap_or(first);
    let shown = &memory[first..=last.min(first + 15)];
    panic!(
        "{} was written to after its release: bytes {first} to {last} of {}, which begin with \
         {shown:02x?}; an operation that the kernel still had, or a stale pointer, wrote there",
        what(),
        memory.len()
    );
}

/// Memory that was returned to the allocator.
pub(crate) enum Quarantined {
    /// The buffers of a pool, of which these parts are poison already.
    Pages(Mapping, Vec<Range<usize>>),
    Heap(Vec<u8>),
}

impl Quarantined {
    fn len(&self) -> usize {
        match self {
            Quarantined::Pages(pages, _) => pages.len(),
            Quarantined::Heap(bytes) => bytes.len(),
        }
    }

    fn check(self) {
        let what = || "freed memory".to_owned();
        match &self {
            Quarantined::Pages(pages, poisoned) => {
                // SAFETY: a mapping is initialised from the start, and not written to since its owner has
                // released it, unless this is the error to find.
                let bytes =
                    unsafe { std::slice::from_raw_parts(pages.start().as_ptr(), pages.len()) };
                poisoned.iter().for_each(|part| check(&bytes[part.clone()], what));
            }
            Quarantined::Heap(bytes) => check(bytes, what),
        }
    }
}

/// The quarantined memory of a thread, the oldest first. The rest is verified when the thread ends.
struct Quarantine(VecDeque<Quarantined>);

impl Drop for Quarantine {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Quarantined::check);
    }
}

thread_local! {
    static QUARANTINE: RefCell<Quarantine> = const { RefCell::new(Quarantine(VecDeque::new())) };
}

/// Keeps freed memory, poisoned, for a while: a late write by the kernel would otherwise hit the
/// next owner of the memory, or it would go unnoticed.
///
/// # Panics
/// If older memory, which is freed to make space, was written to.
pub(crate) fn add(mut memory: Quarantined) {
    if let Quarantined::Heap(bytes) = &mut memory {
        bytes.clear();
        bytes.resize(bytes.capacity(), POISON);
    }
    // A thread that is ending has no quarantine any more.
    let _freed_at_once = QUARANTINE
        .try_with(|quarantine| {
            let mut freed = Vec::new();
            let blocks = &mut quarantine.borrow_mut().0;
            blocks.push_back(memory);
            while blocks.len() > BLOCKS_MAX
                || blocks.iter().map(Quarantined::len).sum::<usize>() > BYTES_MAX
            {
                freed.extend(blocks.pop_front());
            }
            freed
        })
        .map(|freed| freed.into_iter().for_each(Quarantined::check));
}

/// Verifies and frees all quarantined memory of this thread.
///
/// # Panics
/// If some of it was written to.
#[cfg(test)]
pub(crate) fn verify() {
    drop(QUARANTINE.replace(Quarantine(VecDeque::new())));
}

/// Each test breaks the rule on purpose, by a pointer that it kept, like a kernel that was not
/// asked to return a buffer.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{Pool, RecvBuf};
    use std::rc::Rc;

    /// A pool whose buffer was filled and released, and a pointer into the buffer.
    fn used() -> (Rc<Pool>, *mut u8) {
        let pool = Rc::new(Pool::new(1, 8192).expect("memory"));
        let id = pool.take().expect("the only buffer");
        let address = pool.address(id);
        drop(RecvBuf::from_pool(&pool, id, 10, 8192));
        (pool, address)
    }

    fn write_late(address: *mut u8) {
        // SAFETY: inside the mapping, which its pool or the quarantine still keeps.
        unsafe { address.write(1) };
    }

    #[test]
    #[should_panic(expected = "buffer 0 of 1 was written to after its release: bytes 5000 to 5000")]
    fn a_late_write_is_found_when_the_buffer_is_taken_again() {
        let (pool, address) = used();
        write_late(address.wrapping_add(5000));
        pool.take();
    }

    #[test]
    #[should_panic(expected = "buffer 0 of 1 was written to after its release: bytes 0 to 8191")]
    fn a_late_write_is_found_when_the_kernel_gets_the_buffer_again() {
        let (pool, address) = used();
        write_late(address);
        write_late(address.wrapping_add(8191));
        pool.take_for_kernel(0);
    }

    #[test]
    #[should_panic(expected = "freed memory was written to after its release: bytes 13 to 13")]
    fn a_write_into_a_dropped_pool_is_found() {
        let (pool, address) = used();
        drop(pool);
        write_late(address.wrapping_add(13));
        verify();
    }

    #[test]
    #[should_panic(expected = "freed memory was written to after its release: bytes 0 to 0")]
    fn a_write_into_a_buffer_that_was_never_filled_is_found_when_its_pool_was_dropped() {
        let pool = Rc::new(Pool::new(2, 8192).expect("memory"));
        let address = pool.address(pool.take_for_kernel(0).expect("two buffers"));
        drop(pool);
        write_late(address);
        verify();
    }

    #[test]
    fn unwritten_memory_passes_and_the_quarantine_is_bounded() {
        for _ in 0..3 * BLOCKS_MAX {
            let (pool, _) = used();
            pool.give_back(pool.take().expect("it was released"));
            drop(pool);
            add(Quarantined::Heap(vec![1; 100]));
        }
        add(Quarantined::Heap(vec![1; BYTES_MAX + 1]));
        add(Quarantined::Heap(Vec::new()));
        QUARANTINE.with_borrow(|quarantine| {
            assert!(quarantine.0.len() <= BLOCKS_MAX);
            assert!(quarantine.0.iter().map(Quarantined::len).sum::<usize>() <= BYTES_MAX);
        });
        verify();
    }
}
