//! The operations that a confined ring may still do: IORING_REGISTER_RESTRICTIONS, Linux 5.10.
//!
//! Filters of system calls do not see the operations of a ring. For them the kernel has a list of
//! its own, which is set once, while a ring is disabled, and holds until it is closed: an
//! operation, a flag or a registration that is not on it ends with EACCES (io_uring_register(2)).

use super::ring::Ring;
use crate::config::UringOptions;
use crate::confine::Uses;
use io_uring::opcode::{
    Accept, AsyncCancel, Close, Connect, PollAdd, Read, Recv, RecvMsg, Send, SendMsg, Timeout,
};
use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use std::io;

/// Numbers of `enum io_uring_register_op` in the kernel's linux/io_uring.h.
const UNREGISTER_RING_FDS: u8 = 21;
const REGISTER_PBUF_RING: u8 = 22;

/// Restricts a ring that was made disabled to what `uses` needs with these features, and enables
/// it. With IORING_SETUP_SINGLE_ISSUER the ring belongs to the thread that calls this.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn apply(ring: &Ring, uses: Uses, features: &UringOptions) -> io::Result<()> {
    // Wake-ups by other threads, and teardown.
    let mut operations = vec![PollAdd::CODE, AsyncCancel::CODE, Close::CODE];
    let mut flags = Flags::BUFFER_SELECT | Flags::SKIP_SUCCESS;
    let mut registrations = vec![UNREGISTER_RING_FDS];
    if uses.accept || uses.connect {
        // Vectored sends are messages. The timeout checks for lost resets.
        operations.extend([Recv::CODE, Send::CODE, SendMsg::CODE]);
        operations.extend(features.multishot.then_some(Timeout::CODE));
    }
    operations.extend(uses.accept.then_some(Accept::CODE));
    operations.extend(uses.connect.then_some(Connect::CODE));
    if uses.datagrams {
        operations.extend([Recv::CODE, RecvMsg::CODE, Send::CODE, SendMsg::CODE]);
        // Datagram sockets bring buffers of their own geometry.
        registrations.push(REGISTER_PBUF_RING);
    }
    if uses.files {
        operations.push(Read::CODE);
        flags |= Flags::ASYNC;
    }
    let mut list: Vec<_> = operations.into_iter().map(Restriction::sqe_op).collect();
    list.extend(registrations.into_iter().map(Restriction::register_op));
    list.push(Restriction::sqe_flags_allowed(flags.bits()));
    ring.uring.restrict(&mut list)
}
