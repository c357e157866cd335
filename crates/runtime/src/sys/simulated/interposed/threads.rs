//! Threads, and the calls in which they wait for each other and for the time.
//!
//! Locks, channels and parked threads of the standard library all wait by futex(2): until a number
//! in memory has changed. A world needs no wake-ups for that: a waiting thread has the turn again
//! some time after the number has changed, regardless of the writer.

use super::machine;
use crate::sys::machine::threads::{join, start_thread};
use crate::sys::machine::world::{give_way, wait};
use libc::{c_int, c_long, c_void, clockid_t, pthread_attr_t, pthread_t, timespec};
use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// How long a world sleeps in real time when all its programs wait.
const LOOKING_AWAY: Duration = Duration::from_micros(200);
/// The cost of yielding the processor.
const YIELD_NS: u64 = 500;

/// The function of this name that would be called without ours.
fn original(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the name is terminated. RTLD_NEXT searches the libraries behind this program.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        assert!(!found.is_null(), "the C library is linked dynamically and has {name:?}");
        known.store(found, Ordering::Relaxed);
    }
    found
}

type Syscall = extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

fn real_syscall(number: c_long, arguments: [usize; 6]) -> c_long {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: syscall(2), which is variadic; on the supported targets, six registers or words are
    // passed in the same way.
    let call: Syscall = unsafe { std::mem::transmute(original(c"syscall", &KNOWN)) };
    call(number, a, b, c, d, e, f)
}

/// Lets one real thread wait for another, in any world: passing it blocks until it is opened, and
/// closes it again.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU32);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.store(1, Ordering::Release);
        let wake = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
        real_syscall(libc::SYS_futex, [self.0.as_ptr() as usize, wake, 1, 0, 0, 0]);
    }

    pub(crate) fn pass(&self) {
        while self.0.swap(0, Ordering::Acquire) == 0 {
            let wait = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
            real_syscall(libc::SYS_futex, [self.0.as_ptr() as usize, wait, 0, 0, 0, 0]);
        }
    }
}

/// Waits in real time, for a moment, and returns how long.
pub(crate) fn look_away() -> Duration {
    let time = timespec { tv_sec: 0, tv_nsec: LOOKING_AWAY.as_nanos() as i64 };
    real_syscall(libc::SYS_nanosleep, [std::ptr::from_ref(&time) as usize, 0, 0, 0, 0, 0]);
    LOOKING_AWAY
}

fn nanoseconds(time: timespec) -> u64 {
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// When a wait ends that began now, on the clock of the world.
fn in_nanoseconds(ns: u64) -> Option<u64> {
    machine().map(|machine| machine.clock.get().saturating_add(ns))
}

#[unsafe(no_mangle)]
extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if machine().is_none() {
        let arguments = [clock as usize, flags as usize, time as usize, left as usize, 0, 0];
        let returned = real_syscall(libc::SYS_clock_nanosleep, arguments);
        // This call returns the errno.
        let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        return if returned == 0 { 0 } else { errno() };
    }
    // SAFETY: the caller names a timespec.
    let ns = nanoseconds(unsafe { *time });
    let until = flags & libc::TIMER_ABSTIME != 0;
    wait(if until { Some(ns) } else { in_nanoseconds(ns) }, &mut || false);
    0
}

#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> c_int {
    match machine() {
        Some(machine) => {
            machine.clock.set(machine.clock.get() + YIELD_NS);
            give_way();
            0
        }
        None => real_syscall(libc::SYS_sched_yield, [0; 6]) as c_int,
    }
}

/// In C this function is variadic; on the supported targets, six arguments are passed in the same
/// way, and the kernel ignores the ones it does not need.
#[unsafe(no_mangle)]
extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let operation = b as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    let waits = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET].contains(&operation);
    // A panic may happen in the middle of the world's own work.
    if number != libc::SYS_futex || !waits || machine().is_none() || std::thread::panicking() {
        return real_syscall(number, [a, b, c, d, e, f]);
    }
    // SAFETY: the caller names a live word that other threads change atomically. It stays while the
    // caller waits for it.
    let word = unsafe { AtomicU32::from_ptr(a as *mut u32) };
    // SAFETY: null, or a live timespec of the caller.
    let limit = unsafe { (d as *const timespec).as_ref() };
    let until_ns = limit.and_then(|limit| match operation {
        libc::FUTEX_WAIT => in_nanoseconds(nanoseconds(*limit)),
        _ => Some(nanoseconds(*limit)),
    });
    let before = c as u32;
    if word.load(Ordering::Acquire) != before {
        return super::refuse(libc::EAGAIN).into();
    }
    match wait(until_ns, &mut || word.load(Ordering::Acquire) != before) {
        true => 0,
        false => super::refuse(libc::ETIMEDOUT).into(),
    }
}

type Main = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = extern "C" fn(*mut pthread_t, *const pthread_attr_t, Main, *mut c_void) -> c_int;
type Join = extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;

/// The entry point of a thread of a world, in a form that C can pass on.
extern "C" fn run(main: *mut c_void) -> *mut c_void {
    // SAFETY: created by `Box::into_raw` in `pthread_create`, for this call alone.
    let main = unsafe { Box::from_raw(main.cast::<Box<dyn FnOnce()>>()) };
    main();
    std::ptr::null_mut()
}

/// A thread that is started in a world belongs to it. Its return value is null, as for all threads
/// of the standard library.
#[unsafe(no_mangle)]
extern "C" fn pthread_create(
    name: *mut pthread_t,
    attributes: *const pthread_attr_t,
    main: Main,
    argument: *mut c_void,
) -> c_int {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: the signature of pthread_create(3).
    let create: Create = unsafe { std::mem::transmute(original(c"pthread_create", &KNOWN)) };
    if machine().is_none() {
        return create(name, attributes, main, argument);
    }
    let started = start_thread(
        Box::new(move || {
            main(argument);
        }),
        |main| {
            let main = Box::into_raw(Box::new(main));
            match create(name, attributes, run, main.cast()) {
                // SAFETY: the call has written the name.
                0 => Ok(unsafe { *name }),
                errno => {
                    // SAFETY: it has no other owner.
                    drop(unsafe { Box::from_raw(main) });
                    Err(errno)
                }
            }
        },
    );
    started.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn pthread_join(name: pthread_t, result: *mut *mut c_void) -> c_int {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: the signature of pthread_join(3).
    let real: Join = unsafe { std::mem::transmute(original(c"pthread_join", &KNOWN)) };
    // After that it has no more work, and needs no turn.
    join(name);
    real(name, result)
}
