//! Operations on files: those of the real filesystem, carried out some simulated time later.

use super::SimDriver;
use crate::driver::closed;
use crate::driver::faults::Fault;
use crate::driver::slots::Key;
use crate::fs::{FileOp, Start, What};
use crate::task::Waiter;
use std::io;
use std::task::{Poll, Waker};

pub(super) struct FileSlot {
    op: Option<Box<FileOp>>,
    ended: Option<io::Result<usize>>,
    waker: Option<Waker>,
    abandoned: bool,
}

impl SimDriver {
    pub(crate) fn start_file(&mut self, op: Box<FileOp>, waiter: &mut Waiter<'_>) -> Start {
        let waker = Some(waiter.waker());
        let slot = FileSlot { op: Some(op), ended: None, waker, abandoned: false };
        let key = self.files.insert(slot);
        self.kernel().start_file(self.id, key);
        Start::OnRing(key)
    }

    pub(super) fn on_file(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        let Some(slot) = self.files.get_mut(key) else { return };
        if slot.abandoned {
            self.files.remove(key);
            return;
        }
        let Some(op) = &mut slot.op else { return };
        let reads = matches!(op.what, What::Read | What::Warm);
        let mut kernel = self.machine.kernel.borrow_mut();
        let truncated = reads && kernel.dice.strikes(Fault::FileTruncated);
        drop(kernel);
        slot.ended = Some(if truncated { Ok(0) } else { op.run() });
        wakes.extend(slot.waker.take());
    }

    pub(crate) fn poll_file(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<(Box<FileOp>, io::Result<usize>)>> {
        let Some(slot) = self.files.get_mut(key) else { return Poll::Ready(Err(closed())) };
        let Some(ended) = slot.ended.take() else {
            waiter.store(&mut slot.waker);
            return Poll::Pending;
        };
        match self.files.remove(key).and_then(|slot| slot.op) {
            Some(op) => Poll::Ready(Ok((op, ended))),
            None => Poll::Ready(Err(closed())),
        }
    }

    /// The kernel finishes it all the same; its memory lives until then.
    pub(crate) fn abandon_file(&mut self, key: Key) -> Option<Waker> {
        let slot = self.files.get_mut(key)?;
        slot.abandoned = true;
        let waker = slot.waker.take();
        if slot.ended.is_some() {
            self.files.remove(key);
        }
        waker
    }
}
