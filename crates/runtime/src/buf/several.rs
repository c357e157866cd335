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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However the kernel cuts it, all bytes leave once and in order.
        #[test]
        fn parts_are_sent_like_one_buffer(
            lengths in proptest::collection::vec(0usize..40, 0..200),
            steps in proptest::collection::vec((0usize..300, any::<bool>()), 0..200),
        ) {
            let parts: Vec<Vec<u8>> = lengths
                .iter()
                .enumerate()
                .map(|(at, bytes)| vec![at as u8; *bytes])
                .collect();
            let whole = parts.concat();
            let mut buf = SendBuf::several(parts.into_iter().map(SendBuf::from).collect());
            let mut sent = Vec::new();
            for (most, detach) in steps {
                if detach {
                    buf = buf.detach();
                }
                prop_assert_eq!(buf.len(), whole.len() - sent.len());
                let first = buf.as_slice().len();
                let several = buf.as_several().unwrap();
                let mut memory = [IoSlice::new(&[]); SLICES_MAX];
                let slices = several.slices(&mut memory);
                prop_assert_eq!(slices.first().map_or(0, |slice| slice.len()), first);
                let offered: Vec<u8> = slices.iter().flat_map(|slice| slice.iter()).copied().collect();
                let count = slices.len();
                let all = offered.len() == whole.len() - sent.len();
                prop_assert_eq!(several.is_cut(), !all);
                several.message();
                prop_assert_eq!(several.vectors.len(), count);
                let taken = most.min(offered.len());
                sent.extend_from_slice(&offered[..taken]);
                buf.advance(taken);
            }
            prop_assert_eq!(&sent[..], &whole[..sent.len()]);
            prop_assert_eq!(buf.is_empty(), sent.len() == whole.len());
        }
    }

    #[test]
    fn parts_come_back_as_they_were() {
        let buf =
            SendBuf::several(vec![SendBuf::from("one"), SendBuf::from(""), SendBuf::from("two")]);
        assert_eq!(buf.len(), 6);
        let parts: Vec<Vec<u8>> =
            buf.into_parts().iter().map(|part| part.as_slice().to_vec()).collect();
        assert_eq!(parts, [&b"one"[..], b"", b"two"]);
    }
}
