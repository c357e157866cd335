//! The calls that the prices are measured with: a trivial one, notifications, sleep, copies.

use super::retry_eintr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;

/// Enters the kernel and returns. Not getpid(3): a C library may cache the result.
pub(crate) fn do_nothing() {
    // SAFETY: no memory is passed, and the call cannot fail.
    unsafe { libc::syscall(libc::SYS_getpid) };
}

/// The CPUs that the calling thread may use.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    // One bit for each of the 8,192 CPUs that a kernel supports at most; cpu_set_t has 1,024.
    let mut set = [0u64; 128];
    let bytes = retry_eintr(|| {
        // SAFETY: live, exclusively borrowed memory and its exact size; 0 is the calling thread.
        unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr())
                as isize
        }
    })?;
    let is_allowed = |cpu: &usize| set[cpu / 64] & (1 << (cpu % 64)) != 0;
    Ok((0..(bytes * 8).min(set.len() * 64)).filter(is_allowed).collect())
}

/// Makes the calling thread never preempt another one when it is woken (SCHED_BATCH, sched(7)), so
/// that its waker continues until it sleeps itself.
pub(crate) fn preempt_nobody() -> io::Result<()> {
    // The kernel's sched_param; that of musl has more fields.
    let priority: libc::c_int = 0;
    // The system call itself: musl's wrapper answers ENOSYS.
    retry_eintr(|| {
        // SAFETY: one live int, which is only read; 0 is the calling thread.
        unsafe {
            libc::syscall(
                libc::SYS_sched_setscheduler,
                0,
                libc::SCHED_BATCH,
                std::ptr::from_ref(&priority),
            ) as isize
        }
    })
    .map(drop)
}

/// The calling thread, as [`Kick::send`] names it.
pub(crate) fn thread_id() -> libc::pid_t {
    // SAFETY: no memory is passed, and the call cannot fail. Not gettid(3): glibc before 2.30 lacks
    // it.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Allows this process to call [`barrier`] (Linux 4.14).
pub(crate) fn register_barrier() -> io::Result<()> {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

/// Interrupts each CPU that runs another thread of this process, and waits until all have answered.
pub(crate) fn barrier() -> io::Result<()> {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    retry_eintr(|| unsafe { libc::syscall(libc::SYS_membarrier, command, 0u32, 0) } as isize)
        .map(drop)
}

/// A signal without an effect. While this exists, the process has its handler.
pub(crate) struct Kick {
    signal: libc::c_int,
}

extern "C" fn ignore(_: libc::c_int) {}

impl Kick {
    /// # Errors
    /// `ResourceBusy` if the process uses the signal, otherwise the errors of sigaction(2).
    pub(crate) fn new() -> io::Result<Kick> {
        // Real-time signals are queued, so each send takes the same path through the kernel. The
        // last one is the least likely to be in use.
        let kick = Kick { signal: libc::SIGRTMAX() };
        if kick.action(None)? != libc::SIG_DFL {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        kick.action(Some(ignore as *const () as libc::sighandler_t))?;
        Ok(kick)
    }

    /// The handler; replaces it if `new` is given.
    fn action(&self, new: Option<libc::sighandler_t>) -> io::Result<libc::sighandler_t> {
        // SAFETY: an all-zero sigaction is a valid value: default action, empty mask, no flags.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut action = before;
        action.sa_flags = libc::SA_RESTART;
        action.sa_sigaction = new.unwrap_or(libc::SIG_DFL);
        let action = new.map_or(std::ptr::null(), |_| &raw const action);
        // SAFETY: `action` is null or live; the handler takes a number and accesses no state, or is
        // the previous one.
        retry_eintr(|| unsafe { libc::sigaction(self.signal, action, &raw mut before) } as isize)?;
        Ok(before.sa_sigaction)
    }

    /// Whether the signal interrupts the calling thread, or stays pending until [`Kick::take`].
    pub(crate) fn interrupts_me(&self, yes: bool) {
        let set = self.set();
        let how = if yes { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK };
        // SAFETY: one live signal set, only read; a valid `how` cannot fail.
        unsafe { libc::pthread_sigmask(how, &set, std::ptr::null_mut()) };
    }

    /// Sends it to a thread of this process.
    pub(crate) fn send(&self, thread: libc::pid_t) -> io::Result<()> {
        // SAFETY: no memory is passed; a thread that has ended is reported as an error.
        retry_eintr(|| unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, self.signal)
        } as isize)
        .map(drop)
    }

    /// Takes a pending signal of the calling thread.
    pub(crate) fn take(&self) -> io::Result<()> {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let set = self.set();
        retry_eintr(|| {
            // SAFETY: a live set and timeout, only read; null requests no details.
            unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &at_once) as isize }
        })
        .map(drop)
    }

    fn set(&self) -> libc::sigset_t {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set, and the signal is a valid one.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), self.signal);
            set.assume_init()
        }
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        // Pending signals of a thread end with it, and all threads that were sent one have ended:
        // the default action, which ends the process, cannot occur.
        let _it_was_there_before = self.action(Some(libc::SIG_DFL));
    }
}

/// An eventfd(2) whose readers sleep.
pub(crate) fn blocking_eventfd() -> io::Result<File> {
    // SAFETY: no memory is passed.
    let fd = retry_eintr(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) } as isize)?;
    // SAFETY: eventfd returned a new descriptor that has no other owner.
    Ok(unsafe { File::from_raw_fd(fd as libc::c_int) })
}

/// An empty file in memory.
pub(crate) fn memory_file() -> io::Result<File> {
    let name = c"twinring-prices";
    // SAFETY: a live, terminated name.
    let fd = retry_eintr(|| unsafe {
        libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC)
    } as isize)?;
    // SAFETY: memfd_create returned a new descriptor that has no other owner.
    Ok(unsafe { File::from_raw_fd(fd as libc::c_int) })
}
