//! Buffers: received data is in buffers of a pool, sends take ownership of theirs.
//!
//! Both engines receive into the pool of their worker and return [`RecvBuf`]s, which release their
//! memory when dropped. The kernel fills a buffer with one piece; system calls of epoll fill one with several
//! ([`SharedBuf`]). Data that must stay (because a peer does not read, or a task holds many buffers)
//! is copied to the heap, so it can never starve other sockets of buffers. Sending takes ownership
//! ([`SendBuf`]): the kernel may read the memory until the engine knows that it is done, even if the
//! future is dropped.

mod pool;
#[cfg(debug_assertions)]
pub(crate) mod quarantine;
mod shared;

pub(crate) use pool::BufPool;
pub(crate) use shared::SharedBuf;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{NonNull, slice_from_raw_parts};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes, and the owner that keeps them in place and unchanged. Words and no enum, because each message
/// moves it several times; an absent one is recognized by its null pointer.
struct Lease {
    start: NonNull<u8>,
    len: usize,
    owner: NonNull<u8>,
    /// The kind of owner in the lowest bits, and above them a number that its release needs.
    tag: usize,
}

const KIND_BITS: u32 = 3;
/// A counted reference to a [`BufPool`]; the number is that of the buffer, of which this is the reader.
const POOL: usize = 0;
/// A counted reference to such a reader, of whose bytes this has a part.
const PART: usize = 1;
/// There is none: the bytes are static, or there are none.
const NOBODY: usize = 2;
/// The memory of a `Vec<u8>`; the number is its capacity.
const VEC: usize = 3;
/// That of an `Rc<[u8]>`; the number is its length.
const RC: usize = 4;
/// That of an `Arc<[u8]>`, likewise.
const ARC: usize = 5;

impl Lease {
    /// All bytes of an owner's memory, whose counted reference or whose memory the lease releases from now on.
    fn of(memory: *const [u8], kind: usize, number: usize) -> Lease {
        // SAFETY: every caller passes the pointer of a vector, a reference or a counted reference.
        let owner = unsafe { NonNull::new_unchecked(memory.cast_mut().cast()) };
        Lease { start: owner, len: memory.len(), owner, tag: kind | number << KIND_BITS }
    }

    #[inline]
    fn kind(&self) -> usize {
        self.tag & ((1 << KIND_BITS) - 1)
    }

    fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len);
        // SAFETY: inside the bytes, or at their end.
        self.start = unsafe { self.start.add(bytes) };
        self.len -= bytes;
    }

    fn detach(self) -> Lease {
        if self.kind() <= PART { SendBuf::from(self.to_vec()).0 } else { self }
    }

    #[inline(always)]
    fn give_back(&mut self) {
        match self.kind() {
            POOL => {
                // SAFETY: `from_pool` made the pointer of a reference that nobody else gives back.
                let pool = unsafe { Rc::from_raw(self.owner.as_ptr().cast::<BufPool>()) };
                pool.release((self.tag >> KIND_BITS) as u16);
            }
            // SAFETY: the same of `part_of`.
            PART => drop(unsafe { Rc::from_raw(self.owner.as_ptr().cast::<RecvBuf>()) }),
            _ => self.free_memory(),
        }
    }

    #[inline(never)]
    fn free_memory(&mut self) {
        let (memory, number) = (self.owner.as_ptr(), self.tag >> KIND_BITS);
        let bytes = slice_from_raw_parts(memory, number);
        // SAFETY: they are the parts of what the `From` of `SendBuf` for each kind has taken apart, and nobody
        // else frees it. Bytes need no drop, so that the length of a vector does not matter.
        unsafe {
            match self.kind() {
                VEC => drop(Vec::from_raw_parts(memory, 0, number)),
                RC => drop(Rc::from_raw(bytes)),
                ARC => drop(Arc::from_raw(bytes)),
                _ => {}
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner keeps the bytes in place and unchanged as long as this exists: a buffer with a
        // reader is not written (see `BufPool`), and memory on the heap is not borrowed mutably. The kernel or
        // mmap initialised every byte of a pool.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Received bytes. From a stream, empty means the end of the stream; from a datagram socket, empty
/// is an empty datagram.
///
/// Dropping it returns the memory to the worker's pool. It can be passed to
/// [`TcpStream::send`](crate::TcpStream::send) directly, without a copy.
#[derive(Debug)]
pub struct RecvBuf(Lease);

impl RecvBuf {
    /// A view of the first `bytes` of a pool buffer, whose reader it becomes.
    #[inline]
    pub(crate) fn from_pool(pool: &Rc<BufPool>, id: u16, bytes: usize) -> RecvBuf {
        assert!(bytes <= pool.buffer_bytes(), "more than the buffer has");
        #[cfg(debug_assertions)]
        pool.retain(id, bytes);
        let owner = Rc::into_raw(Rc::clone(pool)).cast_mut().cast();
        // SAFETY: neither a reference nor the address of a buffer is null.
        let (start, owner) =
            unsafe { (NonNull::new_unchecked(pool.address(id)), NonNull::new_unchecked(owner)) };
        RecvBuf(Lease { start, len: bytes, owner, tag: POOL | usize::from(id) << KIND_BITS })
    }

    /// So many bytes of a buffer, which stays in use as long as one of its parts.
    #[inline]
    fn part_of(whole: &Rc<RecvBuf>, at: usize, bytes: usize) -> RecvBuf {
        assert!(at <= whole.len() && bytes <= whole.len() - at, "more than the buffer has");
        let owner = Rc::into_raw(Rc::clone(whole)).cast_mut().cast();
        // SAFETY: a reference is not null, and the part begins inside the buffer or at its end.
        let (start, owner) = unsafe { (whole.0.start.add(at), NonNull::new_unchecked(owner)) };
        RecvBuf(Lease { start, len: bytes, owner, tag: PART })
    }

    /// No bytes: the end of a stream, or an empty datagram.
    pub(crate) fn empty() -> RecvBuf {
        RecvBuf(SendBuf::from(b"").0)
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True without bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Moves the bytes out of the pool, so that they can be kept for long.
    pub fn detach(self) -> RecvBuf {
        RecvBuf(self.0.detach())
    }

    /// Shortens the view from the front: the first `bytes` (at most all) are dropped.
    pub fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }

    /// Shortens the view from the back to `bytes`; has no effect if it is already shorter.
    pub fn truncate(&mut self, bytes: usize) {
        self.0.len = self.0.len.min(bytes);
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
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
    fn from(bytes: Vec<u8>) -> RecvBuf {
        RecvBuf(SendBuf::from(bytes).0)
    }
}

/// Bytes to send; converted from any of the types below with `into()`.
#[derive(Debug)]
pub struct SendBuf(Lease);

const _: () = assert!(size_of::<Option<RecvBuf>>() == 32 && size_of::<Option<SendBuf>>() == 32);

impl SendBuf {
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
        let mut part = SendBuf::from(bytes);
        part.0.len = part.0.len.min(range.end);
        part.advance(range.start);
        part
    }

    /// The bytes still to be sent.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Number of bytes still to be sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True if no bytes are left to send.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }

    /// Drops it, received bytes without a call: each message does that.
    #[inline(always)]
    pub(crate) fn free(self) {
        ManuallyDrop::new(self.0).give_back();
    }

    pub(crate) fn detach(self) -> SendBuf {
        SendBuf(self.0.detach())
    }
}

impl From<RecvBuf> for SendBuf {
    #[inline]
    fn from(received: RecvBuf) -> SendBuf {
        SendBuf(received.0)
    }
}

impl From<Vec<u8>> for SendBuf {
    fn from(bytes: Vec<u8>) -> SendBuf {
        let mut bytes = ManuallyDrop::new(bytes);
        // Not the pointer of a slice, which would stand for its length alone.
        let memory = slice_from_raw_parts(bytes.as_mut_ptr().cast_const(), bytes.len());
        SendBuf(Lease::of(memory, VEC, bytes.capacity()))
    }
}

impl From<Rc<[u8]>> for SendBuf {
    fn from(bytes: Rc<[u8]>) -> SendBuf {
        let memory = Rc::into_raw(bytes);
        SendBuf(Lease::of(memory, RC, memory.len()))
    }
}

impl From<Arc<[u8]>> for SendBuf {
    fn from(bytes: Arc<[u8]>) -> SendBuf {
        let memory = Arc::into_raw(bytes);
        SendBuf(Lease::of(memory, ARC, memory.len()))
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&'static T> for SendBuf {
    fn from(bytes: &'static T) -> SendBuf {
        SendBuf(Lease::of(bytes.as_ref(), NOBODY, 0))
    }
}

impl From<String> for SendBuf {
    fn from(text: String) -> SendBuf {
        SendBuf::from(text.into_bytes())
    }
}
