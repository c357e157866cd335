//! Open files and directories, and how far their calls may block.

use crate::sys::file as sys;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Where the content of a file comes from, and so which calls may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// From memory (swap aside): no call blocks.
    Memory,
    /// From a disk of this machine, through the page cache: the kernel answers at once or reports
    /// that it cannot.
    Disk,
    /// From elsewhere: any call may block.
    Elsewhere,
}

impl Storage {
    pub(super) fn of(directory: BorrowedFd<'_>) -> io::Result<Storage> {
        // Magic numbers of statfs(2) and of the kernel's linux/magic.h.
        Ok(match sys::filesystem_type(directory)? as u32 {
            // tmpfs, ramfs
            0x0102_1994 | 0x8584_58f6 => Storage::Memory,
            // ext2 to ext4, XFS, Btrfs, F2FS: those that support RWF_NOWAIT.
            0xef53 | 0x5846_5342 | 0x9123_683e | 0xf2f5_2010 => Storage::Disk,
            _ => Storage::Elsewhere,
        })
    }
}

/// An open file or directory; closed when its last user drops it.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) fd: OwnedFd,
    pub(crate) storage: Storage,
    pub(super) device: u64,
    pub(super) kind: Kind,
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A FIFO, a socket, a device.
    Other,
}
