//! Provided buffers: how the kernel gets memory to receive into.
//!
//! The kernel picks a buffer when data arrives, so a connection that waits holds none. Three
//! ways to give buffers, by kernel version: one request per buffer (5.7), a ring shared with the
//! kernel (5.19), and a ring whose large buffers are filled piece by piece (6.12).

use super::ring::Ring;
use crate::buf::{Pool, RecvBuf};
use crate::config::{Buffers, UringFeatures};
use crate::sys::Mapping;
use io_uring::types::BufRingEntry;
use io_uring::{cqueue, opcode};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

/// The buffer group all receives of a worker choose from.
pub(super) const GROUP: u16 = 0;

pub(super) struct Provided {
    pool: Rc<Pool>,
    kind: Kind,
    /// Buffers in the kernel's hands that no completion has named yet.
    with_kernel: usize,
}

enum Kind {
    Legacy,
    Ring(BufferRing),
    /// With the offset up to which each buffer is filled.
    Incremental(BufferRing, Box<[u32]>),
}

/// The ring through which the kernel takes buffers: entries in memory we share with it, and a
/// tail that only we move.
struct BufferRing {
    entries: Mapping,
    mask: u16,
    tail: u16,
}

impl BufferRing {
    /// Makes a ring of `count` entries (a power of two) and registers it for [`GROUP`].
    fn register(ring: &Ring, count: u16, incremental: bool) -> io::Result<BufferRing> {
        let entries = Mapping::new(usize::from(count) * size_of::<BufRingEntry>())?;
        let flags = if incremental { io_uring::types::IOU_PBUF_RING_INC as u16 } else { 0 };
        // SAFETY: the mapping is page-aligned, holds `count` zeroed entries, and lives until the
        // ring has been torn down (`UringDriver` drops `Provided` after its `Ring`).
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                entries.start().as_ptr() as u64,
                count,
                GROUP,
                flags,
            )?;
        }
        Ok(BufferRing { entries, mask: count - 1, tail: 0 })
    }

    /// Writes one entry; the kernel sees it after [`publish`](BufferRing::publish).
    fn push(&mut self, pool: &Pool, id: u16) {
        let at = usize::from(self.tail & self.mask);
        debug_assert!((at + 1) * size_of::<BufRingEntry>() <= self.entries.len());
        // SAFETY: `at` is masked to the number of entries, so the pointer is inside the mapping;
        // the kernel reads an entry only between head and tail, and this one is outside, because
        // at most as many buffers exist as the ring has entries.
        let entry = unsafe { &mut *self.entries.start().cast::<BufRingEntry>().as_ptr().add(at) };
        entry.set_addr(pool.address(id) as u64);
        entry.set_len(pool.buffer_bytes() as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the mapping holds at least one entry, and the tail lies in its reserved field
        // (io_uring_register_buf_ring(3)); it is aligned for u16 and lives as long as `self`.
        let tail = unsafe {
            let base = self.entries.start().cast::<BufRingEntry>().as_ptr();
            AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut())
        };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Provided {
    pub(super) fn new(ring: &Ring, features: &UringFeatures) -> io::Result<Provided> {
        let count = features.buffer_count;
        let pool = Rc::new(Pool::new(count, features.buffer_bytes)?);
        let kind = match features.buffers {
            Buffers::Legacy => Kind::Legacy,
            Buffers::Ring => Kind::Ring(BufferRing::register(ring, count, false)?),
            Buffers::Incremental => Kind::Incremental(
                BufferRing::register(ring, count, true)?,
                (0..count).map(|_| 0).collect(),
            ),
        };
        Ok(Provided { pool, kind, with_kernel: 0 })
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Keeps the memory mapped for ever: for a kernel that may still write into it.
    pub(super) fn leak(&self) {
        std::mem::forget(Rc::clone(&self.pool));
        // The entries of the ring are only read by the kernel; they go with the ring.
    }

    /// True if a receive that starts now can find a buffer.
    pub(super) fn any_with_kernel(&self) -> bool {
        self.with_kernel > 0
    }

    /// Gives all released buffers to the kernel.
    pub(super) fn publish(&mut self, ring: &mut Ring) {
        if self.pool.released() == 0 {
            return;
        }
        let pool = &*self.pool;
        let released = || std::iter::from_fn(|| pool.take_oldest());
        match &mut self.kind {
            Kind::Legacy => {
                for id in released() {
                    let bytes = pool.buffer_bytes() as i32;
                    let entry =
                        opcode::ProvideBuffers::new(pool.address(id), bytes, 1, GROUP, id).build();
                    ring.push_uncounted(entry);
                    self.with_kernel += 1;
                }
            }
            Kind::Ring(buffer_ring) => {
                for id in released() {
                    buffer_ring.push(pool, id);
                    self.with_kernel += 1;
                }
                buffer_ring.publish();
            }
            Kind::Incremental(buffer_ring, filled) => {
                for id in released() {
                    pool.hold_for_kernel(id);
                    filled[usize::from(id)] = 0;
                    buffer_ring.push(pool, id);
                    self.with_kernel += 1;
                }
                buffer_ring.publish();
            }
        }
    }

    /// The bytes that a completion with these flags delivered; `None` if it names no buffer.
    /// `bytes` may be 0 (an end of stream that took a buffer): the buffer returns at once.
    pub(super) fn take(&mut self, flags: u32, bytes: usize) -> Option<RecvBuf> {
        let id = cqueue::buffer_select(flags)?;
        match &mut self.kind {
            Kind::Legacy | Kind::Ring(_) => {
                self.with_kernel -= 1;
                Some(RecvBuf::from_pool(&self.pool, id, 0, bytes))
            }
            Kind::Incremental(_, filled) => {
                let start = filled[usize::from(id)] as usize;
                filled[usize::from(id)] += bytes as u32;
                let piece = RecvBuf::from_pool(&self.pool, id, start, start + bytes);
                if !cqueue::buffer_more(flags) {
                    self.with_kernel -= 1;
                    self.pool.end_kernel_hold(id);
                }
                Some(piece)
            }
        }
    }
}
