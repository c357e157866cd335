//! Operations on files that may wait are for threads here: `crate::blocking`.

use super::EpollDriver;
use crate::driver::common::closed;
use crate::fs::operation::{FileOp, Start};
use crate::slots::Key;
use crate::task::{WaitToken, Waiter};
use std::io;
use std::task::{Poll, Waker};

impl EpollDriver {
    pub(crate) fn start_file(&mut self, op: Box<FileOp>, _waiter: &mut Waiter<'_>) -> Start {
        Start::NoRing(op)
    }

    pub(crate) fn poll_file(
        &mut self,
        _key: Key,
        _waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<(Box<FileOp>, io::Result<usize>)>> {
        Poll::Ready(Err(closed()))
    }

    pub(crate) fn abandon_file(&mut self, _key: Key) -> Option<Waker> {
        None
    }

    pub(crate) fn forget_file(&mut self, _token: &mut WaitToken) -> Option<Waker> {
        None
    }
}
