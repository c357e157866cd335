//! Rings: of the kernel, or of a simulated machine.

use super::{ask, ask_machine, own, real};
use crate::sys::faults::ring::Layer;
use crate::sys::machine::kernel::Kernel;
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

/// A ring. On a thread in a world it belongs to the machine.
pub(crate) enum Uring {
    Real(Box<Real>),
    Simulated(Ring),
}

/// A ring of the real kernel, with faults in between if they were requested.
pub(crate) struct Real {
    ring: real::ring::Uring,
    entries: usize,
    faults: Option<Layer>,
}

pub(crate) struct Ring {
    fd: OwnedFd,
    entries: usize,
    /// The submission queue.
    queue: RefCell<VecDeque<Sqe>>,
}

impl Uring {
    pub(crate) fn new(setup: Setup) -> io::Result<Uring> {
        let entries = setup.sq_entries as usize;
        match world::machine() {
            Some(machine) => {
                let create = || {
                    let machine = Some(machine.clone());
                    ask_machine(machine, |kernel| kernel.ring_create(setup))
                };
                let fd = own(charged(create)?);
                Ok(Uring::Simulated(Ring { fd, entries, queue: RefCell::default() }))
            }
            None => {
                let ring = real::ring::Uring::new(setup)?;
                Ok(Uring::Real(Box::new(Real { ring, entries, faults: Layer::new() })))
            }
        }
    }

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn push(&mut self, entry: &Entry) -> bool {
        match self {
            Uring::Real(real) => {
                let Some(layer) = &mut real.faults else {
                    // SAFETY: the obligation is the caller's.
                    return unsafe { real.ring.push(entry) };
                };
                // An entry that finds the queue full is pushed again, and meets its faults then.
                if real.ring.queued() >= real.entries {
                    return false;
                }
                let entry = entry_of(layer.submitted(sqe_of(entry)));
                // SAFETY: the caller's obligation; the entry names the same memory, or less.
                unsafe { real.ring.push(&entry) }
            }
            Uring::Simulated(ring) => {
                let mut queue = ring.queue.borrow_mut();
                let room = queue.len() < ring.entries;
                if room {
                    queue.push_back(sqe_of(entry));
                }
                room
            }
        }
    }

    pub(crate) fn queued(&mut self) -> usize {
        match self {
            Uring::Real(real) => real.ring.queued(),
            Uring::Simulated(ring) => ring.queue.borrow().len(),
        }
    }

    pub(crate) fn needs_wakeup(&mut self) -> bool {
        match self {
            Uring::Real(real) => real.ring.needs_wakeup(),
            Uring::Simulated(_) => false,
        }
    }

    pub(crate) fn overflowed(&mut self) -> bool {
        match self {
            Uring::Real(real) => real.ring.overflowed(),
            Uring::Simulated(ring) => ring.look(|kernel, fd| kernel.ring_overflowed(fd)),
        }
    }

    pub(crate) fn arrived(&mut self) -> usize {
        match self {
            Uring::Real(real) => real.ring.arrived().max(usize::from(real.holds())),
            Uring::Simulated(ring) => ring.look(|kernel, fd| kernel.ring_arrived(fd)),
        }
    }

    pub(crate) fn completions(&mut self) -> impl Iterator<Item = cqueue::Entry> + '_ {
        let taken: Vec<cqueue::Entry> = match self {
            Uring::Real(real) => match &mut real.faults {
                Some(layer) => {
                    let delivered = layer.delivered(real.ring.completions().map(cqe_of));
                    delivered.into_iter().map(completion_of).collect()
                }
                None => real.ring.completions().collect(),
            },
            Uring::Simulated(ring) => {
                let taken = ring.look(|kernel, fd| kernel.ring_take(fd));
                taken.into_iter().map(completion_of).collect()
            }
        };
        taken.into_iter()
    }

    pub(crate) fn enter(&self, to_submit: u32, flags: u32, mut wait: Wait) -> io::Result<u32> {
        match self {
            Uring::Real(real) => {
                if real.holds() && wait.timeout != Some(Duration::ZERO) {
                    wait = Wait { completions: 0, timeout: None, min_wait_us: 0 };
                }
                real.ring.enter(to_submit, flags, wait)
            }
            Uring::Simulated(ring) => ring.enter(to_submit, flags, wait),
        }
    }

    pub(crate) fn restrict(&self, list: &mut [Restriction]) -> io::Result<()> {
        match self {
            Uring::Real(real) => real.ring.restrict(list),
            Uring::Simulated(_) => Ok(()),
        }
    }

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn register_buffers(
        &self,
        start: u64,
        count: u16,
        group: u16,
        incremental: bool,
    ) -> io::Result<()> {
        match self {
            Uring::Real(real) => {
                if let Some(layer) = real.faults.as_ref().filter(|_| incremental) {
                    layer.is_incremental(group);
                }
                // SAFETY: the obligation is the caller's.
                unsafe { real.ring.register_buffers(start, count, group, incremental) }
            }
            Uring::Simulated(ring) => ring.ask(|kernel, fd| {
                // SAFETY: the obligation is the caller's.
                unsafe { kernel.ring_buffers(fd, start, count, group, incremental) }
            }),
        }
    }

    pub(crate) fn register_files(&self, count: u32) -> io::Result<()> {
        match self {
            Uring::Real(real) => real.ring.register_files(count),
            Uring::Simulated(ring) => ring.ask(|kernel, fd| kernel.ring_files(fd, count)),
        }
    }

    pub(crate) fn update_files(&self, place: u32, fds: &[RawFd]) -> io::Result<usize> {
        match self {
            Uring::Real(real) => real.ring.update_files(place, fds),
            Uring::Simulated(ring) => {
                ring.ask(|kernel, fd| kernel.ring_update_files(fd, place, fds))
            }
        }
    }
}

impl Real {
    /// True if completions are held back, so that no wait must be for others.
    fn holds(&self) -> bool {
        self.faults.as_ref().is_some_and(Layer::holds)
    }
}

/// The parts of an entry.
fn sqe_of(entry: &Entry) -> Sqe {
    // SAFETY: an entry is a transparent wrapper of struct io_uring_sqe, which has this layout and the
    // same size (checked above); it holds no references.
    unsafe { std::mem::transmute_copy(entry) }
}

fn entry_of(sqe: Sqe) -> Entry {
    // SAFETY: as in `sqe_of`.
    unsafe { std::mem::transmute_copy(&sqe) }
}

fn cqe_of(entry: cqueue::Entry) -> Cqe {
    // SAFETY: an entry is a transparent wrapper of struct io_uring_cqe, which consists of these three
    // numbers; the sizes are the same (checked above).
    unsafe { std::mem::transmute_copy(&entry) }
}

fn completion_of(cqe: Cqe) -> cqueue::Entry {
    // SAFETY: as in `cqe_of`.
    unsafe { std::mem::transmute_copy(&cqe) }
}

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
            // Other programs run even if this one does not wait.
            world::rest(self.fd.as_raw_fd(), Some(Duration::ZERO));
        }
        Ok(count)
    }
}
