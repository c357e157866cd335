//! The calls of the probe: small ones whose result is a number or an errno.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A descriptor that no process has open, so that an existing call returns EBADF. Not -1: some
/// kernels give io_uring_register(-1, ...) a special meaning.
const NOT_OPEN: RawFd = RawFd::MAX;

/// `struct io_uring_params`; the offsets for mmap(2) are not used here.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    offsets: [u64; 10],
}

/// Creates the smallest ring with these IORING_SETUP_* flags, and returns it with its IORING_FEAT_*
/// bits.
pub(crate) fn setup(flags: u32) -> io::Result<(OwnedFd, u32)> {
    // One millisecond of idling for the thread of SQPOLL; ignored without the flag.
    let mut params = Params { flags, sq_thread_idle: 1, ..Params::default() };
    // SAFETY: one live, exclusively borrowed io_uring_params of the kernel's 120 bytes.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1u32, &raw mut params) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: io_uring_setup returned a new descriptor that has no other owner.
    Ok((unsafe { OwnedFd::from_raw_fd(fd as RawFd) }, params.features))
}

/// The result of io_uring_enter for a descriptor that is not open: EBADF from a kernel that has the
/// call, anything else from a layer that blocks it.
pub(crate) fn enter_errno() -> i32 {
    // SAFETY: no memory is passed.
    errno_of(|| unsafe {
        libc::syscall(libc::SYS_io_uring_enter, NOT_OPEN, 0u32, 0u32, 0u32, 0usize, 0usize)
    })
}

/// The same for io_uring_register (IORING_UNREGISTER_BUFFERS, which takes no argument).
pub(crate) fn register_errno() -> i32 {
    // SAFETY: no memory is passed.
    errno_of(|| unsafe { libc::syscall(libc::SYS_io_uring_register, NOT_OPEN, 1u32, 0usize, 0u32) })
}

/// The same of epoll_pwait2.
pub(crate) fn epoll_pwait2_errno() -> i32 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: space for one event is passed as such; timeout and signal mask are null.
    errno_of(|| unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            NOT_OPEN,
            &raw mut event,
            1,
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<libc::sigset_t>(),
            8usize,
        )
    })
}

fn errno_of(call: impl FnOnce() -> libc::c_long) -> i32 {
    match call() {
        returned if returned < 0 => io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        _ => 0,
    }
}
