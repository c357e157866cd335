//! Calls that move bytes, and block if necessary: connect, accept, receive and send, as the
//! standard library's sockets use them. Engines use none of these.

use super::{address_at, answer, ask_about, machine_of, refuse, write_address};
use crate::sys::machine::blocking::Patience;
use crate::sys::machine::datagram::Outbound;
use crate::sys::machine::kernel::{Kernel, Machine, Op};
use crate::sys::machine::world::{give_way, machine, wait};
use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t, ssize_t};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

fn error(errno: c_int) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The machine, if this thread is in a world.
fn here() -> io::Result<Rc<Machine>> {
    machine().filter(|machine| machine.kernel.try_borrow_mut().is_ok()).ok_or(error(libc::EBADF))
}

/// Makes a call on the socket behind `fd`, and retries it when it may succeed, as long as the
/// caller may block. It takes simulated time, and others may run before it returns.
fn patiently<T>(
    fd: RawFd,
    op: Op,
    flags: c_int,
    mut call: impl FnMut(&mut Kernel, RawFd) -> io::Result<T>,
) -> io::Result<T> {
    let machine = here()?;
    let mut kernel = machine.kernel.borrow_mut();
    let fd = kernel.socket_of(fd);
    let spent_ns = kernel.spent_ns();
    let preempts = kernel.preempts();
    machine.clock.set(machine.clock.get() + spent_ns);
    kernel.run_due();
    drop(kernel);
    if preempts {
        give_way();
    }
    let until_ns = match machine.kernel.borrow_mut().patience(fd, op)? {
        Patience::None => Some(0),
        _ if flags & libc::MSG_DONTWAIT != 0 => Some(0),
        Patience::Nanoseconds(limit_ns) => Some(machine.clock.get() + limit_ns),
        Patience::Endless => None,
    };
    loop {
        let made = call(&mut machine.kernel.borrow_mut(), fd);
        let in_vain = made.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        if !in_vain || until_ns == Some(0) {
            return made;
        }
        if !wait(until_ns, &mut || machine.kernel.borrow().is_ready(fd, op)) {
            return made;
        }
    }
}

fn answer_bytes(result: io::Result<usize>) -> ssize_t {
    match result {
        Ok(bytes) => bytes as ssize_t,
        Err(error) => answer(Err(error)) as ssize_t,
    }
}

#[unsafe(no_mangle)]
extern "C" fn connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int {
    let Some(machine) = machine_of(fd) else {
        return unchanged!(SYS_connect, fd, address, bytes);
    };
    // SAFETY: the caller of connect(2) guarantees it.
    let Some(address) = (unsafe { address_at(address, bytes) }) else {
        return refuse(libc::EAFNOSUPPORT);
    };
    let mut is_stream = false;
    let begun = ask_about(fd, machine, |kernel, fd| {
        is_stream = kernel.is_stream(fd)?;
        match is_stream {
            true => kernel.connect(fd, address)?,
            false => kernel.connect_datagrams(fd, address)?,
        }
        Ok(0)
    });
    if begun < 0 || !is_stream {
        return begun;
    }
    answer(patiently(fd, Op::Connect, 0, |kernel, fd| match kernel.is_ready(fd, Op::Connect) {
        true => kernel.connected(fd).map(|()| 0),
        false if kernel.is_nonblocking(fd)? => Err(error(libc::EINPROGRESS)),
        false => Err(error(libc::EAGAIN)),
    }))
}

#[unsafe(no_mangle)]
extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if machine_of(fd).is_none() {
        return unchanged!(SYS_accept4, fd, address, bytes, flags);
    }
    answer(patiently(fd, Op::Accept, 0, |kernel, fd| {
        let accepted = kernel.accept(fd)?;
        kernel.set_nonblocking(accepted, flags & libc::SOCK_NONBLOCK != 0)?;
        let name = kernel.peer_name(accepted)?;
        if !address.is_null() {
            // SAFETY: the caller of accept4(2) guarantees it.
            unsafe { write_address(name, address, bytes) };
        }
        Ok(accepted)
    }))
}

/// Receives into memory of the caller.
///
/// # Safety
/// `into` names `most` bytes that can be written; `address` and `bytes` are null, or as
/// [`write_address`] wants them.
unsafe fn receive(
    fd: RawFd,
    (into, most): (*mut c_void, usize),
    flags: c_int,
    (address, bytes): (*mut sockaddr, *mut socklen_t),
) -> io::Result<usize> {
    let peek = flags & libc::MSG_PEEK != 0;
    let (received, from) =
        patiently(fd, Op::Receive, flags, |kernel, fd| kernel.receive(fd, most, peek))?;
    // SAFETY: no more than fits, which the caller guarantees.
    unsafe {
        std::ptr::copy_nonoverlapping(received.as_ptr(), into.cast(), received.len());
        if let Some(from) = from.filter(|_| !address.is_null()) {
            write_address(from, address, bytes);
        }
    }
    Ok(received.len())
}

/// Sends memory of the caller.
///
/// # Safety
/// `from` names `length` bytes; `address` is null or names `bytes` bytes.
unsafe fn send_from(
    fd: RawFd,
    (from, length): (*const c_void, usize),
    flags: c_int,
    (address, bytes): (*const sockaddr, socklen_t),
) -> io::Result<usize> {
    // SAFETY: as the caller vouches.
    let payload = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
    let to = match address.is_null() {
        true => None,
        // SAFETY: as the caller vouches.
        false => unsafe { address_at(address, bytes) },
    };
    patiently(fd, Op::Send, flags, |kernel, fd| match kernel.is_stream(fd)? {
        true => kernel.transmit(fd, payload),
        false => {
            let out = Outbound { to, payload, ..Outbound::default() };
            kernel.send_datagram(fd, &out).map(|()| payload.len())
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn recv(fd: c_int, into: *mut c_void, most: size_t, flags: c_int) -> ssize_t {
    recvfrom(fd, into, most, flags, std::ptr::null_mut(), std::ptr::null_mut())
}

#[unsafe(no_mangle)]
extern "C" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    most: size_t,
    flags: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
) -> ssize_t {
    match machine_of(fd) {
        // SAFETY: the caller of recvfrom(2) guarantees it.
        Some(_) => answer_bytes(unsafe { receive(fd, (into, most), flags, (address, bytes)) }),
        None => unchanged!(SYS_recvfrom, fd, into, most, flags, address, bytes),
    }
}

#[unsafe(no_mangle)]
extern "C" fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    sendto(fd, from, length, flags, std::ptr::null(), 0)
}

#[unsafe(no_mangle)]
extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    bytes: socklen_t,
) -> ssize_t {
    match machine_of(fd) {
        // SAFETY: the caller of sendto(2) guarantees it.
        Some(_) => answer_bytes(unsafe { send_from(fd, (from, length), flags, (address, bytes)) }),
        None => unchanged!(SYS_sendto, fd, from, length, flags, address, bytes),
    }
}

/// Sends the first of several buffers that has bytes: a call may always do less.
#[unsafe(no_mangle)]
extern "C" fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    if machine_of(fd).is_none() {
        return unchanged!(SYS_writev, fd, vectors, count);
    }
    // SAFETY: the caller of writev(2) guarantees it.
    let sent = unsafe {
        let vectors = std::slice::from_raw_parts(vectors, count.max(0) as usize);
        let first = vectors.iter().find(|vector| vector.iov_len > 0);
        let from =
            first.map_or((std::ptr::dangling(), 0), |v| (v.iov_base.cast_const(), v.iov_len));
        send_from(fd, from, 0, (std::ptr::null(), 0))
    };
    answer_bytes(sent)
}

#[unsafe(no_mangle)]
extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match machine_of(fd) {
        Some(machine) => ask_about(fd, machine, |kernel, fd| {
            match how {
                libc::SHUT_RD => {}
                _ => kernel.shutdown_write(fd)?,
            }
            Ok(0)
        }),
        None => unchanged!(SYS_shutdown, fd, how),
    }
}
