//! An allocator that does not reuse freed receive buffers, and finds out who writes to them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Size of the buffers that the quarantine recognises: one that nobody else asks for.
pub const RECV_BUFFER_BYTES: usize = 7_919;

/// Buffers that are kept; further ones are freed as usual. About 32 MB.
const KEPT_MAX: usize = 4096;

/// Content of a freed buffer.
const FREED: u8 = 0xD5;

static KEPT: [AtomicPtr<u8>; KEPT_MAX] = [const { AtomicPtr::new(std::ptr::null_mut()) }; KEPT_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, except that blocks of [`RECV_BUFFER_BYTES`] are never reused: they are
/// filled with a pattern when they are freed, so that a write by the kernel shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quarantine(());

impl Quarantine {
    /// For a `static` with `#[global_allocator]`.
    pub const fn new() -> Quarantine {
        Quarantine(())
    }
}

// SAFETY: all blocks come from the system's allocator, and are returned to it or kept for ever. Kept
// ones belong to nobody, so this module may write to them and read them.
unsafe impl GlobalAlloc for Quarantine {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as required of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as required of the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() == RECV_BUFFER_BYTES {
            let at = COUNT.fetch_add(1, Ordering::Relaxed);
            if let Some(place) = KEPT.get(at) {
                // SAFETY: the block has this size, and its owner has given it up.
                unsafe { block.write_bytes(FREED, RECV_BUFFER_BYTES) };
                place.store(block, Ordering::Release);
                return;
            }
        }
        // SAFETY: as required of the caller.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as required of the caller.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

/// Receive buffers that were freed so far, as far as they are kept.
pub(crate) fn freed() -> usize {
    COUNT.load(Ordering::Relaxed).min(KEPT_MAX)
}

/// How many freed buffers were written to afterwards.
pub(crate) fn written() -> usize {
    let blocks = KEPT[..freed()].iter().map(|place| place.load(Ordering::Acquire));
    blocks
        .filter(|block| !block.is_null())
        .filter(|block| {
            (0..RECV_BUFFER_BYTES).any(|at| {
                // SAFETY: the block has this size and is never freed. Volatile, because the kernel
                // may write to it.
                let byte = unsafe { block.add(at).read_volatile() };
                byte != FREED
            })
        })
        .count()
}

/// Frees one buffer, to find out whether the quarantine is the allocator of this program.
pub(crate) fn is_installed() -> bool {
    let before = COUNT.load(Ordering::Relaxed);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(RECV_BUFFER_BYTES)));
    COUNT.load(Ordering::Relaxed) > before
}
