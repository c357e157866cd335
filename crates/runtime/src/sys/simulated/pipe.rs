//! Pipes between a file and a socket: on a thread that is in a world, bytes in memory.

use super::{ask, file, real};
use crate::sys::faults::calls::{self, Way};
use crate::sys::machine::world;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

#[derive(Debug)]
pub(crate) enum Pipe {
    Real(real::pipe::Pipe),
    Simulated { bytes: RefCell<Vec<u8>>, capacity: usize },
}

impl Pipe {
    pub(crate) fn new(capacity: usize) -> io::Result<Pipe> {
        match world::machine() {
            Some(_) => Ok(Pipe::Simulated { bytes: RefCell::default(), capacity }),
            None => real::pipe::Pipe::new(capacity).map(Pipe::Real),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match self {
            Pipe::Real(pipe) => pipe.capacity(),
            Pipe::Simulated { capacity, .. } => *capacity,
        }
    }

    pub(crate) fn fill(&self, from: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<usize> {
        match self {
            Pipe::Real(pipe) => pipe.fill(from, offset, len),
            Pipe::Simulated { bytes, capacity } => {
                let mut bytes = bytes.borrow_mut();
                let room = capacity.saturating_sub(bytes.len());
                if room == 0 {
                    return Err(io::Error::from_raw_os_error(libc::EAGAIN));
                }
                file::read_at(from, offset, &mut bytes, len.min(room))
            }
        }
    }

    pub(crate) fn drain(
        &self,
        socket: BorrowedFd<'_>,
        len: usize,
        more: bool,
    ) -> io::Result<usize> {
        match self {
            Pipe::Real(pipe) => {
                let len = calls::allowed(socket.as_raw_fd(), Way::Out, len)?;
                pipe.drain(socket, len, more)
            }
            Pipe::Simulated { bytes, .. } => {
                let mut bytes = bytes.borrow_mut();
                let len = len.min(bytes.len());
                let sent = ask(socket.as_raw_fd(), |kernel, socket| {
                    kernel.send_for_engine(socket, &bytes[..len])
                });
                let unknown = || Err(io::Error::from_raw_os_error(libc::EBADF));
                let sent = sent.unwrap_or_else(unknown)?;
                bytes.drain(..sent);
                Ok(sent)
            }
        }
    }
}
