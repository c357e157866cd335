//! The calls of `real` that a simulated machine may answer: those on its descriptors, and on
//! threads in a world those without a descriptor. All others go to the real kernel, with seeded
//! faults in between if they were requested.

pub(crate) mod datagram;
#[cfg(all(test, not(loom)))]
mod differential;
pub(crate) mod faults;
pub(crate) mod file;
pub(crate) mod interposed;
pub(crate) mod machine;
pub(crate) mod pipe;
pub(crate) mod poll;
pub(crate) mod ring;
pub(crate) mod zero_copy;

pub(crate) use super::real::*;

use super::real;
use crate::sys::faults::calls::{self, Way};
use crate::sys::machine::kernel::{Kernel, Machine, error};
use crate::sys::machine::world;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Instant;

/// The maximum duration of a turn of a program that polls the clock: without it the time would
/// never come.
const TURN_NS_MAX: u64 = 2_000;

/// Calls the simulated kernel, if `fd` is one of its descriptors. EBADF if its world has ended, or
/// is not that of the calling thread. The call takes simulated time.
fn ask<T>(
    fd: RawFd,
    question: impl FnOnce(&mut Kernel, RawFd) -> io::Result<T>,
) -> Option<io::Result<T>> {
    let machine = world::machine_of(fd)?;
    Some(ask_machine(machine, |kernel| {
        let socket = kernel.socket_of(fd);
        question(kernel, socket)
    }))
}

fn ask_machine<T>(
    machine: Option<Rc<Machine>>,
    question: impl FnOnce(&mut Kernel) -> io::Result<T>,
) -> io::Result<T> {
    let Some(machine) = machine else { return Err(error(libc::EBADF)) };
    let Ok(mut kernel) = machine.kernel.try_borrow_mut() else { return Err(error(libc::EBADF)) };
    let spent_ns = kernel.spent_ns();
    machine.clock.set(machine.clock.get() + spent_ns);
    kernel.run_due();
    question(&mut kernel)
}

/// A descriptor that a simulated kernel has just created.
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the number was created for this call and has no other owner, and closing it is
    // answered by the simulated kernel.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn recv(socket: RawFd, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    match ask(socket, |kernel, socket| kernel.recv_for_engine(socket, into)) {
        Some(received) => received,
        None => real::recv(socket, calls::part(socket, Way::In, into)?),
    }
}

pub(crate) fn peek(socket: RawFd, into: &mut [u8]) -> io::Result<usize> {
    match ask(socket, |kernel, socket| kernel.peek_for_engine(socket, into)) {
        Some(peeked) => peeked,
        None => real::peek(socket, calls::part(socket, Way::In, into)?),
    }
}

pub(crate) fn send(socket: RawFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    match ask(socket, |kernel, socket| kernel.send_for_engine(socket, bytes)) {
        Some(sent) => sent,
        None => real::send(socket, &bytes[..calls::allowed(socket, Way::Out, bytes.len())?], more),
    }
}

pub(crate) fn send_slices(socket: RawFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter()).copied().collect();
    match ask(socket, |kernel, socket| kernel.send_for_engine(socket, &bytes)) {
        Some(sent) => sent,
        None => match calls::allowed(socket, Way::Out, bytes.len())? {
            all if all == bytes.len() => real::send_slices(socket, slices),
            part => real::send_slices(socket, &[IoSlice::new(&bytes[..part])]),
        },
    }
}

pub(crate) fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    match ask(listener, |kernel, listener| kernel.accept_for_engine(listener)) {
        Some(accepted) => accepted.map(own),
        None => {
            calls::may_accept(listener)?;
            real::accept(listener)
        }
    }
}

pub(crate) fn shutdown_write(socket: RawFd) -> io::Result<()> {
    let asked = ask(socket, |kernel, socket| kernel.shutdown_write(socket));
    asked.unwrap_or_else(|| real::shutdown_write(socket))
}

/// In a world an eventfd of it.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    match world::machine() {
        Some(machine) => Ok(own(machine.kernel.borrow_mut().eventfd())),
        None => real::eventfd(),
    }
}

/// An eventfd whose world has ended has no waiter.
pub(crate) fn eventfd_signal(fd: BorrowedFd<'_>) {
    let asked = ask(fd.as_raw_fd(), |kernel, fd| {
        kernel.eventfd_signal(fd);
        Ok(())
    });
    if asked.is_none() {
        real::eventfd_signal(fd);
    }
}

pub(crate) fn eventfd_clear(fd: BorrowedFd<'_>) {
    let asked = ask(fd.as_raw_fd(), |kernel, fd| {
        kernel.eventfd_clear(fd);
        Ok(())
    });
    if asked.is_none() {
        real::eventfd_clear(fd);
    }
}

/// The C library answers with the time of the world. Work between two checks takes time, in which
/// events may occur.
pub(crate) fn is_past(deadline: Instant) -> bool {
    world::spend(TURN_NS_MAX);
    real::is_past(deadline)
}
