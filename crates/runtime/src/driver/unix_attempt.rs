//! Sends on Unix datagram sockets, whose outcome their sender waits for: unlike with UDP, the kernel
//! knows whether a datagram arrives.

use crate::buf::SendBuf;
use crate::sys::socket::SockAddr;
use std::cell::Cell;
use std::fmt;

/// One attempt to send a datagram, shared with its sender.
pub(crate) struct UnixAttempt {
    /// `None` is the peer of a connected socket.
    to: Option<SockAddr>,
    outcome: Cell<Outcome>,
}

/// What became of an attempt.
#[derive(Debug, Default)]
pub(crate) enum Outcome {
    #[default]
    Pending,
    Sent,
    /// With this errno, and the datagram back.
    Refused(i32, SendBuf),
}

impl UnixAttempt {
    pub(crate) fn new(to: Option<SockAddr>) -> UnixAttempt {
        UnixAttempt { to, outcome: Cell::default() }
    }

    /// The address of the receiver and its length, at the same place as long as this exists.
    pub(super) fn name(&self) -> (*const libc::c_void, usize) {
        match &self.to {
            Some(to) => (to.as_ptr().cast(), to.len() as usize),
            None => (std::ptr::null(), 0),
        }
    }

    pub(super) fn end(&self, outcome: Outcome) {
        self.outcome.set(outcome);
    }

    /// Takes the outcome, after which another attempt may be made.
    pub(crate) fn take(&self) -> Outcome {
        self.outcome.take()
    }

    pub(super) fn is_over(&self) -> bool {
        let outcome = self.outcome.take();
        let over = !matches!(outcome, Outcome::Pending);
        self.outcome.set(outcome);
        over
    }
}

impl fmt::Debug for UnixAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixAttempt").field("to", &self.to).finish_non_exhaustive()
    }
}
