//! Faults between the real kernel and an engine: system calls that do less than they could, or
//! nothing, and events that come later and reordered. A kernel may do all of that.
//!
//! A program that got EAGAIN, or less than it requested, relies on an event when there is more. If
//! this layer caused it, the kernel has no event to report, so the layer owes it: the next wait
//! brings it, as if the rest had arrived just then.

use super::dice::{Dice, Fault, OF_DESCRIPTORS};
use super::real::poll::Event;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Waits for which an event is held back, at most.
const WAITS_MAX: u64 = 8;

/// The direction of a system call.
#[derive(Clone, Copy)]
pub(super) enum Way {
    In,
    Out,
}

impl Way {
    fn event(self) -> i32 {
        match self {
            Way::In => libc::EPOLLIN,
            Way::Out => libc::EPOLLOUT,
        }
    }
}

struct Layer {
    dice: Dice,
    /// The epoll set of the engine.
    set: RawFd,
    /// The registration of each descriptor in epoll: data and interest.
    watched: HashMap<RawFd, (u64, i32)>,
    owed: BTreeMap<RawFd, i32>,
    /// Held back, with the waits that are left.
    held: VecDeque<(u64, Event)>,
}

thread_local! {
    /// Of the engine on this thread, if it has one.
    static LAYER: RefCell<Option<Layer>> = const { RefCell::new(None) };
}

/// Puts faults between the kernel and the engine of this thread with this epoll set, if they were
/// requested.
pub(super) fn install(set: RawFd) {
    let layer = Dice::asked_for().map(|dice| Layer {
        dice,
        set,
        watched: HashMap::new(),
        owed: BTreeMap::new(),
        held: VecDeque::new(),
    });
    LAYER.set(layer);
}

/// The epoll set was closed.
pub(super) fn remove(set: RawFd) {
    let _thread_is_gone = LAYER.try_with(|layer| layer.borrow_mut().take_if(|it| it.set == set));
}

fn with<R>(otherwise: R, ask: impl FnOnce(&mut Layer) -> R) -> R {
    LAYER.with_borrow_mut(|layer| match layer {
        Some(layer) => ask(layer),
        None => otherwise,
    })
}

/// How much of `wanted` bytes or messages a call on `socket` may be about.
///
/// # Errors
/// EAGAIN instead of the call.
pub(super) fn allowed(socket: RawFd, way: Way, wanted: usize) -> io::Result<usize> {
    with(Ok(wanted), |layer| layer.allowed(socket, way, wanted))
}

/// Like [`allowed`], for data to write: the allowed part.
pub(super) fn part<T>(socket: RawFd, way: Way, wanted: &mut [T]) -> io::Result<&mut [T]> {
    let most = allowed(socket, way, wanted.len())?;
    Ok(&mut wanted[..most])
}

/// Whether a connection may be accepted.
///
/// # Errors
/// EAGAIN or exhaustion instead of the call.
pub(super) fn may_accept(listener: RawFd) -> io::Result<()> {
    with(Ok(()), |layer| match layer.dice.errno(OF_DESCRIPTORS) {
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => layer.allowed(listener, Way::In, 1).map(drop),
    })
}

/// Epoll now watches `target`.
pub(super) fn watched(target: RawFd, interest: i32, data: u64) {
    with((), |layer| {
        let before = layer.watched.insert(target, (data, interest));
        if before.is_some_and(|(before, _)| before != data) {
            // The number belongs to another socket now, which is owed nothing.
            layer.owed.remove(&target);
        }
    });
}

/// How long a wait may take: no time if there are events that the kernel does not know.
pub(super) fn patience(timeout: Option<Duration>) -> Option<Duration> {
    with(timeout, |layer| match layer.owed.is_empty() && layer.held.is_empty() {
        true => timeout,
        false => Some(Duration::ZERO),
    })
}

/// The events that a wait reports, given those of the kernel.
pub(super) fn reported(events: &mut Vec<Event>) {
    with((), |layer| layer.reported(events));
}

impl Layer {
    fn allowed(&mut self, socket: RawFd, way: Way, wanted: usize) -> io::Result<usize> {
        let short = match way {
            Way::In => Fault::ShortReceive,
            Way::Out => Fault::ShortSend,
        };
        let again = self.dice.strikes(Fault::Again);
        if again || wanted > 1 && self.dice.strikes(short) {
            *self.owed.entry(socket).or_default() |= way.event();
        } else {
            return Ok(wanted);
        }
        match again {
            true => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            false => Ok(self.dice.part(wanted)),
        }
    }

    fn reported(&mut self, events: &mut Vec<Event>) {
        // Keeps its capacity, which is the maximum number of events.
        let fresh = events.to_vec();
        events.clear();
        for (left, _) in &mut self.held {
            *left = left.saturating_sub(1);
        }
        while let Some((0, _)) = self.held.front() {
            events.extend(self.held.pop_front().map(|(_, event)| event));
        }
        for event in fresh {
            if self.dice.strikes(Fault::Late) {
                self.held.push_back((self.dice.between(1..WAITS_MAX), event));
            } else if !events.is_empty() && self.dice.strikes(Fault::Reordered) {
                events.insert(self.dice.between(0..events.len() as u64) as usize, event);
            } else {
                events.push(event);
            }
        }
        for (fd, owed) in std::mem::take(&mut self.owed) {
            let Some((data, interest)) = self.watched.get(&fd) else { continue };
            // Events that are not watched now are reported by the kernel when they are.
            let bits = owed & interest;
            if bits != 0 {
                events.push(Event { events: bits as u32, u64: *data });
            }
        }
    }
}
