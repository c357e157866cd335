//! Faults between the real kernel and a ring: operations that request less than the program did, or
//! are not executed at all, and completions that come later and reordered. A kernel may do all of
//! that.
//!
//! A refused operation goes to the kernel as a no-op with the same user data, whose completion then
//! reports the refusal; like a refused operation, it never ran.

use super::dice::{Dice, Fault, OF_DESCRIPTORS};
use super::real;
use io_uring::opcode::{
    Accept, AsyncCancel, Close, Connect, Nop, PollAdd, Read, Recv, RecvMsg, Send, SendMsg,
};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// struct io_uring_sqe of linux/io_uring.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    buf_group: u16,
    rest_of_word: [u16; 3],
    rest: [u64; 2],
}

/// struct io_uring_cqe.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    user_data: u64,
    result: i32,
    flags: u32,
}

const SQE_SKIP_SUCCESS: u8 = 1 << 6;
const ACCEPT_MULTISHOT: u16 = 1;
const RECV_MULTISHOT: u16 = 2;
const POLL_MULTI: u32 = 1;
const CQE_MORE: u32 = 1 << 1;

/// A reset this soon after data may have arrived together with it.
const TOGETHER: Duration = Duration::from_millis(200);

/// The maximum number of reads of the completion queue for which one is held back.
const LOOKS_MAX: u64 = 8;

/// The maximum length of a receive that is made short.
const SHORT_RECEIVE_BYTES_MAX: usize = 64;

/// The layer between the kernel and one ring.
pub(super) struct Layer {
    dice: Dice,
    /// Operations that have not ended, by user data, if their completions may be affected. Those
    /// that complete only on failure are not among them.
    pending: HashMap<u64, Pending>,
    /// Held back, with the remaining reads.
    held: VecDeque<(u64, Cqe)>,
    /// Receives that have ended with this errno while the program regards them as armed.
    lost: HashMap<u64, i32>,
    /// Errors for later receives: the kernel has reported them, once.
    owed: HashMap<u64, i32>,
}

#[derive(Default)]
struct Pending {
    /// It receives from a stream.
    receives: bool,
    may_be_held: bool,
    /// The result that the completion of the no-op in its place reports.
    refused: Option<i32>,
    /// It has received data and continues, since then.
    heard: Option<Instant>,
    /// It ends because of a cancellation, and the program sees its completion.
    cancelled: bool,
}

impl Layer {
    /// If faults were requested.
    pub(super) fn new() -> Option<Layer> {
        Some(Layer {
            dice: Dice::asked_for()?,
            pending: HashMap::new(),
            held: VecDeque::new(),
            lost: HashMap::new(),
            owed: HashMap::new(),
        })
    }

    /// The entry that goes to the kernel instead of `sqe`. It names no other memory.
    pub(super) fn submitted(&mut self, mut sqe: Sqe) -> Sqe {
        if sqe.opcode == AsyncCancel::CODE {
            self.end_lost(sqe.addr);
        }
        // Datagrams are received with MSG_TRUNC, and only sends on streams want all sent.
        let stream = match sqe.opcode {
            Recv::CODE => sqe.op_flags & libc::MSG_TRUNC as u32 == 0,
            Send::CODE | SendMsg::CODE => sqe.op_flags & libc::MSG_WAITALL as u32 != 0,
            _ => false,
        };
        let pending = Pending {
            receives: stream && sqe.opcode == Recv::CODE,
            may_be_held: self.may_be_held(&sqe, stream),
            refused: self.refusal(&sqe, stream),
            ..Pending::default()
        };
        if pending.refused.is_some() {
            sqe = Sqe { opcode: Nop::CODE, fd: -1, user_data: sqe.user_data, ..Sqe::default() };
        } else {
            self.reduce(&mut sqe, stream);
        }
        if sqe.flags & SQE_SKIP_SUCCESS == 0 {
            self.pending.insert(sqe.user_data, pending);
        }
        sqe
    }

    /// A receive that has lost its reset is cancelled like any other, and the others lose none any
    /// more.
    fn end_lost(&mut self, user_data: u64) {
        if let Some(errno) = self.lost.remove(&user_data) {
            self.owed.insert(user_data, errno);
            let cancelled = Cqe { user_data, result: -libc::ECANCELED, flags: 0 };
            self.held.push_back((1, cancelled));
        } else if let Some(pending) = self.pending.get_mut(&user_data) {
            pending.cancelled = true;
        }
    }

    /// The error with which a fault ends an operation; none lets one datagram overtake another.
    fn refusal(&mut self, sqe: &Sqe, stream: bool) -> Option<i32> {
        const OF_ACCEPTS: &[(Fault, i32)] =
            &[(Fault::Cancelled, libc::ECANCELED), (Fault::Interrupted, libc::EINTR)];
        let dice = &mut self.dice;
        match sqe.opcode {
            Recv::CODE | RecvMsg::CODE => {
                let owed = self.owed.remove(&sqe.user_data);
                let refusable = stream || sqe.ioprio & RECV_MULTISHOT != 0;
                owed.or_else(|| {
                    dice.errno(&[(Fault::NoBuffers, libc::ENOBUFS)]).filter(|_| refusable)
                })
                .or_else(|| dice.errno(OF_ACCEPTS).filter(|_| refusable))
            }
            Accept::CODE => dice.errno(OF_DESCRIPTORS).or_else(|| dice.errno(OF_ACCEPTS)),
            Send::CODE | SendMsg::CODE if !stream => None,
            Send::CODE | SendMsg::CODE if sqe.op_flags & libc::MSG_DONTWAIT as u32 != 0 => {
                dice.errno(&[(Fault::Again, libc::EAGAIN)])
            }
            Send::CODE | SendMsg::CODE => dice.errno(&[(Fault::Interrupted, libc::EINTR)]),
            _ => None,
        }
    }

    fn reduce(&mut self, sqe: &mut Sqe, stream: bool) {
        match sqe.opcode {
            Send::CODE if stream && sqe.len > 1 && self.dice.strikes(Fault::ShortSend) => {
                sqe.len = self.dice.part(sqe.len as usize) as u32;
                // A short send always posts a completion.
                sqe.flags &= !SQE_SKIP_SUCCESS;
            }
            Recv::CODE => {
                if sqe.ioprio & RECV_MULTISHOT != 0 && self.dice.strikes(Fault::EndedEarly) {
                    sqe.ioprio &= !RECV_MULTISHOT;
                }
                let single = sqe.ioprio & RECV_MULTISHOT == 0 && stream;
                if single && self.dice.strikes(Fault::ShortReceive) {
                    sqe.len = self.dice.part(SHORT_RECEIVE_BYTES_MAX) as u32;
                }
            }
            Accept::CODE if self.dice.strikes(Fault::EndedEarly) => {
                sqe.ioprio &= !ACCEPT_MULTISHOT;
            }
            PollAdd::CODE if self.dice.strikes(Fault::EndedEarly) => sqe.len &= !POLL_MULTI,
            _ => {}
        }
    }

    /// Sends have ended when the enter that submits them returns, so their completions come then or
    /// never. With many receives of one socket in flight, the order of completions has a meaning.
    fn may_be_held(&self, sqe: &Sqe, stream: bool) -> bool {
        match sqe.opcode {
            Recv::CODE | RecvMsg::CODE => stream || sqe.ioprio & RECV_MULTISHOT != 0,
            Accept::CODE | Connect::CODE | AsyncCancel::CODE | Close::CODE => true,
            PollAdd::CODE | Read::CODE => true,
            _ => false,
        }
    }

    /// The available completions that the program sees, including those that were held back long
    /// enough.
    pub(super) fn delivered(&mut self, fresh: impl Iterator<Item = Cqe>) -> Vec<Cqe> {
        let mut delivered = Vec::new();
        for (left, _) in &mut self.held {
            *left = left.saturating_sub(1);
        }
        while let Some((0, _)) = self.held.front() {
            delivered.extend(self.held.pop_front().map(|(_, completion)| completion));
        }
        // Of the last one delivered, unless it must stay in place.
        let mut before = None;
        for mut completion in fresh {
            let Some(may_be_held) = self.reported(&mut completion) else { continue };
            let user_data = completion.user_data;
            let behind = self.held.iter().any(|(_, held)| held.user_data == user_data);
            if behind || may_be_held && self.dice.strikes(Fault::Late) {
                self.held.push_back((self.dice.between(1..LOOKS_MAX), completion));
            } else if may_be_held
                && before.is_some_and(|before| before != user_data)
                && self.dice.strikes(Fault::Reordered)
            {
                delivered.insert(delivered.len() - 1, completion);
            } else {
                before = may_be_held.then_some(user_data);
                delivered.push(completion);
            }
        }
        delivered
    }

    /// Whether a completion may be held back; `None` if the program must not see it.
    fn reported(&mut self, completion: &mut Cqe) -> Option<bool> {
        let Cqe { user_data, result, flags } = *completion;
        let goes_on = flags & CQE_MORE != 0;
        let Some(pending) = self.pending.get_mut(&user_data) else { return Some(false) };
        let may_be_held = pending.may_be_held;
        if goes_on {
            pending.heard = Some(real::now());
            return Some(may_be_held);
        }
        let pending = self.pending.remove(&user_data)?;
        if let Some(errno) = pending.refused {
            completion.result = -errno;
            return Some(may_be_held);
        }
        let lost = pending.receives
            && pending.heard.is_some_and(|since| real::now() - since < TOGETHER)
            && !pending.cancelled
            && -result == libc::ECONNRESET
            && self.dice.strikes(Fault::LostReset);
        if lost {
            self.lost.insert(user_data, -result);
        }
        (!lost).then_some(may_be_held)
    }

    /// True if completions are held back, so that no wait must be for others.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}
