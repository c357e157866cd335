//! Buffers: received data is in buffers of a pool, sends take ownership of theirs.
//!
//! A worker has one pool. Both engines receive into it and return [`RecvBuf`]s, which release their
//! memory when dropped. The pool is a transit area: data that must stay (because a peer does not
//! read, or a task holds many buffers) is copied to the heap, so it can never starve other sockets
//! of buffers. Sending takes ownership ([`SendBuf`]): the kernel may read the memory until the
//! engine knows that it is done, even if the future is dropped.

mod pool;
#[cfg(debug_assertions)]
pub(crate) mod quarantine;
mod several;

pub(crate) use pool::Pool;
pub(crate) use several::{SLICES_MAX, Several};

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// What the bytes of a [`RecvBuf`] belong to.
enum Home {
    /// The number of the buffer has the width of the enum's tag, so that a move copies whole fields.
    Pool(Rc<Pool>, u32),
    /// In a box of their own, so that moving this moves no box of bytes, which would end the validity
    /// of pointers to them.
    Heap {
        _bytes: Box<Box<[u8]>>,
    },
    Nowhere,
}

/// Received bytes. From a stream, empty means the end of the stream; from a datagram socket, empty
/// is an empty datagram.
///
/// Dropping it returns the memory to the worker's pool. It can be passed to
/// [`TcpStream::send`](crate::TcpStream::send) directly, without a copy.
pub struct RecvBuf {
    start: NonNull<u8>,
    len: u32,
    home: Home,
}

impl RecvBuf {
    /// A view of `start..end` of a pool buffer, whose reader it becomes.
    pub(crate) fn from_pool(pool: &Rc<Pool>, id: u16, start: usize, end: usize) -> RecvBuf {
        assert!(start <= end && end <= pool.buffer_bytes(), "a range outside of its buffer");
        #[cfg(debug_assertions)]
        pool.note_filled(id, end);
        pool.retain(id);
        // SAFETY: `start` is inside the buffer, or at its end.
        let start_of_bytes = unsafe { NonNull::new_unchecked(pool.address(id).add(start)) };
        let home = Home::Pool(Rc::clone(pool), u32::from(id));
        RecvBuf { start: start_of_bytes, len: (end - start) as u32, home }
    }

    /// No bytes: the end of a stream, or an empty datagram.
    pub(crate) fn empty() -> RecvBuf {
        RecvBuf { start: NonNull::dangling(), len: 0, home: Home::Nowhere }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True without bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Moves the bytes out of the pool, so that they can be kept for long.
    pub fn detach(self) -> RecvBuf {
        match self.home {
            Home::Pool(..) => RecvBuf::from(self.to_vec()),
            _ => self,
        }
    }

    /// Shortens the view from the front: the first `bytes` (at most all) are dropped.
    pub fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len());
        // SAFETY: inside the view, or at its end.
        self.start = unsafe { self.start.add(bytes) };
        self.len -= bytes as u32;
    }

    /// Shortens the view from the back to `bytes`; has no effect if it is already shorter.
    pub fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the home keeps the bytes in place and unchanged as long as this exists: a buffer with a
        // reader is not written (see `Pool`), and a box of bytes is not borrowed otherwise. The kernel or
        // mmap initialised every byte of a pool.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for RecvBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RecvBuf {
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    fn drop(&mut self) {
        if let Home::Pool(pool, id) = &self.home {
            pool.release(*id as u16);
        }
    }
}

impl From<Vec<u8>> for RecvBuf {
    /// Bytes that did not come directly from a socket, for code that handles both. Empty means the
    /// end of a stream, as for received ones.
    ///
    /// # Panics
    /// With 4 GiB or more.
    fn from(bytes: Vec<u8>) -> RecvBuf {
        if bytes.is_empty() {
            return RecvBuf::empty();
        }
        let len = u32::try_from(bytes.len()).expect("less than 4 GiB");
        let mut bytes: Box<Box<[u8]>> = Box::new(bytes.into());
        let start = NonNull::from(&mut **bytes).cast();
        RecvBuf { start, len, home: Home::Heap { _bytes: bytes } }
    }
}

impl From<RecvBuf> for Vec<u8> {
    /// Copies the bytes.
    fn from(buf: RecvBuf) -> Vec<u8> {
        buf.to_vec()
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBuf").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Bytes to send; converted from any of the types below with `into()`.
pub struct SendBuf {
    source: Source,
    start: usize,
    end: usize,
}

enum Source {
    Received(RecvBuf),
    Owned(Vec<u8>),
    Shared(Rc<[u8]>),
    SharedByThreads(Arc<[u8]>),
    Static(&'static [u8]),
    /// Of a vectored send. Users of the library see only the parts.
    Several(Box<Several>),
}

impl SendBuf {
    /// One buffer that consists of `parts`, in order.
    pub(crate) fn several(parts: Vec<SendBuf>) -> SendBuf {
        let end = parts.iter().map(SendBuf::len).sum();
        SendBuf::of(Source::Several(Box::new(Several::new(parts))), end)
    }

    /// The parts of which it was made.
    pub(crate) fn into_parts(self) -> Vec<SendBuf> {
        match self.source {
            Source::Several(several) => several.into_parts(),
            _ => vec![self],
        }
    }

    /// The parts, if it was made of parts.
    #[inline]
    pub(crate) fn as_several(&mut self) -> Option<&mut Several> {
        match &mut self.source {
            Source::Several(several) => Some(several),
            _ => None,
        }
    }

    /// A part of bytes that several sends share. A range that reaches outside is cut.
    pub fn shared(bytes: Rc<[u8]>, range: std::ops::Range<usize>) -> SendBuf {
        let end = range.end.min(bytes.len());
        SendBuf { start: range.start.min(end), end, source: Source::Shared(bytes) }
    }

    /// The bytes still to be sent.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        let whole: &[u8] = match &self.source {
            Source::Received(buf) => buf,
            Source::Owned(bytes) => bytes,
            Source::Shared(bytes) => bytes,
            Source::SharedByThreads(bytes) => bytes,
            Source::Static(bytes) => bytes,
            // The first of them, and the others when it was sent.
            Source::Several(several) => return several.first_slice(),
        };
        &whole[self.start..self.end]
    }

    /// Number of bytes still to be sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if no bytes are left to send.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// True for received bytes in a buffer of the pool.
    pub(crate) fn is_pooled(&self) -> bool {
        matches!(&self.source, Source::Received(RecvBuf { home: Home::Pool(..), .. }))
    }

    /// Marks the first `bytes` as sent.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if let Some(several) = self.as_several() {
            several.advance(bytes);
        }
    }

    /// Moves waiting bytes out of the pool.
    pub(crate) fn detach(mut self) -> SendBuf {
        if let Some(several) = self.as_several() {
            several.detach();
            return self;
        }
        if self.is_pooled() { SendBuf::from(self.as_slice().to_vec()) } else { self }
    }
}

impl fmt::Debug for SendBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuf").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl SendBuf {
    fn of(source: Source, len: usize) -> SendBuf {
        SendBuf { source, start: 0, end: len }
    }
}

impl From<RecvBuf> for SendBuf {
    fn from(buf: RecvBuf) -> SendBuf {
        let len = buf.len();
        SendBuf::of(Source::Received(buf), len)
    }
}

impl From<Vec<u8>> for SendBuf {
    fn from(bytes: Vec<u8>) -> SendBuf {
        let len = bytes.len();
        SendBuf::of(Source::Owned(bytes), len)
    }
}

impl From<Rc<[u8]>> for SendBuf {
    fn from(bytes: Rc<[u8]>) -> SendBuf {
        let len = bytes.len();
        SendBuf::of(Source::Shared(bytes), len)
    }
}

impl From<Arc<[u8]>> for SendBuf {
    fn from(bytes: Arc<[u8]>) -> SendBuf {
        let len = bytes.len();
        SendBuf::of(Source::SharedByThreads(bytes), len)
    }
}

impl From<&'static [u8]> for SendBuf {
    fn from(bytes: &'static [u8]) -> SendBuf {
        SendBuf::of(Source::Static(bytes), bytes.len())
    }
}

impl<const N: usize> From<&'static [u8; N]> for SendBuf {
    fn from(bytes: &'static [u8; N]) -> SendBuf {
        SendBuf::from(bytes.as_slice())
    }
}

impl From<&'static str> for SendBuf {
    fn from(text: &'static str) -> SendBuf {
        SendBuf::from(text.as_bytes())
    }
}

impl From<String> for SendBuf {
    fn from(text: String) -> SendBuf {
        SendBuf::from(text.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::MaybeUninit;

    fn filled(pool: &Rc<Pool>, byte: u8) -> Option<RecvBuf> {
        let id = pool.take()?;
        pool.with_writable(id, |memory| memory.fill(MaybeUninit::new(byte)));
        Some(RecvBuf::from_pool(pool, id, 0, pool.buffer_bytes()))
    }

    #[test]
    fn detached_bytes_leave_the_pool() {
        let pool = Rc::new(Pool::new(1, 64).unwrap());
        let kept = filled(&pool, 7).unwrap().detach();
        assert_eq!(pool.released(), 1);
        let _other = filled(&pool, 8).unwrap();
        assert_eq!(&*kept, &[7; 64]);
    }

    proptest! {
        /// No buffer is in use twice, none is lost, contents do not change.
        #[test]
        fn every_buffer_has_one_owner(steps in proptest::collection::vec((0u8..4, any::<u8>()), 0..300)) {
            let pool = Rc::new(Pool::new(8, 32).unwrap());
            let mut held: Vec<(u8, RecvBuf)> = Vec::new();
            for (what, byte) in steps {
                match what {
                    0 | 1 => match filled(&pool, byte) {
                        Some(buf) => held.push((byte, buf)),
                        None => prop_assert_eq!(held.len(), 8),
                    },
                    2 if !held.is_empty() => drop(held.swap_remove(usize::from(byte) % held.len())),
                    3 if !held.is_empty() => {
                        let at = usize::from(byte) % held.len();
                        let (byte, buf) = held.swap_remove(at);
                        prop_assert_eq!(&*buf.detach(), &[byte; 32]);
                    }
                    _ => {}
                }
                prop_assert_eq!(pool.released() + held.len(), 8);
                prop_assert!(held.iter().all(|(byte, buf)| buf.iter().all(|b| b == byte)));
            }
        }
    }
}
