//! One operation on a file that may wait for a disk or a server: the request and the memory for the
//! result. They are owned by the executor (the ring or a thread), never by a future.

use super::Handle;
use crate::blocking::Job;
use crate::driver::slots::Key;
use crate::runtime::Worker;
use crate::sys::file::{self as sys, OpenHow, Status};
use crate::task::{WaitToken, Waiter};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

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

/// An operation in progress: on the ring if the engine supports files, otherwise on a thread.
pub(super) struct Execution {
    worker: Rc<Worker>,
    state: State,
    /// While the ring is full.
    token: WaitToken,
}

enum State {
    New(Box<FileOp>),
    OnRing(Key),
    OnThread(Job<(Box<FileOp>, io::Result<usize>)>),
    Over,
}

/// The driver's response to an operation.
pub(crate) enum Start {
    OnRing(Key),
    /// The queue is full; the task waits.
    Full(Box<FileOp>),
    /// The engine does not execute operations on files.
    NoRing(Box<FileOp>),
}

impl Execution {
    pub(super) fn new(worker: &Rc<Worker>, op: Box<FileOp>) -> Execution {
        let token = WaitToken::default();
        Execution { worker: Rc::clone(worker), state: State::New(op), token }
    }

    fn on_thread(&self, mut op: Box<FileOp>) -> State {
        self.worker.counters.file_jobs.add(1);
        State::OnThread(self.worker.blocking().run(move || {
            let ended = op.run();
            (op, ended)
        }))
    }
}

/// The ring cannot wait for every file: not for one opened with O_NONBLOCK on some older kernels,
/// nor on a filesystem without non-blocking reads. A thread can.
fn wants_thread(op: &FileOp, ended: &io::Result<usize>) -> bool {
    const REFUSED: [i32; 3] = [libc::EAGAIN, libc::EOPNOTSUPP, libc::EINTR];
    let errno = ended.as_ref().err().and_then(io::Error::raw_os_error);
    op.what != What::Open && errno.is_some_and(|errno| REFUSED.contains(&errno))
}

impl Future for Execution {
    /// How the operation ended, with its memory; or why it could not be begun.
    type Output = io::Result<(Box<FileOp>, io::Result<usize>)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let execution = &mut *self;
        loop {
            execution.state = match std::mem::replace(&mut execution.state, State::Over) {
                State::New(op) => {
                    let mut waiter = Waiter::new(cx, &mut execution.token);
                    let start = execution.worker.driver.borrow_mut().start_file(op, &mut waiter);
                    drop(waiter);
                    match start {
                        Start::OnRing(key) => State::OnRing(key),
                        Start::NoRing(op) => execution.on_thread(op),
                        Start::Full(op) => {
                            execution.state = State::New(op);
                            return Poll::Pending;
                        }
                    }
                }
                State::OnRing(key) => {
                    let mut waiter = Waiter::new(cx, &mut execution.token);
                    let polled = execution.worker.driver.borrow_mut().poll_file(key, &mut waiter);
                    drop(waiter);
                    match polled {
                        Poll::Ready(Ok((op, ended))) if wants_thread(&op, &ended) => {
                            execution.on_thread(op)
                        }
                        Poll::Ready(over) => return Poll::Ready(over),
                        Poll::Pending => {
                            execution.state = State::OnRing(key);
                            return Poll::Pending;
                        }
                    }
                }
                State::OnThread(mut job) => {
                    let polled = Pin::new(&mut job).poll(cx);
                    if polled.is_pending() {
                        execution.state = State::OnThread(job);
                    }
                    return polled;
                }
                State::Over => {
                    let error = io::Error::other("a finished operation on a file was polled again");
                    return Poll::Ready(Err(error));
                }
            };
        }
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let waker = match self.state {
            State::OnRing(key) => self.worker.driver.borrow_mut().abandon_file(key),
            State::New(_) if self.token.may_wait() => {
                self.worker.driver.borrow_mut().forget_file(&mut self.token)
            }
            _ => None,
        };
        drop(waker);
    }
}
