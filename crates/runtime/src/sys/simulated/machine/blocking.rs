//! Blocking calls: those of the standard library, on threads of the world.

use super::kernel::{Kernel, Op};
use super::socket::Kind;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// The maximum of one receive.
const RECEIVE_BYTES_MAX: usize = 256 * 1024;

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// O_NONBLOCK.
    None,
    /// SO_RCVTIMEO and SO_SNDTIMEO.
    Nanoseconds(u64),
    Endless,
}

impl Kernel {
    /// The socket behind a descriptor: its first one.
    pub(crate) fn socket_of(&self, fd: RawFd) -> RawFd {
        self.copies.get(&fd).copied().unwrap_or(fd)
    }

    /// dup(2).
    pub(crate) fn copy(&mut self, fd: RawFd) -> io::Result<RawFd> {
        self.may_have_descriptor()?;
        let socket = self.socket_of(fd);
        self.socket_mut(socket)?.copies += 1;
        let copy = self.next_fd();
        self.copies.insert(copy, socket);
        self.open += 1;
        Ok(copy)
    }

    /// close(2) of a descriptor that is not the last of its socket.
    pub(super) fn close_copy(&mut self, fd: RawFd) -> io::Result<()> {
        self.copies.remove(&fd);
        self.open -= 1;
        Ok(())
    }

    pub(crate) fn is_nonblocking(&mut self, fd: RawFd) -> io::Result<bool> {
        Ok(self.socket_mut(fd)?.nonblocking)
    }

    pub(crate) fn set_nonblocking(&mut self, fd: RawFd, nonblocking: bool) -> io::Result<()> {
        self.socket_mut(fd)?.nonblocking = nonblocking;
        Ok(())
    }

    /// SO_RCVTIMEO, or SO_SNDTIMEO; zero is no limit.
    pub(crate) fn set_timeout(&mut self, fd: RawFd, op: Op, limit_ns: u64) -> io::Result<()> {
        let socket = self.socket_mut(fd)?;
        let limit_ns = (limit_ns > 0).then_some(limit_ns);
        match op {
            Op::Send => socket.send_timeout_ns = limit_ns,
            _ => socket.recv_timeout_ns = limit_ns,
        }
        Ok(())
    }

    /// How long a call on this socket may wait.
    pub(crate) fn patience(&mut self, fd: RawFd, op: Op) -> io::Result<Patience> {
        let socket = self.socket_mut(fd)?;
        let limit_ns = match op {
            Op::Send | Op::Connect => socket.send_timeout_ns,
            _ => socket.recv_timeout_ns,
        };
        Ok(match limit_ns {
            _ if socket.nonblocking => Patience::None,
            Some(limit_ns) => Patience::Nanoseconds(limit_ns),
            None => Patience::Endless,
        })
    }

    /// True if a call need not block, because it can succeed or fail.
    pub(crate) fn is_ready(&self, fd: RawFd, op: Op) -> bool {
        self.sockets.get(&fd).is_none_or(|socket| socket.is_ready(op))
    }

    /// The time that a call spends in the kernel.
    pub(crate) fn spent_ns(&mut self) -> u64 {
        self.dice.between(200..2_000)
    }

    /// Whether others run after a call.
    pub(crate) fn preempts(&mut self) -> bool {
        self.dice.between(0..4) == 0
    }

    pub(crate) fn is_stream(&mut self, fd: RawFd) -> io::Result<bool> {
        Ok(!matches!(self.socket_mut(fd)?.kind, Kind::Udp(_)))
    }

    /// recv(2) of at most `most` bytes by a blocking program, with the sender. With `peek`, bytes
    /// of a stream stay queued.
    pub(crate) fn receive(
        &mut self,
        fd: RawFd,
        most: usize,
        peek: bool,
    ) -> io::Result<(Vec<u8>, Option<SocketAddr>)> {
        if let Kind::Tcp(tcp) = &self.socket_mut(fd)?.kind
            && peek
            && tcp.received_bytes() > 0
        {
            return Ok((tcp.beginning(most), None));
        }
        if !self.is_stream(fd)? {
            let mut packet = self.recv_datagram(fd)?;
            packet.payload.truncate(most);
            return Ok((packet.payload, Some(packet.from)));
        }
        let mut received = Vec::with_capacity(most.min(RECEIVE_BYTES_MAX));
        let bytes = self.recv(fd, received.spare_capacity_mut())?;
        // SAFETY: `recv` has initialized this number of bytes.
        unsafe { received.set_len(bytes) };
        match bytes {
            0 if most > 0 => self.was_told_the_end(fd),
            _ => self.received(fd, &received),
        }
        Ok((received, None))
    }

    /// send(2) on a stream, by a blocking program.
    pub(crate) fn transmit(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.send(fd, bytes)?;
        self.handed_over(fd, &bytes[..sent]);
        Ok(sent)
    }
}
