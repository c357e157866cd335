//! The memory of batched datagram calls: message headers and the memory they point to, set up once and
//! reused for every call.

use crate::buf::{Pool, RecvBuf};
use crate::calls::{Call, Calls};
use crate::counters::Counters;
use crate::datagram::{Received, UdpStats};
use crate::driver::ancillary::{
    NAME_BYTES, RECV_CONTROL_BYTES_MAX, SEND_CONTROL_BYTES_MAX, decode_control,
};
use crate::driver::common::errno;
use crate::driver::datagrams::{
    BATCH_MAX, Outbox, Outgoing, UdpSetup, count_received, is_icmp_error,
};
use crate::sys::datagram::{empty_header, recvmmsg, recvmsg, sendmmsg, sendmsg};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

const NO_BUFFER: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn empty_headers() -> Vec<libc::mmsghdr> {
    (0..BATCH_MAX).map(|_| libc::mmsghdr { msg_hdr: empty_header(), msg_len: 0 }).collect()
}

/// The minimum number of datagrams that a receive requests. Each costs a header to prepare, so a socket
/// on which few arrive requests few. Requesting one more than there are shows that the socket is empty.
const ASKED_MIN: usize = 4;

/// A socket, for its receives.
pub(super) struct Source<'a> {
    pub(super) fd: RawFd,
    pub(super) setup: &'a UdpSetup,
    pub(super) stats: &'a mut UdpStats,
}

/// How far a socket has been read.
///
/// A receive that returned fewer datagrams than it had room for has emptied the socket. (It may also
/// have found an error behind the last datagram. That error occurred during the call, so its event is
/// still to come.) A single recvmsg(2) shows this only by EAGAIN.
#[derive(Debug)]
pub(super) struct Reading {
    /// Set by an event, cleared by a receive that emptied the socket.
    pub(super) readable: bool,
    /// Datagrams that the next receive requests.
    asked: usize,
}

impl Reading {
    pub(super) fn new(readable: bool) -> Reading {
        Reading { readable, asked: ASKED_MIN }
    }

    /// Appends at most `most` datagrams of `source` to `into` and returns how many; `None` if there are
    /// none. ICMP errors are counted and skipped.
    pub(super) fn read(
        &mut self,
        batch: &mut RecvBatch,
        source: Source<'_>,
        into: &mut Vec<Received>,
        most: usize,
        counters: &Counters,
    ) -> Option<io::Result<usize>> {
        let Source { fd, setup, stats } = source;
        while self.readable {
            counters.syscalls.add(1);
            let before = into.len();
            match batch.receive(fd, setup, most.min(self.asked), into, &counters.calls) {
                Ok((came, asked)) => {
                    let single = !setup.batch || asked == 1;
                    self.readable = single || came == asked;
                    // Grown immediately, as a further call costs more than headers do.
                    let next = if came == asked { 4 * asked } else { (asked / 2).max(2 * came) };
                    self.asked = next.clamp(ASKED_MIN, BATCH_MAX);
                    counters.received.add(came as u64);
                    let short = batch.is_short();
                    for received in &mut into[before..] {
                        count_received(stats, received);
                        if short {
                            counters.copied_out.add(1);
                            let data = std::mem::replace(&mut received.data, RecvBuf::empty());
                            received.data = data.detach();
                        }
                    }
                    stats.receive_errors += (before + came - into.len()) as u64;
                    let delivered = into.len() - before;
                    if delivered > 0 {
                        return Some(Ok(delivered));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    counters.eagain.add(1);
                    self.readable = false;
                }
                Err(error) if is_icmp_error(errno(&error)) => stats.icmp_errors += 1,
                Err(error) => {
                    stats.receive_errors += 1;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// A pool for datagram sockets of one geometry, and the receives into it.
pub(super) struct RecvBatch {
    pool: Rc<Pool>,
    /// Bytes of a buffer that are used.
    bytes: usize,
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<[u8; NAME_BYTES]>,
    controls: Vec<[u8; RECV_CONTROL_BYTES_MAX]>,
    /// Buffers taken from the pool to be filled: one for each header from the first on.
    ready: Vec<u16>,
}

impl RecvBatch {
    pub(super) fn new(setup: &UdpSetup, count: u16) -> io::Result<RecvBatch> {
        let bytes = setup.buffer_bytes;
        Ok(RecvBatch {
            // Whole cache lines, so that no two buffers share one.
            pool: Rc::new(Pool::new(count, bytes.next_multiple_of(64))?),
            bytes,
            headers: empty_headers(),
            iovecs: vec![NO_BUFFER; BATCH_MAX],
            names: vec![[0; NAME_BYTES]; BATCH_MAX],
            controls: vec![[0; RECV_CONTROL_BYTES_MAX]; BATCH_MAX],
            ready: Vec::with_capacity(BATCH_MAX),
        })
    }

    /// True if it fits a socket with this setup, with this many buffers.
    pub(super) fn fits(&self, setup: &UdpSetup, count: u16) -> bool {
        self.pool.count() == usize::from(count) && self.bytes == setup.buffer_bytes
    }

    /// Receives at most `most` datagrams with one system call, without waiting, and appends them
    /// to `into`. Returns how many arrived and how many there was room for.
    fn receive(
        &mut self,
        fd: RawFd,
        setup: &UdpSetup,
        most: usize,
        into: &mut Vec<Received>,
        calls: &Calls,
    ) -> io::Result<(usize, usize)> {
        let asked = self.prepare(setup, most.min(BATCH_MAX));
        let count = if setup.batch && asked > 1 {
            // SAFETY: `prepare` has pointed the first `asked` headers at address and ancillary
            // memory of `self`, which is exclusively borrowed, and each at a buffer of its own
            // that was taken from the pool and has no readers.
            calls.timed(Call::Recvmmsg, || unsafe { recvmmsg(fd, &mut self.headers[..asked]) })?
        } else {
            let header = &mut self.headers[0];
            // SAFETY: as above, for the first header.
            let receive = || unsafe { recvmsg(fd, &mut header.msg_hdr) };
            header.msg_len = calls.timed(Call::Recvmsg, receive)? as u32;
            1
        };
        into.extend((0..count).filter_map(|at| self.received(at, setup)));
        // The last buffers take the places of those that were filled.
        self.ready.drain(..count);
        Ok((count, asked))
    }

    /// Points headers to memory; returns how many, at least 1.
    fn prepare(&mut self, setup: &UdpSetup, most: usize) -> usize {
        while self.ready.len() < most
            && let Some(id) = self.pool.take()
        {
            self.ready.push(id);
        }
        let count = self.ready.len().min(most);
        // Received datagrams are copied out before the pool is empty.
        debug_assert!(count > 0, "the pool ran dry");
        let (name_bytes, control_bytes) = setup.name_and_control_bytes();
        for at in 0..count {
            let iovec = &mut self.iovecs[at];
            *iovec = libc::iovec {
                iov_base: self.pool.address(self.ready[at]).cast(),
                iov_len: self.bytes,
            };
            let header = &mut self.headers[at].msg_hdr;
            header.msg_iov = iovec;
            header.msg_iovlen = 1;
            header.msg_name = self.names[at].as_mut_ptr().cast();
            header.msg_namelen = name_bytes as libc::socklen_t;
            header.msg_control = self.controls[at].as_mut_ptr().cast();
            header.msg_controllen = control_bytes as _;
            header.msg_flags = 0;
        }
        count
    }

    /// The datagram of the header at this index; `None` if it has no readable sender.
    fn received(&mut self, at: usize, setup: &UdpSetup) -> Option<Received> {
        let header = &self.headers[at];
        let bytes = (header.msg_len as usize).min(self.bytes);
        let data = RecvBuf::from_pool(&self.pool, self.ready[at], 0, bytes);
        let header = &header.msg_hdr;
        let name_bytes = NAME_BYTES.min(header.msg_namelen as usize);
        let from = setup.sender(&self.names[at][..name_bytes])?;
        let control_bytes = RECV_CONTROL_BYTES_MAX.min(header.msg_controllen as _);
        let told = decode_control(&self.controls[at][..control_bytes]);
        let truncated = header.msg_flags & libc::MSG_TRUNC != 0;
        Some(Received::told(data, from, told, truncated))
    }

    /// Buffers with readers.
    pub(super) fn buffers_in_use(&self) -> usize {
        self.pool.in_use()
    }

    /// True if readers hold more than three quarters of the buffers.
    fn is_short(&self) -> bool {
        self.pool.available() * 4 < self.pool.count()
    }
}

/// Sends of datagrams.
pub(super) struct SendBatch {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<[u8; NAME_BYTES]>,
    controls: Vec<[u8; SEND_CONTROL_BYTES_MAX]>,
}

impl SendBatch {
    pub(super) fn new() -> SendBatch {
        SendBatch {
            headers: empty_headers(),
            iovecs: vec![NO_BUFFER; BATCH_MAX],
            names: vec![[0; NAME_BYTES]; BATCH_MAX],
            controls: vec![[0; SEND_CONTROL_BYTES_MAX]; BATCH_MAX],
        }
    }

    /// Sends from the front of an outbox, of which nothing is with the kernel, with one system call, and
    /// records the results. False if the send buffer is full.
    pub(super) fn send_from(
        &mut self,
        outbox: &mut Outbox,
        fd: RawFd,
        setup: &UdpSetup,
        stats: &mut UdpStats,
        counters: &Counters,
    ) -> bool {
        counters.syscalls.add(1);
        match self.send(fd, setup, outbox.iter(), &counters.calls) {
            Ok(count) => {
                counters.sent.add(count as u64);
                for _ in 0..count {
                    if let Some(outgoing) = outbox.pop() {
                        outbox.sent(&outgoing, stats);
                    }
                }
                true
            }
            Err(error) => {
                let errno = errno(&error);
                if errno == libc::EAGAIN {
                    counters.eagain.add(1);
                }
                !outbox.pop().is_some_and(|first| outbox.refuse(first, errno, stats))
            }
        }
    }

    /// Sends the first datagrams of `queue` with one system call, without waiting; returns how many.
    ///
    /// # Errors
    /// The error of the first datagram. An error of a later one ends the batch before it. If that was an
    /// ICMP error about an earlier datagram, it is lost (sendmmsg(2)), and the datagram that it ended the
    /// batch before is sent by the next call.
    fn send<'a>(
        &mut self,
        fd: RawFd,
        setup: &UdpSetup,
        queue: impl Iterator<Item = &'a Outgoing>,
        calls: &Calls,
    ) -> io::Result<usize> {
        let most = if setup.batch { BATCH_MAX } else { 1 };
        let mut count = 0;
        for outgoing in queue.take(most) {
            self.prepare(count, outgoing, setup);
            count += 1;
        }
        if count > 1 {
            // SAFETY: `prepare` has pointed the first `count` headers at memory of `self` and of
            // datagrams that `queue` borrows for the time of this call.
            calls.timed(Call::Sendmmsg, || unsafe { sendmmsg(fd, &mut self.headers[..count]) })
        } else {
            // SAFETY: as above, for the first header.
            let send = || unsafe { sendmsg(fd, &self.headers[0].msg_hdr) };
            calls.timed(Call::Sendmsg, send).map(|()| 1)
        }
    }

    fn prepare(&mut self, at: usize, outgoing: &Outgoing, setup: &UdpSetup) {
        let datagram = &outgoing.datagram;
        let bytes = datagram.data.as_slice();
        let (name, name_bytes) = outgoing.name(&mut self.names[at]);
        let control = setup.control_for(datagram).encode(setup.ipv6, &mut self.controls[at]);
        let iovec = &mut self.iovecs[at];
        *iovec = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let header = &mut self.headers[at].msg_hdr;
        header.msg_iov = iovec;
        header.msg_iovlen = 1;
        // The kernel only reads it.
        header.msg_name = name.cast_mut();
        header.msg_namelen = name_bytes as libc::socklen_t;
        header.msg_control = match control {
            0 => std::ptr::null_mut(),
            _ => self.controls[at].as_mut_ptr().cast(),
        };
        header.msg_controllen = control as _;
    }
}
