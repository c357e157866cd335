//! A small ring like those of the engine, to try what no flag and no list of the kernel shows.

use super::Mapping;
use super::ring;
use io_uring::{IoUring, Probe};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const ENTRIES: u32 = 8;

/// A ring with the flags of the engine: Linux 6.1.
pub(crate) struct TrialRing {
    uring: IoUring,
}

impl TrialRing {
    pub(crate) fn new() -> io::Result<TrialRing> {
        let uring = ring::charged(|| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(2 * ENTRIES).setup_submit_all().setup_single_issuer();
            builder.setup_defer_taskrun().dontfork().build(ENTRIES)
        })?;
        Ok(TrialRing { uring })
    }

    /// Lists the operations that the kernel knows.
    pub(crate) fn list_operations(&self) -> io::Result<Probe> {
        let mut probe = Probe::new();
        self.uring.submitter().register_probe(&mut probe)?;
        Ok(probe)
    }

    /// Registers the ring's descriptor with this thread and unregisters it.
    pub(crate) fn register_own_descriptor(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open as long as the ring.
        let ring = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        ring::unregister_ring_fd(ring, ring::register_ring_fd(ring)?)
    }

    /// Registers a ring of provided buffers, without buffers, and unregisters it.
    pub(crate) fn register_buffers(&self) -> io::Result<()> {
        let entries = Mapping::new(4096)?;
        let submitter = self.uring.submitter();
        // SAFETY: the mapping holds the entries, is aligned to a page, and stays mapped until they
        // are unregistered; no operation uses them.
        ring::charged(|| unsafe {
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
}
