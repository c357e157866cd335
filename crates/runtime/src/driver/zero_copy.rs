//! Buffers from which the kernel still reads after a send has returned.
//!
//! Until the kernel reports that it no longer needs such a buffer, the buffer must not be written to, or
//! the peer would receive what is written. It returns to its pool only then. If the report cannot be
//! received (the socket was closed, the runtime ends), the memory is unmapped instead: the kernel holds
//! references to the pages, which outlive our mapping and can then no longer be written to.
//!
//! Debug builds poison buffers that return. A kernel that still reads from one then sends poison, which
//! fails every test that compares bytes.

#[cfg(debug_assertions)]
use crate::buf::quarantine;
use crate::sys::Mapping;
use std::cell::{Cell, RefCell};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of one buffer.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;
/// Buffers of one worker, 16 MiB together. Peers that do not read can hold all of them, so a sender
/// that finds none copies instead of waiting.
const BUFFERS_MAX: usize = 256;

/// The buffers of one worker.
#[derive(Default)]
pub(crate) struct Buffers {
    spare: RefCell<Vec<Mapping>>,
    /// All buffers, whether in use or spare.
    count: Cell<usize>,
}

impl Buffers {
    /// A buffer whose first `len` bytes were filled by `read`. `None` if all are in use, or there is no
    /// memory for another one.
    pub(crate) fn filled(
        self: &Rc<Buffers>,
        len: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Option<io::Result<Buffer>> {
        let memory = self.take()?;
        let len = len.min(BUFFER_BYTES);
        // SAFETY: the mapping has BUFFER_BYTES initialised bytes, to which there is no
        // other reference: the kernel has none either, or the buffer would not have returned.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), len) };
        let read = read(bytes);
        let owner = Owner {
            memory: ManuallyDrop::new(memory),
            buffers: Rc::clone(self),
            lost: Cell::new(false),
        };
        Some(read.map(|end| Buffer { owner: Rc::new(owner), range: 0..end.min(len) }))
    }

    fn take(&self) -> Option<Mapping> {
        if let Some(memory) = self.spare.borrow_mut().pop() {
            #[cfg(debug_assertions)]
            quarantine::check(bytes_of(&memory), || "a buffer for sending".to_owned());
            return Some(memory);
        }
        if self.count.get() >= BUFFERS_MAX {
            return None;
        }
        let memory = Mapping::new(BUFFER_BYTES).ok()?;
        self.count.set(self.count.get() + 1);
        Some(memory)
    }
}

/// All bytes of a buffer.
fn bytes_of(memory: &Mapping) -> &[u8] {
    // SAFETY: initialised when it was mapped, and not written to as long as a `Buffer` or a `Lent`
    // exists, or while it is spare.
    unsafe { std::slice::from_raw_parts(memory.start().as_ptr(), BUFFER_BYTES) }
}

struct Owner {
    memory: ManuallyDrop<Mapping>,
    buffers: Rc<Buffers>,
    /// The kernel may still read from it, and it is not known for how long.
    lost: Cell<bool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if self.lost.get() {
            self.buffers.count.set(self.buffers.count.get() - 1);
            drop(memory);
        } else {
            #[cfg(debug_assertions)]
            // SAFETY: as in `filled`: the buffer has returned.
            quarantine::poison(unsafe {
                std::slice::from_raw_parts_mut(memory.start().as_ptr(), BUFFER_BYTES)
            });
            self.buffers.spare.borrow_mut().push(memory);
        }
    }
}

/// Bytes to be sent without a copy.
pub(crate) struct Buffer {
    owner: Rc<Owner>,
    range: Range<usize>,
}

impl Buffer {
    /// The bytes that are still to be sent.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &bytes_of(&self.owner.memory)[self.range.clone()]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Marks the first `bytes` as sent.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.range.start = (self.range.start + bytes).min(self.range.end);
    }

    /// The record of a send from it, until the kernel returns the buffer.
    pub(super) fn lend(&self) -> Lent {
        Lent { owner: Rc::clone(&self.owner) }
    }
}

/// A send from a buffer that the kernel may still read from. If it is dropped before the buffer has
/// returned, the buffer's memory is unmapped.
pub(super) struct Lent {
    owner: Rc<Owner>,
}

impl Lent {
    /// The kernel no longer needs it.
    pub(super) fn give_back(self) {
        let lost = self.owner.lost.get();
        let owner = Rc::clone(&self.owner);
        drop(self);
        owner.lost.set(lost);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.owner.lost.set(true);
    }
}

/// The error of a send without a copy if this piece has to be copied, although others need not: the
/// kernel's limit of memory for notifications (net.core.optmem_max) or for locked pages (ulimit -l) is
/// reached.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// The error if this kernel or this kind of socket does not support it. EPERM and EACCES come from
/// filters of system calls.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    /// The kernel's internal errno for EOPNOTSUPP.
    const ENOTSUPP: i32 = 524;
    const REFUSALS: [i32; 7] = [
        libc::EINVAL,
        libc::ENOSYS,
        libc::EOPNOTSUPP,
        libc::ENOPROTOOPT,
        libc::EPERM,
        libc::EACCES,
        ENOTSUPP,
    ];
    error.raw_os_error().is_some_and(|errno| REFUSALS.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(buffers: &Rc<Buffers>, byte: u8) -> Option<Buffer> {
        let fill = |bytes: &mut [u8]| {
            bytes.fill(byte);
            Ok(bytes.len())
        };
        Some(buffers.filled(100, fill)?.expect("it was filled"))
    }

    #[test]
    fn a_buffer_comes_back_when_all_that_was_lent_has() {
        let buffers = Rc::new(Buffers::default());
        let mut buffer = filled(&buffers, 1).unwrap();
        let (first, second) = (buffer.lend(), buffer.lend());
        buffer.advance(40);
        assert_eq!(buffer.as_slice(), &[1; 60]);
        drop(buffer);
        second.give_back();
        assert_eq!(buffers.spare.borrow().len(), 0);
        first.give_back();
        assert_eq!((buffers.spare.borrow().len(), buffers.count.get()), (1, 1));
    }

    /// The bytes that a peer would receive from a kernel that still reads the buffer.
    #[test]
    #[cfg(debug_assertions)]
    fn what_has_come_back_is_poison_and_stays_it() {
        let buffers = Rc::new(Buffers::default());
        drop(filled(&buffers, 1));
        let start = buffers.spare.borrow()[0].start().as_ptr();
        assert!(bytes_of(&buffers.spare.borrow()[0]).iter().all(|byte| *byte == 0xdb));
        // SAFETY: inside the mapping. The write stands in for one that should not happen.
        unsafe { start.add(99).write(1) };
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffers.take()));
        let said = *taken.err().expect("found").downcast::<String>().expect("a message");
        assert!(said.contains("was written to after its release: bytes 99 to 99"), "{said}");
    }

    #[test]
    fn memory_that_the_kernel_keeps_is_never_used_again() {
        let buffers = Rc::new(Buffers::default());
        let buffer = filled(&buffers, 1).unwrap();
        let (kept, returned) = (buffer.lend(), buffer.lend());
        drop(kept);
        returned.give_back();
        drop(buffer);
        assert_eq!((buffers.spare.borrow().len(), buffers.count.get()), (0, 0));
    }

    #[test]
    fn there_are_no_more_than_the_bound() {
        let buffers = Rc::new(Buffers::default());
        let mut held: Vec<Buffer> = (0..BUFFERS_MAX).filter_map(|_| filled(&buffers, 2)).collect();
        assert_eq!(held.len(), BUFFERS_MAX);
        assert!(filled(&buffers, 3).is_none());
        held.pop();
        let reused = filled(&buffers, 3).unwrap();
        assert_eq!(reused.as_slice(), &[3; 100]);
    }
}
