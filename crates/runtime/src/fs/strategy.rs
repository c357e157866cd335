//! How the bytes of a file get into a socket.

use super::File;
use crate::driver::zero_copy::Buffers;
use crate::runtime::{Notice, Worker};
use crate::sys::pipe::Pipe;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::str::FromStr;

/// How the bytes of a file get into a socket. None sends anything else, or in another order; they
/// differ in who copies, and in what becomes of a file that is written to meanwhile.
///
/// With the first two what is queued in the socket is the file's own pages, as references: what
/// somebody writes into them in place before they have left is what the peer gets. With the other
/// two it is what the file held when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendStrategy {
    /// sendfile(2).
    #[default]
    Sendfile,
    /// splice(2), twice: from the file into a pipe, and from the pipe into the socket. Each worker
    /// has one pipe, of 256 KiB, which is empty between two sends: what the socket does not take
    /// is dropped, and taken from the file again. So a peer that does not read holds no pipe.
    ///
    /// By system call on both engines. IORING_OP_SPLICE is handed to a thread of the kernel
    /// each time, whatever the file and the socket have (io_uring/splice.c); the system call costs
    /// less than that way there and back.
    Splice,
    /// Read into memory that the kernel then sends from where it is: IORING_OP_SEND_ZC on
    /// io_uring (Linux 6.2), MSG_ZEROCOPY on epoll (Linux 4.14). Each worker has 256 buffers of 64
    /// KiB for it. Over loopback, and wherever else the receiver is on this machine, the kernel
    /// copies nevertheless; it says so, and that is counted
    /// ([`zero_copy_copied`](crate::CounterSnapshot::zero_copy_copied)).
    ZeroCopy,
    /// Read and sent, in pieces of at most 64 KiB, of which a stream holds one.
    Read,
}

impl SendStrategy {
    /// All of them.
    pub const ALL: [SendStrategy; 4] =
        [SendStrategy::Sendfile, SendStrategy::Splice, SendStrategy::ZeroCopy, SendStrategy::Read];

    /// What it is called on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            SendStrategy::Sendfile => "sendfile",
            SendStrategy::Splice => "splice",
            SendStrategy::ZeroCopy => "zerocopy",
            SendStrategy::Read => "read",
        }
    }
}

impl fmt::Display for SendStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SendStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<SendStrategy, String> {
        let named = SendStrategy::ALL.into_iter().find(|strategy| strategy.name() == text);
        named.ok_or_else(|| "expected sendfile, splice, zerocopy or read".to_owned())
    }
}

/// Bytes of the pipe of a worker.
const PIPE_BYTES: usize = 256 * 1024;

/// What the files that a worker sends have in common.
#[derive(Default)]
pub(crate) struct Sending {
    /// Empty while it is in use, and until it is needed.
    pipe: RefCell<Option<Pipe>>,
    pub(crate) buffers: Rc<Buffers>,
    /// This kernel cannot send without a copy.
    refuses_zero_copy: Cell<bool>,
    /// The strategies of which the operator knows that they cannot be had.
    told: Cell<[bool; SendStrategy::ALL.len()]>,
}

impl Sending {
    /// The strategy to use for a file instead of `wanted`: that itself, if nothing is known against
    /// it.
    pub(crate) fn choose(
        &self,
        wanted: SendStrategy,
        file: &File,
        worker: &Worker,
    ) -> SendStrategy {
        if wanted == SendStrategy::Read {
            return wanted;
        }
        if !file.may_sendfile() {
            let why = "the filesystem may have to ask a server, or does not know it";
            self.tell(wanted, why, worker);
            return SendStrategy::Read;
        }
        match wanted {
            SendStrategy::ZeroCopy if self.refuses_zero_copy.get() => SendStrategy::Read,
            _ => wanted,
        }
    }

    /// Gives sending without a copy up, because of this error.
    pub(crate) fn refuse_zero_copy(&self, error: &io::Error, worker: &Worker) {
        self.refuses_zero_copy.set(true);
        self.tell(SendStrategy::ZeroCopy, &error.to_string(), worker);
    }

    /// The pipe, empty; to be given back empty, or dropped.
    pub(crate) fn take_pipe(&self) -> io::Result<Pipe> {
        match self.pipe.take() {
            Some(pipe) => Ok(pipe),
            None => Pipe::new(PIPE_BYTES),
        }
    }

    pub(crate) fn return_pipe(&self, pipe: Pipe) {
        self.pipe.replace(Some(pipe));
    }

    fn tell(&self, wanted: SendStrategy, why: &str, worker: &Worker) {
        let mut told = self.told.get();
        if !std::mem::replace(&mut told[wanted as usize], true) {
            self.told.set(told);
            worker.notice(Notice::SendStrategy { wanted, why: why.to_owned() });
        }
    }
}
