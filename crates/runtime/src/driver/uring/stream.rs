//! The state of one TCP socket on io_uring.

use super::zero_copy::Zero;
use crate::buf::SendBuf;
use crate::driver::queues::{End, Fin, Queued, Received};
use crate::driver::reset_on_close;
use crate::sys::socket::SockAddr;
use std::os::fd::OwnedFd;

/// The send that is with the kernel.
#[derive(Debug)]
pub(super) enum InFlight {
    None,
    /// Submitted with MSG_DONTWAIT: it is over when the enter that submits it returns, and
    /// `completes` says whether it then also posts a completion when it succeeds.
    Quick {
        buf: SendBuf,
        completes: bool,
        serial: u32,
    },
    /// The kernel waits for the peer to make room; always posts a completion.
    Waiting(SendBuf),
}

impl InFlight {
    pub(super) fn len(&self) -> usize {
        match self {
            InFlight::None => 0,
            InFlight::Quick { buf, .. } | InFlight::Waiting(buf) => buf.len(),
        }
    }

    /// True for the quick send of this number, if it is one that succeeds silently.
    pub(super) fn is_silent(&self, number: u32) -> bool {
        matches!(self, InFlight::Quick { completes: false, serial, .. } if *serial == number)
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, InFlight::None)
    }
}

/// The receive of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Receive {
    /// With the kernel; it will post a completion without F_MORE.
    pub(super) armed: bool,
    /// Cancelled, because enough is unread or how it ended may be lost; armed again when the queue is empty.
    pub(super) pausing: bool,
    /// Ended for want of buffers; armed again when one returns.
    pub(super) starved: bool,
    /// Was armed before: arming again counts as a re-arm.
    pub(super) again: bool,
    /// In the queue of `quiet.rs`.
    pub(super) watched: bool,
    /// Got data since it was looked at there.
    pub(super) heard: bool,
}

impl Receive {
    /// Notes that data came. True if nobody watches it yet.
    pub(super) fn note_data(&mut self) -> bool {
        self.heard = true;
        !std::mem::replace(&mut self.watched, true)
    }
}

pub(super) struct Stream {
    /// Empty once the close was submitted.
    pub(super) socket: Option<OwnedFd>,
    /// Completions still to come: one for an armed receive, a send in flight that completes, one
    /// without a copy, a poll for room, a connect, each cancel, and a close that reports.
    pub(super) expected: u32,
    pub(super) receive: Receive,
    pub(super) in_flight: InFlight,
    /// A poll is with the kernel that ends when the socket takes more.
    pub(super) awaits_room: bool,
    /// The send of a file's bytes that are not copied.
    pub(super) zero_copy: Zero,
    /// O_NONBLOCK is set, see `driver::pieces`.
    pub(super) nonblocking: bool,
    /// The address a pending connect reads from.
    pub(super) connecting: Option<Box<SockAddr>>,
    /// The program has closed its end; what is queued is still being sent.
    pub(super) closing: bool,
    pub(super) received: Received,
    pub(super) queued: Queued,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd) -> Stream {
        Stream {
            socket: Some(socket),
            expected: 0,
            receive: Receive::default(),
            in_flight: InFlight::None,
            awaits_room: false,
            zero_copy: Zero::None,
            nonblocking: false,
            connecting: None,
            closing: false,
            received: Received::default(),
            queued: Queued::default(),
        }
    }

    /// True while a closed stream still has bytes to send.
    pub(super) fn must_linger(&self) -> bool {
        // Of a file that was given up it is not known yet whether a part of it was sent.
        let unknown = self.zero_copy == Zero::Abandoned;
        let unsent = !self.in_flight.is_none() || !self.queued.is_empty() || unknown;
        unsent && !self.queued.failed()
    }

    /// True unless a receive is with the kernel, waits for a buffer, or is not wanted.
    pub(super) fn may_receive(&self) -> bool {
        let Receive { armed, starved, .. } = self.receive;
        !armed && !starved && !self.closing && self.received.end.is_none()
    }

    /// What a receive of nothing means.
    pub(super) fn how_it_ended(&self) -> End {
        let sending = !self.in_flight.is_none();
        let asked = self.socket.as_ref().map(|it| self.queued.end_of_stream(it, sending));
        asked.unwrap_or(End::Stream)
    }

    /// Before a close that does not wait for what is queued or being sent.
    pub(super) fn cut_off(&self) {
        if self.must_linger()
            && let Some(socket) = &self.socket
        {
            reset_on_close(socket);
        }
    }

    /// True if somebody can go on only after the send in flight is known to be over, although
    /// the kernel may have nothing to report about it: then the next enter must not wait.
    pub(super) fn is_held_up(&self) -> bool {
        let silent = matches!(self.in_flight, InFlight::Quick { completes: false, .. });
        let somebody_waits = !self.queued.is_empty()
            || self.queued.fin == Fin::Queued
            || self.closing
            || !self.queued.waiters.is_empty();
        silent && somebody_waits
    }
}
