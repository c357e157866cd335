//! An operation on a file from its beginning to its end: on the ring, or on a thread.

use super::operation::{FileOp, Start, What};
use crate::blocking::Job;
use crate::runtime::Worker;
use crate::slots::Key;
use crate::task::{WaitToken, Waiter};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

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
