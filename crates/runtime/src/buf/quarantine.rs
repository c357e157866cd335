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
pub(super) const POISON: u8 = 0xDB;

/// Compared as a whole, because a loop over bytes is slow in the builds that this is for.
const POISONED: [u8; 4096] = [POISON; 4096];

/// So much of a buffer that was never filled is poison once its pool has ended.
pub(super) const START_BYTES: usize = 64;

/// Freed memory that a thread keeps at most, in blocks and in bytes. A whole pool of 256 buffers of 64 KB
/// fits.
const BLOCKS_MAX: usize = 8;
const BYTES_MAX: usize = 32 << 20;

/// Verifies memory that leaves the quarantine. `what` names it. Panics if it was written to.
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
    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: a mapping is initialised from the start, and not written to since its owner has
            // released it, unless this is the error to find.
            Quarantined::Pages(pages, _) => unsafe {
                std::slice::from_raw_parts(pages.start().as_ptr(), pages.bytes)
            },
            Quarantined::Heap(bytes) => bytes,
        }
    }

    fn check(self) {
        let (bytes, what) = (self.bytes(), || "freed memory".to_owned());
        match &self {
            Quarantined::Pages(_, poisoned) => {
                poisoned.iter().for_each(|part| check(&bytes[part.clone()], what));
            }
            Quarantined::Heap(_) => check(bytes, what),
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
/// next owner of the memory, or it would go unnoticed. Panics if older memory, which is freed to
/// make space, was written to.
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
                || blocks.iter().map(|memory| memory.bytes().len()).sum::<usize>() > BYTES_MAX
            {
                freed.extend(blocks.pop_front());
            }
            freed
        })
        .map(|freed| freed.into_iter().for_each(Quarantined::check));
}

/// Each case breaks the rule on purpose, by a pointer that it kept, like a kernel that was not
/// asked to return a buffer.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{BufPool, RecvBuf};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    /// Verifies and frees all quarantined memory of this thread.
    fn verify() {
        drop(QUARANTINE.replace(Quarantine(VecDeque::new())));
    }

    #[test]
    fn a_late_write_is_found() {
        // Whether the buffer was filled, where it is written to, and how that is found: the buffer is taken
        // again, or its pool was freed.
        type Reuse = Option<fn(&BufPool) -> Option<u16>>;
        let cases: [(bool, usize, Reuse, &str); 4] = [
            (
                true,
                5000,
                Some(BufPool::take),
                "buffer 0 of 1 was written to after its release: bytes 5000",
            ),
            (true, 0, Some(BufPool::take), "release: bytes 0 to 0 of 8192"),
            (true, 13, None, "freed memory was written to after its release: bytes 13 to 13"),
            (false, 0, None, "freed memory was written to after its release: bytes 0 to 0"),
        ];
        for (filled, at, reuse, expected) in cases {
            let pool = Rc::new(BufPool::new(1, 8192).expect("memory"));
            let id = pool.take().expect("the only buffer");
            let address = pool.address(id);
            if filled {
                drop(RecvBuf::from_pool(&pool, id, 8192));
            }
            let found = catch_unwind(AssertUnwindSafe(|| {
                let kept = reuse.map(|reuse| (reuse, Rc::clone(&pool)));
                drop(pool);
                // SAFETY: inside the mapping, which its pool or the quarantine still keeps.
                unsafe { address.wrapping_add(at).write(1) };
                match kept {
                    Some((reuse, pool)) => drop(reuse(&pool)),
                    None => verify(),
                }
            }));
            let message = *found.expect_err(expected).downcast::<String>().expect("a message");
            assert!(message.contains(expected), "{message}");
        }
    }
}
