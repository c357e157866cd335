//! Faults between the real kernel and a ring: operations that request less than the program did, or
//! are not executed at all, and completions that come later and reordered. A kernel may do all of
//! that.
//!
//! A refused operation goes to the kernel as a no-op with the same user data, whose completion then
//! reports the refusal; like a refused operation, it never ran.

use super::{Dice, Fault, OF_DESCRIPTORS};
use crate::sys;
use crate::sys::machine::ring::{
    ACCEPT_MULTISHOT, CQE_MORE, Cqe, POLL_MULTI, RECV_MULTISHOT, SQE_SKIP_SUCCESS, Sqe, code,
};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// A reset this soon after data may have arrived together with it.
const TOGETHER: Duration = Duration::from_millis(200);

/// The maximum number of reads of the completion queue for which one is held back.
const LOOKS_MAX: u64 = 8;

/// The maximum length of a receive that is made short.
const SHORT_RECEIVE_BYTES_MAX: usize = 64;

/// The error with which a fault ends an operation; none lets one datagram overtake another.
pub(crate) fn refusal(dice: &mut Dice, sqe: &Sqe, stream: bool) -> Option<i32> {
    const OF_RECEIVES: &[(Fault, i32)] = &[
        (Fault::NoBuffers, libc::ENOBUFS),
        (Fault::Cancelled, libc::ECANCELED),
        (Fault::Interrupted, libc::EINTR),
    ];
    let moves_bytes = matches!(sqe.opcode, code::RECV | code::SEND | code::SENDMSG);
    if stream && moves_bytes && dice.strikes(Fault::OperationNoMemory) {
        return Some(libc::ENOMEM);
    }
    const OF_ACCEPTS: &[(Fault, i32)] =
        &[(Fault::Cancelled, libc::ECANCELED), (Fault::Interrupted, libc::EINTR)];
    match sqe.opcode {
        code::RECV | code::RECVMSG if stream || sqe.ioprio & RECV_MULTISHOT != 0 => {
            dice.errno(OF_RECEIVES)
        }
        code::SEND | code::SENDMSG if !stream => None,
        code::ACCEPT => dice.errno(OF_ACCEPTS),
        code::SEND | code::SENDMSG if sqe.op_flags & libc::MSG_DONTWAIT as u32 != 0 => {
            dice.errno(&[(Fault::Again, libc::EAGAIN)])
        }
        code::SEND | code::SENDMSG => dice.errno(&[(Fault::Interrupted, libc::EINTR)]),
        _ => None,
    }
}

/// The layer between the kernel and one ring.
pub(crate) struct Layer {
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
    /// Groups of buffers that are filled incrementally.
    incremental: RefCell<BTreeSet<u16>>,
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
    pub(crate) fn new() -> Option<Layer> {
        Some(Layer {
            dice: Dice::asked_for()?,
            pending: HashMap::new(),
            held: VecDeque::new(),
            lost: HashMap::new(),
            owed: HashMap::new(),
            incremental: RefCell::default(),
        })
    }

    /// Buffers of this group are filled incrementally.
    pub(crate) fn is_incremental(&self, group: u16) {
        self.incremental.borrow_mut().insert(group);
    }

    /// The entry that goes to the kernel instead of `sqe`. It names no other memory.
    pub(crate) fn submitted(&mut self, mut sqe: Sqe) -> Sqe {
        if sqe.opcode == code::ASYNC_CANCEL {
            self.end_lost(sqe.addr);
        }
        // Datagrams are received with MSG_TRUNC, and only sends on streams want all sent.
        let stream = match sqe.opcode {
            code::RECV => sqe.op_flags & libc::MSG_TRUNC as u32 == 0,
            code::SEND | code::SENDMSG => sqe.op_flags & libc::MSG_WAITALL as u32 != 0,
            _ => false,
        };
        let pending = Pending {
            receives: stream && sqe.opcode == code::RECV,
            may_be_held: self.may_be_held(&sqe, stream),
            refused: self.refusal(&sqe, stream),
            ..Pending::default()
        };
        if pending.refused.is_some() {
            sqe = Sqe::nop(sqe.user_data);
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

    fn refusal(&mut self, sqe: &Sqe, stream: bool) -> Option<i32> {
        let first = match sqe.opcode {
            code::RECV => self.owed.remove(&sqe.user_data),
            code::ACCEPT => self.dice.errno(OF_DESCRIPTORS),
            _ => None,
        };
        first.or_else(|| refusal(&mut self.dice, sqe, stream))
    }

    fn reduce(&mut self, sqe: &mut Sqe, stream: bool) {
        match sqe.opcode {
            code::SEND if stream && sqe.len > 1 && self.dice.strikes(Fault::ShortSend) => {
                sqe.len = self.dice.part(sqe.len as usize) as u32;
                // A short send always posts a completion.
                sqe.flags &= !SQE_SKIP_SUCCESS;
            }
            code::RECV => {
                if sqe.ioprio & RECV_MULTISHOT != 0 && self.dice.strikes(Fault::EndedEarly) {
                    sqe.ioprio &= !RECV_MULTISHOT;
                }
                let single = sqe.ioprio & RECV_MULTISHOT == 0 && stream;
                if single && self.dice.strikes(Fault::ShortReceive) {
                    sqe.len = self.dice.part(SHORT_RECEIVE_BYTES_MAX) as u32;
                }
            }
            code::ACCEPT if self.dice.strikes(Fault::EndedEarly) => {
                sqe.ioprio &= !ACCEPT_MULTISHOT;
            }
            code::POLL_ADD if self.dice.strikes(Fault::EndedEarly) => sqe.len &= !POLL_MULTI,
            _ => {}
        }
    }

    /// Sends have ended when the enter that submits them returns, so their completions come then or
    /// never. With incrementally filled buffers, and with many receives of one socket in flight,
    /// the order of completions has a meaning.
    fn may_be_held(&self, sqe: &Sqe, stream: bool) -> bool {
        match sqe.opcode {
            code::RECV | code::RECVMSG => {
                let one_at_a_time = stream || sqe.ioprio & RECV_MULTISHOT != 0;
                one_at_a_time && !self.incremental.borrow().contains(&sqe.buf_group)
            }
            code::ACCEPT | code::CONNECT | code::ASYNC_CANCEL | code::CLOSE => true,
            code::POLL_ADD | code::OPENAT2 | code::STATX | code::READ => true,
            _ => false,
        }
    }

    /// The available completions that the program sees, including those that were held back long
    /// enough.
    pub(crate) fn delivered(&mut self, fresh: impl Iterator<Item = Cqe>) -> Vec<Cqe> {
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
            pending.heard = Some(sys::now());
            return Some(may_be_held);
        }
        let pending = self.pending.remove(&user_data)?;
        if let Some(errno) = pending.refused {
            completion.result = -errno;
            return Some(may_be_held);
        }
        let lost = pending.receives
            && pending.heard.is_some_and(|since| sys::now() - since < TOGETHER)
            && !pending.cancelled
            && -result == libc::ECONNRESET
            && self.dice.strikes(Fault::LostReset);
        if lost {
            self.lost.insert(user_data, -result);
        }
        (!lost).then_some(may_be_held)
    }

    /// True if completions are held back, so that no wait must be for others.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}
