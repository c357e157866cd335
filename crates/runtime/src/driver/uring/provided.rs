//! Provided buffers: how the kernel gets memory to receive into.
//!
//! The kernel picks a buffer when data arrives, so a connection that waits holds none. Buffers are
//! given to it through a ring that it shares with us.
//!
//! Buffers come in groups of equal geometry. Streams share the first group; datagram sockets
//! share one for each geometry that they ask for.

mod starved;

pub(super) use starved::Starved;

use super::ring::Ring;
use crate::buf::{BufPool, RecvBuf};
use crate::config::UringOptions;
use crate::driver::common::check_geometries;
use crate::slots::Key;
use crate::sys::Mapping;
use crate::sys::ring::charged;
use io_uring::cqueue;
use io_uring::types::BufRingEntry;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

pub(super) const STREAMS: u16 = 0;

/// Bytes that the kernel may receive on streams before they are taken, as far as can be predicted.
/// The data that a turn receives and sends again then stays in the second-level cache, as with
/// epoll, whose one buffer is always warm. With large pieces that saves more than the receives that
/// end for lack of a buffer cost.
const WARM_BYTES: usize = 384 * 1024;

/// Bytes of buffers that the kernel has for datagrams. The ring is first in, first out: all of its
/// buffers would soon be in memory. The pool is last in, first out, and needs no more than are in use.
const DATAGRAMS_BYTES: usize = 2 << 20;

/// So many sockets with pending receives share a group, unless it had more buffers than this then: each reserves
/// addresses for 64 KiB.
const SHARERS: usize = 16;
const SHARED_MAX: usize = 1024;
/// The most buffers that a ring of them can have.
const POOL_MAX: usize = 1 << 15;

/// The mean size of a piece, as assumed until some have arrived. With 0, peers that send much would fill
/// all buffers in the first turn.
const FIRST_PIECE_BYTES: usize = 4096;

/// All buffers of a worker that the kernel receives into.
pub(super) struct Groups {
    pub(super) streams: Provided,
    /// Those of datagram sockets, by group number; the first has number 1.
    others: Vec<Provided>,
}

impl Groups {
    pub(super) fn new(ring: &Ring, features: &UringOptions) -> io::Result<Groups> {
        let (count, bytes) = (features.buffer_count as u16, features.buffer_bytes as usize);
        let streams = Provided::new(ring, STREAMS, count, bytes)?;
        Ok(Groups { streams, others: Vec::new() })
    }

    /// The index of a group with `count` buffers beside those that the `pending` receives of each of its sockets
    /// may hold in worker threads.
    pub(super) fn for_datagrams(
        &mut self,
        ring: &Ring,
        count: u32,
        bytes: usize,
        pending: u32,
    ) -> io::Result<usize> {
        let (mut count, pending) = (count as usize, pending as usize);
        if pending > 0 {
            // A pool has room for them at its largest, too.
            count = count.min(POOL_MAX / 2);
        }
        let copied_from = count - count / 8;
        let fits = |group: &Provided| {
            let room = group.pool.count() - group.pool.kept_back();
            let has_room = group.pending + pending <= room.saturating_sub(count);
            group.bytes == bytes && group.copied_from == copied_from && has_room
        };
        let group = match self.others.iter().position(fits) {
            Some(group) => group,
            None => {
                check_geometries(self.others.len())?;
                let number = self.others.len() as u16 + 1;
                let shared = (count + SHARERS * pending).min(SHARED_MAX);
                let buffers = shared.max(count + pending).next_power_of_two().min(POOL_MAX);
                let group = Provided::new(ring, number, buffers as u16, bytes)?;
                self.others.push(Provided { copied_from, ..group });
                self.others.len() - 1
            }
        };
        self.others[group].pending += pending;
        Ok(group)
    }

    pub(super) fn get(&mut self, group: usize) -> &mut Provided {
        &mut self.others[group]
    }

    fn all(&self) -> impl Iterator<Item = &Provided> {
        std::iter::once(&self.streams).chain(&self.others)
    }

    /// True if the kernel has buffers in stock, nobody waits for one, and half of them are unused: then
    /// all that is below can be left for later.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.others.is_empty() && self.streams.is_calm()
    }

    /// True if buffers should be given to the kernel, or sockets wait for one.
    pub(super) fn need_buffers(&self, in_transit: usize) -> bool {
        let Provided { with_kernel, low_mark, starved, .. } = &self.streams;
        !self.others.is_empty()
            || with_kernel < low_mark
            || !starved.is_empty()
            || self.streams.pool.is_short(in_transit)
    }

    /// Gives released buffers to the kernel; `in_transit` of the streams' are about to come back.
    pub(super) fn publish(&mut self, in_transit: usize) {
        for group in &mut self.others {
            group.publish(0, (DATAGRAMS_BYTES / group.bytes).max(4) + group.pending);
        }
        self.streams.publish_with_reserve(in_transit);
    }

    /// Moves out sockets that wait for a buffer, in their order ([`Starved`]) and no more than there
    /// are buffers: the receives of the others would only end for want of one again, and
    /// with thousands of sockets that costs more than the data.
    pub(super) fn take_fed(&mut self) -> Vec<Key> {
        let mut fed = Vec::new();
        for group in std::iter::once(&mut self.streams).chain(&mut self.others) {
            let buffers = group.with_kernel;
            fed.extend(std::iter::from_fn(|| group.starved.pop()).take(buffers));
        }
        fed
    }

    /// True if sockets wait although there are buffers, because others were served first.
    pub(super) fn can_feed(&self) -> bool {
        self.all().any(|group| group.with_kernel > 0 && !group.starved.is_empty())
    }

    pub(super) fn any_starved(&self) -> bool {
        self.all().any(|group| !group.starved.is_empty())
    }

    pub(super) fn any_half_used(&self) -> bool {
        self.all().any(|group| group.pool.available() * 2 < group.pool.count())
    }

    #[inline]
    pub(super) fn buffers_in_use(&self) -> usize {
        let others = self.others.iter().map(|group| group.pool.in_use());
        self.streams.pool.in_use() + others.sum::<usize>()
    }

    /// Keeps the memory mapped for ever: for a kernel that may still write into it.
    pub(super) fn leak(&self) {
        // The entries of the rings are only read by the kernel; they go with the ring.
        self.all().for_each(|group| std::mem::forget(Rc::clone(&group.pool)));
    }
}

pub(super) struct Provided {
    pub(super) number: u16,
    pool: Rc<BufPool>,
    /// Bytes of a buffer that the kernel may fill.
    pub(super) bytes: usize,
    /// The ring through which the kernel takes buffers: entries in memory we share with it, as many as there
    /// are buffers, and a tail that only we move.
    entries: Mapping,
    tail: u16,
    /// Buffers in the kernel's hands that no completion has named yet.
    with_kernel: usize,
    /// With fewer, they are given further ones.
    low_mark: usize,
    /// Buffers that the kernel may hold for receives of datagrams.
    pub(super) pending: usize,
    /// With so many readers, data that arrives is copied out of the pool.
    copied_from: usize,
    /// Running mean of the bytes of a piece, without those of the buffers that were filled since it was
    /// computed: how many the kernel had then, and the bytes of those that it has not any more.
    piece_bytes: usize,
    had: usize,
    bytes_filled: usize,
    /// Sockets whose receive found no buffer.
    pub(super) starved: Starved,
}

impl Provided {
    fn new(ring: &Ring, number: u16, count: u16, bytes: usize) -> io::Result<Provided> {
        // Whole cache lines, so that no two buffers share one.
        let pool = Rc::new(BufPool::new(count, bytes.next_multiple_of(64))?);
        let entries = Mapping::new(usize::from(count) * size_of::<BufRingEntry>())?;
        let start = entries.start().as_ptr() as u64;
        // SAFETY: the mapping is page-aligned, holds `count` zeroed entries, and lives until the
        // ring has been torn down (`UringEngine` drops its `Groups` after its `Ring`).
        let register = || unsafe { ring.uring.register_buffers(start, count, number) };
        // A worker that serves does not wait for memory that others give back late.
        if ring.is_fresh() {
            charged(register)?
        } else {
            register()?
        };
        let copied_from = pool.count() - pool.low();
        Ok(Provided {
            number,
            pool,
            bytes,
            entries,
            tail: 0,
            with_kernel: 0,
            low_mark: 1,
            pending: 0,
            copied_from,
            piece_bytes: FIRST_PIECE_BYTES,
            had: 0,
            bytes_filled: 0,
            starved: Starved::default(),
        })
    }

    /// True if nearly all buffers are in use, or readers keep theirs although all tasks ran: data that arrives
    /// now must not stay in the pool.
    #[inline]
    pub(super) fn is_low(&self) -> bool {
        self.pool.in_use() >= self.copied_from
    }

    #[inline]
    fn is_calm(&self) -> bool {
        self.with_kernel >= self.low_mark
            && self.starved.is_empty()
            && self.pool.in_use() * 2 <= self.pool.count()
    }

    /// Publishes all but the reserve, from which data would have to be copied out, unless readers
    /// keep the other buffers. A turn that uses every buffer thus copies nothing.
    fn publish_with_reserve(&mut self, in_transit: usize) {
        let most = self.most_with_kernel();
        self.publish(self.pool.reserve(), most);
        let usual = self.pool.count() - self.pool.reserve();
        self.low_mark = most.min(usual).div_ceil(2);
        let stuck = in_transit == 0 && self.with_kernel == 0;
        self.copied_from = self.pool.count() - self.pool.low();
        if stuck || self.pool.is_short(in_transit) {
            self.publish(0, most);
            // All of it, until this finds that it is over.
            self.copied_from = 0;
            self.low_mark = usize::MAX;
        }
    }

    /// Buffers that the kernel should have at a time.
    fn most_with_kernel(&mut self) -> usize {
        if let Some(mean) = self.bytes_filled.checked_div(self.had - self.with_kernel) {
            self.piece_bytes = (self.piece_bytes + mean) / 2;
        }
        (self.had, self.bytes_filled) = (self.with_kernel, 0);
        (WARM_BYTES / self.piece_bytes.max(1)).max(4)
    }

    /// Gives released buffers to the kernel, but for `reserve`, until it has `most`.
    fn publish(&mut self, reserve: usize, most: usize) {
        let wanted = most.saturating_sub(self.with_kernel).min(self.pool.spare(reserve));
        if wanted == 0 {
            return;
        }
        let entries = self.entries.start().cast::<BufRingEntry>().as_ptr();
        let (pool, mut tail) = (&*self.pool, self.tail);
        for id in (0..wanted).map_while(|_| pool.take()) {
            // A power of two.
            let at = usize::from(tail) & (pool.count() - 1);
            // SAFETY: `at` is masked to the number of entries, so the pointer is inside the mapping;
            // the kernel reads an entry only between head and tail, and this one is outside, because
            // at most as many buffers exist as the ring has entries.
            let entry = unsafe { &mut *entries.add(at) };
            entry.set_addr(pool.address(id) as u64);
            entry.set_len(self.bytes as u32);
            entry.set_bid(id);
            tail = tail.wrapping_add(1);
        }
        self.with_kernel += usize::from(tail.wrapping_sub(self.tail));
        (self.tail, self.had) = (tail, self.with_kernel);
        // SAFETY: the mapping holds at least one entry, and the tail lies in its reserved field
        // (io_uring_register_buf_ring(3)); it is aligned for u16 and lives as long as `self`.
        let shared = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        shared.store(tail, Ordering::Release);
    }

    /// The buffer that a completion with these flags and so many bytes names, if it names one.
    #[inline]
    pub(super) fn filled(&mut self, flags: u32, bytes: usize) -> Option<u16> {
        self.bytes_filled += bytes;
        let id = cqueue::buffer_select(flags)?;
        self.with_kernel -= 1;
        Some(id)
    }

    /// The bytes in a buffer that was filled; without any, it returns at once.
    #[inline]
    pub(super) fn reader(&self, id: u16, bytes: usize) -> RecvBuf {
        RecvBuf::from_pool(&self.pool, id, bytes)
    }
}
