//! Receives that data came to, and then nothing: a second or two later their sockets are looked at, because
//! the kernel may have lost a reset.
//!
//! A multishot receive is woken by what happens to its socket. After a wake-up the kernel receives what there
//! is; if the socket then says that it is empty, the next wake-up is waited for. A reset that came
//! together with the data is seen by neither, and nothing comes behind it: the receive stays armed for
//! ever. (FIN is not lost like that: behind it the socket does not say that it is empty, `tcp_inq_hint`
//! in net/ipv4/tcp.c.) Data and reset between two wake-ups are told apart since March 2026 (commit
//! a68ed2df7213, liburing issue 1549); both of them while the receive is being armed are not: Linux 6.18.44
//! loses one in 18,000 of connections that a client on another CPU makes, uses, and resets.
//!
//! A receive that begins looks at its socket first. So that of a connection which is found to be over is ended,
//! and begins anew. While a receive goes on getting data it costs two stores, and a place in the queue.

use super::stream::Stream;
use super::{Entry, Op, Uring, UringDriver};
use crate::driver::slots::Key;
use crate::sys;
use io_uring::opcode;
use io_uring::types::Timespec;
use std::collections::VecDeque;

/// Time between two looks.
static PERIOD: Timespec = Timespec::new().sec(1);

/// One in so many is looked at in a turn of the driver, at least.
const SHARE: usize = 16;

/// Receives that got data since they were looked at. A socket is in it once, and its key until the next look
/// when it was closed: so it holds no more than the sockets that are open, and those that were in the last
/// period.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    queue: VecDeque<Key>,
    /// How many of those in front are to be looked at.
    due: usize,
    /// A timer is with the kernel.
    timed: bool,
}

impl Quiet {
    /// True if there is something to do.
    pub(super) fn is_due(&self) -> bool {
        self.due > 0
    }
}

impl Uring {
    /// From now on, because data came to a receive that goes on.
    pub(super) fn watch(&mut self, key: Key) {
        self.quiet.queue.push_back(key);
        self.time_quiet();
    }

    fn time_quiet(&mut self) {
        if !self.quiet.queue.is_empty() && !std::mem::replace(&mut self.quiet.timed, true) {
            let nobody = Key::from_bits(0);
            let entry = opcode::Timeout::new(&raw const PERIOD).build();
            // SAFETY: the period is a constant.
            unsafe { self.ring.push(entry.user_data(Op::Quiet.tag(nobody))) };
        }
    }

    /// A period is over. Or the timer failed: a look that is early does no harm.
    pub(super) fn on_quiet(&mut self) {
        self.quiet.timed = false;
        self.quiet.due = self.quiet.queue.len();
    }

    /// Ends a receive that may have lost how it ended; it begins anew if somebody waits for it.
    pub(super) fn look_again(&mut self, key: Key, stream: &mut Stream) {
        if self.features.multishot && !stream.sending.is_closing() {
            self.pause(key, stream);
        }
    }
}

impl UringDriver {
    /// Looks at some of those that are due, at `most`, but at a share that has all looked at in time however
    /// many they are.
    pub(super) fn look_at_quiet(&mut self, most: usize) {
        let engine = &mut self.engine;
        if !engine.quiet.is_due() {
            return;
        }
        for _ in 0..engine.quiet.due.min(most.max(engine.quiet.queue.len() / SHARE)) {
            engine.quiet.due -= 1;
            let Some(key) = engine.quiet.queue.pop_front() else { break };
            let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { continue };
            if std::mem::replace(&mut stream.own.receive.heard, false) {
                engine.quiet.queue.push_back(key);
                continue;
            }
            stream.own.receive.watched = false;
            engine.counters.syscalls.add(1);
            if stream.fd().is_some_and(sys::tcp_is_closed) {
                engine.look_again(key, stream);
            }
        }
        if !engine.quiet.is_due() {
            engine.time_quiet();
        }
        if engine.quiet.queue.is_empty() {
            engine.quiet.queue = VecDeque::new();
        }
    }
}
