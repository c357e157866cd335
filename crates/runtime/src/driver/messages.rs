//! Message headers and the memory they point to: of one datagram, for the ring, and of many, for
//! recvmmsg(2) and sendmmsg(2). Set up once and used again for every call.

use super::ancillary::{NAME_BYTES, RECV_CONTROL_BYTES, SEND_CONTROL_BYTES, encode_control};
use super::common::errno;
use super::udp::{BATCH_MAX, Udp, UdpSetup};
use crate::buf::{BufPool, RecvBuf};
use crate::counters::Counters;
use crate::datagram::{Datagram, Received};
use crate::sys::datagram::{empty_header, recvmmsg, sendmmsg};
use crate::sys::socket::SockAddr;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

const NO_BUFFER: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The memory of a datagram that is being received, beside its buffer and header.
pub(super) struct RecvMemory {
    name: [u8; NAME_BYTES],
    control: [u8; RECV_CONTROL_BYTES],
    iovec: libc::iovec,
}

impl RecvMemory {
    pub(super) fn new() -> RecvMemory {
        let (name, control) = ([0; NAME_BYTES], [0; RECV_CONTROL_BYTES]);
        RecvMemory { name, control, iovec: NO_BUFFER }
    }

    /// Points a header to this memory and to a buffer.
    pub(super) fn describe(&mut self, header: &mut libc::msghdr, to: *mut u8, setup: &UdpSetup) {
        let (name_bytes, control_bytes) = setup.name_and_control_bytes();
        self.iovec = libc::iovec { iov_base: to.cast(), iov_len: setup.buffer_bytes() };
        header.msg_iov = &mut self.iovec;
        header.msg_iovlen = 1;
        header.msg_name = self.name.as_mut_ptr().cast();
        header.msg_namelen = name_bytes as libc::socklen_t;
        header.msg_control = self.control.as_mut_ptr().cast();
        header.msg_controllen = control_bytes as _;
        header.msg_flags = 0;
    }

    /// The datagram that came with this header; `None` if its sender cannot be read.
    pub(super) fn received(
        &self,
        header: &libc::msghdr,
        data: RecvBuf,
        truncated: bool,
        setup: &UdpSetup,
    ) -> Option<Received> {
        let name = &self.name[..NAME_BYTES.min(header.msg_namelen as usize)];
        let control = &self.control[..RECV_CONTROL_BYTES.min(header.msg_controllen as _)];
        setup.received(data, name, control, truncated)
    }
}

/// The memory of a datagram that is being sent, beside its payload and header.
pub(super) struct SendMemory {
    to: Option<SockAddr>,
    control: [u8; SEND_CONTROL_BYTES],
    iovec: libc::iovec,
}

impl SendMemory {
    pub(super) fn new() -> SendMemory {
        SendMemory { to: None, control: [0; SEND_CONTROL_BYTES], iovec: NO_BUFFER }
    }

    pub(super) fn describe(
        &mut self,
        header: &mut libc::msghdr,
        datagram: &Datagram,
        setup: &UdpSetup,
    ) {
        let bytes = datagram.data.as_slice();
        self.iovec =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        header.msg_iov = &mut self.iovec;
        header.msg_iovlen = 1;
        self.to = datagram.to.map(SockAddr::from);
        let to = self.to.as_ref();
        // The kernel only reads it.
        header.msg_name = to.map_or(std::ptr::null_mut(), |to| to.as_ptr().cast_mut().cast());
        header.msg_namelen = to.map_or(0, SockAddr::len);
        let control_bytes = encode_control(datagram, setup, &mut self.control);
        header.msg_control = match control_bytes {
            0 => std::ptr::null_mut(),
            _ => self.control.as_mut_ptr().cast(),
        };
        header.msg_controllen = control_bytes as _;
    }
}

fn empty_headers() -> Vec<libc::mmsghdr> {
    (0..BATCH_MAX).map(|_| libc::mmsghdr { msg_hdr: empty_header(), msg_len: 0 }).collect()
}

/// A pool for datagram sockets of one geometry, and the receives into it.
pub(super) struct RecvBatch {
    pub(super) pool: Rc<BufPool>,
    /// Bytes of a buffer that are used.
    bytes: usize,
    headers: Vec<libc::mmsghdr>,
    memory: Vec<RecvMemory>,
    /// Buffers taken from the pool to be filled: one for each header from the first on.
    ready: Vec<u16>,
}

impl RecvBatch {
    pub(super) fn new(setup: &UdpSetup) -> io::Result<RecvBatch> {
        let (count, bytes) = (setup.options.buffer_count as u16, setup.buffer_bytes());
        Ok(RecvBatch {
            // Whole cache lines, so that no two buffers share one.
            pool: Rc::new(BufPool::new(count, bytes.next_multiple_of(64))?),
            bytes,
            headers: empty_headers(),
            memory: (0..BATCH_MAX).map(|_| RecvMemory::new()).collect(),
            ready: Vec::with_capacity(BATCH_MAX),
        })
    }

    pub(super) fn fits(&self, setup: &UdpSetup) -> bool {
        let count = setup.options.buffer_count as usize;
        self.pool.count() == count && self.bytes == setup.buffer_bytes()
    }

    /// Receives at most `most` datagrams with one system call, without waiting, and appends them
    /// to `into`, unless their sender cannot be read. Returns how many arrived and how many there was room
    /// for.
    pub(super) fn receive(
        &mut self,
        fd: RawFd,
        setup: &UdpSetup,
        most: usize,
        into: &mut Vec<Received>,
    ) -> io::Result<(usize, usize)> {
        let asked = self.prepare(setup, most.min(BATCH_MAX));
        // SAFETY: `prepare` has pointed the first `asked` headers at address and ancillary
        // memory of `self`, which is exclusively borrowed, and each at a buffer of its own
        // that was taken from the pool and has no readers.
        let count = unsafe { recvmmsg(fd, &mut self.headers[..asked]) }?;
        into.extend((0..count).filter_map(|at| {
            let libc::mmsghdr { msg_hdr: header, msg_len: bytes } = &self.headers[at];
            let bytes = self.bytes.min(*bytes as usize);
            let data = RecvBuf::from_pool(&self.pool, self.ready[at], bytes);
            let truncated = header.msg_flags & libc::MSG_TRUNC != 0;
            self.memory[at].received(header, data, truncated, setup)
        }));
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
        for at in 0..count {
            let buffer = self.pool.address(self.ready[at]);
            self.memory[at].describe(&mut self.headers[at].msg_hdr, buffer, setup);
        }
        count
    }
}

pub(super) struct SendBatch {
    headers: Vec<libc::mmsghdr>,
    memory: Vec<SendMemory>,
}

impl SendBatch {
    pub(super) fn new() -> SendBatch {
        let memory = (0..BATCH_MAX).map(|_| SendMemory::new()).collect();
        SendBatch { headers: empty_headers(), memory }
    }

    /// Sends from the front of an outbox, of which nothing is with the kernel, with one system call, and
    /// records the results.
    ///
    /// An error is that of the first datagram. One of a later one ends the batch before it. If that was an
    /// ICMP error about an earlier datagram, it is lost (sendmmsg(2)), and the datagram that it ended the
    /// batch before is sent by the next call.
    pub(super) fn send_from(&mut self, udp: &mut Udp, counters: &Counters) {
        let fd = udp.any_fd();
        let Udp { outbox, setup, stats, .. } = udp;
        counters.syscalls.add(1);
        let mut count = 0;
        for datagram in outbox.iter().take(BATCH_MAX) {
            self.memory[count].describe(&mut self.headers[count].msg_hdr, datagram, setup);
            count += 1;
        }
        let headers = &mut self.headers[..count];
        // SAFETY: the headers point at memory of `self` and of datagrams in the outbox, neither of which
        // changes during this call.
        match unsafe { sendmmsg(fd, headers) } {
            Ok(count) => {
                counters.sent.add(count as u64);
                let sent = std::iter::from_fn(|| outbox.pop()).take(count);
                stats.sent += sent.map(|it| it.datagram.datagrams() as u64).sum::<u64>();
            }
            Err(error) => {
                let errno = errno(&error);
                counters.eagain.add(u64::from(errno == libc::EAGAIN));
                if let Some(first) = outbox.pop() {
                    outbox.refuse(first, errno, stats);
                }
            }
        }
    }
}
