//! The memory of datagram operations. It must stay in place and unchanged while the kernel has the
//! operation, so it is in boxes that the driver keeps in tables of its own.

use crate::buf::{Pool, RecvBuf};
use crate::datagram::Received;
use crate::driver::ancillary::{
    Control, NAME_BYTES, RECV_CONTROL_BYTES_MAX, SEND_CONTROL_BYTES_MAX, decode_control,
};
use crate::driver::datagrams::{Outgoing, UdpSetup};
use crate::driver::uring::provided::Provided;
use crate::slots::Key;
use crate::sys::datagram::empty_header;
use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, RecvMsgOut};
use std::rc::Rc;

/// Bytes that a multishot recvmsg puts before address, ancillary data and payload:
/// `struct io_uring_recvmsg_out`.
pub(in crate::driver::uring) const RECVMSG_HEADER_BYTES: usize = 16;

const NO_BUFFER: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// One datagram that is being sent.
pub(in crate::driver::uring) struct SendOp {
    pub(in crate::driver::uring) socket: Key,
    outgoing: Option<Outgoing>,
    name: [u8; NAME_BYTES],
    control: [u8; SEND_CONTROL_BYTES_MAX],
    iovec: libc::iovec,
    header: libc::msghdr,
}

impl SendOp {
    pub(in crate::driver::uring) fn new(socket: Key) -> Box<SendOp> {
        Box::new(SendOp {
            socket,
            outgoing: None,
            name: [0; NAME_BYTES],
            control: [0; SEND_CONTROL_BYTES_MAX],
            iovec: NO_BUFFER,
            header: empty_header(),
        })
    }

    /// Takes `outgoing` and describes its send. The entry refers to memory of this box and of the
    /// datagram: both stay unchanged until [`finish`](SendOp::finish).
    pub(in crate::driver::uring) fn start(
        &mut self,
        fd: Fd,
        outgoing: Outgoing,
        setup: &UdpSetup,
        flags: i32,
    ) -> Entry {
        let outgoing = &*self.outgoing.insert(outgoing);
        let datagram = &outgoing.datagram;
        let bytes = datagram.data.as_slice();
        let (to, to_bytes) = outgoing.name(&mut self.name);
        let control = setup.control_for(datagram);
        if control.is_empty() {
            // A longer one is too long for UDP as well: the kernel refuses it.
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let mut send = opcode::Send::new(fd, bytes.as_ptr(), length).flags(flags);
            if to_bytes > 0 {
                send = send.dest_addr(to.cast()).dest_addr_len(to_bytes as u32);
            }
            return send.build();
        }
        self.iovec =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        self.header.msg_iov = &mut self.iovec;
        self.header.msg_iovlen = 1;
        // The kernel only reads it.
        self.header.msg_name = to.cast_mut();
        self.header.msg_namelen = to_bytes as libc::socklen_t;
        self.header.msg_controllen = control.encode(setup.ipv6, &mut self.control) as _;
        self.header.msg_control = self.control.as_mut_ptr().cast();
        opcode::SendMsg::new(fd, &self.header).flags(flags as u32).build()
    }

    /// The kernel is done with it.
    pub(in crate::driver::uring) fn finish(&mut self) -> Option<Outgoing> {
        self.outgoing.take()
    }
}

/// One single-shot receive of a datagram.
pub(in crate::driver::uring) struct RecvOp {
    pub(in crate::driver::uring) socket: Key,
    pub(in crate::driver::uring) armed: bool,
    /// Its buffer.
    buffer: Option<u16>,
    name: [u8; NAME_BYTES],
    control: [u8; RECV_CONTROL_BYTES_MAX],
    iovec: libc::iovec,
    header: libc::msghdr,
}

impl RecvOp {
    pub(in crate::driver::uring) fn new(socket: Key) -> Box<RecvOp> {
        Box::new(RecvOp {
            socket,
            armed: false,
            buffer: None,
            name: [0; NAME_BYTES],
            control: [0; RECV_CONTROL_BYTES_MAX],
            iovec: NO_BUFFER,
            header: empty_header(),
        })
    }

    /// Describes the receive. The entry refers to memory of this box and of the pool. `None` if the
    /// pool has no buffer left.
    pub(in crate::driver::uring) fn start(
        &mut self,
        fd: Fd,
        setup: &UdpSetup,
        pool: &Pool,
    ) -> Option<Entry> {
        let id = pool.take()?;
        self.buffer = Some(id);
        self.armed = true;
        let (address, bytes) = (pool.address(id), setup.buffer_bytes);
        // MSG_TRUNC makes the kernel report the whole length of a datagram that it cuts.
        if setup.is_plain() {
            return Some(
                opcode::Recv::new(fd, address, bytes as u32).flags(libc::MSG_TRUNC).build(),
            );
        }
        let (name_bytes, control_bytes) = setup.name_and_control_bytes();
        self.iovec = libc::iovec { iov_base: address.cast(), iov_len: bytes };
        self.header.msg_iov = &mut self.iovec;
        self.header.msg_iovlen = 1;
        self.header.msg_name = self.name.as_mut_ptr().cast();
        self.header.msg_namelen = name_bytes as libc::socklen_t;
        self.header.msg_control = self.control.as_mut_ptr().cast();
        self.header.msg_controllen = control_bytes as _;
        let receive = opcode::RecvMsg::new(fd, &mut self.header);
        Some(receive.flags(libc::MSG_TRUNC as u32).build())
    }

    /// The kernel is done with it: the datagram, or its errno.
    pub(in crate::driver::uring) fn finish(
        &mut self,
        result: i32,
        setup: &UdpSetup,
        pool: &Rc<Pool>,
    ) -> Result<Received, i32> {
        self.armed = false;
        let bytes = result.max(0) as usize;
        let kept = bytes.min(setup.buffer_bytes);
        let data = self.buffer.take().map(|id| RecvBuf::from_pool(pool, id, 0, kept));
        if result < 0 {
            return Err(-result);
        }
        let data = data.unwrap_or_else(RecvBuf::empty);
        let truncated = bytes > setup.buffer_bytes;
        let header = &self.header;
        let (name, control) = match setup.is_plain() {
            true => (0, 0),
            false => (header.msg_namelen as usize, header.msg_controllen as _),
        };
        let name = &self.name[..NAME_BYTES.min(name)];
        let control = &self.control[..RECV_CONTROL_BYTES_MAX.min(control)];
        received(data, name, control, truncated, setup).ok_or(libc::EBADMSG)
    }
}

/// The datagram of one completion of a multishot receive, or its errno.
pub(in crate::driver::uring) fn of_multishot(
    group: &mut Provided,
    result: i32,
    flags: u32,
    template: &libc::msghdr,
    setup: &UdpSetup,
) -> Result<Received, i32> {
    let bytes = result.max(0) as usize;
    let data = group.take(flags, bytes.min(group.bytes()));
    if result < 0 {
        return Err(-result);
    }
    if let Some(peer) = setup.peer.filter(|_| setup.is_plain()) {
        // An empty datagram takes no buffer.
        let data = data.unwrap_or_else(RecvBuf::empty);
        let truncated = bytes > group.bytes();
        return Ok(Received::told(data, peer, Control::default(), truncated));
    }
    parse_multishot(data, template, setup).ok_or(libc::EBADMSG)
}

/// Takes header, address and ancillary data off the front of a buffer.
fn parse_multishot(
    data: Option<RecvBuf>,
    template: &libc::msghdr,
    setup: &UdpSetup,
) -> Option<Received> {
    let mut data = data?;
    let (name_bytes, control_bytes) = setup.name_and_control_bytes();
    let (payload_bytes, told) = {
        let message = RecvMsgOut::parse(&data, template).ok()?;
        let (name, control) = (message.name_data(), message.control_data());
        let truncated = message.is_payload_truncated();
        let told = received(RecvBuf::empty(), name, control, truncated, setup)?;
        (message.payload_data().len(), told)
    };
    data.advance(RECVMSG_HEADER_BYTES + name_bytes + control_bytes);
    data.truncate(payload_bytes);
    Some(Received { data, ..told })
}

fn received(
    data: RecvBuf,
    name: &[u8],
    control: &[u8],
    truncated: bool,
    setup: &UdpSetup,
) -> Option<Received> {
    let from = setup.sender(name)?;
    Some(Received::told(data, from, decode_control(control), truncated))
}
