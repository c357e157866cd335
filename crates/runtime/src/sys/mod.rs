//! Every raw system call of the runtime, each with its safety note.
//!
//! The functions take plain descriptors and slices and return [`io::Result`], and keep no state.
//! `EINTR` is retried if the call can be repeated without losing anything. In builds with the feature
//! `faults`, which is for tests, some do less than they could (`faults`).

pub(crate) mod datagram;
#[cfg(feature = "faults")]
mod faults;
pub(crate) mod file;
pub(crate) mod lend;
pub(crate) mod poll;
pub(crate) mod prices;
pub(crate) mod probe;
pub(crate) mod ring;
pub(crate) mod waker;

/// Making sockets, their names and their options.
pub(crate) use socket2 as socket;

use rustix::event::EventfdFlags;
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};
use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut};

/// Turns the C convention (-1 and errno) into a `Result`, retrying while the call was interrupted.
fn retry_eintr(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let returned = call();
        if returned >= 0 {
            return Ok(returned as usize);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// Receives available data without blocking; `Ok(0)` is the end of the stream.
///
/// The raw system call, as in [`send`]: recv(3) of the C library is a cancellation point of
/// pthread, and the bookkeeping for that costs more instructions than all the rest.
#[inline]
pub(crate) fn recv(socket: BorrowedFd<'_>, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    #[cfg(feature = "faults")]
    let into = faults::part(socket.as_raw_fd(), libc::EPOLLIN, into)?;
    Ok(retry_on_intr(|| net::recv(socket, &mut *into, RecvFlags::DONTWAIT).map(|(_, len)| len))?)
}

/// Sends as much as fits into the socket buffer, without blocking and without raising SIGPIPE. With
/// `more`, the kernel keeps back a last segment that is not full, for at most 200 ms.
#[inline(always)]
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    #[cfg(feature = "faults")]
    let bytes = &bytes[..faults::allowed(socket.as_raw_fd(), libc::EPOLLOUT, bytes.len())?];
    let more = if more { SendFlags::MORE } else { SendFlags::empty() };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
    Ok(retry_on_intr(|| net::send(socket, bytes, flags))?)
}

/// Takes one connection out of the backlog of a non-blocking listener.
///
/// The new socket is close-on-exec and non-blocking: a receive or send passes MSG_DONTWAIT, but
/// sendfile(2) has no such flag.
pub(crate) fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    #[cfg(feature = "faults")]
    faults::may_accept(listener)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // SAFETY: the caller has the descriptor open.
    let listener = unsafe { BorrowedFd::borrow_raw(listener) };
    Ok(retry_on_intr(|| net::accept_with(listener, flags))?)
}

/// True if the connection has ended in both directions: after a reset or a timeout, or after both
/// ends have sent FIN. False after the peer's FIN alone.
pub(crate) fn tcp_is_closed(socket: RawFd) -> bool {
    // TCP_CLOSE of include/net/tcp_states.h.
    const CLOSED: u8 = 7;
    tcp_info::<1>(socket).is_ok_and(|[states]| states.to_ne_bytes()[0] == CLOSED)
}

/// Where struct tcp_info of include/uapi/linux/tcp.h has tcpi_unacked (segments), tcpi_bytes_acked
/// (of 64 bits) and tcpi_notsent_bytes, in numbers of 32 bits. Its first byte is the state.
const TCP_UNACKED: usize = 6;
const TCP_BYTES_ACKED: usize = 30;
const TCP_NOTSENT: usize = 36;

pub(crate) fn tcp_is_acked(socket: RawFd) -> io::Result<bool> {
    let info = tcp_info::<{ TCP_NOTSENT + 1 }>(socket)?;
    Ok(info[TCP_UNACKED] == 0 && info[TCP_NOTSENT] == 0)
}

pub(crate) fn tcp_bytes_acked(socket: RawFd) -> io::Result<u64> {
    let info = tcp_info::<{ TCP_BYTES_ACKED + 2 }>(socket)?;
    Ok(u64::from(info[TCP_BYTES_ACKED]) | u64::from(info[TCP_BYTES_ACKED + 1]) << 32)
}

fn tcp_info<const N: usize>(socket: RawFd) -> io::Result<[u32; N]> {
    datagram::get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)
}

/// The eventfd(2) that wakes a worker; its driver watches it.
pub(crate) struct EventFd(OwnedFd);

#[cfg_attr(all(test, loom), allow(dead_code, reason = "models have no eventfd"))]
impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventFd(rustix::event::eventfd(0, flags)?))
    }

    pub(crate) fn signal(&self) {
        eventfd_signal(self.0.as_fd());
    }

    pub(crate) fn clear(&self) {
        eventfd_clear(self.0.as_fd());
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Adds one to an eventfd. A full counter (EAGAIN) already wakes its reader and is not an error.
pub(crate) fn eventfd_signal(fd: BorrowedFd<'_>) {
    let _full_is_fine = retry_on_intr(|| rustix::io::write(fd, &1u64.to_ne_bytes()));
}

/// Resets an eventfd to zero; nothing to read is not an error.
pub(crate) fn eventfd_clear(fd: BorrowedFd<'_>) {
    let _empty_is_fine = retry_on_intr(|| rustix::io::read(fd, &mut [0u8; 8]));
}

pub(crate) fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// CPU time that the calling thread has used: user and system, in nanoseconds.
pub fn thread_cpu_time_ns() -> (u64, u64) {
    // SAFETY: an all-zero rusage is a valid value of the type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is live and exclusively borrowed; RUSAGE_THREAD is Linux since 2.6.26.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    (ns(usage.ru_utime), ns(usage.ru_stime))
}

/// CPU time used by the calling thread so far, by CLOCK_THREAD_CPUTIME_ID: exact to the moment,
/// where getrusage(2) adds the time since the last tick or switch only later.
pub fn thread_cpu_clock_ns() -> u64 {
    nanoseconds_of(ClockId::ThreadCPUTime)
}

/// CLOCK_MONOTONIC in nanoseconds: the clock that all processes of one machine share, for time
/// stamps that another process compares with its own.
pub fn monotonic_ns() -> u64 {
    nanoseconds_of(ClockId::Monotonic)
}

fn nanoseconds_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Page-aligned anonymous memory, zeroed by the kernel, unmapped when dropped.
///
/// Untouched pages cost no memory, so a large pool costs only the part in use.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    pub(crate) bytes: usize,
}

impl Mapping {
    /// Maps `bytes` (more than zero) of private memory.
    pub(crate) fn new(bytes: usize) -> io::Result<Mapping> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches no memory
        // that the program already uses.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, access, kind) }?;
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Mapping { start, bytes })
    }

    /// True if this much could be mapped now. If address space is limited (RLIMIT_AS), or the
    /// machine does not overcommit (vm.overcommit_memory=2), this is known before an allocation
    /// fails, which would end the process.
    pub(crate) fn fits(bytes: usize) -> bool {
        Mapping::new(bytes).is_ok()
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the region mapped in `new`; the owner of a `Mapping` guarantees that no
        // pointer into it is used after it is dropped.
        let _it_is_mapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Lets the C library keep up to 64 MiB of freed memory at the end of each heap for reuse.
///
/// Buffers that io_uring sends are freed by the hundred, after the system call that sends them. By
/// default glibc returns that memory to the system (mallopt(3)), and allocates it again, page fault by
/// page fault: 20 for a file of 100 KB over TLS. Has no effect with other C libraries.
///
/// # Safety
/// The process has no other thread: mallopt(3) stores numbers that malloc and free of any thread read.
pub unsafe fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no memory is passed; that no other thread allocates is the caller's obligation.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
        // Blocks from this size on are separate mappings, which return to the system when they are freed.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
    }
}
