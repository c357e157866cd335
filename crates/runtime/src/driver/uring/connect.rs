//! Connecting.

use super::stream::Stream;
use super::{Entry, Op, UringDriver};
use crate::driver::closed;
use crate::driver::slots::Key;
use crate::sys::socket::SockAddr;
use crate::task::Waiter;
use io_uring::opcode;
use io_uring::types::Fd;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Poll, Waker};

impl UringDriver {
    pub(crate) fn add_stream(&mut self, socket: OwnedFd) -> Key {
        let stream = Stream { nonblocking: true, ..Stream::new(socket) };
        self.entries.insert(Entry::Stream(stream))
    }

    pub(crate) fn connect(&mut self, socket: OwnedFd, address: &SockAddr) -> Key {
        let fd = Fd(socket.as_raw_fd());
        let mut stream = Stream::new(socket);
        // The kernel reads the address when the entry is submitted, so it lives in the slot.
        let address = stream.connecting.insert(Box::new(address.clone()));
        let entry = opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build();
        stream.expected = 1;
        let key = self.entries.insert(Entry::Stream(stream));
        // SAFETY: the address is boxed in the slot, which stays until the completion.
        unsafe { self.ring.push(entry.user_data(Op::Connect.tag(key))) };
        key
    }

    pub(crate) fn poll_connected(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if stream.connecting.is_some() {
            stream.queued.waiters.add(waiter);
            return Poll::Pending;
        }
        Poll::Ready(stream.queued.check())
    }

    pub(super) fn on_connect(&mut self, key: Key, result: i32, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        stream.expected -= 1;
        stream.connecting = None;
        if result < 0 {
            stream.queued.fail(-result, wakes);
        }
        stream.queued.waiters.wake(wakes);
        self.remove_if_done(key);
    }
}
