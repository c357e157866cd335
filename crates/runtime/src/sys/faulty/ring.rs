//! A ring of the kernel with faults in between.

use super::operations::{Cqe, Layer, Sqe};
use super::real;
use io_uring::cqueue;
use io_uring::squeue::Entry;
use std::io;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub(crate) use super::real::ring::*;

const _: () = assert!(size_of::<Sqe>() == size_of::<Entry>());
const _: () = assert!(size_of::<Cqe>() == size_of::<cqueue::Entry>());

/// A ring of the real kernel, with faults in between if they were requested.
pub(crate) struct Uring {
    ring: real::ring::Uring,
    entries: usize,
    faults: Option<Layer>,
}

impl Uring {
    pub(crate) fn new(setup: Setup) -> io::Result<Uring> {
        let entries = setup.sq_entries as usize;
        Ok(Uring { ring: real::ring::Uring::new(setup)?, entries, faults: Layer::new() })
    }

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn push(&mut self, entry: &Entry) -> bool {
        let Some(layer) = &mut self.faults else {
            // SAFETY: the obligation is the caller's.
            return unsafe { self.ring.push(entry) };
        };
        // An entry that finds the queue full is pushed again, and meets its faults then.
        if self.ring.queued() >= self.entries {
            return false;
        }
        let entry = entry_of(layer.submitted(sqe_of(entry)));
        // SAFETY: the caller's obligation; the entry names the same memory, or less.
        unsafe { self.ring.push(&entry) }
    }

    pub(crate) fn arrived(&mut self) -> usize {
        self.ring.arrived().max(usize::from(self.holds()))
    }

    pub(crate) fn completions(&mut self) -> impl Iterator<Item = cqueue::Entry> + '_ {
        let taken: Vec<cqueue::Entry> = match &mut self.faults {
            Some(layer) => {
                let delivered = layer.delivered(self.ring.completions().map(cqe_of));
                delivered.into_iter().map(completion_of).collect()
            }
            None => self.ring.completions().collect(),
        };
        taken.into_iter()
    }

    pub(crate) fn enter(&mut self, to_submit: u32, flags: u32, mut wait: Wait) -> io::Result<u32> {
        if self.holds() && wait.timeout != Some(Duration::ZERO) {
            wait = Wait { completions: 0, timeout: None };
        }
        self.ring.enter(to_submit, flags, wait)
    }

    /// True if completions are held back, so that no wait must be for others.
    fn holds(&self) -> bool {
        self.faults.as_ref().is_some_and(Layer::holds)
    }
}

impl Deref for Uring {
    type Target = real::ring::Uring;

    fn deref(&self) -> &Self::Target {
        &self.ring
    }
}

impl DerefMut for Uring {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.ring
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
