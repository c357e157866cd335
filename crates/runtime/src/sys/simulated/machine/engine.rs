//! What engines ask of streams.

use super::kernel::{Event, Kernel, error};
use super::poll::{ERR, IN, OUT};
use crate::sys::faults::Fault;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// What engines ask for, which may be refused although it could be done: they have to ask again when
/// they are told to. Programs whose calls do not wait are spared that. One that writes until a socket
/// is full, as peers in tests do, takes the first EAGAIN for that.
impl Kernel {
    /// EAGAIN, if a fault would have it so.
    pub(super) fn may_refuse(&mut self, fd: RawFd, bits: u32) -> io::Result<()> {
        if self.dice.strikes(Fault::Again) {
            self.owe(fd, bits);
            return Err(error(libc::EAGAIN));
        }
        Ok(())
    }

    pub(crate) fn accept_for_engine(&mut self, listener: RawFd) -> io::Result<RawFd> {
        self.may_refuse(listener, IN)?;
        let accepted = self.accept(listener)?;
        self.set_nonblocking(accepted, true)?;
        Ok(accepted)
    }

    pub(crate) fn recv_for_engine(
        &mut self,
        fd: RawFd,
        into: &mut [MaybeUninit<u8>],
    ) -> io::Result<usize> {
        self.may_refuse(fd, IN)?;
        self.recv_accounted(fd, into)
    }

    pub(super) fn recv_accounted(
        &mut self,
        fd: RawFd,
        into: &mut [MaybeUninit<u8>],
    ) -> io::Result<usize> {
        let bytes = self.recv(fd, into)?;
        match bytes {
            0 if !into.is_empty() => self.was_told_the_end(fd),
            _ => {
                // SAFETY: `recv` has written so many of them.
                let received =
                    unsafe { std::slice::from_raw_parts(into.as_ptr().cast::<u8>(), bytes) };
                self.received(fd, received);
            }
        }
        Ok(bytes)
    }

    pub(crate) fn send_for_engine(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
        self.may_refuse(fd, OUT)?;
        self.transmit(fd, bytes)
    }

    /// With MSG_ZEROCOPY.
    pub(crate) fn send_zero_copy(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
        if self.dice.strikes(Fault::NoBuffers) {
            return Err(error(libc::ENOBUFS));
        }
        let sent = self.send_for_engine(fd, bytes)?;
        let after_ns = 2 * self.travel_ns();
        if let Some(tcp) = self.tcp(fd) {
            let number = tcp.zero_copies;
            tcp.zero_copies = number.wrapping_add(1);
            self.schedule(after_ns, Event::Released { fd, number });
        }
        Ok(sent)
    }

    /// A notification, which continues the one before if nobody has taken that.
    pub(super) fn released(&mut self, fd: RawFd, number: u32) {
        let Some(tcp) = self.tcp(fd) else { return };
        match tcp.released.back_mut() {
            Some((_, last)) if last.wrapping_add(1) == number => *last = number,
            _ => tcp.released.push_back((number, number)),
        }
        self.tell(fd, ERR);
    }

    /// Takes a notification off the error queue: the first and the last send that it is about.
    pub(crate) fn notification(&mut self, fd: RawFd) -> Option<(u32, u32)> {
        self.tcp(fd)?.released.pop_front()
    }
}
