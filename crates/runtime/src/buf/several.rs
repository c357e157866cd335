//! The buffers of a vectored send, which leave by one system call.

use super::SendBuf;
use crate::sys::datagram::empty_header;
use std::io::IoSlice;

/// Slices of one system call; more take several calls. The kernel's limit is 1,024 (UIO_MAXIOV).
pub(crate) const SLICES_MAX: usize = 64;

/// Buffers that are sent in order, and the memory by which a ring refers to them.
pub(crate) struct Several {
    parts: Vec<SendBuf>,
    /// The first part that has bytes to send.
    first: usize,
    /// Valid from [`message`](Several::message) until the parts change.
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
}

impl Several {
    pub(super) fn new(parts: Vec<SendBuf>) -> Several {
        let mut several = Several { parts, first: 0, header: empty_header(), vectors: Vec::new() };
        several.skip_empty();
        several
    }

    pub(super) fn into_parts(self) -> Vec<SendBuf> {
        self.parts
    }

    pub(super) fn first_slice(&self) -> &[u8] {
        self.parts.get(self.first).map_or(&[], SendBuf::as_slice)
    }

    /// True if one system call cannot take all parts.
    pub(crate) fn is_cut(&self) -> bool {
        self.unsent().count() > SLICES_MAX
    }

    fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        self.parts[self.first..].iter().map(SendBuf::as_slice).filter(|slice| !slice.is_empty())
    }

    /// The slices of the next system call.
    pub(crate) fn slices<'a, 'b>(
        &'a self,
        into: &'b mut [IoSlice<'a>; SLICES_MAX],
    ) -> &'b [IoSlice<'a>] {
        let mut count = 0;
        for (slot, slice) in into.iter_mut().zip(self.unsent()) {
            *slot = IoSlice::new(slice);
            count += 1;
        }
        &into[..count]
    }

    /// The same as a message. It refers to memory of this value, which has to stay in place, and of the
    /// parts.
    pub(crate) fn message(&mut self) -> &libc::msghdr {
        let vectors = self.unsent().take(SLICES_MAX).map(|slice| libc::iovec {
            // The kernel only reads it.
            iov_base: slice.as_ptr().cast_mut().cast(),
            iov_len: slice.len(),
        });
        self.vectors = vectors.collect();
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len() as _;
        &self.header
    }

    /// Marks the next `bytes` as sent.
    pub(super) fn advance(&mut self, mut bytes: usize) {
        while let Some(part) = self.parts.get_mut(self.first)
            && bytes > 0
        {
            let sent = bytes.min(part.len());
            part.advance(sent);
            bytes -= sent;
            self.skip_empty();
        }
    }

    fn skip_empty(&mut self) {
        while self.parts.get(self.first).is_some_and(SendBuf::is_empty) {
            self.first += 1;
        }
    }

    /// Moves the bytes that were not sent out of the pool, and lets go of the others.
    pub(super) fn detach(&mut self) {
        self.parts.drain(..self.first);
        self.first = 0;
        for part in &mut self.parts {
            *part = std::mem::replace(part, SendBuf::from("")).detach();
        }
    }
}
