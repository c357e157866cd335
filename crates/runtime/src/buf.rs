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
use std::rc::Rc;

/// The memory of a [`RecvBuf`]. Small, because every socket has a field for one.
enum Home {
    /// The number of the buffer has the width of the enum's tag, so that a move copies whole fields.
    Pool(Rc<Pool>, u32),
    Heap(Box<Detached>),
    Nowhere,
}

struct Detached(Box<[u8]>);

/// Received bytes. From a stream, empty means the end of the stream; from a datagram socket, empty
/// is an empty datagram.
///
/// Dropping it returns the memory to the worker's pool. It can be passed to
/// [`TcpStream::send`](crate::TcpStream::send) directly, without a copy.
pub struct RecvBuf {
    home: Home,
    start: u32,
    end: u32,
}

impl RecvBuf {
    /// A view of `start..end` of a pool buffer; takes one reference.
    pub(crate) fn from_pool(pool: &Rc<Pool>, id: u16, start: usize, end: usize) -> RecvBuf {
        assert!(start <= end && end <= pool.buffer_bytes(), "a range outside of its buffer");
        #[cfg(debug_assertions)]
        pool.note_filled(id, end);
        pool.retain(id);
        RecvBuf {
            home: Home::Pool(Rc::clone(pool), u32::from(id)),
            start: start as u32,
            end: end as u32,
        }
    }

    /// No bytes: the end of a stream, or an empty datagram.
    pub(crate) fn empty() -> RecvBuf {
        RecvBuf { home: Home::Nowhere, start: 0, end: 0 }
    }

    /// Number of bytes. Hides that of the slice, which has to find the memory.
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// True without bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Moves the bytes out of the pool, so that they can be kept for long.
    pub fn detach(self) -> RecvBuf {
        match self.home {
            Home::Pool(..) => {
                let bytes: Box<[u8]> = Box::from(&*self);
                let end = bytes.len() as u32;
                RecvBuf { home: Home::Heap(Box::new(Detached(bytes))), start: 0, end }
            }
            _ => self,
        }
    }

    /// Shortens the view from the front: the first `bytes` (at most all) are dropped.
    pub fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len());
        self.start += bytes as u32;
    }

    /// Shortens the view from the back to `bytes`; has no effect if it is already shorter.
    pub fn truncate(&mut self, bytes: usize) {
        if bytes < self.len() {
            self.end = self.start + bytes as u32;
        }
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (start, end) = (self.start as usize, self.end as usize);
        match &self.home {
            Home::Pool(pool, id) => pool.bytes(*id as u16, start, end),
            Home::Heap(detached) => &detached.0[start..end],
            Home::Nowhere => &[],
        }
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
        let end = u32::try_from(bytes.len()).expect("less than 4 GiB");
        RecvBuf { home: Home::Heap(Box::new(Detached(bytes.into()))), start: 0, end }
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
    Static(&'static [u8]),
    /// Of a vectored send. Users of the library see only the parts.
    Several(Box<Several>),
}

impl SendBuf {
    /// One buffer that consists of `parts`, in order.
    pub(crate) fn several(parts: Vec<SendBuf>) -> SendBuf {
        let end = parts.iter().map(SendBuf::len).sum();
        SendBuf { start: 0, end, source: Source::Several(Box::new(Several::new(parts))) }
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

impl From<RecvBuf> for SendBuf {
    fn from(buf: RecvBuf) -> SendBuf {
        SendBuf { start: 0, end: buf.len(), source: Source::Received(buf) }
    }
}

impl From<Vec<u8>> for SendBuf {
    fn from(bytes: Vec<u8>) -> SendBuf {
        SendBuf { start: 0, end: bytes.len(), source: Source::Owned(bytes) }
    }
}

impl From<Rc<[u8]>> for SendBuf {
    fn from(bytes: Rc<[u8]>) -> SendBuf {
        SendBuf { start: 0, end: bytes.len(), source: Source::Shared(bytes) }
    }
}

impl From<&'static [u8]> for SendBuf {
    fn from(bytes: &'static [u8]) -> SendBuf {
        SendBuf { start: 0, end: bytes.len(), source: Source::Static(bytes) }
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
