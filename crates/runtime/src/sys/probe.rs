//! What the probe tries, because no flag and no list of the kernel shows it.

use super::Mapping;
use super::ring::charged;
use io_uring::IoUring;
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, IoringSetupFlags, io_uring_enter, io_uring_params,
    io_uring_register, io_uring_setup,
};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// Creates the smallest ring with these flags, and returns it with its IORING_FEAT_* bits.
pub(crate) fn setup(flags: IoringSetupFlags) -> io::Result<(OwnedFd, u32)> {
    let mut params = io_uring_params::default();
    params.flags = flags;
    // One millisecond of idling for the thread of SQPOLL; ignored without the flag.
    params.sq_thread_idle = 1;
    // SAFETY: the parameters name no memory, and the ring is not used.
    let ring = charged(|| Ok(unsafe { io_uring_setup(1, &mut params) }?))?;
    Ok((ring, params.features.bits()))
}

/// The calls of io_uring other than setup that are blocked: a kernel that has a call reports a bad
/// descriptor.
pub(crate) fn blocked_calls() -> impl Iterator<Item = &'static str> {
    // Not -1: some kernels give io_uring_register(-1, ...) a special meaning.
    const NOT_OPEN: RawFd = RawFd::MAX;
    // SAFETY: no process has this descriptor, so nothing is done with it; no memory is passed.
    let (enter, register) = unsafe {
        let ring = BorrowedFd::borrow_raw(NOT_OPEN);
        (
            io_uring_enter(ring, 0, 0, IoringEnterFlags::empty()),
            io_uring_register(ring, IoringRegisterOp::UnregisterBuffers, std::ptr::null(), 0),
        )
    };
    let calls = [("io_uring_enter", enter), ("io_uring_register", register)];
    calls.into_iter().filter(|(_, answer)| *answer != Err(Errno::BADF)).map(|(name, _)| name)
}

const ENTRIES: u32 = 8;

/// A small ring with the flags of the engine: Linux 6.1.
pub(crate) fn trial_ring() -> io::Result<IoUring> {
    charged(|| {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(2 * ENTRIES).setup_submit_all().setup_single_issuer();
        builder.setup_defer_taskrun().dontfork().build(ENTRIES)
    })
}

/// Registers a ring of provided buffers, without buffers, and unregisters it.
pub(crate) fn register_buffers(ring: &IoUring) -> io::Result<()> {
    let entries = Mapping::new(4096)?;
    let submitter = ring.submitter();
    // SAFETY: the mapping holds the entries, is aligned to a page, and stays mapped until they are
    // unregistered; no operation uses them.
    charged(|| unsafe {
        let start = entries.start().as_ptr() as u64;
        submitter.register_buf_ring_with_flags(start, ENTRIES as u16, 0, 0)
    })?;
    let unregistered = submitter.unregister_buf_ring(0);
    if unregistered.is_err() {
        // The kernel may still read the entries.
        std::mem::forget(entries);
    }
    unregistered
}
