//! Buffers: received bytes come out of a pool, bytes to send are handed over.
//!
//! A worker has one pool. Both engines receive into it and hand out [`RecvBuf`]s, which give
//! their memory back when dropped. The pool is a transit area: bytes that have to stay (because a
//! peer does not read, or a task holds many) are copied to the heap, so that parked data can
//! never starve other sockets of buffers. Sending takes ownership ([`SendBuf`]): the kernel may
//! read the memory until the engine knows that it is done, whatever happens to the future.

use crate::sys::Mapping;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::rc::Rc;

/// Set in a buffer's reference count while the kernel fills it piece by piece.
const HELD_BY_KERNEL: u32 = 1 << 31;

/// Poison that debug builds write into released buffers.
#[cfg(debug_assertions)]
const POISON: u8 = 0xDB;

/// Equal buffers in one mapping, counted references to each, and the list of released ones.
///
/// Who may write: a buffer with references belongs to its readers and is never written; a
/// buffer on the released list belongs to nobody; a buffer taken from that list belongs to the
/// engine, which lets the kernel write until it hands out the first reference.
pub(crate) struct Pool {
    memory: Mapping,
    buffer_bytes: usize,
    references: Box<[Cell<u32>]>,
    /// Released buffers, most recent last.
    released: RefCell<VecDeque<u16>>,
    /// Buffers without readers: those on the list and those the kernel may fill.
    available: Cell<usize>,
    /// How far each buffer was filled since its last release: what has to be poisoned again.
    #[cfg(debug_assertions)]
    filled: Box<[Cell<usize>]>,
}

impl Pool {
    /// A pool of `count` (1 to 32,768) buffers of `buffer_bytes` each, all released.
    ///
    /// # Errors
    /// When there is no memory for it; the message says for what.
    pub(crate) fn new(count: u16, buffer_bytes: usize) -> io::Result<Pool> {
        let memory = Mapping::new(usize::from(count) * buffer_bytes).map_err(|error| {
            let why = format!(
                "no memory for {count} receive buffers of {buffer_bytes} bytes ({error}): take \
                 fewer or smaller ones, or allow more memory (`ulimit -v`)"
            );
            io::Error::new(error.kind(), why)
        })?;
        let pool = Pool {
            memory,
            buffer_bytes,
            references: (0..count).map(|_| Cell::new(0)).collect(),
            released: RefCell::new((0..count).rev().collect()),
            available: Cell::new(usize::from(count)),
            #[cfg(debug_assertions)]
            filled: (0..count).map(|_| Cell::new(buffer_bytes)).collect(),
        };
        #[cfg(debug_assertions)]
        (0..count).for_each(|id| pool.poison(id));
        Ok(pool)
    }

    pub(crate) fn count(&self) -> usize {
        self.references.len()
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Buffers that nobody reads.
    pub(crate) fn available(&self) -> usize {
        self.available.get()
    }

    /// Buffers that somebody reads.
    pub(crate) fn in_use(&self) -> usize {
        self.count() - self.available()
    }

    /// True when the last eighth of the buffers is in use. Pieces are then copied out before
    /// anybody can keep them, so that this many always come back.
    pub(crate) fn is_low(&self) -> bool {
        self.available() <= self.count() / 8
    }

    /// Address of buffer `id`, for the kernel.
    pub(crate) fn address(&self, id: u16) -> *mut u8 {
        assert!(usize::from(id) < self.count(), "buffer id {id} is not of this pool");
        // SAFETY: `id` is below the count, so the offset lies inside the mapping.
        unsafe { self.memory.start().as_ptr().add(usize::from(id) * self.buffer_bytes) }
    }

    /// Takes the buffer that was released last, which the cache still holds, to fill it at once.
    pub(crate) fn take(&self) -> Option<u16> {
        let id = self.released.borrow_mut().pop_back()?;
        self.check_released(id);
        Some(id)
    }

    /// Buffers that are kept from the kernel while readers give back the others: one more than
    /// make the pool low.
    pub(crate) fn reserve(&self) -> usize {
        self.count() / 8 + 1
    }

    /// Takes a buffer to give it to the kernel, unless only `reserve` are left: the one that was
    /// released last, which the cache still holds. Debug builds take the one that was released
    /// first, and keep a sixteenth of the pool back as a quarantine, in which a late write would
    /// be noticed; it has to be less than [`is_low`](Pool::is_low) keeps in circulation.
    pub(crate) fn take_for_kernel(&self, reserve: usize) -> Option<u16> {
        let quarantine = if cfg!(debug_assertions) { self.count() / 16 } else { 0 };
        let mut released = self.released.borrow_mut();
        if released.len() <= quarantine.max(reserve) {
            return None;
        }
        let id =
            if cfg!(debug_assertions) { released.pop_front()? } else { released.pop_back()? };
        self.check_released(id);
        Some(id)
    }

    fn check_released(&self, id: u16) {
        debug_assert_eq!(self.references[usize::from(id)].get(), 0, "buffer {id} is referenced");
        #[cfg(debug_assertions)]
        self.check_poison(id);
    }

    /// Number of released buffers.
    pub(crate) fn released(&self) -> usize {
        self.released.borrow().len()
    }

    /// Adds a reader.
    fn retain(&self, id: u16) {
        let references = &self.references[usize::from(id)];
        if references.get() & !HELD_BY_KERNEL == 0 {
            self.available.set(self.available.get() - 1);
        }
        references.set(references.get() + 1);
    }

    /// Takes a reader away; the last one releases the buffer, unless the kernel still fills it.
    fn release(&self, id: u16) {
        let references = &self.references[usize::from(id)];
        assert!(references.get() & !HELD_BY_KERNEL > 0, "buffer {id} is released twice");
        references.set(references.get() - 1);
        if references.get() & !HELD_BY_KERNEL == 0 {
            self.available.set(self.available.get() + 1);
        }
        if references.get() == 0 {
            self.give_back(id);
        }
    }

    /// Marks a taken buffer as one that the kernel fills piece by piece while others read it.
    pub(crate) fn hold_for_kernel(&self, id: u16) {
        let references = &self.references[usize::from(id)];
        references.set(references.get() | HELD_BY_KERNEL);
    }

    /// The kernel has filled the buffer: its last reader releases it.
    pub(crate) fn end_kernel_hold(&self, id: u16) {
        let references = &self.references[usize::from(id)];
        references.set(references.get() & !HELD_BY_KERNEL);
        if references.get() == 0 {
            self.give_back(id);
        }
    }

    /// Puts back a buffer that was taken and never referenced.
    pub(crate) fn give_back(&self, id: u16) {
        #[cfg(debug_assertions)]
        self.poison(id);
        self.released.borrow_mut().push_back(id);
    }

    /// The whole buffer, writable, for a receive by system call.
    ///
    /// The closure gets memory that nobody else can see: `id` was taken and has no reference.
    pub(crate) fn with_writable<R>(
        &self,
        id: u16,
        write: impl FnOnce(&mut [MaybeUninit<u8>]) -> R,
    ) -> R {
        assert_eq!(self.references[usize::from(id)].get(), 0, "buffer {id} has readers");
        // SAFETY: inside the mapping (`address` checks), without readers (checked above), and
        // taken by the caller, so no other writer exists for the time of the call.
        write(unsafe { std::slice::from_raw_parts_mut(self.address(id).cast(), self.buffer_bytes) })
    }

    fn bytes(&self, id: u16, start: usize, end: usize) -> &[u8] {
        debug_assert!(start <= end && end <= self.buffer_bytes);
        debug_assert!(self.references[usize::from(id)].get() > 0, "read of a released buffer");
        // SAFETY: callers hold a reference, so nobody writes this range (see `Pool`); the range
        // was checked when the RecvBuf was made, and the kernel or mmap initialised every byte.
        unsafe { std::slice::from_raw_parts(self.address(id).add(start), end - start) }
    }

    #[cfg(debug_assertions)]
    fn poison(&self, id: u16) {
        let filled = self.filled[usize::from(id)].get();
        // SAFETY: without references and not in the engine's hands, nobody else touches the
        // buffer; `filled` is at most its size, so the write stays inside it.
        unsafe { std::ptr::write_bytes(self.address(id), POISON, filled) };
    }

    /// A write by the kernel into a buffer that was not in its hands would show here. It would
    /// begin where the last one did, so the part that was in use, and a page, is looked at.
    #[cfg(debug_assertions)]
    fn check_poison(&self, id: u16) {
        let checked = self.filled[usize::from(id)].replace(0).max(4096).min(self.buffer_bytes);
        // SAFETY: as in `poison`; only read.
        let bytes = unsafe { std::slice::from_raw_parts(self.address(id), checked) };
        let intact = bytes.iter().all(|byte| *byte == POISON);
        assert!(intact, "buffer {id} was written to after its release");
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("count", &self.count())
            .field("buffer_bytes", &self.buffer_bytes)
            .field("available", &self.available.get())
            .finish()
    }
}

/// Where the bytes of a [`RecvBuf`] are. Small, because every socket has room for one.
enum Home {
    Pool(Rc<Pool>, u16),
    Heap(Box<Detached>),
    Nowhere,
}

struct Detached(Box<[u8]>);

/// Received bytes. From a stream, empty means its end and nothing else; from a datagram socket,
/// empty is an empty datagram.
///
/// Dropping it returns the memory to the worker's pool. It can be handed to
/// [`TcpStream::send`](crate::TcpStream::send) as it is, without a copy.
pub struct RecvBuf {
    home: Home,
    start: u32,
    end: u32,
}

impl RecvBuf {
    /// A view of `start..end` of a pool buffer; takes one reference.
    pub(crate) fn from_pool(pool: &Rc<Pool>, id: u16, start: usize, end: usize) -> RecvBuf {
        assert!(start <= end && end <= pool.buffer_bytes(), "{start}..{end} of buffer {id}");
        pool.retain(id);
        #[cfg(debug_assertions)]
        pool.filled[usize::from(id)].update(|filled| filled.max(end));
        RecvBuf { home: Home::Pool(Rc::clone(pool), id), start: start as u32, end: end as u32 }
    }

    /// No bytes: the end of a stream, or an empty datagram.
    pub(crate) fn empty() -> RecvBuf {
        RecvBuf { home: Home::Nowhere, start: 0, end: 0 }
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

    /// Shortens the view from the back to `bytes`; does nothing if it is shorter already.
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
            Home::Pool(pool, id) => pool.bytes(*id, start, end),
            Home::Heap(detached) => &detached.0[start..end],
            Home::Nowhere => &[],
        }
    }
}

impl Drop for RecvBuf {
    #[inline]
    fn drop(&mut self) {
        if let Home::Pool(pool, id) = &self.home {
            pool.release(*id);
        }
    }
}

impl From<Vec<u8>> for RecvBuf {
    /// Bytes that did not come straight from a socket, for those who take either. None are the end
    /// of a stream, here too.
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

/// Bytes handed over for sending; made from any of the types below with `into()`.
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
}

impl SendBuf {
    /// A part of bytes that several sends share. A range that reaches outside is cut.
    pub fn shared(bytes: Rc<[u8]>, range: std::ops::Range<usize>) -> SendBuf {
        let end = range.end.min(bytes.len());
        SendBuf { start: range.start.min(end), end, source: Source::Shared(bytes) }
    }

    /// The bytes still to be sent.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let whole: &[u8] = match &self.source {
            Source::Received(buf) => buf,
            Source::Owned(bytes) => bytes,
            Source::Shared(bytes) => bytes,
            Source::Static(bytes) => bytes,
        };
        &whole[self.start..self.end]
    }

    /// Number of bytes still to be sent.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True when nothing is left to be sent.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Marks the first `bytes` as sent.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// Moves bytes that have to wait out of the pool.
    pub(crate) fn detach(self) -> SendBuf {
        match self.source {
            Source::Received(RecvBuf { home: Home::Pool(..), .. }) => {
                SendBuf::from(self.as_slice().to_vec())
            }
            _ => self,
        }
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

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "written to after its release")]
    fn a_late_write_into_a_released_buffer_is_noticed() {
        let pool = Rc::new(Pool::new(1, 64).unwrap());
        let address = pool.address(0);
        drop(filled(&pool, 1));
        // SAFETY: inside the mapping; the write stands in for a kernel that writes too late.
        unsafe { address.add(13).write(1) };
        pool.take();
    }

    proptest! {
        /// No buffer is ever handed out twice at once, none is lost, contents stay put.
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
