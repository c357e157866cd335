//! What the state of the sockets asks of io_uring.

use super::listener::{self, Listener};
use super::stream::{self, Stream};
use super::udp::{self, Udp};
use super::wake::WakeWatch;
use super::{Op, Uring};
use crate::buf::{RecvBuf, SendBuf};
use crate::counters::Counters;
use crate::datagram::Received;
use crate::driver::common::closed;
use crate::driver::socket::{Engine, Sockets};
use crate::slots::Key;
use io_uring::opcode;
use io_uring::types::Fd;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::Waker;
use std::time::Duration;

impl Engine for Uring {
    type Wake = WakeWatch;
    type Listener = listener::Own;
    type Stream = stream::Own;
    type Udp = udp::Own;

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn accept(&mut self, listener: &mut Listener) -> Option<io::Result<OwnedFd>> {
        listener.own.accepted.pop_front()
    }

    fn await_connection(&mut self, key: Key, listener: &mut Listener) {
        self.arm_accept(key, listener);
    }

    #[inline]
    fn receive(&mut self, stream: &mut Stream) -> Option<RecvBuf> {
        stream.own.unread.pop()
    }

    fn peek(&mut self, stream: &mut Stream, into: &mut [u8]) -> Option<usize> {
        Some(stream.own.unread.copy_to(into)).filter(|bytes| *bytes > 0)
    }

    #[inline]
    fn await_bytes(&mut self, key: Key, stream: &mut Stream) -> io::Result<()> {
        // Nearly always it is with the kernel already.
        if !stream.own.receive.armed {
            self.arm_receive(key, stream);
        }
        Ok(())
    }

    fn send(
        &mut self,
        key: Key,
        stream: &mut Stream,
        buf: SendBuf,
        _wakes: &mut Vec<Waker>,
    ) -> bool {
        self.send_quick(key, stream, buf);
        false
    }

    fn await_sent(&mut self, _key: Key, stream: &mut Stream) {
        self.held_up |= stream.is_held_up();
    }

    fn await_room(&mut self, key: Key, stream: &mut Stream) -> io::Result<()> {
        let fd = stream.fd().ok_or_else(closed)?;
        stream.own.expected += 1;
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLOUT as u32).build();
        // SAFETY: a poll names no memory.
        unsafe { self.ring.push(entry.user_data(Op::Writable.tag(key))) };
        Ok(())
    }

    fn receive_batch(
        &mut self,
        key: Key,
        udp: &mut Udp,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Option<io::Result<usize>> {
        self.take_datagrams(key, udp, into, most)
    }

    fn await_datagrams(&mut self, key: Key, udp: &mut Udp) -> io::Result<()> {
        self.arm_datagrams(key, udp);
        Ok(())
    }

    fn send_datagrams(&mut self, key: Key, udp: &mut Udp) {
        self.submit_datagrams(key, udp);
    }

    fn await_datagrams_sent(&mut self, _key: Key, udp: &mut Udp) -> io::Result<()> {
        self.held_up |= udp.is_held_up();
        Ok(())
    }

    fn udp_fd(udp: &Udp) -> Option<RawFd> {
        udp.own.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn close(sockets: &mut Sockets<Uring>, key: Key) {
        sockets.abandon(key);
    }

    fn teardown(sockets: &mut Sockets<Uring>, patience: Duration, wakes: &mut Vec<Waker>) {
        sockets.tear_down(patience, wakes);
    }
}
