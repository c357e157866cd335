//! The calls of engines on streams.

use super::kernel::{Event, Kernel, error};
use super::poll::{ERR, IN, OUT};
use crate::sys::faults::Fault;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// The calls of engines, which may be refused although they could succeed: engines must retry them
/// after an event. Programs with non-blocking calls are spared that: one that writes until a socket
/// is full, like peers in tests, would take the first EAGAIN for that.
impl Kernel {
    /// EAGAIN, if a fault occurs.
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

    pub(crate) fn peek_for_engine(&mut self, fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
        self.may_refuse(fd, IN)?;
        self.peek(fd, into)
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
                // SAFETY: `recv` has initialized this number of bytes.
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

    /// A notification, which extends the previous one if that was not taken.
    pub(super) fn released(&mut self, fd: RawFd, number: u32) {
        let Some(tcp) = self.tcp(fd) else { return };
        match tcp.released.back_mut() {
            Some((_, last)) if last.wrapping_add(1) == number => *last = number,
            _ => tcp.released.push_back((number, number)),
        }
        self.tell(fd, ERR);
    }

    /// Takes a notification off the error queue: the first and the last of its sends.
    pub(crate) fn notification(&mut self, fd: RawFd) -> Option<(u32, u32)> {
        self.tcp(fd)?.released.pop_front()
    }
}
