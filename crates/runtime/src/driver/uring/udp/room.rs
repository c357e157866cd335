//! How many datagrams one enter may send without any of them being refused.
//!
//! The kernel runs the sends of one enter in order, but goes on behind one that finds the send
//! buffer full: those behind it, for which there is room a moment later, would overtake it. So no
//! more are handed over at once than fit for certain. The first one may be refused; it is alone
//! then, and waits.

use crate::counters::Counters;
use crate::sys;
use std::os::fd::{AsFd, OwnedFd};

/// What the kernel charges a datagram to the send buffer at most: its bytes in a buffer of the next
/// power of two, and the bookkeeping, for each fragment that they are sent in, where the path takes
/// packets of 1,280 bytes, as IPv6 demands.
fn charge(bytes: usize) -> usize {
    2 * bytes + 2048
}

/// The room in the send buffer of one socket.
#[derive(Debug)]
pub(super) struct Room {
    buffer_bytes: usize,
    /// Of the datagrams that are with the kernel or on their way there.
    charged: usize,
    /// What the buffer had left when the second of them was handed over.
    left: Option<usize>,
}

impl Room {
    pub(super) fn new(socket: &OwnedFd) -> Room {
        // Without an answer every datagram goes alone.
        let buffer_bytes = sys::socket::SockRef::from(socket).send_buffer_size().unwrap_or(0);
        Room { buffer_bytes, charged: 0, left: None }
    }

    /// Nothing is with the kernel any more.
    pub(super) fn reset(&mut self) {
        (self.charged, self.left) = (0, None);
    }

    /// Charges a datagram of `bytes` and says whether it may be handed over. The kernel lets one in
    /// as long as the buffer is not full, so what counts are those before it. Asks the kernel how
    /// full it is once for each enter that sends more than one.
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
