//! epoll(7): the three calls the epoll engine needs; and ppoll(2).

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) type EpollEvent = epoll::Event;

pub(crate) struct EpollSet {
    fd: OwnedFd,
    /// epoll_pwait2(2) was refused: older kernels lack it, and so do older seccomp profiles.
    in_milliseconds: Cell<bool>,
}

/// An event with these bits, of what was added with this number.
pub(crate) fn event(bits: i32, data: u64) -> EpollEvent {
    EpollEvent { flags: EventFlags::from_bits_retain(bits as u32), data: EventData::new_u64(data) }
}

impl EpollSet {
    pub(crate) fn new() -> io::Result<EpollSet> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        #[cfg(feature = "faults")]
        super::faults::begin();
        Ok(EpollSet { fd, in_milliseconds: Cell::new(false) })
    }

    pub(crate) fn add(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        #[cfg(feature = "faults")]
        super::faults::watch(target, interest, data);
        let EpollEvent { flags, data } = event(interest, data);
        // SAFETY: the caller has the descriptor open.
        Ok(epoll::add(&self.fd, unsafe { BorrowedFd::borrow_raw(target) }, data, flags)?)
    }

    pub(crate) fn modify(&self, target: RawFd, interest: i32, data: u64) -> io::Result<()> {
        #[cfg(feature = "faults")]
        super::faults::watch(target, interest, data);
        let EpollEvent { flags, data } = event(interest, data);
        // SAFETY: the caller has the descriptor open.
        Ok(epoll::modify(&self.fd, unsafe { BorrowedFd::borrow_raw(target) }, data, flags)?)
    }

    /// Waits for events, at most `timeout` (`None` waits for ever), and appends them to the empty
    /// `events` up to its capacity. An interrupted wait reports no events.
    #[inline(always)]
    pub(crate) fn wait(
        &self,
        events: &mut Vec<EpollEvent>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        #[cfg(feature = "faults")]
        let timeout = super::faults::timeout(timeout);
        events.clear();
        let waited = match timeout {
            None => epoll::wait(&self.fd, spare_capacity(events), None),
            Some(timeout) => self.wait_at_most(events, timeout),
        };
        #[cfg(feature = "faults")]
        super::faults::report(events);
        match waited {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// epoll_pwait2(2) (Linux 5.11) takes nanoseconds; without it the timeout is rounded up to a
    /// millisecond, so that a timer never fires early.
    #[inline(never)]
    fn wait_at_most(
        &self,
        events: &mut Vec<EpollEvent>,
        timeout: Duration,
    ) -> Result<usize, Errno> {
        let timeout = timeout.min(Duration::from_secs(1_000_000));
        let (tv_sec, tv_nsec) = (timeout.as_secs() as i64, i64::from(timeout.subsec_nanos()));
        let timespec = Timespec { tv_sec, tv_nsec };
        if self.in_milliseconds.get() {
            return epoll::wait(&self.fd, spare_capacity(events), Some(&timespec));
        }
        let (fd, room) = (self.fd.as_raw_fd(), events.capacity() as i32);
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // Not libc::epoll_pwait2: older C libraries lack the wrapper, the kernel has the call.
        // SAFETY: `events` has space for `room` entries, `timespec` is live, and a null signal mask leaves the
        // mask unchanged.
        let count = unsafe {
            let events = events.as_mut_ptr();
            libc::syscall(libc::SYS_epoll_pwait2, fd, events, room, &timespec, no_mask, 8usize)
        };
        if let Ok(count) = usize::try_from(count) {
            // SAFETY: the kernel has initialised so many.
            unsafe { events.set_len(count) };
            return Ok(count);
        }
        let refused = std::io::Error::last_os_error();
        match Errno::from_io_error(&refused) {
            Some(Errno::NOSYS | Errno::PERM) => {
                self.in_milliseconds.set(true);
                self.wait_at_most(events, timeout)
            }
            other => Err(other.unwrap_or(Errno::IO)),
        }
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

/// True if a read would not block now, or that cannot be found out: POLLIN, POLLHUP or POLLERR.
pub(crate) fn is_readable(socket: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&at_once)) != Ok(0)
}
