//! Calls of the C library that a simulated machine answers: its clock, its sockets (`transfer` has
//! those that move bytes and may block), and its threads and their waits (`threads`).
//!
//! If a program defines a function that a shared library also has, the linker uses the program's.
//! So the standard library, socket2 and all other code call these functions, on every thread,
//! unchanged. A thread outside a world gets the real call; so does a descriptor of the real kernel.
//! Only tests are built like this (feature `sim`).

/// The original call, for threads outside a world.
macro_rules! unchanged {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are those of the caller.
        unsafe { libc::syscall(libc::$number $(, $argument)*) as _ }
    };
}

mod threads;
mod transfer;

pub(crate) use threads::{Gate, look_away};

use super::TCP_BYTES_ACKED_AT;
use crate::sys::machine::kernel::{Kernel, Machine, Op, SINCE_1970_NS};
use crate::sys::machine::world::{machine, machine_of};
use libc::{c_int, c_ulong, c_void, clockid_t, sockaddr, socklen_t, timespec};
use socket2::SockAddr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;

/// The cost of reading the clock: time passes for programs that poll it.
const READING_NS: u64 = 25;

/// The C convention: errno and -1.
fn answer(result: io::Result<c_int>) -> c_int {
    match result {
        Ok(value) => value,
        Err(error) => {
            // SAFETY: errno of this thread can always be written.
            unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EIO) };
            -1
        }
    }
}

fn refuse(errno: c_int) -> c_int {
    answer(Err(io::Error::from_raw_os_error(errno)))
}

/// Calls the simulated kernel; EBADF if the world has ended, or ends with a failure.
fn ask(
    machine: Option<Rc<Machine>>,
    question: impl FnOnce(&mut Kernel) -> io::Result<c_int>,
) -> c_int {
    let Some(machine) = machine else { return refuse(libc::EBADF) };
    let Ok(mut kernel) = machine.kernel.try_borrow_mut() else { return refuse(libc::EBADF) };
    answer(question(&mut kernel))
}

/// The same for the socket behind `fd`.
fn ask_about(
    fd: RawFd,
    machine: Option<Rc<Machine>>,
    question: impl FnOnce(&mut Kernel, RawFd) -> io::Result<c_int>,
) -> c_int {
    ask(machine, |kernel| {
        let socket = kernel.socket_of(fd);
        question(kernel, socket)
    })
}

/// The address a caller points to.
///
/// # Safety
/// `address` names `bytes` bytes that can be read.
unsafe fn address_at(address: *const sockaddr, bytes: socklen_t) -> Option<SocketAddr> {
    let mut storage = socket2::SockAddrStorage::zeroed();
    let length = (bytes as usize).min(size_of_val(&storage));
    // SAFETY: `length` is at most what the caller guarantees and the storage has, and any bytes are
    // a valid storage.
    let address = unsafe {
        std::ptr::copy_nonoverlapping(
            address.cast::<u8>(),
            std::ptr::from_mut(&mut storage).cast(),
            length,
        );
        SockAddr::new(storage, length as socklen_t)
    };
    address.as_socket()
}

/// Writes an address to the caller's memory.
///
/// # Safety
/// `bytes` contains how many bytes at `into` can be written; both can be written.
unsafe fn write_address(address: SocketAddr, into: *mut sockaddr, bytes: *mut socklen_t) {
    let address = SockAddr::from(address);
    // SAFETY: at most as many bytes as fit, which the caller guarantees.
    unsafe {
        let length = address.len().min(*bytes);
        let from = address.as_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(from, into.cast::<u8>(), length as usize);
        *bytes = address.len();
    }
}

#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: clockid_t, into: *mut timespec) -> c_int {
    let simulated = [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME, libc::CLOCK_REALTIME];
    match machine().filter(|_| simulated.contains(&clock)) {
        Some(machine) => {
            let now_ns = machine.clock.get() + READING_NS;
            machine.clock.set(now_ns);
            let told_ns =
                if clock == libc::CLOCK_REALTIME { now_ns + SINCE_1970_NS } else { now_ns };
            let tv_sec = (told_ns / 1_000_000_000) as i64;
            let tv_nsec = (told_ns % 1_000_000_000) as i64;
            // SAFETY: the caller of clock_gettime names a timespec to be written.
            unsafe { *into = timespec { tv_sec, tv_nsec } };
            0
        }
        None => unchanged!(SYS_clock_gettime, clock, into),
    }
}

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let stream = match kind & 0xf {
        libc::SOCK_STREAM => Some(true),
        libc::SOCK_DGRAM => Some(false),
        _ => None,
    };
    match (machine(), stream) {
        (machine @ Some(_), Some(stream)) if domain != libc::AF_UNIX => {
            ask(machine, |kernel| kernel.socket(stream, domain == libc::AF_INET6))
        }
        _ => unchanged!(SYS_socket, domain, kind, protocol),
    }
}

#[unsafe(no_mangle)]
extern "C" fn bind(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int {
    match machine_of(fd) {
        Some(machine) => {
            // SAFETY: the caller of bind(2) guarantees it.
            let address = unsafe { address_at(address, bytes) };
            let Some(address) = address else { return refuse(libc::EAFNOSUPPORT) };
            ask_about(fd, machine, |kernel, fd| kernel.bind(fd, address).map(|()| 0))
        }
        None => unchanged!(SYS_bind, fd, address, bytes),
    }
}

#[unsafe(no_mangle)]
extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match machine_of(fd) {
        Some(machine) => {
            let backlog = backlog.max(0) as usize;
            ask_about(fd, machine, |kernel, fd| kernel.listen(fd, backlog).map(|()| 0))
        }
        None => unchanged!(SYS_listen, fd, backlog),
    }
}

#[unsafe(no_mangle)]
extern "C" fn getsockname(fd: c_int, into: *mut sockaddr, bytes: *mut socklen_t) -> c_int {
    match machine_of(fd) {
        Some(machine) => ask_about(fd, machine, |kernel, fd| {
            let name = kernel.local_name(fd)?;
            // SAFETY: the caller of getsockname(2) guarantees it.
            unsafe { write_address(name, into, bytes) };
            Ok(0)
        }),
        None => unchanged!(SYS_getsockname, fd, into, bytes),
    }
}

#[unsafe(no_mangle)]
extern "C" fn getpeername(fd: c_int, into: *mut sockaddr, bytes: *mut socklen_t) -> c_int {
    match machine_of(fd) {
        Some(machine) => ask_about(fd, machine, |kernel, fd| {
            let name = kernel.peer_name(fd)?;
            // SAFETY: the caller of getpeername(2) guarantees it.
            unsafe { write_address(name, into, bytes) };
            Ok(0)
        }),
        None => unchanged!(SYS_getpeername, fd, into, bytes),
    }
}

/// The options that have an effect in a simulated kernel; all others are accepted and ignored.
#[unsafe(no_mangle)]
extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    let Some(machine) = machine_of(fd) else {
        return unchanged!(SYS_setsockopt, fd, level, name, value, bytes);
    };
    let number = || {
        let whole = bytes as usize >= size_of::<c_int>();
        // SAFETY: the caller vouches for `bytes` bytes.
        if whole { unsafe { value.cast::<c_int>().read_unaligned() } } else { 0 }
    };
    ask_about(fd, machine, |kernel, fd| {
        if level == libc::SOL_SOCKET {
            match name {
                libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => {
                    kernel.set_recv_buffer(fd, number().max(0) as usize)?;
                }
                libc::SO_SNDBUF | libc::SO_SNDBUFFORCE => {
                    kernel.set_send_buffer(fd, number().max(0) as usize)?;
                }
                libc::SO_REUSEPORT => kernel.set_share(fd, number() != 0)?,
                libc::SO_LINGER => {
                    // SAFETY: the caller names a struct linger.
                    let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
                    let resets = linger.l_onoff != 0 && linger.l_linger == 0;
                    kernel.set_reset_on_close(fd, resets)?;
                }
                libc::SO_RCVTIMEO | libc::SO_SNDTIMEO => {
                    // SAFETY: the caller names a struct timeval.
                    let limit = unsafe { value.cast::<libc::timeval>().read_unaligned() };
                    let limit_ns =
                        limit.tv_sec as u64 * 1_000_000_000 + limit.tv_usec as u64 * 1_000;
                    let op = if name == libc::SO_SNDTIMEO { Op::Send } else { Op::Receive };
                    kernel.set_timeout(fd, op, limit_ns)?;
                }
                libc::SO_ATTACH_FILTER => kernel.seal(fd)?,
                _ => {}
            }
        }
        kernel.set_option(fd, level, name, number())?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    into: *mut c_void,
    bytes: *mut socklen_t,
) -> c_int {
    let Some(machine) = machine_of(fd) else {
        return unchanged!(SYS_getsockopt, fd, level, name, into, bytes);
    };
    ask_about(fd, machine, |kernel, fd| {
        let number = |value: u32| value.to_ne_bytes().to_vec();
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(kernel.buffers(fd)?.0 as u32),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(kernel.buffers(fd)?.1 as u32),
            (libc::SOL_SOCKET, libc::SO_ERROR) => number(kernel.take_error(fd)? as u32),
            (libc::SOL_SOCKET, libc::SO_MEMINFO) => {
                let mut info = [0; libc::SK_MEMINFO_DROPS as usize + 1];
                info[libc::SK_MEMINFO_DROPS as usize] = kernel.drops(fd)?;
                info.map(u32::to_ne_bytes).concat()
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                let (is_closed, bytes_acked) = kernel.tcp_info(fd);
                // TCP_CLOSE or TCP_ESTABLISHED.
                let state = if is_closed { 7 } else { 1 };
                let mut info = vec![0; TCP_BYTES_ACKED_AT];
                info[0] = state;
                info.extend(bytes_acked.to_ne_bytes());
                info
            }
            (libc::SOL_UDP, libc::UDP_SEGMENT) if !kernel.cuts_datagrams() => {
                return Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT));
            }
            // SAFETY: the caller names a socklen_t.
            _ => vec![0; unsafe { *bytes } as usize],
        };
        // SAFETY: the caller vouches for `*bytes` writable bytes; no more are written.
        unsafe {
            let room = (*bytes as usize).min(value.len());
            std::ptr::copy_nonoverlapping(value.as_ptr(), into.cast::<u8>(), room);
            *bytes = room as socklen_t;
        }
        Ok(0)
    })
}

/// In C this function is variadic; on the supported targets, the third argument is passed in the
/// same way. The standard library checks before it closes whether the descriptor is open.
#[unsafe(no_mangle)]
extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let Some(machine) = machine_of(fd) else {
        return unchanged!(SYS_fcntl, fd, command, argument);
    };
    if machine.is_none() && command == libc::F_GETFD {
        // Its world has ended, in a failure that is reported elsewhere.
        return libc::FD_CLOEXEC;
    }
    ask_about(fd, machine, |kernel, socket| match command {
        libc::F_GETFD => kernel.is_open(socket).map(|()| libc::FD_CLOEXEC),
        libc::F_SETFD => Ok(0),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => kernel.copy(socket),
        libc::F_GETFL => {
            let nonblocking = kernel.is_nonblocking(socket)?;
            Ok(libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 })
        }
        libc::F_SETFL => {
            let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
            kernel.set_nonblocking(socket, nonblocking).map(|()| 0)
        }
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    })
}

/// As with fcntl. The standard library makes a socket non-blocking by FIONBIO.
#[unsafe(no_mangle)]
extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    match machine_of(fd) {
        Some(machine) if request == libc::FIONBIO => {
            // SAFETY: with this request the caller names an int.
            let nonblocking = unsafe { *(argument as *const c_int) } != 0;
            ask_about(fd, machine, |kernel, fd| kernel.set_nonblocking(fd, nonblocking).map(|()| 0))
        }
        Some(_) => refuse(libc::ENOTTY),
        None => unchanged!(SYS_ioctl, fd, request, argument),
    }
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    match machine_of(fd) {
        Some(machine) => ask(machine, |kernel| kernel.close(fd).map(|()| 0)),
        None => unchanged!(SYS_close, fd),
    }
}
