//! The sockets of one worker, by key.

use super::common::DriverSetup;
use super::stream::StreamRef;
use super::udp::Udp;
use super::uring::{UringListener, WakeWatch};
use crate::slots::{Key, Slots};
use crate::sys;
use crate::task::WaitQueue;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A listening socket.
pub(crate) struct Listener {
    /// Empty once it was closed.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) waiters: WaitQueue,
    /// The state on io_uring, and on epoll: it may have a connection. Always edge-triggered there: a
    /// level-triggered one would report its backlog again and again while accepting is stalled for lack
    /// of descriptors.
    pub(crate) uring: UringListener,
    pub(crate) ready: bool,
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd) -> Box<Listener> {
        let (waiters, uring) = (WaitQueue::default(), UringListener::default());
        Box::new(Listener { socket: Some(socket), waiters, uring, ready: true })
    }
}

/// The entry that a key refers to.
pub(crate) enum Entry {
    /// The worker's eventfd.
    Wake(WakeWatch),
    Listener(Box<Listener>),
    Stream(StreamRef),
    Udp(Box<Udp>),
}

/// The sockets registered with a driver.
pub(crate) struct Sockets {
    pub(crate) entries: Slots<Entry>,
    /// Those that the program has closed while bytes for the peer were queued, each with its deadline: all
    /// may linger equally long, so the queue is in order.
    pub(crate) lingering: VecDeque<(Instant, Key)>,
    linger: Duration,
    /// Counts the times that the engine looked for events.
    pub(crate) round: u64,
}

impl Sockets {
    pub(crate) fn new(setup: &DriverSetup) -> Sockets {
        let entries = Slots::counted(&setup.counters);
        Sockets { entries, lingering: VecDeque::new(), linger: setup.linger, round: 0 }
    }

    pub(crate) fn linger(&mut self, key: Key) {
        self.lingering.push_back((sys::now() + self.linger, key));
    }

    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> Key {
        self.entries.insert(Entry::Listener(Listener::new(socket)))
    }

    /// The stream of a key.
    #[inline]
    pub(crate) fn stream(&self, key: Key) -> Option<&StreamRef> {
        match self.entries.get(key) {
            Some(Entry::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn udp(&mut self, key: Key) -> Option<&mut Udp> {
        match self.entries.get_mut(key) {
            Some(Entry::Udp(udp)) => Some(udp),
            _ => None,
        }
    }

    pub(crate) fn listener(&mut self, key: Key) -> Option<&mut Listener> {
        match self.entries.get_mut(key) {
            Some(Entry::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// Frees the slot of a socket that the kernel has nothing of any more. The program may still have a
    /// handle of a stream: its operations fail from now on.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Entry> {
        let removed = self.entries.remove(key)?;
        if let Entry::Stream(stream) = &removed {
            stream.borrow_mut().end();
        }
        Some(removed)
    }

    /// True while the program or a linger keeps the socket's descriptor open.
    pub(crate) fn is_open(&self, key: Key) -> bool {
        match self.entries.get(key) {
            Some(Entry::Stream(stream)) => stream.borrow().socket.is_some(),
            Some(Entry::Udp(udp)) => udp.socket.is_some(),
            _ => false,
        }
    }
}
