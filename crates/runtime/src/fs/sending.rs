//! What a worker keeps for the files that it sends.

use super::strategy::SendStrategy;
use crate::driver::zero_copy::Buffers;
use crate::notice::Notice;
use crate::sys::pipe::Pipe;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

/// Bytes of the pipe of a worker.
const PIPE_BYTES: usize = 256 * 1024;

/// State shared by all files that a worker sends.
#[derive(Default)]
pub(crate) struct Sending {
    /// Empty while it is in use, and until it is needed.
    pipe: RefCell<Option<Pipe>>,
    pub(crate) buffers: Rc<Buffers>,
    /// This kernel cannot send without a copy.
    refuses_zero_copy: Cell<bool>,
    /// The strategies whose failure was reported.
    told: Cell<[bool; SendStrategy::ALL.len()]>,
}

impl Sending {
    /// The strategy to use for a file instead of `wanted`: `wanted` itself, unless it is known not
    /// to work, which is reported once.
    pub(crate) fn choose(
        &self,
        wanted: SendStrategy,
        may_sendfile: bool,
        report: impl FnOnce(Notice),
    ) -> SendStrategy {
        if wanted == SendStrategy::Read {
            return wanted;
        }
        if !may_sendfile {
            let why = "the filesystem may be remote, or does not support it";
            self.tell(wanted, why, report);
            return SendStrategy::Read;
        }
        match wanted {
            SendStrategy::ZeroCopy if self.refuses_zero_copy.get() => SendStrategy::Read,
            _ => wanted,
        }
    }

    /// Disables sending without a copy, because of this error.
    pub(crate) fn refuse_zero_copy(&self, error: &io::Error, report: impl FnOnce(Notice)) {
        self.refuses_zero_copy.set(true);
        self.tell(SendStrategy::ZeroCopy, &error.to_string(), report);
    }

    /// The pipe, empty; return it empty, or drop it.
    pub(crate) fn take_pipe(&self) -> io::Result<Pipe> {
        match self.pipe.take() {
            Some(pipe) => Ok(pipe),
            None => Pipe::new(PIPE_BYTES),
        }
    }

    pub(crate) fn return_pipe(&self, pipe: Pipe) {
        self.pipe.replace(Some(pipe));
    }

    fn tell(&self, wanted: SendStrategy, why: &str, report: impl FnOnce(Notice)) {
        let mut told = self.told.get();
        if !std::mem::replace(&mut told[wanted as usize], true) {
            self.told.set(told);
            report(Notice::SendStrategy { wanted, why: why.to_owned() });
        }
    }
}
