//! Datagram calls, whose arguments are message headers.

use super::{ask, real};
use crate::driver::ancillary::fuzzing::written_by_the_kernel;
use crate::driver::ancillary::{
    NAME_BYTES, RecvControl, decode_address, decode_control, encode_address, messages,
};
use crate::sys::faults::calls::{self, Way};
use crate::sys::machine::datagram::{Outbound, Packet};
use crate::sys::machine::kernel::Kernel;
use crate::sys::machine::world;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub(crate) use super::real::datagram::*;

pub(crate) fn queued_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let asked = ask(socket.as_raw_fd(), |kernel, socket| kernel.queued_bytes(socket));
    asked.unwrap_or_else(|| real::datagram::queued_bytes(socket))
}

/// # Safety
/// As that of the real one.
pub(crate) unsafe fn recvmmsg(socket: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    if world::machine_of(socket).is_none() {
        let headers = calls::part(socket, Way::In, headers)?;
        // SAFETY: the obligation is the caller's.
        return unsafe { real::datagram::recvmmsg(socket, headers) };
    }
    let received = ask(socket, |kernel, socket| {
        let most = kernel.datagrams_for_engine(socket, headers.len())?;
        let mut count = 0;
        for header in &mut headers[..most] {
            // SAFETY: the obligation is the caller's.
            match unsafe { receive(kernel, socket, &mut header.msg_hdr) } {
                Ok((bytes, _)) => header.msg_len = bytes as libc::c_uint,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
            count += 1;
        }
        Ok(count)
    });
    received.unwrap_or_else(gone)
}

/// # Safety
/// As that of the real one.
pub(crate) unsafe fn recvmsg(socket: RawFd, header: &mut libc::msghdr) -> io::Result<usize> {
    if world::machine_of(socket).is_none() {
        calls::allowed(socket, Way::In, 1)?;
        // SAFETY: the obligation is the caller's.
        return unsafe { real::datagram::recvmsg(socket, header) };
    }
    let received = ask(socket, |kernel, socket| {
        kernel.datagrams_for_engine(socket, 1)?;
        // SAFETY: the obligation is the caller's.
        unsafe { receive(kernel, socket, header) }.map(|(bytes, _)| bytes)
    });
    received.unwrap_or_else(gone)
}

/// # Safety
/// As that of the real one.
pub(crate) unsafe fn sendmmsg(socket: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    if world::machine_of(socket).is_none() {
        let headers = calls::part(socket, Way::Out, headers)?;
        // SAFETY: the obligation is the caller's.
        return unsafe { real::datagram::sendmmsg(socket, headers) };
    }
    let sent = ask(socket, |kernel, socket| {
        let mut count = 0;
        for header in headers.iter() {
            let allowed = kernel.may_send_datagram(socket);
            // SAFETY: the obligation is the caller's.
            match allowed.and_then(|()| unsafe { transmit(kernel, socket, &header.msg_hdr) }) {
                Ok(_) => count += 1,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(count)
    });
    sent.unwrap_or_else(gone)
}

/// # Safety
/// As that of the real one.
pub(crate) unsafe fn sendmsg(socket: RawFd, header: &libc::msghdr) -> io::Result<()> {
    if world::machine_of(socket).is_none() {
        calls::allowed(socket, Way::Out, 1)?;
        // SAFETY: the obligation is the caller's.
        return unsafe { real::datagram::sendmsg(socket, header) };
    }
    let sent = ask(socket, |kernel, socket| {
        kernel.may_send_datagram(socket)?;
        // SAFETY: the obligation is the caller's.
        unsafe { transmit(kernel, socket, header) }
    });
    sent.unwrap_or_else(gone).map(drop)
}

fn gone<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EBADF))
}

/// The next datagram, with what was asked for beside it: bytes that had room, and bytes at all.
///
/// # Safety
/// The header names memory that is valid for writes of the stated lengths.
pub(crate) unsafe fn receive(
    kernel: &mut Kernel,
    socket: RawFd,
    header: &mut libc::msghdr,
) -> io::Result<(usize, usize)> {
    let (packet, told, ipv6) = kernel.receive_datagram(socket)?;
    let Packet { from, payload, .. } = packet;
    let mut name = [0; NAME_BYTES];
    let name_bytes = encode_address(&from, &mut name);
    let control = match told == RecvControl::default() {
        true => Vec::new(),
        false => written_by_the_kernel(&told, ipv6),
    };
    // SAFETY: as the caller promises; no more is written than there is room for.
    let bytes = unsafe {
        let vectors = std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen as _);
        let room = vectors.first().map_or(0, |vector| vector.iov_len);
        let bytes = payload.len().min(room);
        if let Some(vector) = vectors.first() {
            std::ptr::copy_nonoverlapping(payload.as_ptr(), vector.iov_base.cast(), bytes);
        }
        if !header.msg_name.is_null() {
            let length = name_bytes.min(header.msg_namelen as usize);
            std::ptr::copy_nonoverlapping(name.as_ptr(), header.msg_name.cast(), length);
            header.msg_namelen = name_bytes as libc::socklen_t;
        }
        let length = control.len().min(header.msg_controllen as _);
        if !header.msg_control.is_null() {
            std::ptr::copy_nonoverlapping(control.as_ptr(), header.msg_control.cast(), length);
        }
        header.msg_controllen = length as _;
        bytes
    };
    header.msg_flags = if bytes < payload.len() { libc::MSG_TRUNC } else { 0 };
    Ok((bytes, payload.len()))
}

/// The bytes that the vectors of a message name.
///
/// # Safety
/// The header names memory that is valid for reads.
pub(crate) unsafe fn payload(header: &libc::msghdr) -> Vec<u8> {
    // SAFETY: as the caller promises.
    let vectors = unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen as _) };
    let mut bytes = Vec::new();
    for vector in vectors.iter().filter(|vector| vector.iov_len > 0) {
        // SAFETY: as the caller promises.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(vector.iov_base.cast(), vector.iov_len)
        });
    }
    bytes
}

/// Returns the bytes of the payload.
///
/// # Safety
/// The header names memory that is valid for reads.
pub(crate) unsafe fn transmit(
    kernel: &mut Kernel,
    socket: RawFd,
    header: &libc::msghdr,
) -> io::Result<usize> {
    let bytes = |start: *const libc::c_void, length: usize| -> &[u8] {
        match start.is_null() || length == 0 {
            true => &[],
            // SAFETY: as the caller promises.
            false => unsafe { std::slice::from_raw_parts(start.cast(), length) },
        }
    };
    // SAFETY: as the caller promises.
    let payload = unsafe { payload(header) };
    let to = decode_address(bytes(header.msg_name, header.msg_namelen as usize));
    let control = bytes(header.msg_control, header.msg_controllen as _);
    let told = decode_control(control);
    let segment = messages(control)
        .find(|(level, kind, _)| (*level, *kind) == (libc::SOL_UDP, libc::UDP_SEGMENT))
        .and_then(|(_, _, data)| data.first_chunk().copied().map(u16::from_ne_bytes));
    let out = Outbound {
        to,
        from: told.to,
        segment_bytes: segment,
        traffic_class: told.traffic_class,
        payload: &payload,
    };
    kernel.send_datagram(socket, &out)?;
    Ok(out.payload.len())
}
