//! io_uring(7) of a simulated machine: the execution of submitted entries.
//!
//! As in Linux: an operation is tried when it is submitted. If it would block, it waits at its
//! descriptor; an event there queues a retry as work, and the work is done when the ring is entered
//! (with IORING_SETUP_DEFER_TASKRUN only by an enter that takes completions). A multishot operation
//! continues until no more data is available. Completions that find their queue full wait behind
//! it.

mod attempts;

use super::kernel::{Event, Kernel, error};
use super::poll::{ERR, HUP, IN, RDHUP};
use super::ring_memory::Group;
use crate::config::TaskRun;
use crate::sys::faults::Fault;
use crate::sys::ring::Setup;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::RawFd;

/// struct io_uring_sqe of linux/io_uring.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sqe {
    pub(in crate::sys) opcode: u8,
    pub(in crate::sys) flags: u8,
    pub(in crate::sys) ioprio: u16,
    pub(in crate::sys) fd: i32,
    pub(in crate::sys) off: u64,
    pub(in crate::sys) addr: u64,
    pub(in crate::sys) len: u32,
    pub(in crate::sys) op_flags: u32,
    pub(in crate::sys) user_data: u64,
    pub(in crate::sys) buf_group: u16,
    personality: u16,
    /// Also a file index, or the length of an address.
    pub(in crate::sys) addr_len: u16,
    _high: u16,
    rest: [u64; 2],
}

impl Sqe {
    /// A no-op.
    pub(in crate::sys) fn nop(user_data: u64) -> Sqe {
        Sqe {
            opcode: code::NOP,
            flags: 0,
            ioprio: 0,
            fd: -1,
            off: 0,
            addr: 0,
            len: 0,
            op_flags: 0,
            user_data,
            buf_group: 0,
            personality: 0,
            addr_len: 0,
            _high: 0,
            rest: [0; 2],
        }
    }
}

/// One completion: struct io_uring_cqe.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub(in crate::sys) user_data: u64,
    pub(in crate::sys) result: i32,
    pub(in crate::sys) flags: u32,
}

// linux/io_uring.h
pub(in crate::sys) mod code {
    pub(crate) const NOP: u8 = 0;
    pub(crate) const POLL_ADD: u8 = 6;
    pub(crate) const SENDMSG: u8 = 9;
    pub(crate) const RECVMSG: u8 = 10;
    pub(crate) const TIMEOUT: u8 = 11;
    pub(crate) const ACCEPT: u8 = 13;
    pub(crate) const ASYNC_CANCEL: u8 = 14;
    pub(crate) const CONNECT: u8 = 16;
    pub(crate) const CLOSE: u8 = 19;
    pub(crate) const STATX: u8 = 21;
    pub(crate) const READ: u8 = 22;
    pub(crate) const SEND: u8 = 26;
    pub(crate) const RECV: u8 = 27;
    pub(crate) const OPENAT2: u8 = 28;
    pub(crate) const PROVIDE_BUFFERS: u8 = 31;
    pub(crate) const SEND_ZC: u8 = 47;
}
const SQE_FIXED_FILE: u8 = 1;
pub(super) const SQE_BUFFER_SELECT: u8 = 1 << 5;
pub(in crate::sys) const SQE_SKIP_SUCCESS: u8 = 1 << 6;
pub(in crate::sys) const ACCEPT_MULTISHOT: u16 = 1;
pub(in crate::sys) const RECV_MULTISHOT: u16 = 2;
pub(in crate::sys) const POLL_MULTI: u32 = 1;
pub(in crate::sys) const CQE_MORE: u32 = 1 << 1;
const CQE_NOTIFICATION: u32 = 1 << 3;

/// Consecutive completions of a multishot receive (MULTISHOT_MAX_RETRY), and work done at once
/// (IO_LOCAL_TW_DEFAULT_MAX).
const IN_A_ROW: u32 = 32;
const WORK_AT_ONCE: usize = 20;

/// A reset this soon after data may have arrived together with it.
const TOGETHER_NS: u64 = 200_000_000;

/// An operation that has not ended.
struct Operation {
    sqe: Sqe,
    /// The descriptor at which it waits, and the bits.
    waits: Option<(RawFd, u32)>,
    /// A retry is queued as work.
    queued: bool,
    /// The part that was sent.
    done: usize,
    /// The last completion of a multishot operation that continues.
    heard_ns: Option<u64>,
}

/// The outcome of an attempt.
pub(super) enum Tried {
    /// It is over, with this result and these flags; true if that is a success.
    Over(i32, u32),
    /// It ended short or failed: reported even if success is not.
    Failed(i32),
    /// One completion, and it continues.
    More(i32, u32),
    /// It waits at a descriptor for these bits.
    Waits(RawFd, u32),
    /// It is over some time later.
    Later(u64),
}

pub(super) struct Ring {
    setup: Setup,
    operations: BTreeMap<u64, Operation>,
    last: u64,
    work: VecDeque<u64>,
    queue: VecDeque<Cqe>,
    overflow: VecDeque<Cqe>,
    pub(super) groups: BTreeMap<u16, Group>,
    files: Vec<RawFd>,
}

impl Ring {
    fn operation_of(&self, user_data: u64) -> Option<u64> {
        let mut found = self.operations.iter().filter(|(_, op)| op.sqe.user_data == user_data);
        found.next().map(|(id, _)| *id)
    }
}

impl Kernel {
    pub(crate) fn ring_create(&mut self, setup: Setup) -> io::Result<RawFd> {
        if self.open >= self.descriptors_max {
            return Err(error(libc::EMFILE));
        }
        if self.dice.strikes(Fault::RingNoMemory) {
            return Err(error(libc::ENOMEM));
        }
        self.open += 1;
        let fd = self.next_fd();
        let ring = Ring {
            setup,
            operations: BTreeMap::new(),
            last: 0,
            work: VecDeque::new(),
            queue: VecDeque::new(),
            overflow: VecDeque::new(),
            groups: BTreeMap::new(),
            files: Vec::new(),
        };
        self.rings.insert(fd, ring);
        Ok(fd)
    }

    /// close(2) of a ring; false if it is not a ring. Its remaining operations would have been
    /// cancelled.
    pub(super) fn close_ring(&mut self, fd: RawFd) -> bool {
        let Some(ring) = self.rings.remove(&fd) else { return false };
        self.open -= 1;
        let names_no_memory = [code::POLL_ADD, code::TIMEOUT, code::ACCEPT];
        let writes = ring.operations.values().any(|op| !names_no_memory.contains(&op.sqe.opcode));
        if writes {
            self.complain(|| "a ring was closed with operations in flight".into());
        }
        true
    }

    pub(super) fn ring(&mut self, fd: RawFd) -> io::Result<&mut Ring> {
        self.rings.get_mut(&fd).ok_or_else(|| error(libc::EBADF))
    }

    /// Registers a table of `count` empty places.
    pub(crate) fn ring_files(&mut self, ring: RawFd, count: u32) -> io::Result<()> {
        let ring = self.ring(ring)?;
        if !ring.files.is_empty() {
            return Err(error(libc::EBUSY));
        }
        ring.files = vec![-1; count as usize];
        Ok(())
    }

    /// As IORING_REGISTER_FILES_UPDATE. A slot holds no reference here: the driver that empties it
    /// closes first or afterwards.
    pub(crate) fn ring_update_files(
        &mut self,
        ring: RawFd,
        place: u32,
        fds: &[RawFd],
    ) -> io::Result<usize> {
        let files = &mut self.ring(ring)?.files;
        let places = files.get_mut(place as usize..place as usize + fds.len());
        places.ok_or_else(|| error(libc::EINVAL))?.copy_from_slice(fds);
        Ok(fds.len())
    }

    /// Takes an entry and tries it.
    ///
    /// # Safety
    /// The memory that it refers to stays valid until its last completion.
    pub(crate) unsafe fn ring_submit(&mut self, ring: RawFd, mut sqe: Sqe) -> io::Result<()> {
        let found = self.ring(ring)?;
        if sqe.flags & SQE_FIXED_FILE != 0 {
            sqe.fd = found.files.get(sqe.fd as usize).copied().unwrap_or(-1);
        }
        found.last += 1;
        let id = found.last;
        let operation = Operation { sqe, waits: None, queued: false, done: 0, heard_ns: None };
        found.operations.insert(id, operation);
        match sqe.opcode {
            code::ASYNC_CANCEL => self.cancel(ring, id, sqe.addr),
            _ => self.try_operation(ring, id),
        }
        Ok(())
    }

    fn cancel(&mut self, ring: RawFd, id: u64, user_data: u64) {
        let Some(found) = self.rings.get_mut(&ring) else { return };
        let Some(cancel) = found.operations.remove(&id) else { return };
        let target = found.operation_of(user_data);
        let result = match target.and_then(|target| found.operations.get(&target)) {
            None => -libc::ENOENT,
            // A read in progress on a disk cannot be cancelled.
            Some(operation) if operation.is_at_work() => -libc::EALREADY,
            Some(_) => 0,
        };
        if let Some(target) = target.filter(|_| result == 0) {
            self.end(ring, target, -libc::ECANCELED, 0, false);
        }
        self.post(ring, Cqe { user_data: cancel.sqe.user_data, result, flags: 0 });
    }

    /// An operation is over.
    fn end(&mut self, ring: RawFd, id: u64, result: i32, flags: u32, success: bool) {
        let Some(found) = self.rings.get_mut(&ring) else { return };
        let Some(Operation { sqe, .. }) = found.operations.remove(&id) else { return };
        found.work.retain(|queued| *queued != id);
        if success && sqe.flags & SQE_SKIP_SUCCESS != 0 {
            return;
        }
        self.post(ring, Cqe { user_data: sqe.user_data, result, flags });
    }

    fn post(&mut self, ring: RawFd, completion: Cqe) {
        // Numbers of descriptors differ from world to world.
        let result = completion.result;
        let told = if self.is_own(result) { 0 } else { i64::from(result) };
        self.note("completed", ring, told);
        let strikes = self.dice.strikes(Fault::Overflow);
        let Some(ring) = self.rings.get_mut(&ring) else { return };
        let full = ring.queue.len() >= ring.setup.cq_entries as usize || !ring.overflow.is_empty();
        // An empty queue accepts at least one; otherwise the program would not take the others.
        match full || strikes && !ring.queue.is_empty() {
            true => ring.overflow.push_back(completion),
            false => ring.queue.push_back(completion),
        }
    }

    /// Tries an operation, and a multishot one until no more data is available.
    fn try_operation(&mut self, ring: RawFd, id: u64) {
        for round in 0.. {
            let Some(found) = self.rings.get_mut(&ring) else { return };
            let Some(operation) = found.operations.get_mut(&id) else { return };
            operation.queued = false;
            operation.waits = None;
            let (sqe, done) = (operation.sqe, operation.done);
            let heard_ns = operation.heard_ns;
            if self.loses_reset(&sqe, heard_ns) {
                return self.wait_at(ring, id, sqe.fd, IN | RDHUP);
            }
            match self.attempt(ring, &sqe, done, id) {
                Tried::Over(result, flags) => {
                    return self.end(ring, id, result, flags, result >= 0);
                }
                Tried::Failed(result) => return self.end(ring, id, result, 0, false),
                Tried::More(result, flags) => {
                    let ends = self.dice.strikes(Fault::EndedEarly);
                    if ends {
                        return self.end(ring, id, result, flags, false);
                    }
                    let (flags, now_ns) = (flags | CQE_MORE, self.now_ns());
                    self.set_heard(ring, id, now_ns);
                    self.post(ring, Cqe { user_data: sqe.user_data, result, flags });
                    if sqe.opcode == code::POLL_ADD {
                        return self.wait_at(ring, id, sqe.fd, sqe.op_flags);
                    }
                    if round == IN_A_ROW {
                        return self.put_down(ring, id);
                    }
                }
                Tried::Waits(fd, bits) => return self.wait_at(ring, id, fd, bits),
                Tried::Later(after_ns) => {
                    return self.schedule(after_ns, Event::RingWork { ring, id });
                }
            }
        }
    }

    fn set_heard(&mut self, ring: RawFd, id: u64, now_ns: u64) {
        let operation = self.rings.get_mut(&ring).and_then(|ring| ring.operations.get_mut(&id));
        operation.into_iter().for_each(|operation| operation.heard_ns = Some(now_ns));
    }

    /// As in Linux (liburing issue 1549): a multishot receive that has taken data does not notice a
    /// reset that arrived together with it, and waits for a further event.
    fn loses_reset(&mut self, sqe: &Sqe, heard_ns: Option<u64>) -> bool {
        let now_ns = self.now_ns();
        let together = heard_ns.is_some_and(|since_ns| now_ns - since_ns < TOGETHER_NS);
        if sqe.opcode != code::RECV || !together {
            return false;
        }
        let socket = self.socket_of(sqe.fd);
        let is_reset = self.tcp(socket).is_some_and(|tcp| tcp.is_reset());
        is_reset && self.dice.strikes(Fault::LostReset)
    }

    fn wait_at(&mut self, ring: RawFd, id: u64, fd: RawFd, bits: u32) {
        let socket = self.socket_of(fd);
        // Requests space, so that it is notified.
        self.bits(socket);
        if let Some(operation) =
            self.rings.get_mut(&ring).and_then(|ring| ring.operations.get_mut(&id))
        {
            operation.waits = Some((socket, bits));
        }
    }

    /// Queues work for the next enter that does any.
    pub(super) fn put_down(&mut self, ring: RawFd, id: u64) {
        let Some(found) = self.rings.get_mut(&ring) else { return };
        if let Some(operation) = found.operations.get_mut(&id)
            && !std::mem::replace(&mut operation.queued, true)
        {
            found.work.push_back(id);
        }
    }

    /// Something has happened at a socket: operations that wait for it are tried again.
    pub(super) fn tell_rings(&mut self, socket: RawFd, bits: u32) {
        let mut told = Vec::new();
        for (fd, ring) in &self.rings {
            let waiting = ring.operations.iter().filter(|(_, operation)| {
                operation
                    .waits
                    .is_some_and(|(at, wanted)| at == socket && bits & (wanted | ERR | HUP) != 0)
            });
            told.extend(waiting.map(|(id, _)| (*fd, *id)));
        }
        for (ring, id) in told {
            self.put_down(ring, id);
            let other = self.dice.strikes(Fault::Reordered);
            if let Some(found) = self.rings.get_mut(&ring)
                && other
                && found.work.len() > 1
            {
                let last = found.work.len() - 1;
                found.work.swap(last - 1, last);
            }
        }
    }

    /// Does queued work, at most as much as the kernel does at once, and moves completions from the
    /// overflow list to the queue.
    pub(crate) fn ring_work(&mut self, ring: RawFd, least: u32) -> io::Result<()> {
        let at_once = WORK_AT_ONCE.max(least as usize);
        for _ in 0..at_once {
            let Some(id) = self.ring(ring)?.work.pop_front() else { break };
            self.try_operation(ring, id);
        }
        let ring = self.ring(ring)?;
        while ring.queue.len() < ring.setup.cq_entries as usize
            && let Some(completion) = ring.overflow.pop_front()
        {
            ring.queue.push_back(completion);
        }
        Ok(())
    }

    /// True if deferred work is left to enters that ask for completions.
    pub(crate) fn ring_defers(&mut self, ring: RawFd) -> io::Result<bool> {
        Ok(self.ring(ring)?.setup.taskrun == TaskRun::Defer)
    }

    /// The number of completions in the queue.
    pub(crate) fn ring_arrived(&self, ring: RawFd) -> usize {
        self.rings.get(&ring).map_or(0, |ring| ring.queue.len())
    }

    pub(crate) fn ring_overflowed(&self, ring: RawFd) -> bool {
        self.rings.get(&ring).is_some_and(|ring| !ring.overflow.is_empty())
    }

    pub(crate) fn ring_take(&mut self, ring: RawFd) -> Vec<Cqe> {
        self.rings.get_mut(&ring).map_or_else(Vec::new, |ring| ring.queue.drain(..).collect())
    }

    /// True if a wait for this ring need not wait.
    pub(super) fn ring_has_reports(&self, ring: RawFd) -> bool {
        self.rings.get(&ring).is_some_and(|ring| {
            !ring.queue.is_empty() || !ring.work.is_empty() || !ring.overflow.is_empty()
        })
    }

    pub(super) fn set_done(&mut self, ring: RawFd, id: u64, done: usize) {
        if let Some(operation) =
            self.rings.get_mut(&ring).and_then(|ring| ring.operations.get_mut(&id))
        {
            operation.done = done;
        }
    }

    /// The kernel no longer needs a buffer that it did not copy.
    pub(super) fn ring_notify(&mut self, ring: RawFd, user_data: u64) {
        self.post(ring, Cqe { user_data, result: 0, flags: CQE_NOTIFICATION });
    }
}

impl Operation {
    /// Waits neither at a socket nor for a retry: it is with a disk or a timer.
    fn is_at_work(&self) -> bool {
        let cancellable = self.sqe.opcode == code::TIMEOUT;
        self.waits.is_none() && !self.queued && !cancellable
    }
}
