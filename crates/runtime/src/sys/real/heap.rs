//! When the heaps of the C library return memory to the system: for glibc; others are left
//! unchanged.

use std::sync::atomic::{AtomicBool, Ordering};

static KEEPS: AtomicBool = AtomicBool::new(false);

/// Free memory that stays at the end of a heap.
const KEPT_BYTES: libc::c_int = 64 << 20;

/// Blocks from this size on are separate mappings, which return to the system when they are freed.
const MAPPED_BYTES: libc::c_int = 4 << 20;

/// Keeps freed memory in the process for reuse, up to [`KEPT_BYTES`] at the end of each heap. By
/// default glibc returns it from 128 KB on, or from twice the largest mapped block it has seen
/// freed (mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD).
pub(crate) fn keep_freed_memory() {
    KEEPS.store(true, Ordering::Relaxed);
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) stores numbers that malloc and free read; no other thread may allocate at
    // the same time, as the caller's documentation says.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
}

/// Whether [`keep_freed_memory`] was called. Otherwise the runtime does not touch the heaps.
pub(crate) fn keeps_freed_memory() -> bool {
    KEEPS.load(Ordering::Relaxed)
}

/// Returns all free memory: malloc_trim(3) scans all heaps, and since glibc 2.8 also their inner
/// pages. It takes milliseconds for hundreds of megabytes.
pub(crate) fn trim() {
    #[cfg(test)]
    tests::TRIMS.fetch_add(1, Ordering::Relaxed);
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the locks of the heaps and touches only their free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    /// How often the heaps were trimmed.
    pub(crate) static TRIMS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
}
