//! One attempt at an operation, by its kind.

use super::{ACCEPT_MULTISHOT, CQE_MORE, POLL_MULTI, RECV_MULTISHOT, Sqe, Tried, code};
use crate::sys::faults::ring::refusal;
use crate::sys::machine::kernel::{Event, Kernel, Op};
use crate::sys::machine::poll::{ERR, HUP, IN, OUT, RDHUP};
use crate::sys::machine::ring_memory;
use crate::sys::machine::socket::Kind;
use std::io;
use std::os::fd::RawFd;

impl Kernel {
    /// One attempt.
    pub(super) fn attempt(&mut self, ring: RawFd, sqe: &Sqe, done: usize, id: u64) -> Tried {
        let socket = self.socket_of(sqe.fd);
        let stream = self.is_stream(socket).unwrap_or(false);
        if done == 0
            && let Some(errno) = refusal(&mut self.dice, sqe, stream)
        {
            return Tried::Failed(-errno);
        }
        match sqe.opcode {
            code::NOP => Tried::Over(0, 0),
            code::POLL_ADD => {
                let bits = self.bits(socket) & (sqe.op_flags | ERR | HUP);
                match bits {
                    0 => Tried::Waits(socket, sqe.op_flags),
                    _ if sqe.len & POLL_MULTI != 0 => Tried::More(bits as i32, 0),
                    _ => Tried::Over(bits as i32, 0),
                }
            }
            code::ACCEPT => match self.accept(socket) {
                Ok(fd) if sqe.ioprio & ACCEPT_MULTISHOT != 0 => Tried::More(fd, 0),
                result => over(result, socket, IN),
            },
            code::CONNECT => self.try_connect(sqe, socket),
            code::CLOSE => match self.close(sqe.fd) {
                Ok(()) => Tried::Over(0, 0),
                Err(refused) => Tried::Failed(-crate::driver::errno(&refused)),
            },
            code::TIMEOUT => self.try_timeout(sqe, done, id, ring),
            code::SEND | code::SENDMSG | code::SEND_ZC => {
                self.try_send(ring, sqe, socket, done, id)
            }
            code::RECV | code::RECVMSG => self.try_receive(ring, sqe, socket),
            code::PROVIDE_BUFFERS => self.provide(ring, sqe),
            code::OPENAT2 | code::STATX | code::READ => self.try_file(ring, sqe, done, id),
            _ => Tried::Failed(-libc::EINVAL),
        }
    }

    fn try_connect(&mut self, sqe: &Sqe, socket: RawFd) -> Tried {
        let fresh = matches!(self.sockets.get(&socket).map(|s| &s.kind), Some(Kind::Fresh));
        if fresh {
            // SAFETY: the entry refers to an address that the driver keeps until the completion.
            let Some(to) = (unsafe { ring_memory::address(sqe) }) else {
                return Tried::Failed(-libc::EAFNOSUPPORT);
            };
            if let Err(refused) = self.connect(socket, to) {
                return Tried::Failed(-crate::driver::errno(&refused));
            }
        }
        if !self.is_ready(socket, Op::Connect) {
            return Tried::Waits(socket, OUT | ERR | HUP);
        }
        match self.take_error(socket) {
            Ok(0) => Tried::Over(0, 0),
            Ok(errno) => Tried::Failed(-errno),
            Err(refused) => Tried::Failed(-crate::driver::errno(&refused)),
        }
    }

    fn try_timeout(&mut self, sqe: &Sqe, done: usize, id: u64, ring: RawFd) -> Tried {
        if done > 0 {
            return Tried::Failed(-libc::ETIME);
        }
        self.set_done(ring, id, 1);
        // SAFETY: the entry refers to a timespec that lives as long as the ring.
        Tried::Later(unsafe { ring_memory::nanoseconds(sqe) })
    }

    fn try_send(&mut self, ring: RawFd, sqe: &Sqe, socket: RawFd, done: usize, id: u64) -> Tried {
        let waits = sqe.op_flags & libc::MSG_DONTWAIT as u32 == 0;
        // SAFETY: the entry refers to bytes, an address and a header that the driver keeps until
        // the last completion.
        let (sent, whole) = unsafe { self.send_of_entry(sqe, socket, done) };
        let all = sqe.op_flags & libc::MSG_WAITALL as u32 != 0;
        let (sent, stuck) = match sent {
            Ok(bytes) => (Ok(done + bytes), all && done + bytes < whole),
            Err(refused) if refused.kind() == io::ErrorKind::WouldBlock => (Ok(done), true),
            Err(refused) => (Err(refused), false),
        };
        match sent {
            Ok(bytes) if stuck && waits => {
                self.set_done(ring, id, bytes);
                Tried::Waits(socket, OUT)
            }
            Ok(0) if stuck => Tried::Failed(-libc::EAGAIN),
            Ok(bytes) if stuck => Tried::Failed(bytes as i32),
            Ok(bytes) if sqe.opcode == code::SEND_ZC => {
                let after_ns = 2 * self.travel_ns();
                let user_data = sqe.user_data;
                self.schedule(after_ns, Event::RingReleased { ring, user_data });
                Tried::Over(bytes as i32, CQE_MORE)
            }
            Ok(bytes) => Tried::Over(bytes as i32, 0),
            // The part that was sent counts.
            Err(_) if done > 0 => Tried::Failed(done as i32),
            Err(refused) => Tried::Failed(-crate::driver::errno(&refused)),
        }
    }

    fn try_receive(&mut self, ring: RawFd, sqe: &Sqe, socket: RawFd) -> Tried {
        // SAFETY: the entry refers to memory that the driver keeps until the last completion, or a
        // group whose buffers are the kernel's.
        let received = unsafe { self.receive_of_entry(ring, sqe, socket) };
        match received {
            Ok((bytes, flags)) if sqe.ioprio & RECV_MULTISHOT != 0 && bytes.goes_on => {
                Tried::More(bytes.count as i32, flags)
            }
            Ok((bytes, flags)) => Tried::Over(bytes.count as i32, flags),
            Err(refused) if refused.kind() == io::ErrorKind::WouldBlock => {
                match sqe.op_flags & libc::MSG_DONTWAIT as u32 {
                    0 => Tried::Waits(socket, IN | RDHUP),
                    _ => Tried::Failed(-libc::EAGAIN),
                }
            }
            Err(refused) => Tried::Failed(-crate::driver::errno(&refused)),
        }
    }
}

fn over(result: io::Result<RawFd>, socket: RawFd, bits: u32) -> Tried {
    match result {
        Ok(value) => Tried::Over(value, 0),
        Err(refused) if refused.kind() == io::ErrorKind::WouldBlock => Tried::Waits(socket, bits),
        Err(refused) => Tried::Failed(-crate::driver::errno(&refused)),
    }
}
