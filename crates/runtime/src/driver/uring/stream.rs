//! The state of a stream on io_uring, beside the common state.

use super::{Op, UringEngine};
use crate::buf::SendBuf;
use crate::driver::stream::{Receive, Stream};
use crate::sys::socket::SockAddr;
use io_uring::opcode;
use io_uring::types::Fd;

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
    /// The number of the last quick send, by which the driver has its buffer. It was submitted with MSG_DONTWAIT, is
    /// over when the enter that submits it has returned, and posts a completion only if it was short or failed.
    pub(super) quick: u64,
    /// A send that posts a completion in any case: the kernel waits until the peer has made room, or a submission
    /// thread sends.
    pub(super) reporting: Option<SendBuf>,
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
        if self.uring.quick < first_quick {
            self.sending.silent = 0;
        }
    }

    /// True if a send is with the kernel, as far as is settled.
    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.sending.silent > 0 || self.uring.reporting.is_some()
    }

    /// True when the kernel has nothing of a closed stream any more; in a teardown none is closed.
    pub(super) fn is_done(&mut self, uring: &UringEngine) -> bool {
        self.settle(uring.first_quick);
        let closed = self.socket.is_none() || uring.torn_down;
        // A silent quick send is over only when it was settled.
        let idle = self.uring.expected == 0 && self.sending.silent == 0;
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
