//! Prices of trivial system calls, and of copying.

use super::list::{PriceList, Samples, median};
use super::said;
use crate::probe::Refusal;
use crate::sys::prices::{IdleRing, MemoryFile, do_nothing};
use crate::sys::{self, poll::Epoll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

/// Calls of a batch, and batches of a round: some 100 us each.
const CALLS: u32 = 500;
const BATCHES: usize = 5;

/// The median over the batches of the duration of one of `calls`.
fn nanoseconds_of(calls: u32, mut call: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let mut batches = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let started = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        batches.push(started.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    median(batches).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The resources of the calls, created once.
pub(super) struct Calls {
    ring: Result<IdleRing, String>,
    epoll: Result<(Epoll, OwnedFd), String>,
    memory: Result<MemoryFile, String>,
    /// Where in the file the next copy past the caches begins.
    cold_at: usize,
}

impl Calls {
    /// Where rings are refused it is known why.
    pub(super) fn new(ring_refused: Option<&Refusal>) -> Calls {
        let ring = match ring_refused {
            Some(refusal) => Err(refusal.to_string()),
            None => IdleRing::new().map_err(|error| said("io_uring_setup", &error, "see above")),
        };
        let epoll = ready_epoll()
            .map_err(|error| said("epoll_create1", &error, "raise `ulimit -n`, or allow the call"));
        let memory = MemoryFile::new(COLD_BYTES, PORTION_BYTES).map_err(|error| {
            said(
                "a file in memory of 64 MiB",
                &error,
                "raise the memory limit, or allow memfd_create",
            )
        });
        Calls { ring, epoll, memory, cold_at: 0 }
    }

    pub(super) fn measure(&mut self, samples: &mut PriceList<Samples>) {
        let failed = |error: io::Error| error.to_string();
        let nothing = || {
            do_nothing();
            Ok(())
        };
        samples.syscall_ns.add(nanoseconds_of(CALLS, nothing).map_err(failed));
        let ring = self.ring.as_mut().map_err(|why| why.clone());
        match ring {
            Ok(ring) => {
                samples.enter_ns.add(nanoseconds_of(CALLS, || ring.enter()).map_err(failed));
                samples.nop_ns.add(nanoseconds_of(CALLS, || ring.nop()).map_err(failed));
            }
            Err(why) => {
                samples.enter_ns.add(Err(why.clone()));
                samples.nop_ns.add(Err(why));
            }
        }
        samples.epoll_wait_ns.add(self.epoll.as_ref().map_err(Clone::clone).and_then(
            |(epoll, _)| {
                let mut events = Vec::with_capacity(8);
                nanoseconds_of(CALLS, || epoll.wait(&mut events, None)).map_err(failed)
            },
        ));
        let Calls { memory, cold_at, .. } = self;
        let memory = memory.as_ref().map_err(Clone::clone);
        samples.copy_ns_per_kb.add(memory.clone().and_then(|file| warm(file).map_err(failed)));
        let cold = memory.and_then(|file| cold(file, cold_at).map_err(failed));
        samples.copy_uncached_ns_per_kb.add(cold);
    }
}

/// An epoll set one of whose descriptors is always ready.
fn ready_epoll() -> io::Result<(Epoll, OwnedFd)> {
    let (epoll, ready) = (Epoll::new()?, sys::eventfd()?);
    sys::eventfd_signal(ready.as_fd());
    epoll.add(ready.as_raw_fd(), libc::EPOLLIN, 0)?;
    Ok((epoll, ready))
}

/// Bytes of one copy: as much as a buffer of the engines holds, and less than a second-level cache.
const PORTION_BYTES: usize = 64 * 1024;
/// More than a CPU has of cache in most machines, and little enough for a small container.
const COLD_BYTES: usize = 64 << 20;
/// Copies of a batch: some 10 us each.
const COPIES: u32 = 32;

/// Reads and writes of 64 KB less those of one byte, per KB. A file in memory and not a socket or a
/// pipe, because those also allocate the memory that they copy to.
fn per_kb(copy: impl Fn(usize) -> io::Result<()>) -> io::Result<f64> {
    let small = nanoseconds_of(COPIES, || copy(1))?;
    let large = nanoseconds_of(COPIES, || copy(PORTION_BYTES))?;
    // Each copy is one write and one read.
    Ok((large - small) / 2.0 / ((PORTION_BYTES - 1) as f64 / 1024.0))
}

fn warm(file: &MemoryFile) -> io::Result<f64> {
    per_kb(|bytes| file.write(bytes, 0).and_then(|_| file.read(bytes, 0)).map(drop))
}

/// The same, going through a file that is larger than the caches. Writes and reads use different
/// parts of it, because data that was just written is in the cache.
fn cold(file: &MemoryFile, at: &mut usize) -> io::Result<f64> {
    let next = std::cell::Cell::new(*at);
    let copied = per_kb(|bytes| {
        let at = next.get();
        next.set((at + PORTION_BYTES) % COLD_BYTES);
        let far = (at + COLD_BYTES / 2) % COLD_BYTES;
        file.write(bytes, at).and_then(|_| file.read(bytes, far)).map(drop)
    });
    *at = next.get();
    copied
}
