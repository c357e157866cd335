//! Rings: of the kernel, or of a simulated machine.

use super::{ask, ask_machine, own, real};
use crate::sys::machine::ring::{Cqe, Sqe};
use crate::sys::machine::world;
use io_uring::cqueue;
use io_uring::register::Restriction;
use io_uring::squeue::Entry;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) use super::real::ring::*;

const _: () = assert!(size_of::<Sqe>() == size_of::<Entry>());
const _: () = assert!(size_of::<Cqe>() == size_of::<cqueue::Entry>());

/// A ring. On a thread that is in a world it is one of its machine.
pub(crate) enum Uring {
    Real(Box<real::ring::Uring>),
    Simulated(Ring),
}

pub(crate) struct Ring {
    fd: OwnedFd,
    entries: usize,
    /// The submission queue.
    queue: RefCell<VecDeque<Sqe>>,
}

impl Uring {
    pub(crate) fn new(setup: Setup) -> io::Result<Uring> {
        match world::machine() {
            Some(machine) => {
                let fd = own(ask_machine(Some(machine), |kernel| kernel.ring_create(setup))?);
                let entries = setup.sq_entries as usize;
                Ok(Uring::Simulated(Ring { fd, entries, queue: RefCell::default() }))
            }
            None => real::ring::Uring::new(setup).map(Box::new).map(Uring::Real),
        }
    }

    /// # Safety
    /// As that of the real one.
    pub(crate) unsafe fn push(&mut self, entry: &Entry) -> bool {
        match self {
            // SAFETY: the obligation is the caller's.
            Uring::Real(ring) => unsafe { ring.push(entry) },
            Uring::Simulated(ring) => {
                let mut queue = ring.queue.borrow_mut();
                let room = queue.len() < ring.entries;
                if room {
                    // SAFETY: an entry is a transparent wrapper of struct io_uring_sqe, which has this
                    // layout and the same size (checked above); it holds no references.
                    queue.push_back(unsafe { std::mem::transmute_copy(entry) });
                }
                room
            }
        }
    }

    pub(crate) fn queued(&mut self) -> usize {
        match self {
            Uring::Real(ring) => ring.queued(),
            Uring::Simulated(ring) => ring.queue.borrow().len(),
        }
    }

    pub(crate) fn needs_wakeup(&mut self) -> bool {
        match self {
            Uring::Real(ring) => ring.needs_wakeup(),
            Uring::Simulated(_) => false,
        }
    }

    pub(crate) fn overflowed(&mut self) -> bool {
        match self {
            Uring::Real(ring) => ring.overflowed(),
            Uring::Simulated(ring) => ring.look(|kernel, fd| kernel.ring_overflowed(fd)),
        }
    }

    pub(crate) fn arrived(&mut self) -> usize {
        match self {
            Uring::Real(ring) => ring.arrived(),
            Uring::Simulated(ring) => ring.look(|kernel, fd| kernel.ring_arrived(fd)),
        }
    }

    pub(crate) fn completions(&mut self) -> impl Iterator<Item = cqueue::Entry> + '_ {
        let taken: Vec<cqueue::Entry> = match self {
            Uring::Real(ring) => ring.completions().collect(),
            Uring::Simulated(ring) => {
                let taken = ring.look(|kernel, fd| kernel.ring_take(fd));
                // SAFETY: an entry is a transparent wrapper of struct io_uring_cqe, which consists of
                // these three numbers.
                let entry = |cqe: Cqe| unsafe { std::mem::transmute_copy(&cqe) };
                taken.into_iter().map(entry).collect()
            }
        };
        taken.into_iter()
    }

    pub(crate) fn enter(&self, to_submit: u32, flags: u32, wait: Wait) -> io::Result<u32> {
        match self {
            Uring::Real(ring) => ring.enter(to_submit, flags, wait),
            Uring::Simulated(ring) => ring.enter(to_submit, flags, wait),
        }
    }

    pub(crate) fn restrict(&self, list: &mut [Restriction]) -> io::Result<()> {
        match self {
            Uring::Real(ring) => ring.restrict(list),
            Uring::Simulated(_) => Ok(()),
        }
    }

    /// # Safety
    /// As that of the real one.
    pub(crate) unsafe fn register_buffers(
        &self,
        start: u64,
        count: u16,
        group: u16,
        incremental: bool,
    ) -> io::Result<()> {
        match self {
            // SAFETY: the obligation is the caller's.
            Uring::Real(ring) => unsafe { ring.register_buffers(start, count, group, incremental) },
            Uring::Simulated(ring) => ring.ask(|kernel, fd| {
                // SAFETY: the obligation is the caller's.
                unsafe { kernel.ring_buffers(fd, start, count, group, incremental) }
            }),
        }
    }

    pub(crate) fn register_files(&self, count: u32) -> io::Result<()> {
        match self {
            Uring::Real(ring) => ring.register_files(count),
            Uring::Simulated(ring) => ring.ask(|kernel, fd| kernel.ring_files(fd, count)),
        }
    }

    pub(crate) fn update_files(&self, place: u32, fds: &[RawFd]) -> io::Result<usize> {
        match self {
            Uring::Real(ring) => ring.update_files(place, fds),
            Uring::Simulated(ring) => {
                ring.ask(|kernel, fd| kernel.ring_update_files(fd, place, fds))
            }
        }
    }
}

use crate::sys::machine::kernel::Kernel;

impl Ring {
    fn ask<T>(&self, question: impl FnOnce(&mut Kernel, RawFd) -> io::Result<T>) -> io::Result<T> {
        let gone = || Err(io::Error::from_raw_os_error(libc::EBADF));
        ask(self.fd.as_raw_fd(), question).unwrap_or_else(gone)
    }

    /// At the queues, which are memory that both sides see.
    fn look<T: Default>(&self, question: impl FnOnce(&mut Kernel, RawFd) -> T) -> T {
        let fd = self.fd.as_raw_fd();
        let machine = world::machine_of(fd).flatten();
        machine.map_or_else(T::default, |machine| question(&mut machine.kernel.borrow_mut(), fd))
    }

    fn enter(&self, to_submit: u32, flags: u32, wait: Wait) -> io::Result<u32> {
        let taken: Vec<Sqe> = {
            let mut queue = self.queue.borrow_mut();
            let count = queue.len().min(to_submit as usize);
            queue.drain(..count).collect()
        };
        let count = taken.len() as u32;
        let collects = flags & ENTER_GETEVENTS != 0;
        self.ask(|kernel, fd| {
            for sqe in taken {
                // SAFETY: `push` has passed the obligation on.
                unsafe { kernel.ring_submit(fd, sqe)? };
            }
            if collects || !kernel.ring_defers(fd)? {
                kernel.ring_work(fd, wait.completions)?;
            }
            Ok(())
        })?;
        let waits = collects && wait.completions > 0 && wait.timeout != Some(Duration::ZERO);
        if waits && self.look(|kernel, fd| kernel.ring_arrived(fd)) == 0 {
            world::rest(self.fd.as_raw_fd(), wait.timeout);
            self.ask(|kernel, fd| kernel.ring_work(fd, wait.completions))?;
        } else if collects {
            // Who does not wait lets others run all the same.
            world::rest(self.fd.as_raw_fd(), Some(Duration::ZERO));
        }
        Ok(count)
    }
}
