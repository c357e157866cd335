//! Sockets registered with the ring: its operations then find them in a table of the ring instead
//! of the descriptor table of the process, where each look-up takes and drops a reference.
//!
//! Not the default. Before Linux 6.13 a socket that was taken out of the table is closed only when
//! every operation is over that began before, other sockets' multishot receives included.

use crate::driver::uring::ring::Ring;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Places in the table, at most and at least. The kernel allows no more than the process may have
/// descriptors.
const PLACES_MAX: u32 = 1 << 15;
const PLACES_MIN: u32 = 1 << 4;
/// The descriptor that the kernel treats as an empty place.
const NOBODY: RawFd = -1;

/// A socket, and how operations refer to it.
pub(in crate::driver::uring) struct Socket {
    pub(in crate::driver::uring) owned: OwnedFd,
    pub(super) name: Name,
}

impl Socket {
    pub(super) fn plain(owned: OwnedFd) -> Socket {
        let name = Name { fd: Fd(owned.as_raw_fd()), flags: Flags::empty() };
        Socket { owned, name }
    }
}

/// The descriptor of an entry, or with the flag its place in the table.
#[derive(Clone, Copy)]
pub(in crate::driver::uring) struct Name {
    pub(super) fd: Fd,
    pub(super) flags: Flags,
}

/// The table.
#[derive(Default)]
pub(in crate::driver::uring) struct Places {
    /// Places so far taken from the front of the table.
    used: u32,
    /// Of those the ones that are empty again.
    empty: Vec<u32>,
    /// Length of the table; `None` before the first socket.
    length: Option<u32>,
}

impl Places {
    /// Puts a socket into the table. Without a table, or a place in it, operations use its
    /// descriptor.
    pub(super) fn register(&mut self, ring: &Ring, socket: OwnedFd) -> Socket {
        let length = *self.length.get_or_insert_with(|| {
            let halves = |length: &u32| Some(length / 2).filter(|half| *half >= PLACES_MIN);
            let mut lengths = std::iter::successors(Some(PLACES_MAX), halves);
            let register = |length: &u32| ring.registrar().register_files(*length).is_ok();
            lengths.find(register).unwrap_or(0)
        });
        let place = match self.empty.pop() {
            Some(place) => place,
            None if self.used < length => {
                self.used += 1;
                self.used - 1
            }
            None => return Socket::plain(socket),
        };
        match ring.registrar().update_files(place, &[socket.as_raw_fd()]) {
            Ok(1) => {
                let name = Name { fd: Fd(place as RawFd), flags: Flags::FIXED_FILE };
                Socket { owned: socket, name }
            }
            _ => {
                self.empty.push(place);
                Socket::plain(socket)
            }
        }
    }

    /// Closes a socket: empties its place, which would keep it open.
    pub(in crate::driver::uring) fn release(&mut self, ring: &Ring, socket: Socket) {
        drop(self.unregister(ring, socket));
    }

    /// Empties the place of a socket, which has its descriptor left.
    pub(super) fn unregister(&mut self, ring: &Ring, socket: Socket) -> Socket {
        if socket.name.flags.contains(Flags::FIXED_FILE) {
            let place = socket.name.fd.0 as u32;
            // Only a place that is empty again may be given to another.
            if let Ok(1) = ring.registrar().update_files(place, &[NOBODY]) {
                self.empty.push(place);
            }
        }
        Socket::plain(socket.owned)
    }
}
