//! Connecting.

use super::stream::{Own, Stream};
use super::{Entry, Op, Uring, UringDriver};
use crate::driver::socket::stream::Sending;
use crate::slots::Key;
use crate::sys::socket::SockAddr;
use io_uring::opcode;
use io_uring::types::Fd;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::Waker;

impl UringDriver {
    pub(crate) fn add_stream(&mut self, socket: OwnedFd, _unix: bool) -> Key {
        let stream = Stream::new(socket, Sending::default(), Own::default());
        self.entries.insert(Entry::Stream(stream))
    }

    pub(crate) fn connect(&mut self, socket: OwnedFd, address: &SockAddr) -> io::Result<Key> {
        let fd = Fd(socket.as_raw_fd());
        let mut own = Own { expected: 1, ..Own::default() };
        // The kernel reads the address when the entry is submitted, so it lives in the slot.
        let address = own.connecting.insert(Box::new(address.clone()));
        let entry = opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build();
        let stream = Stream::new(socket, Sending::connecting(), own);
        let key = self.entries.insert(Entry::Stream(Stream { nonblocking: false, ..stream }));
        // SAFETY: the address is boxed in the slot, which stays until the completion.
        unsafe { self.engine.ring.push(entry.user_data(Op::Connect.tag(key))) };
        Ok(key)
    }
}

impl Uring {
    pub(super) fn on_connect(stream: &mut Stream, result: i32, wakes: &mut Vec<Waker>) {
        stream.own.expected -= 1;
        stream.own.connecting = None;
        let outcome = if result < 0 { Err(-result) } else { Ok(()) };
        stream.sending.connected(outcome, wakes);
    }
}
