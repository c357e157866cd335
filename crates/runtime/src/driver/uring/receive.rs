//! Receiving on streams: a receive is armed once and each completion delivers a piece. It is paused
//! when the task does not read, and queues for a buffer when the pool is empty.

use super::provided::STREAMS;
use super::stream::Stream;
use super::{Op, Uring};
use crate::buf::RecvBuf;
use crate::driver::socket::stream::End;
use crate::slots::Key;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::task::Waker;

impl Uring {
    /// Starts a receive, or queues for a buffer if others do. Waiters come first because one
    /// receive can take all buffers: a single fast peer would get those of each turn, and the
    /// others none.
    pub(super) fn arm_receive(&mut self, key: Key, stream: &mut Stream) {
        if !self.groups.is_starved(STREAMS) {
            self.start_receive(key, stream, self.features.multishot);
        } else if stream.may_receive() {
            self.wait_for_buffer(key, stream);
        }
    }

    fn wait_for_buffer(&mut self, key: Key, stream: &mut Stream) {
        stream.own.receive.starved = true;
        self.groups.get(STREAMS).starved.push(key, stream.own.receive.left_more);
    }

    /// Starts a receive of one piece, for a socket that had to wait for a buffer. A multishot receive
    /// takes up to 32 in a row (MULTISHOT_MAX_RETRY in the kernel's io_uring/net.c), and nothing would
    /// be left for those behind it.
    pub(super) fn start_fed_receive(&mut self, key: Key, stream: &mut Stream) {
        stream.own.receive.starved = false;
        self.start_receive(key, stream, false);
    }

    /// Starts a receive unless one is with the kernel, waits for a buffer, or is not wanted.
    fn start_receive(&mut self, key: Key, stream: &mut Stream, multishot: bool) {
        if !stream.may_receive() {
            return;
        }
        let Some(fd) = stream.fd().map(Fd) else { return };
        let receive = &mut stream.own.receive;
        let entry = if multishot {
            opcode::RecvMulti::new(fd, STREAMS).build()
        } else {
            let bytes = self.groups.get(STREAMS).bytes() as u32;
            opcode::Recv::new(fd, std::ptr::null_mut(), bytes)
                .buf_group(STREAMS)
                .build()
                .flags(Flags::BUFFER_SELECT)
        };
        receive.armed = true;
        receive.pausing = false;
        stream.own.expected += 1;
        if multishot && std::mem::replace(&mut receive.again, true) {
            self.counters.rearms.add(1);
        }
        // SAFETY: the entry names no memory; the kernel takes buffers from the group, which outlives
        // the ring.
        unsafe { self.ring.push(entry.user_data(Op::Receive.tag(key))) };
    }

    /// A completion of the receive, with its data.
    #[inline]
    pub(super) fn on_receive(
        &mut self,
        key: Key,
        stream: &mut Stream,
        (result, flags): (i32, u32),
        piece: Option<RecvBuf>,
        wakes: &mut Vec<Waker>,
    ) {
        if !cqueue::more(flags) {
            stream.own.receive.armed = false;
            stream.own.expected -= 1;
        }
        match result {
            0 => stream.receiving.finish(stream.how_it_ended(), wakes),
            bytes if bytes > 0 => {
                self.counters.received.add(1);
                stream.own.receive.left_more = cqueue::sock_nonempty(flags);
                if cqueue::more(flags) && stream.own.receive.note_data() {
                    self.watch(key);
                }
                if let Some(piece) = piece
                    && !stream.sending.is_closing()
                {
                    self.deliver(key, stream, piece, wakes);
                }
            }
            error if error == -libc::ENOBUFS => {
                self.counters.enobufs.add(1);
                if !stream.sending.is_closing() && !stream.receiving.waiters.is_empty() {
                    self.wait_for_buffer(key, stream);
                }
            }
            // Ours: the receive was paused, or the stream is closing. (EINTR: one that ran in a
            // worker thread, which was interrupted.)
            error if matches!(-error, libc::ECANCELED | libc::EINTR) => {}
            error => stream.receiving.finish(End::Error(-error), wakes),
        }
        // A receive that ended while a task waits for it starts again.
        if stream.own.unread.is_empty() && !stream.receiving.waiters.is_empty() {
            self.arm_receive(key, stream);
        }
    }

    #[inline]
    fn deliver(&mut self, key: Key, stream: &mut Stream, piece: RecvBuf, wakes: &mut Vec<Waker>) {
        let piece = if self.pressure || self.groups.get(STREAMS).is_low() {
            self.copy_out(piece)
        } else {
            piece
        };
        stream.own.unread.push(piece, self.turn);
        stream.receiving.waiters.wake(wakes);
        if stream.own.unread.is_full(self.turn) && self.pause(key, stream) {
            self.counters.pauses.add(1);
            self.counters.copied_out.add(stream.own.unread.detach());
        }
    }

    #[cold]
    fn copy_out(&mut self, piece: RecvBuf) -> RecvBuf {
        self.counters.copied_out.add(1);
        piece.detach()
    }

    /// Cancels a receive, which starts again when a task waits for it. False if there is none.
    pub(super) fn pause(&mut self, key: Key, stream: &mut Stream) -> bool {
        let receive = &mut stream.own.receive;
        if !receive.armed || std::mem::replace(&mut receive.pausing, true) {
            return false;
        }
        stream.own.expected += 1;
        self.push_cancel(key, Op::Receive);
        true
    }
}
