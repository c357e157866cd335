//! The memory that entries of a simulated ring refer to: buffers, addresses, message headers,
//! files. It belongs to the driver, which keeps it as long as a kernel needs it.

use super::datagram::Outbound;
use super::kernel::{Kernel, error};
use super::ring::{RECV_MULTISHOT, SQE_BUFFER_SELECT, Sqe, Tried, code};
use super::tcp::copy_front;
use crate::driver::ancillary::decode_address;
use crate::sys::datagram::{empty_header, payload, receive, transmit};
use crate::sys::faults::Fault;
use crate::sys::{real, simulated};
use io_uring::types::BufRingEntry;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};

const CQE_BUFFER: u32 = 1;
const CQE_BUFFER_MORE: u32 = 1 << 4;

/// The source of buffers to receive into.
pub(crate) enum Group {
    /// A ring of entries in memory of the driver.
    Ring { start: *mut BufRingEntry, count: u16, head: u16, incremental: bool },
    /// IORING_OP_PROVIDE_BUFFERS: address, bytes and number of each.
    Legacy(VecDeque<(u64, u32, u16)>),
}

/// A buffer that the kernel may fill.
#[derive(Clone, Copy)]
struct Buffer {
    address: u64,
    bytes: usize,
    id: u16,
}

/// The result of a receive.
pub(super) struct Got {
    pub(super) count: usize,
    /// A multishot receive continues after it.
    pub(super) goes_on: bool,
}

impl Group {
    /// The next buffer, which stays the next until it is taken.
    fn next(&self) -> Option<Buffer> {
        match self {
            Group::Ring { start, count, head, .. } => {
                // SAFETY: the driver that registered the ring keeps its memory until the ring is
                // closed.
                let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(*start).cast_mut()) };
                if tail.load(Ordering::Acquire) == *head {
                    return None;
                }
                // SAFETY: as above; the place is within the `count` entries.
                let entry = unsafe { &*start.add(usize::from(*head & (*count - 1))) };
                let (address, bytes) = (entry.addr(), entry.len() as usize);
                Some(Buffer { address, bytes, id: entry.bid() })
            }
            Group::Legacy(buffers) => buffers.front().map(|(address, bytes, id)| Buffer {
                address: *address,
                bytes: *bytes as usize,
                id: *id,
            }),
        }
    }

    /// Takes the next buffer, or the first `bytes` of it; returns the flags of the completion.
    fn take(&mut self, bytes: usize) -> u32 {
        let Some(buffer) = self.next() else { return 0 };
        let flags = CQE_BUFFER | u32::from(buffer.id) << 16;
        match self {
            Group::Ring { start, count, head, incremental } => {
                if *incremental && bytes < buffer.bytes {
                    // SAFETY: as in `next`. The kernel moves the entry on as well.
                    let entry = unsafe { &mut *start.add(usize::from(*head & (*count - 1))) };
                    entry.set_addr(buffer.address + bytes as u64);
                    entry.set_len((buffer.bytes - bytes) as u32);
                    return flags | CQE_BUFFER_MORE;
                }
                *head = head.wrapping_add(1);
            }
            Group::Legacy(buffers) => {
                buffers.pop_front();
            }
        }
        flags
    }
}

/// The address of a connect.
///
/// # Safety
/// The entry names one.
pub(super) unsafe fn address(sqe: &Sqe) -> Option<SocketAddr> {
    // SAFETY: as the caller says.
    decode_address(unsafe { std::slice::from_raw_parts(sqe.addr as *const u8, sqe.off as usize) })
}

/// The time of a timeout.
///
/// # Safety
/// The entry names one.
pub(super) unsafe fn nanoseconds(sqe: &Sqe) -> u64 {
    // SAFETY: as the caller says: struct __kernel_timespec.
    let [seconds, nanoseconds] = unsafe { *(sqe.addr as *const [i64; 2]) };
    (seconds.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(nanoseconds as u64)
}

/// The length of the first vector of a message; 0 for a multishot receive, whose header has none.
///
/// # Safety
/// The entry names a header.
unsafe fn vector_bytes(sqe: &Sqe) -> usize {
    if sqe.ioprio & RECV_MULTISHOT != 0 {
        return 0;
    }
    // SAFETY: as the caller says.
    unsafe {
        let header = &*(sqe.addr as *const libc::msghdr);
        if header.msg_iovlen > 0 { (*header.msg_iov).iov_len } else { 0 }
    }
}

impl Kernel {
    /// # Safety
    /// `start` points to memory for all entries that lives as long as the ring.
    pub(crate) unsafe fn ring_buffers(
        &mut self,
        ring: RawFd,
        start: u64,
        count: u16,
        group: u16,
        incremental: bool,
    ) -> io::Result<()> {
        let groups = &mut self.ring(ring)?.groups;
        if groups.contains_key(&group) {
            return Err(error(libc::EEXIST));
        }
        let start = start as *mut BufRingEntry;
        groups.insert(group, Group::Ring { start, count, head: 0, incremental });
        Ok(())
    }

    pub(super) fn provide(&mut self, ring: RawFd, sqe: &Sqe) -> Tried {
        let Ok(ring) = self.ring(ring) else { return Tried::Failed(-libc::EBADF) };
        let group = ring.groups.entry(sqe.buf_group).or_insert(Group::Legacy(VecDeque::new()));
        let Group::Legacy(buffers) = group else { return Tried::Failed(-libc::EINVAL) };
        for at in 0..sqe.fd as u64 {
            let id = (sqe.off + at) as u16;
            buffers.push_back((sqe.addr + at * u64::from(sqe.len), sqe.len, id));
        }
        Tried::Over(0, 0)
    }

    /// Sends the rest of an entry behind `done`; also returns its total length.
    ///
    /// # Safety
    /// The memory that the entry names is valid.
    pub(super) unsafe fn send_of_entry(
        &mut self,
        sqe: &Sqe,
        socket: RawFd,
        done: usize,
    ) -> (io::Result<usize>, usize) {
        if sqe.opcode == code::SENDMSG {
            // SAFETY: as the caller says.
            let header = unsafe { &*(sqe.addr as *const libc::msghdr) };
            if let Ok(true) = self.is_stream(socket) {
                // SAFETY: as the caller says.
                let bytes = unsafe { payload(header) };
                return (self.transmit(socket, &bytes[done..]), bytes.len());
            }
            // SAFETY: as the caller says.
            return match unsafe { transmit(self, socket, header) } {
                Ok(bytes) => (Ok(bytes), bytes),
                Err(refused) => (Err(refused), 0),
            };
        }
        let whole = sqe.len as usize;
        // SAFETY: as the caller says.
        let bytes = unsafe { std::slice::from_raw_parts(sqe.addr as *const u8, whole) };
        match self.is_stream(socket) {
            Ok(true) => (self.transmit(socket, &bytes[done..]), whole),
            Ok(false) => {
                let name_bytes = usize::from(sqe.addr_len);
                let to = (sqe.off != 0 && name_bytes > 0).then(|| {
                    // SAFETY: as the caller says.
                    let name =
                        unsafe { std::slice::from_raw_parts(sqe.off as *const u8, name_bytes) };
                    decode_address(name)
                });
                let out = Outbound { to: to.flatten(), payload: bytes, ..Outbound::default() };
                (self.send_datagram(socket, &out).map(|()| whole), whole)
            }
            Err(refused) => (Err(refused), whole),
        }
    }

    /// Executes the receive of an entry; also returns the flags of its completion.
    ///
    /// # Safety
    /// The memory that the entry names is valid.
    pub(super) unsafe fn receive_of_entry(
        &mut self,
        ring: RawFd,
        sqe: &Sqe,
        socket: RawFd,
    ) -> io::Result<(Got, u32)> {
        let selects = sqe.flags & SQE_BUFFER_SELECT != 0;
        let buffer = match selects {
            true => {
                let group = self.ring(ring)?.groups.get(&sqe.buf_group);
                let buffer = group.and_then(Group::next).ok_or_else(|| error(libc::ENOBUFS))?;
                let most = match sqe.opcode {
                    // For a message, that of its first vector. SAFETY: as the caller says.
                    code::RECVMSG => unsafe { vector_bytes(sqe) },
                    _ => sqe.len as usize,
                };
                let most = if most > 0 { most } else { buffer.bytes };
                Buffer { bytes: buffer.bytes.min(most), ..buffer }
            }
            false => Buffer { address: sqe.addr, bytes: sqe.len as usize, id: 0 },
        };
        // SAFETY: as the caller says, or the group's: exclusive memory.
        let (got, used) = unsafe {
            match sqe.opcode {
                code::RECVMSG => self.receive_message(sqe, socket, buffer, selects)?,
                _ => self.receive_bytes(sqe, socket, buffer)?,
            }
        };
        let flags = match selects && used > 0 {
            true => self.ring(ring)?.groups.get_mut(&sqe.buf_group).map_or(0, |g| g.take(used)),
            false => 0,
        };
        Ok((got, flags))
    }

    /// # Safety
    /// The buffer is exclusive memory.
    unsafe fn receive_bytes(
        &mut self,
        sqe: &Sqe,
        socket: RawFd,
        buffer: Buffer,
    ) -> io::Result<(Got, usize)> {
        let start = buffer.address as *mut MaybeUninit<u8>;
        // SAFETY: as the caller says.
        let into = unsafe { std::slice::from_raw_parts_mut(start, buffer.bytes) };
        if self.is_stream(socket)? {
            let count = self.recv_accounted(socket, into)?;
            return Ok((Got { count, goes_on: count > 0 }, count));
        }
        let (packet, ..) = self.receive_datagram(socket)?;
        let used = copy_front(into, &packet.payload);
        let tells_whole = sqe.op_flags & libc::MSG_TRUNC as u32 != 0;
        let count = if tells_whole { packet.payload.len() } else { used };
        Ok((Got { count, goes_on: count > 0 }, used))
    }

    /// # Safety
    /// The entry names a header, and the buffer is exclusive memory.
    unsafe fn receive_message(
        &mut self,
        sqe: &Sqe,
        socket: RawFd,
        buffer: Buffer,
        selects: bool,
    ) -> io::Result<(Got, usize)> {
        // SAFETY: as the caller says.
        let theirs = unsafe { &mut *(sqe.addr as *mut libc::msghdr) };
        let address = buffer.address as *mut u8;
        if sqe.ioprio & RECV_MULTISHOT == 0 {
            let mut vector = libc::iovec { iov_base: address.cast(), iov_len: buffer.bytes };
            let own = theirs.msg_iov;
            if selects {
                theirs.msg_iov = &raw mut vector;
            }
            // SAFETY: as the caller says.
            let received = unsafe { receive(self, socket, theirs) };
            theirs.msg_iov = own;
            let (used, whole) = received?;
            return Ok((Got { count: whole, goes_on: false }, used.max(usize::from(selects))));
        }
        // struct io_uring_recvmsg_out, the address, ancillary data, and the payload.
        const OUT_BYTES: usize = 16;
        let names = theirs.msg_namelen as usize;
        let controls: usize = theirs.msg_controllen as _;
        let before = OUT_BYTES + names + controls;
        if buffer.bytes < before {
            return Err(error(libc::EFAULT));
        }
        let mut vector = libc::iovec {
            // SAFETY: within the buffer, as was just checked.
            iov_base: unsafe { address.add(before) }.cast(),
            iov_len: buffer.bytes - before,
        };
        let mut header = empty_header();
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        // SAFETY: both lie within the buffer.
        unsafe {
            header.msg_name = address.add(OUT_BYTES).cast();
            header.msg_control = address.add(OUT_BYTES + names).cast();
        }
        header.msg_namelen = names as libc::socklen_t;
        header.msg_controllen = controls as _;
        // SAFETY: the header names parts of the buffer.
        let (used, whole) = unsafe { receive(self, socket, &mut header)? };
        let told = [header.msg_namelen, header.msg_controllen as u32, whole as u32];
        // SAFETY: the first bytes of the buffer, without an assumption about its alignment.
        unsafe {
            address.cast::<[u32; 4]>().write_unaligned([
                told[0],
                told[1],
                told[2],
                header.msg_flags as u32,
            ]);
        }
        Ok((Got { count: before + used, goes_on: true }, before + used))
    }

    /// Files are those of the real filesystem, and take time.
    pub(super) fn try_file(&mut self, ring: RawFd, sqe: &Sqe, done: usize, id: u64) -> Tried {
        if done == 0 {
            self.set_done(ring, id, 1);
            let slow = self.dice.strikes(Fault::Late);
            let range = if slow { 1_000_000..50_000_000 } else { 5_000..200_000 };
            return Tried::Later(self.dice.between(range));
        }
        // SAFETY: the memory that the entry names belongs to the operation until it has ended.
        match unsafe { self.run_file(sqe) } {
            Ok(value) => Tried::Over(value, 0),
            Err(refused) => Tried::Failed(-crate::driver::errno(&refused)),
        }
    }

    /// # Safety
    /// The memory that the entry names is valid.
    unsafe fn run_file(&mut self, sqe: &Sqe) -> io::Result<i32> {
        match sqe.opcode {
            code::OPENAT2 => {
                self.may_have_descriptor()?;
                // SAFETY: a descriptor, a path and an open_how of the driver.
                let (dir, path, how) = unsafe {
                    (
                        BorrowedFd::borrow_raw(sqe.fd),
                        CStr::from_ptr(sqe.addr as *const libc::c_char),
                        &*(sqe.off as *const real::file::OpenHow),
                    )
                };
                Ok(real::file::open_at(dir, path, how)?.into_raw_fd())
            }
            code::STATX => {
                // SAFETY: a descriptor, and a statx of the driver.
                let status = unsafe { real::file::status(BorrowedFd::borrow_raw(sqe.fd), 0)? };
                // SAFETY: as above.
                unsafe { *(sqe.off as *mut libc::statx) = *status.get() };
                Ok(0)
            }
            _ => {
                if self.dice.strikes(Fault::FileTruncated) {
                    return Ok(0);
                }
                // SAFETY: a descriptor, and memory of the driver.
                let (file, into) = unsafe {
                    let into = sqe.addr as *mut u8;
                    std::ptr::write_bytes(into, 0, sqe.len as usize);
                    let into = std::slice::from_raw_parts_mut(into, sqe.len as usize);
                    (BorrowedFd::borrow_raw(sqe.fd), into)
                };
                let read = real::file::read_into(file, sqe.off, into)?;
                simulated::file::has_read(read);
                Ok(read as i32)
            }
        }
    }
}
