//! One operation on a file that may wait for a disk or a server: the request and the memory for the
//! result. They are owned by the executor (the ring or a thread), never by a future.

use super::handle::Handle;
use crate::slots::Key;
use crate::sys::file::{self as sys, OpenHow, Status};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes that are read at once to bring them into the page cache.
pub(crate) const WARM_BYTES: usize = 256 * 1024;

/// The request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Open `path` beneath the directory.
    Open,
    /// Fill `status`.
    Status,
    /// Append at most `len` bytes from `offset` to `bytes`.
    Read,
    /// Read at most `len` bytes (of at most [`WARM_BYTES`]) from `offset`, and forget them.
    Warm,
}

/// See the module.
pub(crate) struct FileOp {
    pub(crate) what: What,
    /// The file or directory; kept open until the operation is over.
    pub(crate) on: Arc<Handle>,
    pub(crate) path: CString,
    pub(crate) how: OpenHow,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) status: Status,
    pub(crate) opened: Option<OwnedFd>,
}

impl fmt::Debug for FileOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileOp").field("what", &self.what).finish_non_exhaustive()
    }
}

impl FileOp {
    fn new(what: What, on: &Arc<Handle>) -> FileOp {
        FileOp {
            what,
            on: Arc::clone(on),
            path: CString::default(),
            how: OpenHow::default(),
            offset: 0,
            len: 0,
            bytes: Vec::new(),
            status: Status::new(),
            opened: None,
        }
    }

    pub(super) fn open(directory: &Arc<Handle>, path: CString, how: OpenHow) -> Box<FileOp> {
        Box::new(FileOp { path, how, ..FileOp::new(What::Open, directory) })
    }

    pub(super) fn status(file: &Arc<Handle>) -> Box<FileOp> {
        Box::new(FileOp::new(What::Status, file))
    }

    pub(super) fn read(file: &Arc<Handle>, offset: u64, bytes: Vec<u8>, len: usize) -> Box<FileOp> {
        Box::new(FileOp { offset, bytes, len, ..FileOp::new(What::Read, file) })
    }

    pub(super) fn warm(file: &Arc<Handle>, offset: u64, len: usize) -> Box<FileOp> {
        let len = len.min(WARM_BYTES);
        Box::new(FileOp { offset, len, ..FileOp::new(What::Warm, file) })
    }

    /// Executes it, and blocks until it is done. Returns the bytes read, if it reads.
    pub(crate) fn run(&mut self) -> io::Result<usize> {
        let on = self.on.fd.as_fd();
        match self.what {
            What::Open => {
                self.opened = Some(sys::open_at(on, &self.path, &self.how)?);
                Ok(0)
            }
            What::Status => {
                self.status = sys::status(on, 0)?;
                Ok(0)
            }
            What::Read => sys::read_at(on, self.offset, &mut self.bytes, self.len),
            What::Warm => sys::read_at(on, self.offset, &mut Vec::new(), self.len),
        }
    }
}

/// The driver's response to an operation.
pub(crate) enum Start {
    OnRing(Key),
    /// The queue is full; the task waits.
    Full(Box<FileOp>),
    /// The engine does not execute operations on files.
    NoRing(Box<FileOp>),
}
