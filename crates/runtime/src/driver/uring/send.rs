//! Sending on streams: a quick send that ends with its enter, and one for the rest, which waits for
//! the peer.

use super::{Op, UringEngine};
use crate::buf::SendBuf;
use crate::driver::common::{closed, errno};
use crate::driver::sockets::Sockets;
use crate::driver::stream::{Next, Stream};
use crate::sys;
use crate::sys::ring::send_entry;
use io_uring::opcode;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::task::{Poll, Waker};

/// Bytes of one send. The kernel cuts a longer one at 2 GiB and calls that a success; a buffer
/// above this is sent in parts, each of which completes.
const SEND_BYTES_MAX: usize = 1 << 30;

impl UringEngine {
    #[unsafe(link_section = ".text.hot")]
    #[inline(never)]
    pub(in crate::driver) fn try_send(
        &mut self,
        stream: &mut Stream,
        buf: &mut Option<SendBuf>,
        more: bool,
        wakes: &mut Vec<Waker>,
    ) -> Poll<io::Result<()>> {
        stream.settle(self.first_quick);
        if !stream.sending.may_accept()? {
            return Poll::Pending;
        }
        let bytes = buf.as_ref().map_or(0, SendBuf::len);
        if bytes == 0 {
            *buf = None;
            return Poll::Ready(Ok(()));
        }
        if more || stream.is_sending() {
            return Poll::Ready(self.send_later(stream, buf, wakes));
        }
        self.send_quick(stream, buf);
        // Nothing is queued, and neither FIN nor the close, or it would not have been accepted.
        if !stream.sending.waiters.is_empty() {
            self.note_awaited(stream);
        }
        Poll::Ready(Ok(()))
    }

    /// Another send is with the kernel, or there is `more` to follow.
    #[cold]
    fn send_later(
        &mut self,
        stream: &mut Stream,
        buf: &mut Option<SendBuf>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        let Some(buf) = buf.take() else { return Ok(()) };
        stream.sending.unsent += buf.len();
        if !stream.is_sending() {
            return self.send_ahead(stream, buf, wakes);
        }
        // Behind one that waits for the peer it waits as well: keep it out of the pool meanwhile.
        stream.sending.queue(if stream.uring.reporting.is_some() { buf.detach() } else { buf });
        self.await_sent(stream);
        Ok(())
    }

    /// A task, FIN or a close may wait for the send in flight, for which the kernel posts no completion if
    /// it succeeds: then the next enter does not wait, and continues with the stream.
    pub(in crate::driver) fn await_sent(&mut self, stream: &mut Stream) {
        stream.settle(self.first_quick);
        if stream.sending.is_awaited() {
            self.note_awaited(stream);
        }
    }

    #[cold]
    fn note_awaited(&mut self, stream: &mut Stream) {
        if stream.sending.silent > 0 && !std::mem::replace(&mut stream.uring.awaited, true) {
            self.awaited.push(stream.key);
            self.held_up = true;
        }
    }

    /// The kernel has run the first `taken` quick sends, and those that posted no error have succeeded:
    /// frees their buffers, and continues with the streams that wait for that. The others notice it
    /// by the number of their send.
    #[inline(always)]
    pub(super) fn settle(&mut self, sockets: &mut Sockets, taken: usize) {
        self.first_quick += taken as u64;
        self.counters.submissions.add(taken as u64);
        // A further enter, after an overflow, may have run sends behind them.
        let refused = self.refused.min(taken as u64);
        self.refused -= refused;
        self.counters.sent.add(taken as u64 - refused);
        if taken < self.quick.len() {
            self.quick.drain(..taken);
        } else {
            while let Some(buf) = self.quick.pop() {
                buf.free();
            }
        }
        if !self.awaited.is_empty() {
            self.settle_awaited(sockets);
        }
    }

    #[cold]
    fn settle_awaited(&mut self, sockets: &mut Sockets) {
        for key in std::mem::take(&mut self.awaited) {
            let Some((shared, wakes)) = sockets.stream(key) else { continue };
            let closes = {
                let stream = &mut *shared.borrow_mut();
                stream.uring.awaited = false;
                // One whose send has failed may have made another.
                self.await_sent(stream);
                !stream.is_sending() && self.advance(stream, wakes)
            };
            if closes {
                self.abandon(sockets, key);
            }
        }
    }

    /// Continues with the queue, FIN and the close, as no send is in progress. True if the socket is to
    /// be closed.
    #[inline(never)]
    fn advance(&mut self, stream: &mut Stream, wakes: &mut Vec<Waker>) -> bool {
        loop {
            stream.sending.wake_if_room(wakes);
            match stream.sending.next() {
                Next::Send(buf) => {
                    stream.sending.sent(buf.len());
                    self.send_quick(stream, &mut Some(buf));
                    self.await_sent(stream);
                    return false;
                }
                Next::ShutDown => stream.shut_down(&self.counters),
                Next::Close => return true,
                Next::Nothing => return false,
            }
        }
    }

    /// Submits a send that ends immediately, whether it was sent whole or not; takes the buffer, which is
    /// there and not counted as unsent.
    #[inline(always)]
    fn send_quick(&mut self, stream: &mut Stream, buf: &mut Option<SendBuf>) {
        let (Some(fd), Some(sent)) = (stream.fd(), buf.as_ref()) else { return };
        let bytes = sent.len();
        debug_assert!(!stream.is_sending(), "one send at a time");
        // A submission thread runs the send at an unknown time, so there every send has to complete.
        if self.ring.sqpoll || bytes > SEND_BYTES_MAX {
            stream.sending.unsent += bytes;
            let flags = libc::MSG_DONTWAIT;
            return buf.take().into_iter().for_each(|buf| self.send_reporting(stream, buf, flags));
        }
        self.quick_bytes += bytes;
        let entry = entry_for(fd, sent, libc::MSG_DONTWAIT, Flags::SKIP_SUCCESS);
        // SAFETY: the buffer is in `quick` until the enter that takes the send has returned.
        unsafe { self.ring.push_quick(entry.user_data(Op::SEND.tag(stream.key))) };
        stream.uring.quick = self.first_quick + self.quick.len() as u64;
        stream.sending.silent = bytes;
        buf.take().into_iter().for_each(|buf| push(&mut self.quick, buf));
    }

    /// Sends what the kernel has not accepted, out of the pool because it waits for the peer.
    fn send_rest(&mut self, stream: &mut Stream, buf: SendBuf) {
        self.counters.short_sends.add(1);
        self.send_reporting(stream, buf.detach(), 0);
    }

    #[inline(never)]
    fn send_reporting(&mut self, stream: &mut Stream, buf: SendBuf, wait_flag: i32) {
        let Some(fd) = stream.fd() else { return };
        debug_assert!(!stream.is_sending(), "one send at a time");
        let entry = entry_for(fd, &buf, wait_flag, Flags::empty());
        stream.uring.reporting = Some(buf);
        stream.uring.expected += 1;
        // SAFETY: the buffer is in the slot as `reporting` until the send is over.
        unsafe { self.ring.push(entry.user_data(Op::SEND.tag(stream.key))) };
    }

    /// Sends data that is to share a segment with the data behind it, by a system call of its own.
    /// The ring would send it only at the next enter, for which a file behind it would have to
    /// wait.
    fn send_ahead(
        &mut self,
        stream: &mut Stream,
        mut buf: SendBuf,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        let Some(socket) = &stream.socket else { return Err(closed()) };
        self.counters.syscalls.add(1);
        match sys::send(socket.as_fd(), buf.as_slice(), true) {
            Ok(sent) => {
                self.counters.sent.add(1);
                stream.sending.sent(sent);
                buf.advance(sent);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.counters.eagain.add(1),
            Err(error) => {
                stream.send_failed(errno(&error), wakes);
                return Err(error);
            }
        }
        if !buf.is_empty() {
            self.send_rest(stream, buf);
        }
        Ok(())
    }

    /// The completion of a send. True if the stream is to be closed.
    pub(super) fn on_send(
        &mut self,
        stream: &mut Stream,
        result: i32,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        stream.settle(self.first_quick);
        let mut buf = if let Some(buf) = stream.uring.reporting.take() {
            stream.uring.expected -= 1;
            self.counters.sent.add(u64::from(result >= 0));
            buf
        } else {
            let bytes = std::mem::take(&mut stream.sending.silent);
            let at = stream.uring.quick.wrapping_sub(self.first_quick) as usize;
            let Some(kept) = self.quick.get_mut(at).filter(|_| bytes > 0) else { return false };
            self.refused += u64::from(result < 0);
            stream.sending.unsent += bytes;
            std::mem::replace(kept, SendBuf::from(""))
        };
        match result {
            bytes if bytes >= 0 => {
                stream.sending.sent(bytes as usize);
                buf.advance(bytes as usize);
            }
            error if error == -libc::EAGAIN => self.counters.eagain.add(1),
            // A send that waited in a worker thread was interrupted: nothing was sent.
            error if error == -libc::EINTR => {}
            error => {
                stream.send_failed(-error, wakes);
                // A task that answers received data receives again, and does not check whether the
                // answer was sent.
                self.restart_receive(stream);
            }
        }
        if !buf.is_empty() && !stream.sending.failed() && stream.socket.is_some() {
            stream.sending.detach();
            self.send_rest(stream, buf);
            return false;
        }
        self.advance(stream, wakes)
    }

    pub(in crate::driver) fn await_room(&mut self, stream: &mut Stream) -> io::Result<()> {
        let fd = stream.fd().ok_or_else(closed)?;
        stream.uring.expected += 1;
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLOUT as u32).build();
        // SAFETY: a poll names no memory.
        unsafe { self.ring.push(entry.user_data(Op::WRITABLE.tag(stream.key))) };
        Ok(())
    }
}

/// [`Vec::push`] in place: the compiler takes it for something rare, and calls it.
#[inline(always)]
fn push(list: &mut Vec<SendBuf>, buf: SendBuf) {
    match list.spare_capacity_mut().first_mut() {
        Some(place) => {
            place.write(buf);
            // SAFETY: it has just been initialised.
            unsafe { list.set_len(list.len() + 1) };
        }
        None => push_and_grow(list, buf),
    }
}

#[cold]
fn push_and_grow(list: &mut Vec<SendBuf>, buf: SendBuf) {
    list.push(buf);
}

/// The operation that sends a buffer, or the first part of one that is too long for one operation.
#[inline(always)]
fn entry_for(fd: RawFd, buf: &SendBuf, wait_flag: i32, flags: Flags) -> Entry {
    // MSG_WAITALL makes a short send a failure, so that skipping success hides none.
    let message_flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL | wait_flag) as u32;
    let bytes = buf.as_slice();
    send_entry(fd, &bytes[..bytes.len().min(SEND_BYTES_MAX)], message_flags, flags.bits())
}
