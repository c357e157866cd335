//! Receiving on streams: a receive is armed once and each completion delivers a piece. It is paused
//! when the task does not read, and queues for a buffer when the pool is empty.

use super::provided::STREAMS;
use super::{Op, UringEngine};
use crate::driver::sockets::Sockets;
use crate::driver::stream::{End, Receive, Stream};
use crate::slots::Key;
use crate::sys;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::task::Waker;

impl UringEngine {
    /// Starts a receive, or queues for a buffer if others do. Waiters come first because one
    /// receive can take all buffers: a single fast peer would get those of each turn, and the
    /// others none.
    #[inline(never)]
    pub(in crate::driver) fn arm_receive(&mut self, stream: &mut Stream) {
        if self.groups.streams.starved.is_empty() {
            self.start_receive(stream, self.features.multishot);
        } else if stream.may_receive() {
            self.wait_for_buffer(stream);
        }
    }

    fn wait_for_buffer(&mut self, stream: &mut Stream) {
        debug_assert_eq!(stream.receiving.state, Receive::Idle);
        stream.receiving.state = Receive::Starved;
        self.groups.streams.starved.push(stream.key, stream.uring.left_more);
    }

    /// Starts a receive of one piece, for a socket that had to wait for a buffer. A multishot receive
    /// takes up to 32 in a row (MULTISHOT_MAX_RETRY in the kernel's io_uring/net.c), and nothing would
    /// be left for those behind it.
    pub(super) fn start_fed_receive(&mut self, stream: &mut Stream) {
        debug_assert_eq!(stream.receiving.state, Receive::Starved);
        stream.receiving.state = Receive::Idle;
        self.start_receive(stream, false);
    }

    /// Starts a receive unless one is with the kernel, waits for a buffer, or is not wanted.
    fn start_receive(&mut self, stream: &mut Stream, multishot: bool) {
        if !stream.may_receive() {
            return;
        }
        let Some(fd) = stream.fd().map(Fd) else { return };
        let entry = if multishot {
            opcode::RecvMulti::new(fd, STREAMS).build()
        } else {
            let bytes = self.groups.streams.bytes as u32;
            opcode::Recv::new(fd, std::ptr::null_mut(), bytes)
                .buf_group(STREAMS)
                .build()
                .flags(Flags::BUFFER_SELECT)
        };
        stream.receiving.state = Receive::Armed;
        stream.uring.expected += 1;
        // SAFETY: the entry names no memory; the kernel takes buffers from the group, which outlives
        // the ring.
        unsafe { self.ring.push(entry.user_data(Op::RECEIVE.tag(stream.key))) };
    }

    #[inline(always)]
    pub(super) fn complete_receive(
        &mut self,
        sockets: &mut Sockets,
        key: Key,
        result: i32,
        flags: u32,
    ) {
        let bytes = result.max(0) as usize;
        // First, so that the buffer is accounted for regardless of the bytes and of the socket. An end of
        // stream usually has none.
        let buffer = self.groups.streams.filled(flags, bytes);
        if bytes > 0
            && cqueue::more(flags)
            && let Some(id) = buffer
            && let Some((shared, wakes)) = sockets.stream(key)
        {
            let stream = &mut *shared.borrow_mut();
            self.on_bytes(stream, flags, id, bytes, wakes);
            stream.uring.heard = true;
            if !std::mem::replace(&mut stream.uring.watched, true) {
                self.watch(key);
            }
        } else {
            self.complete_last_receive(sockets, key, (result, flags), buffer);
        }
    }

    #[inline(always)]
    fn on_bytes(
        &mut self,
        stream: &mut Stream,
        flags: u32,
        buffer: u16,
        bytes: usize,
        wakes: &mut Vec<Waker>,
    ) {
        self.counters.received.add(1);
        stream.uring.left_more = cqueue::sock_nonempty(flags);
        let mut piece = self.groups.streams.reader(buffer, bytes);
        if stream.sending.closing {
            return;
        }
        if self.groups.streams.is_low() {
            self.counters.copied_out.add(1);
            piece = piece.detach();
        }
        stream.receiving.waiters.wake(wakes);
        if stream.receiving.unread.push(piece, self.turn) {
            self.pause_full(stream);
        }
    }

    #[cold]
    fn complete_last_receive(
        &mut self,
        sockets: &mut Sockets,
        key: Key,
        completion: (i32, u32),
        mut buffer: Option<u16>,
    ) {
        let stream = sockets.stream(key);
        // A receive that ran in a worker thread of the kernel takes a buffer even if it fails.
        if completion.0 <= 0 || stream.is_none() {
            buffer.take().into_iter().for_each(|id| drop(self.groups.streams.reader(id, 0)));
        }
        let Some((stream, wakes)) = stream else { return };
        let done = self.on_receive_ended(&mut stream.borrow_mut(), completion, buffer, wakes);
        if done {
            sockets.remove(key);
        }
    }

    /// The last completion of a receive, or one without data. True if it was the last of a closed socket.
    fn on_receive_ended(
        &mut self,
        stream: &mut Stream,
        (result, flags): (i32, u32),
        buffer: Option<u16>,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        if !cqueue::more(flags) {
            debug_assert!(stream.receiving.state.is_armed(), "a receive ends once");
            stream.receiving.state = Receive::Idle;
            stream.uring.expected -= 1;
        }
        match result {
            0 => {
                stream.settle(self.first_quick);
                let sending = stream.is_sending();
                let is_closed = || stream.fd().is_some_and(sys::tcp_is_closed);
                let end = stream.sending.end_of_stream(sending, is_closed);
                stream.receiving.finish(end, wakes);
            }
            bytes if bytes > 0 => {
                let bytes = bytes as usize;
                buffer.into_iter().for_each(|id| self.on_bytes(stream, flags, id, bytes, wakes));
            }
            error if error == -libc::ENOBUFS => {
                self.counters.enobufs.add(1);
                if !stream.sending.closing
                    && !stream.receiving.waiters.is_empty()
                    && stream.receiving.state == Receive::Idle
                {
                    self.wait_for_buffer(stream);
                }
            }
            // Ours: the receive was paused, or the stream is closing. (EINTR: one that ran in a
            // worker thread, which was interrupted.)
            error if matches!(-error, libc::ECANCELED | libc::EINTR) => {}
            error => stream.receiving.finish(End::Error(-error), wakes),
        }
        // A receive that ended while a task waits for it starts again.
        if stream.receiving.unread.is_empty() && !stream.receiving.waiters.is_empty() {
            self.arm_receive(stream);
        }
        stream.is_done(self)
    }

    #[cold]
    fn pause_full(&mut self, stream: &mut Stream) {
        if self.pause(stream) {
            self.counters.pauses.add(1);
            self.counters.copied_out.add(stream.receiving.unread.detach());
        }
    }

    /// Cancels a receive, which starts again when a task waits for it. False if there is none.
    #[inline(never)]
    pub(super) fn pause(&mut self, stream: &mut Stream) -> bool {
        if stream.receiving.state != Receive::Armed {
            return false;
        }
        stream.receiving.state = Receive::Pausing;
        stream.uring.expected += 1;
        self.push_cancel(stream.key, Op::RECEIVE);
        true
    }
}
