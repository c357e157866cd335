//! Connecting.

use super::{Op, Uring};
use crate::driver::stream::Stream;
use crate::sys::socket::SockAddr;
use io_uring::opcode;
use io_uring::types::Fd;
use std::task::Waker;

impl Uring {
    pub(in crate::driver) fn connect(&mut self, stream: &mut Stream, address: &SockAddr) {
        let Some(fd) = stream.fd().map(Fd) else { return };
        stream.uring.expected = 1;
        // The kernel reads the address when the entry is submitted, so it lives in the socket.
        let address = stream.uring.connecting.insert(Box::new(address.clone()));
        let entry = opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build();
        // SAFETY: the address is boxed in the socket, which the slot keeps until the completion.
        unsafe { self.ring.push(entry.user_data(Op::Connect.tag(stream.key))) };
    }

    pub(super) fn on_connect(stream: &mut Stream, result: i32, wakes: &mut Vec<Waker>) {
        stream.uring.expected -= 1;
        stream.uring.connecting = None;
        let outcome = if result < 0 { Err(-result) } else { Ok(()) };
        stream.sending.connected(outcome, wakes);
    }
}
