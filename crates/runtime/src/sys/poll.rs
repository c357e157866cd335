//! epoll(7): the three calls the epoll engine needs; and ppoll(2), for workers that only sleep.

use super::retry_eintr;
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) type EpollEvent = libc::epoll_event;

pub(crate) struct EpollSet {
    fd: OwnedFd,
    /// epoll_pwait2(2) was refused: older kernels lack it, and so do older seccomp profiles.
    in_milliseconds: Cell<bool>,
}

impl EpollSet {
    pub(crate) fn new() -> io::Result<EpollSet> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        #[cfg(feature = "faults")]
        super::faults::begin();
        Ok(EpollSet { fd, in_milliseconds: Cell::new(false) })
    }

    pub(crate) fn add(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, target, interest, data)
    }

    pub(crate) fn modify(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, target, interest, data)
    }

    fn control(&self, op: i32, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        #[cfg(feature = "faults")]
        super::faults::watch(target, interest, data);
        let mut event = libc::epoll_event { events: interest as u32, u64: data };
        retry_eintr(|| {
            // SAFETY: `event` is live for the call; the kernel copies it.
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, target, &mut event) as isize }
        })
        .map(drop)
    }

    /// Waits for events, at most `timeout` (`None` waits for ever), and appends them to the empty
    /// `events` up to its capacity. An interrupted wait reports no events.
    ///
    /// epoll_pwait2(2) (Linux 5.11) takes nanoseconds; on older kernels the timeout is rounded up
    /// to a millisecond, so that a timer never fires early.
    #[inline(always)]
    pub(crate) fn wait(
        &self,
        events: &mut Vec<EpollEvent>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        #[cfg(feature = "faults")]
        let timeout = super::faults::timeout(timeout);
        events.clear();
        let room = events.capacity() as i32;
        let events_at = events.as_mut_ptr();
        let mut count = self.wait_once(events_at, room, timeout);
        if !self.in_milliseconds.get()
            && let Err(error) = &count
            && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
        {
            self.in_milliseconds.set(true);
            count = self.wait_once(events_at, room, timeout);
        }
        match count {
            // SAFETY: the kernel initialised `count` events, and `count <= room <= capacity`.
            Ok(count) => unsafe { events.set_len(count) },
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
        #[cfg(feature = "faults")]
        super::faults::report(events);
        Ok(())
    }

    fn wait_once(
        &self,
        events: *mut EpollEvent,
        room: i32,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        let count = if self.in_milliseconds.get() {
            let up = |t: Duration| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
            // SAFETY: `events` has space for `room` entries.
            unsafe { libc::epoll_wait(fd, events, room, timeout.map_or(-1, up)) }.into()
        } else {
            let timespec = timeout.map(|t| libc::timespec {
                tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
                tv_nsec: i64::from(t.subsec_nanos()),
            });
            let timespec = timespec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // Not libc::epoll_pwait2: older C libraries lack the wrapper, the kernel has the call.
            // SAFETY: `events` has space for `room` entries, `timespec` is null or live, and a null
            // signal mask leaves the mask unchanged.
            unsafe {
                libc::syscall(libc::SYS_epoll_pwait2, fd, events, room, timespec, no_mask, 8usize)
            }
        };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }
}

#[cfg(feature = "faults")]
impl Drop for EpollSet {
    fn drop(&mut self) {
        super::faults::end();
    }
}

/// True if epoll_pwait2(2) is there: then it reports that the descriptor is not open.
pub(crate) fn has_pwait2() -> bool {
    const NOTHING: usize = 0;
    // SAFETY: no process has this descriptor, so that the call ends at once; no memory is passed.
    unsafe {
        libc::syscall(libc::SYS_epoll_pwait2, RawFd::MAX, NOTHING, 1, NOTHING, NOTHING, 8usize)
    };
    !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

/// Waits until `fd` is readable, at most `timeout`; a signal may end it sooner. True if it is.
pub(crate) fn wait_readable(fd: RawFd, timeout: Duration) -> io::Result<bool> {
    // SAFETY: the caller has the descriptor open.
    let target = PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN);
    // A longer one is no limit.
    let timeout = timeout.try_into().ok();
    match rustix::event::poll(&mut [target], timeout.as_ref()) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}
