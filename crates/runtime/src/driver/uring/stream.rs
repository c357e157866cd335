//! The state of a stream on io_uring, beside the common state.

use super::{Op, UringEngine};
use crate::buf::SendBuf;
use crate::driver::stream::{Receive, Stream};
use crate::sys::socket::SockAddr;
use io_uring::opcode;
use io_uring::types::Fd;

/// The send that is with the kernel.
#[derive(Debug, Default)]
pub(super) enum InFlight {
    #[default]
    None,
    /// Submitted with MSG_DONTWAIT: it is over when the enter that submits it has returned, and posts a
    /// completion only if it was short or failed. The driver has its buffer, by this number.
    Quick { number: u64, bytes: usize },
    /// The same, with a completion in any case.
    Completing(SendBuf),
    /// The kernel waits for the peer to make room; always posts a completion.
    Waiting(SendBuf),
}

impl InFlight {
    /// True for a send that succeeds silently.
    #[inline]
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, InFlight::Quick { .. })
    }

    #[inline]
    pub(super) fn is_none(&self) -> bool {
        matches!(self, InFlight::None)
    }
}

/// What io_uring has to remember of a stream.
#[derive(Default)]
pub(crate) struct UringStream {
    /// Completions still to come: one for an armed receive, a send in flight that completes, a poll
    /// for room, a connect, and each cancel.
    pub(super) expected: u32,
    /// The last receive left data behind.
    pub(super) left_more: bool,
    /// In the queue of `lost_events.rs`, which checks for lost events.
    pub(super) watched: bool,
    /// Got data since the last check there.
    pub(super) heard: bool,
    pub(super) in_flight: InFlight,
    /// The driver continues with this stream when the send in flight is over.
    pub(super) awaited: bool,
    /// The address a pending connect reads from.
    pub(super) connecting: Option<Box<SockAddr>>,
}

impl Stream {
    /// True unless a receive is with the kernel, waits for a buffer, or is not wanted.
    pub(super) fn may_receive(&self) -> bool {
        let idle = self.receiving.state == Receive::Idle;
        idle && !self.sending.closing && self.receiving.end.is_none()
    }

    /// Notes that all quick sends before this number are over.
    #[inline]
    pub(super) fn settle(&mut self, first_quick: u64) {
        if let InFlight::Quick { number, bytes } = self.uring.in_flight
            && number < first_quick
        {
            self.uring.in_flight = InFlight::None;
            self.sending.sent(bytes);
        }
    }

    /// True when the kernel has nothing of a closed stream any more; in a teardown none is closed.
    pub(super) fn is_done(&mut self, uring: &UringEngine) -> bool {
        self.settle(uring.first_quick);
        let closed = self.socket.is_none() || uring.torn_down;
        // A silent quick send is over only when it was settled.
        let idle = self.uring.expected == 0 && !self.uring.in_flight.is_silent();
        self.sending.closing && closed && idle
    }
}

impl UringEngine {
    pub(in crate::driver) fn connect(&mut self, stream: &mut Stream, address: &SockAddr) {
        let Some(fd) = stream.fd().map(Fd) else { return };
        stream.uring.expected = 1;
        // The kernel reads the address when the entry is submitted, so it lives in the socket.
        let address = stream.uring.connecting.insert(Box::new(address.clone()));
        let entry = opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build();
        // SAFETY: the address is boxed in the socket, which the slot keeps until the completion.
        unsafe { self.ring.push(entry.user_data(Op::CONNECT.tag(stream.key))) };
    }
}
