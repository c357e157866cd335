//! When the heaps of the C library give memory back to the system: glibc's ways; others are left alone.

/// Free memory that stays at the end of a heap.
const KEPT_BYTES: libc::c_int = 64 << 20;

/// Blocks from this size on are mappings of their own, which go back to the system when they are freed.
const MAPPED_BYTES: libc::c_int = 4 << 20;

/// Lets freed memory stay with the process for the next time, up to [`KEPT_BYTES`] at the end of each
/// heap. By itself glibc gives it back from 128 KB on, or from twice the largest mapped block it has seen
/// freed (mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD).
pub(crate) fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) stores numbers that malloc and free read; it is not for programs with
    // threads that allocate at the same time, which its caller's documentation says.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
}

/// Gives all free memory back: malloc_trim(3) looks at all heaps, and within them since glibc 2.8. It
/// takes milliseconds for hundreds of megabytes.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the locks of the heaps and touches only what is free in them.
    unsafe {
        libc::malloc_trim(0);
    }
}
