//! The state of a stream on io_uring, beside the common state.

use crate::buf::SendBuf;
use crate::driver::stream::{End, Stream};
use crate::sys;
use crate::sys::socket::SockAddr;

/// The send that is with the kernel.
#[derive(Debug, Default)]
pub(super) enum InFlight {
    #[default]
    None,
    /// Submitted with MSG_DONTWAIT: it is over when the enter that submits it returns, and
    /// `completes` says whether it then also posts a completion when it succeeds.
    Quick { buf: SendBuf, completes: bool, serial: u32 },
    /// The kernel waits for the peer to make room; always posts a completion.
    Waiting(SendBuf),
}

impl InFlight {
    /// True for a send that succeeds silently.
    #[inline]
    fn is_silent(&self) -> bool {
        matches!(self, InFlight::Quick { completes: false, .. })
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, InFlight::None)
    }
}

/// The receive of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::driver) enum Receive {
    /// There is none.
    #[default]
    Idle,
    /// With the kernel; it will post a completion without F_MORE.
    Armed,
    /// The same, and cancelled, because enough is unread or how it ended may be lost; armed again when
    /// the queue is empty.
    Pausing,
    /// Ended for want of buffers; armed again when one returns.
    Starved,
}

impl Receive {
    #[inline]
    pub(in crate::driver) fn is_armed(self) -> bool {
        matches!(self, Receive::Armed | Receive::Pausing)
    }
}

/// What io_uring has to remember of a stream.
#[derive(Default)]
pub(crate) struct UringStream {
    /// Completions still to come: one for an armed receive, a send in flight that completes, a poll
    /// for room, a connect, and each cancel.
    pub(super) expected: u32,
    pub(in crate::driver) receive: Receive,
    /// A receive was armed before: arming again counts as a re-arm.
    pub(super) again: bool,
    /// The last receive left data behind.
    pub(super) left_more: bool,
    /// In the queue of `lost_events.rs`, which checks for lost events.
    pub(super) watched: bool,
    /// Got data since the last check there.
    pub(super) heard: bool,
    pub(super) in_flight: InFlight,
    /// The address a pending connect reads from.
    pub(super) connecting: Option<Box<SockAddr>>,
}

impl UringStream {
    /// Notes that data arrived. True if the receive is not watched yet.
    #[inline]
    pub(super) fn note_data(&mut self) -> bool {
        self.heard = true;
        !std::mem::replace(&mut self.watched, true)
    }
}

impl Stream {
    /// True unless a receive is with the kernel, waits for a buffer, or is not wanted.
    pub(super) fn may_receive(&self) -> bool {
        let idle = self.uring.receive == Receive::Idle;
        idle && !self.sending.is_closing() && self.receiving.end.is_none()
    }

    /// The meaning of a receive of zero bytes.
    pub(super) fn how_it_ended(&self) -> End {
        let sending = !self.uring.in_flight.is_none();
        let is_closed = || self.fd().is_some_and(sys::tcp_is_closed);
        self.sending.end_of_stream(sending, is_closed)
    }

    /// True if the send in flight is the quick one of this number and succeeds silently: then its
    /// bytes.
    #[inline]
    pub(super) fn silent_send(&self, number: u32) -> Option<usize> {
        match &self.uring.in_flight {
            InFlight::Quick { buf, completes: false, serial } if *serial == number => {
                Some(buf.len())
            }
            _ => None,
        }
    }

    /// True if a task, FIN or a close waits for the send in flight, although the kernel may post no
    /// completion for it: then the next enter must not wait.
    #[inline]
    pub(in crate::driver) fn is_held_up(&self) -> bool {
        self.sending.is_awaited() && self.uring.in_flight.is_silent()
    }

    /// True when the kernel has nothing of a closed stream any more. `torn_down`: none is closed then.
    pub(super) fn is_done(&self, torn_down: bool) -> bool {
        let closed = self.socket.is_none() || torn_down;
        // A silent quick send is over only when it was settled.
        let idle = self.uring.expected == 0 && !self.uring.in_flight.is_silent();
        self.sending.is_closing() && closed && idle
    }
}
