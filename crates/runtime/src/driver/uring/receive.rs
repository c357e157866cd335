//! Receiving on streams: armed once, a piece for each completion, a pause when nobody reads, a
//! place in the queue when the pool is dry.

use super::provided::STREAMS;
use super::{Entry, Op, UringDriver};
use crate::buf::RecvBuf;
use crate::driver::closed;
use crate::driver::queues::End;
use crate::driver::slots::Key;
use crate::task::Waiter;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::io;
use std::os::fd::AsRawFd;
use std::task::{Poll, Waker};

impl UringDriver {
    pub(crate) fn poll_recv(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<RecvBuf>> {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        stream.received.waiters.leave(waiter);
        if let Some(next) = stream.received.next() {
            return Poll::Ready(next);
        }
        stream.received.waiters.add(waiter);
        self.arm_receive(key);
        Poll::Pending
    }

    /// Starts a receive, or queues for a buffer if others do. They come first because one receive
    /// can take all there are: a single fast peer would get each turn's buffers and those others
    /// none, ever.
    fn arm_receive(&mut self, key: Key) {
        if !self.groups.is_starved(STREAMS) {
            return self.start_receive(key);
        }
        if let Some(Entry::Stream(stream)) = self.entries.get_mut(key)
            && stream.may_receive()
        {
            stream.receive.starved = true;
            self.groups.get(STREAMS).starved.push_back(key);
        }
    }

    /// Starts a receive unless one is with the kernel, waits for a buffer, or is not wanted.
    pub(super) fn start_receive(&mut self, key: Key) {
        let multishot = self.features.multishot && !self.groups.is_starved(STREAMS);
        self.start_receive_of(key, multishot);
    }

    /// Starts a receive of one piece, for a socket that had to wait for a buffer. A multishot receive
    /// takes up to 32 in a row (MULTISHOT_MAX_RETRY in the kernel's io_uring/net.c), and nothing would
    /// be left for those behind it.
    pub(super) fn start_fed_receive(&mut self, key: Key) {
        self.start_receive_of(key, false);
    }

    fn start_receive_of(&mut self, key: Key, multishot: bool) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if !stream.may_receive() {
            return;
        }
        let receive = &mut stream.receive;
        let Some(socket) = &stream.socket else { return };
        let fd = Fd(socket.as_raw_fd());
        let entry = if multishot {
            opcode::RecvMulti::new(fd, STREAMS).build()
        } else {
            let bytes = self.groups.get(STREAMS).piece_bytes_max() as u32;
            opcode::Recv::new(fd, std::ptr::null_mut(), bytes)
                .buf_group(STREAMS)
                .build()
                .flags(Flags::BUFFER_SELECT)
        };
        receive.armed = true;
        receive.pausing = false;
        stream.expected += 1;
        if multishot && std::mem::replace(&mut receive.again, true) {
            self.counters.rearms.add(1);
        }
        // SAFETY: the entry names no memory; the kernel takes buffers from the group, which outlives
        // the ring.
        unsafe { self.ring.push(entry.user_data(Op::Receive.tag(key))) };
    }

    pub(super) fn on_receive(&mut self, key: Key, result: i32, flags: u32, wakes: &mut Vec<Waker>) {
        // First of all, so that the buffer is accounted for whatever becomes of the bytes. An
        // end of stream usually names no buffer, and must not return one then.
        let piece = self.groups.get(STREAMS).take(flags, result.max(0) as usize);
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        if !cqueue::more(flags) {
            stream.receive.armed = false;
            stream.expected -= 1;
        }
        match result {
            0 => stream.received.finish(stream.how_it_ended(), wakes),
            bytes if bytes > 0 => {
                self.counters.received.add(1);
                let piece = piece.filter(|_| !stream.closing);
                if cqueue::more(flags) && stream.receive.note_data() {
                    self.watch(key);
                }
                if let Some(piece) = piece {
                    self.deliver(key, piece, wakes);
                }
            }
            error if error == -libc::ENOBUFS => {
                self.counters.enobufs.add(1);
                if !stream.closing && !stream.received.waiters.is_empty() {
                    stream.receive.starved = true;
                    self.groups.get(STREAMS).starved.push_back(key);
                }
            }
            // Ours: the receive was paused, or the stream is closing. (EINTR: one that had got into a
            // worker thread, which was told to look at its signals.)
            error if matches!(-error, libc::ECANCELED | libc::EINTR) => {}
            error => stream.received.finish(End::Error(-error), wakes),
        }
        self.rearm_if_awaited(key);
        self.remove_if_done(key);
    }

    fn deliver(&mut self, key: Key, piece: RecvBuf, wakes: &mut Vec<Waker>) {
        let Some(Entry::Stream(stream)) = self.entries.get_mut(key) else { return };
        let piece = if self.pressure || self.groups.get(STREAMS).is_low() {
            self.counters.copied_out.add(1);
            piece.detach()
        } else {
            piece
        };
        stream.received.push(piece, self.turn);
        stream.received.waiters.wake(wakes);
        if stream.received.is_full(self.turn) && stream.receive.armed && !stream.receive.pausing {
            stream.receive.pausing = true;
            stream.expected += 1;
            self.counters.pauses.add(1);
            self.counters.copied_out.add(stream.received.detach());
            self.push_cancel(key, Op::Receive);
        }
    }

    /// A receive that ended while a task waits for it starts again.
    fn rearm_if_awaited(&mut self, key: Key) {
        if let Some(Entry::Stream(stream)) = self.entries.get(key)
            && stream.received.is_empty()
            && !stream.received.waiters.is_empty()
        {
            self.arm_receive(key);
        }
    }
}
