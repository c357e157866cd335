//! How many datagrams one enter may send without any of them being refused.
//!
//! The kernel runs the sends of one enter in order, but continues after one that finds the send
//! buffer full: those behind it, for which there is room a moment later, would overtake it. One
//! enter therefore submits no more than certainly fit. The first may be refused; it is then alone,
//! and waits.

use crate::counters::Counters;
use crate::sys;
use std::os::fd::{AsFd, OwnedFd};

/// The most that the kernel charges to the send buffer for a datagram: its bytes in a buffer of the
/// next power of two, and the bookkeeping, for each of its fragments on a path with packets of
/// 1,280 bytes, the minimum of IPv6.
fn charge(bytes: usize) -> usize {
    2 * bytes + 2048
}

/// The free space in the send buffer of one socket.
#[derive(Debug, Default)]
pub(super) struct SendBudget {
    buffer_bytes: usize,
    /// Charged for the datagrams that are with the kernel or queued for it.
    charged: usize,
    /// The free space when the second of them was queued.
    left: Option<usize>,
}

impl SendBudget {
    pub(super) fn new(socket: &OwnedFd) -> SendBudget {
        // Without an answer every datagram is sent alone.
        let buffer_bytes = sys::socket::SockRef::from(socket).send_buffer_size().unwrap_or(0);
        SendBudget { buffer_bytes, charged: 0, left: None }
    }

    /// The kernel has no more datagrams.
    pub(super) fn reset(&mut self) {
        (self.charged, self.left) = (0, None);
    }

    /// Charges a datagram of `bytes` and returns whether it may be submitted. The kernel accepts
    /// one as long as the buffer is not full, so only those before it count. Asks the kernel for
    /// the fill level once for each enter that sends more than one.
    pub(super) fn admits(&mut self, socket: &OwnedFd, bytes: usize, counters: &Counters) -> bool {
        if self.charged > 0 {
            let left = *self.left.get_or_insert_with(|| {
                counters.syscalls.add(1);
                let queued = sys::datagram::queued_bytes(socket.as_fd());
                self.buffer_bytes.saturating_sub(queued.unwrap_or(self.buffer_bytes))
            });
            if self.charged >= left {
                return false;
            }
        }
        self.charged += charge(bytes);
        true
    }
}
