//! Memory that datagram operations name: it must stay where it is, and unchanged, while the
//! kernel has the operation, so it lives in boxes that the driver keeps in tables of its own.

use super::provided::Provided;
use crate::buf::RecvBuf;
use crate::datagram::Received;
use crate::driver::ancillary::{
    NAME_BYTES, RECV_CONTROL_BYTES_MAX, SEND_CONTROL_BYTES_MAX, decode_address, decode_control,
    encode_address,
};
use crate::driver::datagrams::{Outgoing, UdpSetup};
use crate::driver::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, RecvMsgOut};
use io_uring::{cqueue, opcode};
use std::net::SocketAddr;

/// Bytes that a multishot recvmsg puts before address, ancillary data and payload:
/// `struct io_uring_recvmsg_out`.
pub(super) const RECVMSG_HEADER_BYTES: usize = 16;

const NO_BUFFER: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// One datagram that is being sent.
pub(super) struct SendOp {
    pub(super) socket: Key,
    outgoing: Option<Outgoing>,
    /// Posts no completion when it succeeds.
    pub(super) silent: bool,
    /// Sent by IORING_OP_SEND with a destination.
    pub(super) addressed: bool,
    name: [u8; NAME_BYTES],
    control: [u8; SEND_CONTROL_BYTES_MAX],
    iovec: libc::iovec,
    header: libc::msghdr,
}

impl SendOp {
    pub(super) fn new(socket: Key) -> Box<SendOp> {
        Box::new(SendOp {
            socket,
            outgoing: None,
            silent: false,
            addressed: false,
            name: [0; NAME_BYTES],
            control: [0; SEND_CONTROL_BYTES_MAX],
            iovec: NO_BUFFER,
            header: empty_header(),
        })
    }

    /// Takes `outgoing` over and describes its sending. The entry names memory of this box and of
    /// the datagram: both stay as they are until [`finish`](SendOp::finish).
    pub(super) fn start(
        &mut self,
        fd: Fd,
        outgoing: Outgoing,
        setup: &UdpSetup,
        send_address: bool,
        flags: i32,
    ) -> Entry {
        let datagram = &self.outgoing.insert(outgoing).datagram;
        let bytes = datagram.data.as_slice();
        let name_bytes = datagram.to.map_or(0, |to| encode_address(&to, &mut self.name));
        let control = setup.control_for(datagram);
        self.addressed = name_bytes > 0 && send_address && control.is_empty();
        if control.is_empty() && (name_bytes == 0 || send_address) {
            // A longer one is too long for UDP as well: the kernel will say so.
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let mut send = opcode::Send::new(fd, bytes.as_ptr(), length).flags(flags);
            if name_bytes > 0 {
                send = send.dest_addr(self.name.as_ptr().cast()).dest_addr_len(name_bytes as u32);
            }
            return send.build();
        }
        self.iovec =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        self.header.msg_iov = &mut self.iovec;
        self.header.msg_iovlen = 1;
        self.header.msg_name = match name_bytes {
            0 => std::ptr::null_mut(),
            _ => self.name.as_mut_ptr().cast(),
        };
        self.header.msg_namelen = name_bytes as libc::socklen_t;
        self.header.msg_controllen = control.encode(setup.ipv6, &mut self.control) as _;
        self.header.msg_control = match control.is_empty() {
            true => std::ptr::null_mut(),
            false => self.control.as_mut_ptr().cast(),
        };
        opcode::SendMsg::new(fd, &self.header).flags(flags as u32).build()
    }

    /// The kernel is done with it.
    pub(super) fn finish(&mut self) -> Option<Outgoing> {
        self.outgoing.take()
    }
}

/// One single-shot receive of a datagram.
pub(super) struct RecvOp {
    pub(super) socket: Key,
    pub(super) armed: bool,
    name: [u8; NAME_BYTES],
    control: [u8; RECV_CONTROL_BYTES_MAX],
    iovec: libc::iovec,
    header: libc::msghdr,
}

impl RecvOp {
    pub(super) fn new(socket: Key) -> Box<RecvOp> {
        Box::new(RecvOp {
            socket,
            armed: false,
            name: [0; NAME_BYTES],
            control: [0; RECV_CONTROL_BYTES_MAX],
            iovec: NO_BUFFER,
            header: empty_header(),
        })
    }

    /// Describes the receive. The entry names memory of this box.
    pub(super) fn start(&mut self, fd: Fd, setup: &UdpSetup, group: u16) -> Entry {
        self.armed = true;
        let bytes = setup.buffer_bytes;
        let entry = if setup.is_plain() {
            opcode::Recv::new(fd, std::ptr::null_mut(), bytes as u32)
                .buf_group(group)
                .flags(libc::MSG_TRUNC)
                .build()
        } else {
            let (name_bytes, control_bytes) = setup.name_and_control_bytes();
            self.iovec.iov_len = bytes;
            self.header.msg_iov = &mut self.iovec;
            self.header.msg_iovlen = 1;
            self.header.msg_name = self.name.as_mut_ptr().cast();
            self.header.msg_namelen = name_bytes as libc::socklen_t;
            self.header.msg_control = self.control.as_mut_ptr().cast();
            self.header.msg_controllen = control_bytes as _;
            opcode::RecvMsg::new(fd, &mut self.header)
                .buf_group(group)
                .flags(libc::MSG_TRUNC as u32)
                .build()
        };
        entry.flags(Flags::BUFFER_SELECT)
    }

    /// What a completion of `bytes` delivered; `None` if it has no readable sender.
    pub(super) fn finish(&self, data: RecvBuf, bytes: usize, setup: &UdpSetup) -> Option<Received> {
        let truncated = bytes > setup.buffer_bytes;
        if setup.is_plain() {
            return Some(Received { truncated, ..Received::plain(data, setup.peer?) });
        }
        let name = &self.name[..NAME_BYTES.min(self.header.msg_namelen as usize)];
        let control = RECV_CONTROL_BYTES_MAX.min(self.header.msg_controllen as _);
        received(data, name, &self.control[..control], truncated, setup)
    }
}

/// What one completion of a multishot receive delivered; `None` if it makes no sense.
pub(super) fn of_multishot(
    group: &mut Provided,
    flags: u32,
    bytes: usize,
    template: &libc::msghdr,
    setup: &UdpSetup,
) -> Option<Received> {
    let data = group.take(flags, bytes.min(group.bytes()));
    if setup.is_plain() {
        // An empty datagram takes no buffer.
        let data = data.unwrap_or_else(RecvBuf::empty);
        let truncated = bytes > group.bytes();
        return Some(Received { truncated, ..Received::plain(data, setup.peer?) });
    }
    let mut data = data?;
    let (name_bytes, control_bytes) = setup.name_and_control_bytes();
    let (payload_bytes, mut delivered) = {
        let message = RecvMsgOut::parse(&data, template).ok()?;
        let told = received(
            RecvBuf::empty(),
            message.name_data(),
            message.control_data(),
            message.is_payload_truncated(),
            setup,
        );
        (message.payload_data().len(), told?)
    };
    data.advance(RECVMSG_HEADER_BYTES + name_bytes + control_bytes);
    data.truncate(payload_bytes);
    delivered.data = data;
    Some(delivered)
}

fn received(
    data: RecvBuf,
    name: &[u8],
    control: &[u8],
    truncated: bool,
    setup: &UdpSetup,
) -> Option<Received> {
    let from: SocketAddr = match setup.peer {
        Some(peer) => peer,
        None => decode_address(name)?,
    };
    Some(Received::told(data, from, decode_control(control), truncated))
}

/// The buffer that a completion names goes back unread.
pub(super) fn discard(group: &mut Provided, flags: u32) {
    if cqueue::buffer_select(flags).is_some() {
        drop(group.take(flags, 0));
    }
}
