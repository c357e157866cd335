//! The sockets of one worker, by key.

use super::common::{DriverSetup, closed};
use super::stream::StreamRef;
use super::udp::Udp;
use super::uring::UringListener;
use super::{Backend, Driver};
use crate::slots::{Key, Slots};
use crate::task::{WaitQueue, Waiter};
use crate::time::sleep;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

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

pub(crate) enum Source {
    Listener(Box<Listener>),
    Stream(StreamRef),
    Udp(Box<Udp>),
}

pub(crate) struct Sockets {
    pub(crate) sources: Slots<Source>,
    /// Wakers to call when nothing is borrowed: after the turn.
    pub(crate) wakes: Vec<Waker>,
    /// Those that the program has closed while bytes for the peer were queued, each with its deadline: all
    /// may linger equally long, so the queue is in order.
    pub(crate) lingering: VecDeque<(Instant, Key)>,
    linger: Duration,
    /// Counts the times that the engine looked for events.
    pub(crate) round: u64,
}

impl Sockets {
    pub(crate) fn new(setup: &DriverSetup) -> Sockets {
        Sockets {
            sources: Slots::counted(&setup.counters),
            wakes: Vec::new(),
            lingering: VecDeque::new(),
            linger: setup.linger,
            round: 0,
        }
    }

    pub(crate) fn linger(&mut self, key: Key) {
        if self.lingering.len() == self.lingering.capacity() {
            // Those that are over do not stay behind one that takes long.
            let mut lingering = std::mem::take(&mut self.lingering);
            lingering.retain(|(_, key)| self.is_open(*key));
            // Not again before as many more have come.
            lingering.reserve(lingering.len() + 1);
            self.lingering = lingering;
        }
        self.lingering.push_back((sleep(self.linger).deadline, key));
    }

    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> Key {
        let (waiters, uring) = (WaitQueue::default(), UringListener::default());
        let listener = Listener { socket: Some(socket), waiters, uring, ready: true };
        self.sources.insert(Source::Listener(Box::new(listener)))
    }

    /// The stream of a key, and the list for the wakers of its waiters.
    #[inline]
    pub(crate) fn stream(&mut self, key: Key) -> Option<(&StreamRef, &mut Vec<Waker>)> {
        match self.sources.get(key) {
            Some(Source::Stream(stream)) => Some((stream, &mut self.wakes)),
            _ => None,
        }
    }

    pub(crate) fn udp(&mut self, key: Key) -> Option<(&mut Udp, &mut Vec<Waker>)> {
        match self.sources.get_mut(key) {
            Some(Source::Udp(udp)) => Some((udp, &mut self.wakes)),
            _ => None,
        }
    }

    pub(crate) fn listener(&mut self, key: Key) -> Option<(&mut Listener, &mut Vec<Waker>)> {
        match self.sources.get_mut(key) {
            Some(Source::Listener(listener)) => Some((listener, &mut self.wakes)),
            _ => None,
        }
    }

    /// Frees the slot of a socket that the kernel has nothing of any more. The program may still have a
    /// handle of a stream: its operations fail from now on.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Source> {
        let removed = self.sources.remove(key)?;
        if let Source::Stream(stream) = &removed {
            stream.borrow_mut().end();
        }
        Some(removed)
    }

    /// True while the program or a linger keeps the socket's descriptor open.
    pub(crate) fn is_open(&self, key: Key) -> bool {
        match self.sources.get(key) {
            Some(Source::Stream(stream)) => stream.borrow().socket.is_some(),
            Some(Source::Udp(udp)) => udp.socket.is_some(),
            _ => false,
        }
    }
}

impl Driver {
    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        match &mut self.engine {
            Backend::Uring(_) => Ok(self.sockets.add_listener(socket)),
            Backend::Epoll(epoll) => epoll.add_listener(&mut self.sockets, socket),
        }
    }

    pub(crate) fn poll_accept(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<OwnedFd>> {
        let (listener, _) = self.sockets.listener(key).ok_or_else(closed)?;
        let accepted = match &mut self.engine {
            Backend::Uring(_) => listener.uring.accepted.pop_front(),
            Backend::Epoll(epoll) => epoll.accept(listener),
        };
        if let Some(accepted) = accepted {
            return Poll::Ready(accepted);
        }
        listener.waiters.add(waiter);
        if let Backend::Uring(uring) = &mut self.engine {
            uring.arm_accept(key, listener);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::stream::{Sending, Stream};
    use crate::sys::socket::{Domain, Socket, Type};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    /// Behind a peer that did not read, all streams that were closed and sent stayed in the list.
    #[test]
    fn what_is_over_does_not_wait_for_one_that_lingers() {
        let (counters, linger) = (Arc::default(), Duration::MAX);
        let mut sockets =
            Sockets::new(&DriverSetup { wake_fd: -1, confined: None, counters, linger });
        let mut close = |over: bool| {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            let stream = Stream::new(socket.into(), Sending::default());
            let key = sockets.sources.insert(Source::Stream(Rc::new(RefCell::new(stream))));
            sockets.linger(key);
            if over {
                sockets.remove(key);
            }
            sockets.lingering.len()
        };
        (0..10).for_each(|_| _ = close(false));
        assert!((0..1000).map(|_| close(true)).all(|length| length < 50));
        let left = sockets.lingering.iter().filter(|(_, key)| sockets.is_open(*key));
        assert_eq!(left.count(), 10);
    }
}
