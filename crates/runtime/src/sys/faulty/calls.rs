//! Faults between the real kernel and an engine: system calls that do less than they could, or
//! nothing, and events that come later and reordered.
//!
//! A program that got EAGAIN, or less than it requested, relies on an event when there is more. If
//! this layer caused it, the kernel has no event to report, so the layer owes it: the next wait
//! brings it, as if the rest had arrived just then.

use super::dice::{Dice, Fault, Held};
use super::real::poll::EpollEvent;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// The direction of a system call, and its event.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Way {
    In = libc::EPOLLIN,
    Out = libc::EPOLLOUT,
}

pub(super) struct CallFaults {
    dice: Dice,
    /// The registration of each descriptor in epoll: data and interest.
    watched: HashMap<RawFd, (u64, i32)>,
    owed: BTreeMap<RawFd, i32>,
    held: Held<EpollEvent>,
}

thread_local! {
    /// Of the engine on this thread, if it has one.
    static FAULTS: RefCell<Option<CallFaults>> = const { RefCell::new(None) };
}

/// Puts faults between the kernel and the engine of this thread, if they were requested.
pub(super) fn install() {
    FAULTS.set(Dice::asked_for().map(|dice| {
        let (watched, owed) = Default::default();
        CallFaults { dice, watched, owed, held: Held::nothing() }
    }));
}

pub(super) fn remove() {
    let _thread_is_gone = FAULTS.try_with(RefCell::take);
}

/// Asks the faults, if there are any.
pub(super) fn with<R>(otherwise: R, ask: impl FnOnce(&mut CallFaults) -> R) -> R {
    FAULTS.with_borrow_mut(|faults| match faults {
        Some(faults) => ask(faults),
        None => otherwise,
    })
}

/// How much of `wanted` bytes or messages a call on `socket` may be about; or EAGAIN instead of the
/// call.
pub(super) fn allowed(socket: RawFd, way: Way, wanted: usize) -> io::Result<usize> {
    with(Ok(wanted), |faults| faults.allowed(socket, way, wanted))
}

/// Like [`allowed`], for data to write: the allowed part.
pub(super) fn part<T>(socket: RawFd, way: Way, wanted: &mut [T]) -> io::Result<&mut [T]> {
    let most = allowed(socket, way, wanted.len())?;
    Ok(&mut wanted[..most])
}

impl CallFaults {
    fn allowed(&mut self, socket: RawFd, way: Way, wanted: usize) -> io::Result<usize> {
        let short = match way {
            Way::In => Fault::ShortReceive,
            Way::Out => Fault::ShortSend,
        };
        let again = self.dice.errno(&[Fault::Again]);
        if again.is_none() && !(wanted > 1 && self.dice.strikes(short)) {
            return Ok(wanted);
        }
        *self.owed.entry(socket).or_default() |= way as i32;
        match again {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(self.dice.part(wanted)),
        }
    }

    /// Whether a connection may be accepted; or EAGAIN or exhaustion instead of the call.
    pub(super) fn may_accept(&mut self, listener: RawFd) -> io::Result<()> {
        match self.dice.errno(&[Fault::Exhausted]) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => self.allowed(listener, Way::In, 1).map(drop),
        }
    }

    pub(super) fn watched(&mut self, target: RawFd, interest: i32, data: u64) {
        let before = self.watched.insert(target, (data, interest));
        if before.is_some_and(|(before, _)| before != data) {
            // The number belongs to another socket now, which is owed nothing.
            self.owed.remove(&target);
        }
    }

    /// How long a wait may take: no time if there are events that the kernel does not know.
    pub(super) fn patience(&self, timeout: Option<Duration>) -> Option<Duration> {
        let knows_all = self.owed.is_empty() && self.held.0.is_empty();
        if knows_all { timeout } else { Some(Duration::ZERO) }
    }

    /// The events that a wait reports, given those of the kernel.
    pub(super) fn reported(&mut self, events: &mut Vec<EpollEvent>) {
        // Keeps its capacity, which is the maximum number of events.
        let fresh = events.to_vec();
        events.clear();
        events.extend(self.held.due());
        for event in fresh {
            if self.dice.strikes(Fault::Late) {
                self.held.hold(&mut self.dice, event);
            } else if self.dice.strikes(Fault::Reordered) {
                events.insert(self.dice.between(0..events.len()), event);
            } else {
                events.push(event);
            }
        }
        for (fd, owed) in std::mem::take(&mut self.owed) {
            let Some((data, interest)) = self.watched.get(&fd) else { continue };
            // Events that are not watched now are reported by the kernel when they are.
            let bits = owed & interest;
            if bits != 0 {
                events.push(EpollEvent { events: bits as u32, u64: *data });
            }
        }
    }
}
