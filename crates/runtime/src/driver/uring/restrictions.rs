//! The operations that a confined ring may still do: IORING_REGISTER_RESTRICTIONS, Linux 5.10.
//!
//! Filters of system calls do not see the operations of a ring. For them the kernel has a list of
//! its own, which is set once, while a ring is disabled, and holds until it is closed: an
//! operation, a flag or a registration that is not on it ends with EACCES (io_uring_register(2)).

use super::ring::Ring;
use crate::config::UringFeatures;
use crate::confine::Uses;
use io_uring::opcode::{
    Accept, AsyncCancel, Close, Connect, OpenAt2, PollAdd, Read, Recv, RecvMsg, Send, SendMsg,
    Statx, Timeout,
};
use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use std::io;

/// Numbers of `enum io_uring_register_op` in the kernel's linux/io_uring.h.
const UNREGISTER_RING_FDS: u8 = 21;
const REGISTER_PBUF_RING: u8 = 22;

/// The operations and registrations that a ring may do.
#[derive(Debug, PartialEq, Eq)]
struct Allowed {
    /// Operations, by IORING_OP_* number.
    operations: Vec<u8>,
    flags: Flags,
    /// Calls of io_uring_register, by number.
    registrations: Vec<u8>,
}

/// Restricts a ring that was made disabled to what `uses` needs with these features, and enables
/// it. With IORING_SETUP_SINGLE_ISSUER the ring belongs to the thread that calls this.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn apply(ring: &Ring, uses: Uses, features: &UringFeatures) -> io::Result<()> {
    let allowed = Allowed::by(uses, features);
    let operations = allowed.operations.iter().map(|code| Restriction::sqe_op(*code));
    let registrations = allowed.registrations.iter().map(|code| Restriction::register_op(*code));
    let flags = Restriction::sqe_flags_allowed(allowed.flags.bits());
    let mut list: Vec<Restriction> = operations.chain(registrations).chain([flags]).collect();
    ring.registrar().restrict(&mut list)
}

impl Allowed {
    /// The operations that the engine queues for these uses.
    fn by(uses: Uses, features: &UringFeatures) -> Allowed {
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
            operations.extend([OpenAt2::CODE, Statx::CODE, Read::CODE]);
            flags |= Flags::ASYNC;
        }
        operations.sort_unstable();
        operations.dedup();
        Allowed { operations, flags, registrations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UringOptions;
    use crate::counters::Counters;
    use crate::driver::common::DriverSetup;
    use crate::driver::uring::ring::Enter;
    use crate::probe::select_uring;
    use io_uring::opcode::{Nop, OpenAt, Socket, Splice, UnlinkAt, Write};
    use io_uring::squeue::Entry;
    use io_uring::types::{Fd, OpenHow};
    use std::sync::Arc;
    use std::time::Duration;

    /// The result of one operation.
    fn ask(ring: &mut Ring, entry: Entry) -> i32 {
        // SAFETY: these entries name no memory, or descriptors that do not exist.
        unsafe { ring.push(entry.user_data(7)) };
        let asked = ring.enter(Enter::Wait, Some(Duration::from_secs(5)));
        asked.expect("the ring is enabled");
        let completions: Vec<_> = ring.completions().map(|completion| completion.result).collect();
        assert_eq!(completions.len(), 1);
        completions[0]
    }

    /// With paths and descriptors that do not exist, so that even allowed operations have no
    /// effect.
    #[test]
    fn a_restricted_ring_refuses_what_is_not_on_its_list() {
        let features = match select_uring(&UringOptions::default()) {
            Ok(features) => features,
            Err(refusal) => testing::needs("io_uring", refusal),
        };
        let uses = Uses { accept: true, ..Uses::default() };
        let setup = DriverSetup {
            wake_fd: -1,
            confined: Some(uses),
            counters: Arc::new(Counters::default()),
            linger: Duration::ZERO,
        };
        let mut ring = Ring::new(&features, &setup).expect("a ring");
        if let Err(error) = apply(&ring, uses, &features) {
            testing::needs("a kernel that restricts rings", error);
        }
        let (nowhere, path, how) = (Fd(-1), c"/nonexistent/file".as_ptr(), OpenHow::new());
        let refused = [
            Nop::new().build(),
            OpenAt::new(nowhere, path).build(),
            OpenAt2::new(nowhere, path, &raw const how).build(),
            UnlinkAt::new(nowhere, path).build(),
            Statx::new(nowhere, path, std::ptr::null_mut()).build(),
            Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            Connect::new(nowhere, std::ptr::null(), 0).build(),
            RecvMsg::new(nowhere, std::ptr::null_mut()).build(),
            Write::new(nowhere, std::ptr::null(), 0).build(),
            Read::new(nowhere, std::ptr::null_mut(), 0).build(),
            Splice::new(nowhere, -1, nowhere, -1, 1).build(),
            // Allowed, but not with these flags.
            AsyncCancel::new(99).build().flags(Flags::ASYNC),
            AsyncCancel::new(99).build().flags(Flags::IO_DRAIN),
        ];
        for (number, entry) in refused.into_iter().enumerate() {
            assert_eq!(ask(&mut ring, entry), -libc::EACCES, "operation {number}");
        }
        assert_eq!(ask(&mut ring, AsyncCancel::new(99).build()), -libc::ENOENT);
        assert_eq!(ask(&mut ring, Close::new(nowhere).build()), -libc::EBADF);
        let again = ring.registrar().restrict(&mut [Restriction::sqe_op(0)]);
        assert!(again.is_err(), "the list is final");
    }
}
