//! Sending without a copy on io_uring: IORING_OP_SEND_ZC, which completes when it has sent, and
//! again when the kernel no longer needs the bytes.
//!
//! It is submitted with MSG_DONTWAIT, so it is over with the enter that submits it, and there is
//! nothing to cancel. Its slot keeps the buffer until the second completion, even if the stream was
//! closed long before.

use super::{Entry, Op, Uring, UringDriver};
use crate::driver::common::closed;
use crate::driver::socket::entry;
use crate::driver::zero_copy::{Buffer, Lent};
use crate::slots::Key;
use crate::task::Waiter;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::io;
use std::task::{Poll, Waker};

/// IORING_SEND_ZC_REPORT_USAGE and IORING_NOTIF_USAGE_ZC_COPIED of linux/io_uring.h (Linux 6.2):
/// request and report that the kernel copied the bytes after all.
const REPORT_USAGE: u16 = 1 << 3;
const USAGE_COPIED: i32 = i32::MIN;

/// A send that is with the kernel.
pub(super) struct ZeroCopySend {
    stream: Key,
    lent: Lent,
    /// It has sent something. One that failed may have a second completion too, which is not
    /// counted.
    sent: bool,
}

/// The send of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Zero {
    #[default]
    None,
    /// Its first completion is still to come.
    InFlight,
    /// The same, and the sending task has stopped.
    Abandoned,
    /// Complete, and the result was not read yet: bytes, or a negative errno.
    Ended(i32),
}

impl UringDriver {
    /// Sends as much of a buffer as the socket accepts; EAGAIN if it accepts nothing. `begun`
    /// belongs to the caller and is false at the first call.
    pub(crate) fn poll_zero_copy(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
        buffer: &Buffer,
        more: bool,
        begun: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let (stream, engine) = entry!(self, key, Stream);
        if let Zero::Ended(result) = stream.own.zero_copy {
            stream.own.zero_copy = Zero::None;
            return Poll::Ready(match usize::try_from(result) {
                Ok(bytes) => Ok(bytes),
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
            });
        }
        if let Some(error) = stream.sending.error() {
            return Poll::Ready(Err(error));
        }
        stream.sending.waiters.add(waiter);
        if std::mem::replace(begun, true) {
            return Poll::Pending;
        }
        let Some(fd) = stream.fd() else { return Poll::Ready(Err(closed())) };
        let more = if more { libc::MSG_MORE } else { 0 };
        let bytes = buffer.as_slice();
        let entry = opcode::SendZc::new(Fd(fd), bytes.as_ptr(), bytes.len() as u32)
            .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more)
            .zc_flags(REPORT_USAGE)
            .build();
        stream.own.zero_copy = Zero::InFlight;
        stream.own.expected += 1;
        let send = ZeroCopySend { stream: key, lent: buffer.lend(), sent: false };
        let send = engine.zero_copies.insert(send);
        // SAFETY: the buffer is lent to the slot in `zero_copies` until its notification.
        unsafe { engine.ring.push(entry.user_data(Op::SendZeroCopy.tag(send))) };
        Poll::Pending
    }

    pub(super) fn on_zero_copy(
        &mut self,
        send: Key,
        result: i32,
        flags: u32,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(key) = self.engine.zero_copy_sent(send, result, flags) else { return };
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.own.expected -= 1;
        match std::mem::replace(&mut stream.own.zero_copy, Zero::Ended(result)) {
            Zero::Abandoned => {
                stream.own.zero_copy = Zero::None;
                let broken = (result > 0).then_some(libc::ECANCELED);
                stream.end_file(&self.engine.counters, broken, wakes);
                if stream.sending.is_over() {
                    self.abandon(key);
                }
            }
            _ => stream.sending.waiters.wake(wakes),
        }
        self.remove_if_done(key);
    }
}

impl Uring {
    /// Accounts for a completion. The stream, if it is the first one of its send.
    fn zero_copy_sent(&mut self, send: Key, result: i32, flags: u32) -> Option<Key> {
        if cqueue::notif(flags) {
            self.forget_zero_copy(send, result == USAGE_COPIED);
            return None;
        }
        let op = self.zero_copies.get_mut(send)?;
        op.sent = result >= 0;
        let key = op.stream;
        if !cqueue::more(flags) {
            self.forget_zero_copy(send, false);
        }
        if result >= 0 {
            self.counters.sent.add(1);
            self.counters.zero_copy_sends.add(1);
        } else if result == -libc::EAGAIN {
            self.counters.eagain.add(1);
        }
        Some(key)
    }

    /// The kernel no longer needs the bytes of a send.
    fn forget_zero_copy(&mut self, send: Key, copied: bool) {
        if let Some(send) = self.zero_copies.remove(send) {
            self.counters.zero_copy_done.add(u64::from(send.sent));
            self.counters.zero_copy_copied.add(u64::from(send.sent && copied));
            send.lent.give_back();
        }
    }
}

impl Zero {
    /// A task has stopped sending a file: an errno if a send whose result it did not read has sent
    /// a part of it, and `None` if that is not known yet.
    pub(super) fn give_up(&mut self) -> Option<Option<i32>> {
        match *self {
            Zero::None => Some(None),
            Zero::Ended(result) => {
                *self = Zero::None;
                Some((result > 0).then_some(libc::ECANCELED))
            }
            Zero::InFlight | Zero::Abandoned => {
                *self = Zero::Abandoned;
                None
            }
        }
    }
}
