//! Sending without a copy on epoll: MSG_ZEROCOPY, whose notifications raise EPOLLERR.

use super::{EpollDriver, Shared};
use crate::driver::common::closed;
use crate::driver::socket::entry;
use crate::driver::zero_copy::{Buffer, Lent};
use crate::slots::Key;
use crate::sys::zero_copy as sys;
use crate::task::Waiter;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::task::Poll;

/// The buffers of one socket that the kernel reads from. The kernel limits the number of
/// notifications (net.core.optmem_max), `driver::zero_copy` that of buffers.
#[derive(Default)]
pub(super) struct Outstanding {
    /// Number of the first send in `lent`.
    first: u32,
    /// One for each send; empty when its buffer has returned.
    lent: VecDeque<Option<Lent>>,
}

impl Outstanding {
    fn give_back(&mut self, first: u32, last: u32) -> u64 {
        let (from, to) = (first.wrapping_sub(self.first), last.wrapping_sub(self.first));
        let mut returned = 0;
        for index in from..=to.min(self.lent.len() as u32) {
            if let Some(lent) = self.lent.get_mut(index as usize).and_then(Option::take) {
                lent.give_back();
                returned += 1;
            }
        }
        while self.lent.front().is_some_and(Option::is_none) {
            self.lent.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        returned
    }

    /// Reads the error queue of the socket; true if it was not empty.
    pub(super) fn collect(&mut self, socket: &OwnedFd, shared: &Shared) -> bool {
        let mut any = false;
        loop {
            shared.counters.syscalls.add(1);
            let Some(message) = sys::notification(socket.as_raw_fd()) else { return any };
            any = true;
            let Some(done) = message else { continue };
            let returned = self.give_back(done.first, done.last);
            shared.counters.zero_copy_done.add(returned);
            shared.counters.zero_copy_copied.add(if done.copied { returned } else { 0 });
        }
    }
}

impl EpollDriver {
    /// Sends as much of a buffer as the socket accepts now; EAGAIN if it accepts nothing.
    pub(crate) fn poll_zero_copy(
        &mut self,
        key: Key,
        _waiter: &mut Waiter<'_>,
        buffer: &Buffer,
        more: bool,
        _begun: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let (stream, engine) = entry!(self, key, Stream);
        if let Some(error) = stream.sending.error() {
            return Poll::Ready(Err(error));
        }
        let Some(socket) = &stream.socket else { return Poll::Ready(Err(closed())) };
        let counters = &engine.shared.counters;
        if stream.own.zero_copy.is_none() {
            counters.syscalls.add(1);
            sys::enable(socket.as_fd())?;
        }
        let outstanding = stream.own.zero_copy.get_or_insert_default();
        counters.syscalls.add(1);
        let mut sent = sys::send(socket.as_raw_fd(), buffer.as_slice(), more);
        if sent.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOBUFS))
            && outstanding.collect(socket, &engine.shared)
        {
            // There was no memory for another notification, and now there is.
            counters.syscalls.add(1);
            sent = sys::send(socket.as_raw_fd(), buffer.as_slice(), more);
        }
        match &sent {
            Ok(_) => {
                counters.sent.add(1);
                counters.zero_copy_sends.add(1);
                outstanding.lent.push_back(Some(buffer.lend()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => counters.eagain.add(1),
            Err(_) => {}
        }
        Poll::Ready(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::zero_copy::Buffers;
    use std::rc::Rc;

    #[test]
    fn notifications_come_in_ranges_and_in_any_order() {
        let buffers = Rc::new(Buffers::default());
        let buffer = buffers.filled(10, |bytes| Ok(bytes.len())).unwrap().unwrap();
        let mut outstanding = Outstanding { first: u32::MAX - 1, lent: VecDeque::new() };
        outstanding.lent.extend((0..5).map(|_| Some(buffer.lend())));
        assert_eq!(outstanding.give_back(0, 1), 2);
        assert_eq!(outstanding.lent.len(), 5, "numbers 0 and 1 are the third and the fourth");
        assert_eq!(outstanding.give_back(u32::MAX - 1, 0), 2, "one of them was back");
        assert_eq!((outstanding.first, outstanding.lent.len()), (2, 1));
        assert_eq!(outstanding.give_back(7, 9), 0, "of sends that never were");
        assert_eq!(outstanding.give_back(2, 2), 1);
        assert_eq!((outstanding.first, outstanding.lent.len()), (3, 0));
    }
}
