//! A buffer that system calls fill piece by piece.

use super::{BufPool, RecvBuf};
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;

/// The buffers of a pool, of which one is being filled. Those who read its pieces share it: messages of many sockets
/// lie in a row, and when nobody reads any, it is filled from its start again, which is still in the cache.
pub(crate) struct SharedBuf {
    pool: Rc<BufPool>,
    whole: Rc<RecvBuf>,
    /// Behind so many of its bytes nobody reads.
    filled: usize,
}

#[cold]
fn take_whole(pool: &Rc<BufPool>) -> Option<Rc<RecvBuf>> {
    let id = pool.take()?;
    Some(Rc::new(RecvBuf::from_pool(pool, id, pool.buffer_bytes())))
}

impl SharedBuf {
    pub(crate) fn new(count: u16, bytes: usize) -> io::Result<SharedBuf> {
        let pool = Rc::new(BufPool::new(count, bytes)?);
        let whole = take_whole(&pool).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedBuf { pool, whole, filled: 0 })
    }

    /// Memory for the next piece: at least three quarters of a buffer.
    #[inline]
    pub(crate) fn place(&mut self) -> &mut [MaybeUninit<u8>] {
        if Rc::strong_count(&self.whole) == 1 {
            self.filled = 0;
        } else if self.filled > self.whole.len() / 4 {
            // A quarter of the pool is free: otherwise the last piece was copied.
            self.whole = take_whole(&self.pool).expect("readers leave a quarter of the pool");
            self.filled = 0;
        }
        let (start, len) = (self.whole.0.start.as_ptr(), self.whole.len() - self.filled);
        // SAFETY: the end of the buffer, which the pool has given to this; all parts that readers have are before it.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.filled).cast(), len) }
    }

    /// The piece that was written to the [`place`](SharedBuf::place), and whether readers have most of the pool: then
    /// it must be copied.
    #[inline]
    pub(crate) fn piece(&mut self, bytes: usize) -> (RecvBuf, bool) {
        let piece = RecvBuf::part_of(&self.whole, self.filled, bytes);
        self.filled += bytes;
        (piece, self.pool.is_short(0))
    }

    /// Buffers of which somebody reads a part.
    #[inline]
    pub(crate) fn in_use(&self) -> usize {
        self.pool.in_use() - usize::from(Rc::strong_count(&self.whole) == 1)
    }
}
