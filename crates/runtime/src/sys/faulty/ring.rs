//! Faults between the real kernel and a ring: operations that request less than the program did, or
//! are not executed at all, and completions that come later and reordered. A kernel may do all of
//! that.
//!
//! A refused operation goes to the kernel as a no-op with the same user data, whose completion then
//! reports the refusal; like a refused operation, it never ran.

use super::dice::{Dice, Fault, Held};
use super::real;
use io_uring::cqueue;
use io_uring::opcode::{
    Accept, AsyncCancel, Close, Connect, Nop, PollAdd, Read, Recv, RecvMsg, Send, SendMsg,
};
use io_uring::squeue::Entry;
use std::collections::HashMap;
use std::io;
use std::mem::transmute;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

pub(crate) use super::real::ring::*;

/// A ring of the real kernel, with faults in between if they were requested.
pub(crate) struct KernelRing {
    ring: real::ring::KernelRing,
    entries: usize,
    faults: Option<RingFaults>,
}

impl KernelRing {
    pub(crate) fn new(setup: Setup) -> io::Result<KernelRing> {
        let entries = setup.sq_entries as usize;
        let faults = Dice::asked_for().map(|dice| {
            let (pending, lost, owed) = Default::default();
            RingFaults { dice, pending, held: Held::nothing(), lost, owed }
        });
        Ok(KernelRing { ring: real::ring::KernelRing::new(setup)?, entries, faults })
    }

    /// # Safety
    /// As for the real one.
    pub(crate) unsafe fn push(&mut self, entry: &Entry) -> bool {
        let mut entry = entry.clone();
        if let Some(faults) = &mut self.faults {
            // An entry that finds the queue full is pushed again, and meets its faults then.
            if self.ring.queued() >= self.entries {
                return false;
            }
            faults.submit(sqe_of(&mut entry));
        }
        // SAFETY: the caller's obligation; the entry names the same memory, or less.
        unsafe { self.ring.push(&entry) }
    }

    pub(crate) fn arrived(&mut self) -> usize {
        self.ring.arrived().max(usize::from(self.holds()))
    }

    pub(crate) fn completions(&mut self) -> impl Iterator<Item = cqueue::Entry> + '_ {
        let fresh: Vec<cqueue::Entry> = self.ring.completions().collect();
        let taken = match &mut self.faults {
            Some(faults) => faults.delivered(fresh),
            None => fresh,
        };
        taken.into_iter()
    }

    pub(crate) fn enter(&mut self, to_submit: u32, flags: u32, mut wait: Wait) -> io::Result<u32> {
        if self.holds() && wait.timeout != Some(Duration::ZERO) {
            wait = Wait { completions: 0, timeout: None };
        }
        self.ring.enter(to_submit, flags, wait)
    }

    /// True if completions are held back, so that no wait must be for others.
    fn holds(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| !faults.held.0.is_empty())
    }
}

impl Deref for KernelRing {
    type Target = real::ring::KernelRing;

    fn deref(&self) -> &Self::Target {
        &self.ring
    }
}

impl DerefMut for KernelRing {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.ring
    }
}

/// struct io_uring_sqe of linux/io_uring.h.
#[repr(C)]
#[derive(Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

/// The fields of an entry.
fn sqe_of(entry: &mut Entry) -> &mut Sqe {
    const _: () = assert!(size_of::<Sqe>() == size_of::<Entry>());
    const _: () = assert!(align_of::<Sqe>() == align_of::<Entry>());
    // SAFETY: an entry is a transparent wrapper of struct io_uring_sqe, which has this layout, the same
    // size and alignment, and no references.
    unsafe { &mut *std::ptr::from_mut(entry).cast() }
}

/// A completion with these fields of struct io_uring_cqe.
fn completion(user_data: u64, result: i32, flags: u32) -> cqueue::Entry {
    let numbers = u64::from(result as u32) | u64::from(flags) << 32;
    // SAFETY: an entry is a transparent wrapper of struct io_uring_cqe, which consists of these three
    // numbers (in this order on a little-endian machine, which `real::ring` demands).
    unsafe { transmute::<[u64; 2], cqueue::Entry>([user_data, numbers]) }
}

const SQE_SKIP_SUCCESS: u8 = 1 << 6;
const ACCEPT_MULTISHOT: u16 = 1;
const RECV_MULTISHOT: u16 = 2;
const POLL_MULTI: u32 = 1;
const CQE_MORE: u32 = 1 << 1;

/// A reset this soon after data may have arrived together with it.
const TOGETHER: Duration = Duration::from_millis(200);

/// The maximum length of a receive that is made short.
const SHORT_RECEIVE_BYTES_MAX: usize = 64;

/// The layer between the kernel and one ring.
struct RingFaults {
    dice: Dice,
    /// Operations that have not ended, by user data, if their completions may be affected. Those
    /// that complete only on failure are not among them.
    pending: HashMap<u64, Submitted>,
    held: Held<cqueue::Entry>,
    /// Receives that have ended with this errno while the program regards them as armed.
    lost: HashMap<u64, i32>,
    /// Errors for later receives: the kernel has reported them, once.
    owed: HashMap<u64, i32>,
}

struct Submitted {
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

impl RingFaults {
    /// Changes an entry on its way to the kernel. It then names no other memory.
    fn submit(&mut self, sqe: &mut Sqe) {
        use Fault::{Again, Cancelled, Exhausted, Interrupted, NoBuffers};
        if sqe.opcode == AsyncCancel::CODE {
            self.end_lost(sqe.addr);
        }
        // Datagrams are received with MSG_TRUNC, and only sends on streams want all sent.
        let stream = match sqe.opcode {
            Recv::CODE => sqe.op_flags & libc::MSG_TRUNC as u32 == 0,
            Send::CODE | SendMsg::CODE => sqe.op_flags & libc::MSG_WAITALL as u32 != 0,
            _ => false,
        };
        let at_once = sqe.op_flags & libc::MSG_DONTWAIT as u32 != 0;
        let multishot = sqe.ioprio & RECV_MULTISHOT != 0;
        // The faults that may end it, and whether its completion may be held back. None lets one
        // datagram overtake another: with many receives of one socket in flight, their order has a
        // meaning. Sends have ended when the enter that submits them returns, so their completions
        // come then or never.
        let (ends, may_be_held): (&[Fault], bool) = match sqe.opcode {
            Recv::CODE | RecvMsg::CODE if stream || multishot => {
                (&[NoBuffers, Cancelled, Interrupted], true)
            }
            Accept::CODE => (&[Exhausted, Cancelled, Interrupted], true),
            Send::CODE | SendMsg::CODE if stream && at_once => (&[Again], false),
            Send::CODE | SendMsg::CODE if stream => (&[Interrupted], false),
            Connect::CODE | AsyncCancel::CODE | Close::CODE | PollAdd::CODE | Read::CODE => {
                (&[], true)
            }
            _ => (&[], false),
        };
        let refused = self.owed.remove(&sqe.user_data).or_else(|| self.dice.errno(ends));
        let (receives, user_data) = (stream && sqe.opcode == Recv::CODE, sqe.user_data);
        match refused {
            Some(_) => *sqe = Sqe { opcode: Nop::CODE, fd: -1, user_data, ..Sqe::default() },
            None => self.reduce(sqe, stream),
        }
        if sqe.flags & SQE_SKIP_SUCCESS == 0 {
            let (heard, cancelled) = (None, false);
            let submitted = Submitted { receives, may_be_held, refused, heard, cancelled };
            self.pending.insert(user_data, submitted);
        }
    }

    /// A receive that has lost its reset is cancelled like any other, and the others lose none any
    /// more.
    fn end_lost(&mut self, user_data: u64) {
        if let Some(errno) = self.lost.remove(&user_data) {
            self.owed.insert(user_data, errno);
            self.held.0.push_back((1, completion(user_data, -libc::ECANCELED, 0)));
        } else if let Some(submitted) = self.pending.get_mut(&user_data) {
            submitted.cancelled = true;
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

    /// The available completions that the program sees, including those that were held back long
    /// enough.
    fn delivered(&mut self, fresh: Vec<cqueue::Entry>) -> Vec<cqueue::Entry> {
        let mut delivered = self.held.due();
        // Of the last one delivered, unless it must stay in place.
        let mut before = None;
        for entry in fresh {
            let Some((entry, may_be_held)) = self.reported(entry) else { continue };
            let user_data = entry.user_data();
            let behind = self.held.0.iter().any(|(_, held)| held.user_data() == user_data);
            if behind || may_be_held && self.dice.strikes(Fault::Late) {
                self.held.hold(&mut self.dice, entry);
            } else if may_be_held
                && before.is_some_and(|before| before != user_data)
                && self.dice.strikes(Fault::Reordered)
            {
                delivered.insert(delivered.len() - 1, entry);
            } else {
                before = may_be_held.then_some(user_data);
                delivered.push(entry);
            }
        }
        delivered
    }

    /// What the program sees of a completion, and whether it may be held back.
    fn reported(&mut self, entry: cqueue::Entry) -> Option<(cqueue::Entry, bool)> {
        let (user_data, flags) = (entry.user_data(), entry.flags());
        let Some(submitted) = self.pending.get_mut(&user_data) else { return Some((entry, false)) };
        if flags & CQE_MORE != 0 {
            submitted.heard = Some(real::now());
            return Some((entry, submitted.may_be_held));
        }
        let submitted = self.pending.remove(&user_data)?;
        if let Some(errno) = submitted.refused {
            return Some((completion(user_data, -errno, flags), submitted.may_be_held));
        }
        let lost = submitted.receives
            && submitted.heard.is_some_and(|since| real::now() - since < TOGETHER)
            && !submitted.cancelled
            && entry.result() == -libc::ECONNRESET
            && self.dice.strikes(Fault::LostReset);
        if lost {
            self.lost.insert(user_data, libc::ECONNRESET);
            return None;
        }
        Some((entry, submitted.may_be_held))
    }
}
