//! The ring of provided buffers: the kernel takes buffers from it for receives, the loop gives them
//! back once their bytes are sent.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, IOU_PBUF_RING_INC};
use io_uring::{Submitter, cqueue};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

/// The only buffer group of the ring.
pub(crate) const GROUP: u16 = 0;

/// Received bytes: a part of one buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    buffer: u16,
    offset: u32,
    len: u32,
}

/// The loop's state of one buffer.
#[derive(Debug, Clone, Copy, Default)]
struct Buffer {
    /// Bytes the kernel has filled since the buffer was last given to it.
    filled: u32,
    /// Pieces that are not released yet.
    pieces: u16,
    /// The kernel is done with it until it gets it back.
    retired: bool,
}

/// Buffers and the ring that hands them to the kernel.
///
/// Both mappings live as long as the process: the kernel may write to them for as long as the ring
/// exists, and closing a ring is no barrier for that.
pub(crate) struct Pool {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    buffer_bytes: u32,
    mask: u16,
    tail: u16,
    incremental: bool,
    buffers: Vec<Buffer>,
}

impl Pool {
    /// Maps `count` buffers, a power of two, and gives them all to the kernel.
    pub(crate) fn register(
        submitter: &Submitter<'_>,
        count: u16,
        buffer_bytes: usize,
        incremental: bool,
    ) -> io::Result<Pool> {
        let entries = map(usize::from(count) * size_of::<BufRingEntry>())?.cast();
        let bytes = map(usize::from(count) * buffer_bytes)?;
        let flags = if incremental { IOU_PBUF_RING_INC as u16 } else { 0 };
        // SAFETY: the entries are page-aligned, of the length told, and never unmapped.
        unsafe {
            submitter.register_buf_ring_with_flags(entries.as_ptr() as u64, count, GROUP, flags)?;
        }
        let mut pool = Pool {
            entries,
            bytes,
            buffer_bytes: buffer_bytes as u32,
            mask: count - 1,
            tail: 0,
            incremental,
            buffers: vec![Buffer::default(); usize::from(count)],
        };
        (0..count).for_each(|buffer| pool.give_to_kernel(buffer));
        pool.publish();
        Ok(pool)
    }

    /// The bytes that a receive with these completion flags brought; `None` if it used no buffer.
    pub(crate) fn take(&mut self, flags: u32, len: u32) -> Option<Piece> {
        let number = cqueue::buffer_select(flags)?;
        let buffer = &mut self.buffers[usize::from(number)];
        let piece = Piece { buffer: number, offset: buffer.filled, len };
        buffer.filled += len;
        buffer.pieces += 1;
        buffer.retired = !(self.incremental && cqueue::buffer_more(flags));
        Some(piece)
    }

    /// Ends the use of a piece. The last one of a retired buffer puts the buffer back in the ring,
    /// where the kernel sees it after [`Pool::publish`].
    pub(crate) fn release(&mut self, piece: Piece) {
        let buffer = &mut self.buffers[usize::from(piece.buffer)];
        buffer.pieces -= 1;
        if buffer.pieces == 0 && buffer.retired {
            self.give_to_kernel(piece.buffer);
        }
    }

    /// Makes `piece` longer by `next` if it is what follows in the same buffer, and releases
    /// `next`.
    pub(crate) fn merge(&mut self, piece: &mut Piece, next: Piece) -> bool {
        let adjacent = piece.buffer == next.buffer && piece.offset + piece.len == next.offset;
        if adjacent {
            piece.len += next.len;
            // `piece` itself still counts, so that this cannot be the buffer's last one.
            self.buffers[usize::from(next.buffer)].pieces -= 1;
        }
        adjacent
    }

    /// Shows the kernel the buffers that were given back since the last call.
    pub(crate) fn publish(&mut self) {
        // SAFETY: `entries` is the start of the ring, where the kernel expects the tail; only this
        // thread writes it.
        let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }

    pub(crate) fn address(&self, piece: Piece) -> *const u8 {
        let start = usize::from(piece.buffer) * self.buffer_bytes as usize;
        // SAFETY: the kernel fills no buffer past its end, so that every piece is inside the map.
        unsafe { self.bytes.as_ptr().add(start + piece.offset as usize) }
    }

    pub(crate) fn bytes(&self, piece: Piece) -> &[u8] {
        // SAFETY: as for `address`; the kernel has filled these bytes and does not write to them
        // again before the piece is released, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.address(piece), piece.len()) }
    }

    fn give_to_kernel(&mut self, number: u16) {
        let start = usize::from(number) * self.buffer_bytes as usize;
        let position = usize::from(self.tail & self.mask);
        // SAFETY: the position is inside the ring, and the kernel does not read the entry before
        // the tail moves past it; it never has more entries than there are buffers.
        unsafe {
            let entry = self.entries.add(position).as_mut();
            entry.set_addr(self.bytes.as_ptr().add(start) as u64);
            entry.set_len(self.buffer_bytes);
            entry.set_bid(number);
        }
        self.buffers[usize::from(number)] = Buffer::default();
        self.tail = self.tail.wrapping_add(1);
    }
}

impl Piece {
    pub(crate) fn len(self) -> usize {
        self.len as usize
    }
}

fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing else.
    let start = unsafe {
        mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags)?
    };
    Ok(start.cast())
}
