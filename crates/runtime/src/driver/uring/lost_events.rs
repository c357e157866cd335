//! Lost events: a receive that got data and then nothing has its socket checked a second or two
//! later, because the kernel may have lost a reset, or data behind urgent data.
//!
//! Events of its socket wake a multishot receive. After a wake-up the kernel receives the available
//! data; if the socket then reports that it is empty, the kernel waits for the next wake-up. A
//! reset that arrived together with the data is noticed by neither, and no further event follows:
//! the receive stays armed for ever. (FIN is not lost in this way: with it the socket does not
//! report that it is empty, `tcp_inq_hint` in net/ipv4/tcp.c.) Data and reset between two wake-ups
//! are distinguished since March 2026 (commit a68ed2df7213, liburing issue 1549); both of them
//! while the receive is being armed are not: Linux 6.18.44 loses one reset in 18,000 connections
//! that a client on another CPU makes, uses and resets.
//!
//! A receive ends before a byte that was sent as urgent (MSG_OOB), although data follows. Linux 6.18.44 then
//! sometimes waits for a further wake-up, which does not come before the next segment: in 1 of 3,000 such
//! bytes while other programs use the CPUs, in-line (SO_OOBINLINE) or not. The data is in the socket.
//!
//! A new receive checks its socket first. If a socket is found to have something to report, its receive is
//! therefore ended and started again. While data arrives, the cost is two stores and an entry of
//! the queue.

use super::{Op, UringEngine};
use crate::driver::sockets::Sockets;
use crate::driver::stream::Stream;
use crate::slots::Key;
use crate::sys::poll::is_readable;
use io_uring::opcode;
use io_uring::types::Timespec;
use std::collections::VecDeque;

/// Time between two checks of a socket.
static PERIOD: Timespec = Timespec::new().sec(1);

/// At least one in this many due sockets is checked in one turn of the driver.
const SHARE: usize = 16;

/// Receives that got data since they were last checked. A socket is in it once. The key of a closed
/// one stays until the next check, so the queue is bounded by the sockets that are open or were in
/// the last period.
#[derive(Debug, Default)]
pub(super) struct LostEvents {
    queue: VecDeque<Key>,
    /// How many at the front are due to be checked.
    pub(super) due: usize,
    /// A timer is with the kernel.
    timed: bool,
}

impl UringEngine {
    /// Watches a receive from now on, because it got data and stays armed.
    #[cold]
    pub(super) fn watch(&mut self, key: Key) {
        self.lost_events.queue.push_back(key);
        self.time_lost_events();
    }

    fn time_lost_events(&mut self) {
        if !self.lost_events.queue.is_empty()
            && !std::mem::replace(&mut self.lost_events.timed, true)
        {
            let entry = opcode::Timeout::new(&raw const PERIOD).build();
            // SAFETY: the period is a constant.
            unsafe { self.ring.push(entry.user_data(Op::LOST_EVENTS.alone())) };
        }
    }

    /// A period is over, or the timer failed: an early check does no harm.
    pub(super) fn on_lost_event_timer(&mut self) {
        self.lost_events.timed = false;
        self.lost_events.due = self.lost_events.queue.len();
    }

    /// Ends a receive that may have lost an event; it starts again if a task waits for it.
    pub(super) fn restart_receive(&mut self, stream: &mut Stream) {
        if self.features.multishot && !stream.sending.closing {
            self.pause(stream);
        }
    }

    /// Checks some of the due sockets: at most `most`, or a larger share if all could not be
    /// checked in time otherwise.
    #[inline(never)]
    pub(super) fn check_for_lost_events(&mut self, sockets: &mut Sockets, most: usize) {
        for _ in 0..self.lost_events.due.min(most.max(self.lost_events.queue.len() / SHARE)) {
            self.lost_events.due -= 1;
            let Some(key) = self.lost_events.queue.pop_front() else { break };
            let Some((stream, _)) = sockets.stream(key) else { continue };
            let stream = &mut *stream.borrow_mut();
            if std::mem::replace(&mut stream.uring.heard, false) {
                self.lost_events.queue.push_back(key);
                continue;
            }
            stream.uring.watched = false;
            self.counters.syscalls.add(1);
            if stream.socket.as_ref().is_some_and(is_readable) {
                self.restart_receive(stream);
            }
        }
        if self.lost_events.due == 0 {
            self.time_lost_events();
        }
        if self.lost_events.queue.is_empty() {
            self.lost_events.queue = VecDeque::new();
        }
    }
}
