//! The calls that the prices are measured with, and that no wrapper library in use offers.

use super::retry_eintr;
use std::io;
use std::mem::MaybeUninit;

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

/// A signal without an effect. While this exists, the process has its handler.
pub(crate) struct Kick {
    signal: libc::c_int,
}

extern "C" fn ignore(_: libc::c_int) {}

impl Kick {
    /// # Errors
    /// `ResourceBusy` if the process uses the signal, otherwise the errors of signal(2).
    pub(crate) fn new() -> io::Result<Kick> {
        // Real-time signals are queued, so each send takes the same path through the kernel. The
        // last one is the least likely to be in use.
        let signal = libc::SIGRTMAX();
        // SAFETY: the handler takes a number and accesses no state.
        match unsafe { libc::signal(signal, ignore as *const () as libc::sighandler_t) } {
            libc::SIG_DFL => Ok(Kick { signal }),
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            before => {
                // SAFETY: it was the handler before.
                unsafe { libc::signal(signal, before) };
                Err(io::ErrorKind::ResourceBusy.into())
            }
        }
    }

    /// Whether the signal interrupts the calling thread, or stays pending until [`Kick::take`].
    pub(crate) fn interrupts_me(&self, yes: bool) {
        let set = self.set();
        let how = if yes { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK };
        // SAFETY: one live signal set, only read; a valid `how` cannot fail.
        unsafe { libc::pthread_sigmask(how, &set, std::ptr::null_mut()) };
    }

    /// Sends it to a thread of this process, by its number (gettid(2)).
    pub(crate) fn send(&self, thread: i32) -> io::Result<()> {
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
        // SAFETY: no handler is named.
        unsafe { libc::signal(self.signal, libc::SIG_DFL) };
    }
}
