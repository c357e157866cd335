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

pub(crate) use pool::Pool;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// The bytes of a [`RecvBuf`], and what they return to when this is dropped: a few numbers, because
/// each message moves it several times.
struct Lease {
    home: NonNull<()>,
    len: u32,
    /// Of a buffer of the pool.
    id: u16,
    kind: Kind,
}

/// What the home of a [`Lease`] is. Not an enum: an absent buffer is then recognized by its null pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind(u8);

impl Kind {
    /// A counted reference to a [`Pool`], of which it is the reader of a buffer.
    const POOL: Kind = Kind(0);
    /// A `Box<Box<[u8]>>`. The bytes are in a box of their own, so that moving this moves no box of
    /// bytes, which would end the validity of pointers to them.
    const HEAP: Kind = Kind(1);
    /// Dangling.
    const NOWHERE: Kind = Kind(2);
}

impl Lease {
    #[inline(always)]
    fn give_back(&mut self) {
        let home = self.home.as_ptr();
        if self.kind == Kind::POOL {
            // SAFETY: `from_pool` made the pointer of a reference that nobody else gives back.
            let pool = unsafe { Rc::from_raw(home.cast::<Pool>()) };
            pool.release(self.id);
        } else if self.kind == Kind::HEAP {
            // SAFETY: it is the box of `From<Vec<u8>>`, and nobody else frees it.
            drop(unsafe { Box::from_raw(home.cast::<Box<[u8]>>()) });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Received bytes. From a stream, empty means the end of the stream; from a datagram socket, empty
/// is an empty datagram.
///
/// Dropping it returns the memory to the worker's pool. It can be passed to
/// [`TcpStream::send`](crate::TcpStream::send) directly, without a copy.
pub struct RecvBuf {
    start: NonNull<u8>,
    lease: Lease,
}

impl RecvBuf {
    /// A view of `start..end` of a pool buffer, whose reader it becomes.
    #[inline]
    pub(crate) fn from_pool(pool: &Rc<Pool>, id: u16, start: usize, end: usize) -> RecvBuf {
        assert!(start <= end && end <= pool.buffer_bytes(), "a range outside of its buffer");
        #[cfg(debug_assertions)]
        pool.note_filled(id, end);
        let buffer = pool.retain(id);
        // SAFETY: a reference is not null.
        let home =
            unsafe { NonNull::new_unchecked(Rc::into_raw(Rc::clone(pool)).cast_mut().cast()) };
        let lease = Lease { home, len: (end - start) as u32, id, kind: Kind::POOL };
        // SAFETY: `start` is inside the buffer, or at its end.
        RecvBuf { start: unsafe { NonNull::new_unchecked(buffer.add(start)) }, lease }
    }

    /// No bytes: the end of a stream, or an empty datagram.
    pub(crate) fn empty() -> RecvBuf {
        let lease = Lease { home: NonNull::dangling(), len: 0, id: 0, kind: Kind::NOWHERE };
        RecvBuf { start: NonNull::dangling(), lease }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.lease.len as usize
    }

    /// True without bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lease.len == 0
    }

    /// Moves the bytes out of the pool, so that they can be kept for long.
    pub fn detach(self) -> RecvBuf {
        if self.lease.kind == Kind::POOL { RecvBuf::from(self.to_vec()) } else { self }
    }

    /// Shortens the view from the front: the first `bytes` (at most all) are dropped.
    pub fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len());
        // SAFETY: inside the view, or at its end.
        self.start = unsafe { self.start.add(bytes) };
        self.lease.len -= bytes as u32;
    }

    /// Shortens the view from the back to `bytes`; has no effect if it is already shorter.
    pub fn truncate(&mut self, bytes: usize) {
        self.lease.len = self.lease.len.min(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the lease keeps the bytes in place and unchanged as long as this exists: a buffer with a
        // reader is not written (see `Pool`), and a box of bytes is not borrowed otherwise. The kernel or
        // mmap initialised every byte of a pool.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }
}

impl AsRef<[u8]> for RecvBuf {
    fn as_ref(&self) -> &[u8] {
        self
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
        let home = NonNull::from(Box::leak(bytes)).cast();
        RecvBuf { start, lease: Lease { home, len, id: 0, kind: Kind::HEAP } }
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
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// What keeps the bytes of a [`SendBuf`] in place and unchanged.
enum Owner {
    Received(Lease),
    Other { _other: Other },
}

/// The owner of bytes that were not received.
enum Other {
    Bytes { _vec: Vec<u8> },
    Shared { _rc: Rc<[u8]> },
    SharedByThreads { _arc: Arc<[u8]> },
    Static,
}

const _: () = assert!(size_of::<Option<RecvBuf>>() == 24 && size_of::<Option<SendBuf>>() == 40);

impl SendBuf {
    fn of(bytes: NonNull<[u8]>, owner: Other) -> SendBuf {
        SendBuf { start: bytes.cast(), len: bytes.len(), owner: Owner::Other { _other: owner } }
    }

    /// One buffer with the bytes of all, in order.
    pub(crate) fn joined(bufs: impl IntoIterator<Item = SendBuf>) -> SendBuf {
        let mut bufs = bufs.into_iter();
        let Some(first) = bufs.next() else { return SendBuf::from("") };
        let Some(second) = bufs.next() else { return first };
        let mut bytes = [first.as_slice(), second.as_slice()].concat();
        bufs.for_each(|buf| bytes.extend_from_slice(buf.as_slice()));
        SendBuf::from(bytes)
    }

    /// A part of bytes that several sends share. A range that reaches outside is cut.
    pub fn shared(bytes: Rc<[u8]>, range: std::ops::Range<usize>) -> SendBuf {
        let end = range.end.min(bytes.len());
        let part = NonNull::from(&bytes[range.start.min(end)..end]);
        SendBuf::of(part, Other::Shared { _rc: bytes })
    }

    /// The bytes still to be sent.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the owner keeps the bytes in place, and nothing writes to them: those of a vector, which is
        // not used otherwise, are on the heap, and a lease is as in a `RecvBuf`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Number of bytes still to be sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no bytes are left to send.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True for received bytes in a buffer of the pool.
    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        matches!(&self.owner, Owner::Received(lease) if lease.kind == Kind::POOL)
    }

    /// Marks the first `bytes` as sent.
    pub(crate) fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len);
        self.len -= bytes;
        // SAFETY: inside the bytes, or at their end.
        self.start = unsafe { self.start.add(bytes) };
    }

    /// Drops it, received bytes without a call: each message does that.
    #[inline(always)]
    pub(crate) fn free(self) {
        match self.owner {
            Owner::Received(lease) => ManuallyDrop::new(lease).give_back(),
            other @ Owner::Other { .. } => drop(other),
        }
    }

    /// Moves waiting bytes out of the pool.
    pub(crate) fn detach(self) -> SendBuf {
        if self.is_pooled() { SendBuf::from(self.as_slice().to_vec()) } else { self }
    }
}

impl fmt::Debug for SendBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuf").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl From<RecvBuf> for SendBuf {
    #[inline]
    fn from(RecvBuf { start, lease }: RecvBuf) -> SendBuf {
        SendBuf { start, len: lease.len as usize, owner: Owner::Received(lease) }
    }
}

impl From<Vec<u8>> for SendBuf {
    fn from(bytes: Vec<u8>) -> SendBuf {
        SendBuf::of(NonNull::from(&bytes[..]), Other::Bytes { _vec: bytes })
    }
}

impl From<Rc<[u8]>> for SendBuf {
    fn from(bytes: Rc<[u8]>) -> SendBuf {
        SendBuf::of(NonNull::from(&*bytes), Other::Shared { _rc: bytes })
    }
}

impl From<Arc<[u8]>> for SendBuf {
    fn from(bytes: Arc<[u8]>) -> SendBuf {
        SendBuf::of(NonNull::from(&*bytes), Other::SharedByThreads { _arc: bytes })
    }
}

impl From<&'static [u8]> for SendBuf {
    fn from(bytes: &'static [u8]) -> SendBuf {
        SendBuf::of(NonNull::from(bytes), Other::Static)
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
