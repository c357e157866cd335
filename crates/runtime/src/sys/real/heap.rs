//! When the heaps of the C library return memory to the system: for glibc; others are left
//! unchanged.

/// Free memory that stays at the end of a heap.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 64 << 20;

/// Blocks from this size on are separate mappings, which return to the system when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 4 << 20;

/// Keeps freed memory in the process for reuse, up to [`KEPT_BYTES`] at the end of each heap. By
/// default glibc returns it from 128 KB on, or from twice the largest mapped block it has seen
/// freed (mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD).
pub(crate) fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) stores numbers that malloc and free read; no other thread may allocate at
    // the same time, as the caller's documentation says.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
}
