//! Faults between the kernel and this driver: operations that ask for less than they were told to,
//! or are not carried out at all, and completions that come later and in another order. All of it
//! is what a kernel may do.
//!
//! What is refused goes to the kernel as a no-op with the same user data, whose completion then says
//! so; it never ran, as a refused operation never did.

use super::Op;
use super::ring::Completion;
use crate::config::{Buffers, UringFeatures};
use crate::driver::DriverSetup;
use crate::driver::faults::{Dice, Fault, OF_DESCRIPTORS};
use crate::sys;
use io_uring::cqueue;
use io_uring::squeue::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A reset that comes so soon after data may have come together with it.
const TOGETHER: Duration = Duration::from_millis(200);

/// Looks at the completion queue for which one is held back, at most.
const LOOKS_MAX: u64 = 8;

pub(super) struct Layer {
    dice: Dice,
    incremental: bool,
    /// What the completion of a no-op is to say, by user data.
    refusals: HashMap<u64, i32>,
    /// Held back, with the looks that are left.
    held: VecDeque<(u64, Completion)>,
    /// Receives that got data and go on, by user data, and when they did.
    heard: HashMap<u64, Instant>,
    /// Receives that have ended with this errno while the driver takes them for armed.
    lost: HashMap<u64, i32>,
    /// Receives that were cancelled: they end, and the driver hears of it.
    cancelled: HashSet<u64>,
    /// What receives after those are to be told: the kernel has told of it, once.
    owed: HashMap<u64, i32>,
}

/// struct io_uring_sqe of linux/io_uring.h, as far as it is changed here.
#[repr(C)]
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

const _: () = assert!(size_of::<Sqe>() == size_of::<Entry>());

// linux/io_uring.h
const NOP: u8 = 0;
const POLL_ADD: u8 = 6;
const ACCEPT: u8 = 13;
const ASYNC_CANCEL: u8 = 14;
const SEND: u8 = 26;
const RECV: u8 = 27;
const ACCEPT_MULTISHOT: u16 = 1;
const RECV_MULTISHOT: u16 = 2;
const POLL_ADD_MULTI: u32 = 1;
const CQE_SKIP_SUCCESS: u8 = 1 << 6;

impl Layer {
    /// If faults were asked for.
    pub(super) fn new(features: &UringFeatures, setup: &DriverSetup) -> Option<Layer> {
        Some(Layer {
            dice: Dice::asked_for(&setup.faults)?,
            incremental: features.buffers == Buffers::Incremental,
            refusals: HashMap::new(),
            held: VecDeque::new(),
            heard: HashMap::new(),
            lost: HashMap::new(),
            cancelled: HashSet::new(),
            owed: HashMap::new(),
        })
    }

    /// What goes to the kernel instead of `entry`.
    pub(super) fn submitted(&mut self, entry: Entry) -> Entry {
        // SAFETY: an entry is a transparent wrapper of struct io_uring_sqe, which has this layout
        // since Linux 5.1 and the same size (checked above); it holds no references.
        let mut sqe: Sqe = unsafe { std::mem::transmute_copy(&entry) };
        let Some(op) = Op::of(sqe.user_data) else { return entry };
        self.end_lost(op, &sqe);
        match self.refusal(op, &sqe) {
            Some(errno) => {
                self.refusals.insert(sqe.user_data, errno);
                let user_data = sqe.user_data;
                let (flags, ioprio, fd) = (0, 0, -1);
                let (off, addr, len, op_flags, rest) = (0, 0, 0, 0, [0; 3]);
                let opcode = NOP;
                sqe = Sqe { opcode, flags, ioprio, fd, off, addr, len, op_flags, user_data, rest };
            }
            None => self.reduce(op, &mut sqe),
        }
        // SAFETY: as above. A no-op names no memory; the others name the memory that they named.
        unsafe { std::mem::transmute_copy(&sqe) }
    }

    /// A receive that has lost its reset is cancelled like any other, and the others lose none any more.
    fn end_lost(&mut self, op: Op, sqe: &Sqe) {
        let user_data = sqe.addr;
        if op != Op::Cancel || sqe.opcode != ASYNC_CANCEL {
            return;
        }
        if let Some(errno) = self.lost.remove(&user_data) {
            self.owed.insert(user_data, errno);
            let cancelled = Completion { user_data, result: -libc::ECANCELED, flags: 0 };
            self.held.push_back((1, cancelled));
        } else if Op::of(user_data) == Some(Op::Receive) {
            self.cancelled.insert(user_data);
        }
    }

    /// True if the driver is not to hear of it.
    fn loses(&mut self, completion: &Completion) -> bool {
        let Completion { user_data, result, flags } = *completion;
        if Op::of(user_data) != Some(Op::Receive) {
            return false;
        }
        if cqueue::more(flags) {
            self.heard.insert(user_data, sys::now());
            return false;
        }
        let (heard, cancelled) = (self.heard.remove(&user_data), self.cancelled.remove(&user_data));
        let lost = heard.is_some_and(|since| sys::now() - since < TOGETHER)
            && !cancelled
            && -result == libc::ECONNRESET
            && self.dice.strikes(Fault::LostReset);
        if lost {
            self.lost.insert(user_data, -result);
        }
        lost
    }

    fn refusal(&mut self, op: Op, sqe: &Sqe) -> Option<i32> {
        if op == Op::Receive
            && let Some(errno) = self.owed.remove(&sqe.user_data)
        {
            return Some(errno);
        }
        match (op, sqe.opcode) {
            (Op::Receive | Op::ReceiveDatagrams, _) => self.dice.errno(&[
                (Fault::NoBuffers, libc::ENOBUFS),
                (Fault::Cancelled, libc::ECANCELED),
                (Fault::Interrupted, libc::EINTR),
            ]),
            (Op::Accept, _) => self.dice.errno(OF_DESCRIPTORS).or_else(|| {
                self.dice.errno(&[
                    (Fault::Cancelled, libc::ECANCELED),
                    (Fault::Interrupted, libc::EINTR),
                ])
            }),
            (Op::Send, SEND) if sqe.op_flags & libc::MSG_DONTWAIT as u32 != 0 => {
                self.dice.errno(&[(Fault::Again, libc::EAGAIN)])
            }
            (Op::Send, SEND) => self.dice.errno(&[(Fault::Interrupted, libc::EINTR)]),
            _ => None,
        }
    }

    fn reduce(&mut self, op: Op, sqe: &mut Sqe) {
        match (op, sqe.opcode) {
            (Op::Send, SEND) if sqe.len > 1 && self.dice.strikes(Fault::ShortSend) => {
                sqe.len = self.dice.part(sqe.len as usize) as u32;
                // A send that is short always says so.
                sqe.flags &= !CQE_SKIP_SUCCESS;
            }
            (Op::Receive | Op::ReceiveDatagrams, RECV) => {
                if sqe.ioprio & RECV_MULTISHOT != 0 && self.dice.strikes(Fault::EndedEarly) {
                    sqe.ioprio &= !RECV_MULTISHOT;
                }
                let single = sqe.ioprio & RECV_MULTISHOT == 0 && op == Op::Receive;
                if single && self.dice.strikes(Fault::ShortReceive) {
                    sqe.len = self.dice.part(64) as u32;
                }
            }
            (Op::Accept, ACCEPT) if self.dice.strikes(Fault::EndedEarly) => {
                sqe.ioprio &= !ACCEPT_MULTISHOT;
            }
            (Op::Wake | Op::DatagramsReadable, POLL_ADD)
                if self.dice.strikes(Fault::EndedEarly) =>
            {
                sqe.len &= !POLL_ADD_MULTI;
            }
            _ => {}
        }
    }

    /// What the driver gets to see of the completions that are there, those included that were held
    /// back for long enough.
    fn delivered(&mut self, fresh: impl Iterator<Item = Completion>) -> Vec<Completion> {
        let mut delivered = Vec::new();
        for (left, _) in &mut self.held {
            *left = left.saturating_sub(1);
        }
        while let Some((0, _)) = self.held.front() {
            delivered.extend(self.held.pop_front().map(|(_, completion)| completion));
        }
        for mut completion in fresh {
            if let Some(errno) = self.refusals.remove(&completion.user_data) {
                completion.result = -errno;
            } else if self.loses(&completion) {
                continue;
            }
            let behind = self.held.iter().any(|(_, held)| held.user_data == completion.user_data);
            if behind || self.may_hold(&completion) && self.dice.strikes(Fault::Late) {
                self.held.push_back((self.dice.between(1..LOOKS_MAX), completion));
            } else if self.may_hold(&completion)
                && delivered.last().is_some_and(|last: &Completion| {
                    last.user_data != completion.user_data && self.may_hold(last)
                })
                && self.dice.strikes(Fault::Reordered)
            {
                delivered.insert(delivered.len() - 1, completion);
            } else {
                delivered.push(completion);
            }
        }
        delivered
    }

    /// Sends are over when the enter that submits them returns, so their completions come then or
    /// never. Where buffers are filled piece by piece, and where many receives of one socket are in
    /// flight, the order of completions says what lies where.
    fn may_hold(&self, completion: &Completion) -> bool {
        match Op::of(completion.user_data) {
            Some(Op::Receive) => !self.incremental,
            Some(Op::Accept | Op::Connect | Op::Cancel | Op::Close) => true,
            Some(Op::ReceiveDatagrams | Op::DatagramsReadable) => true,
            Some(Op::File | Op::Room | Op::Wake) => true,
            _ => false,
        }
    }
}

/// An operation on its way to the kernel.
pub(super) fn submitted(layer: &mut Option<Layer>, entry: Entry) -> Entry {
    match layer {
        Some(layer) => layer.submitted(entry),
        None => entry,
    }
}

/// Completions on their way to the driver.
pub(super) fn delivered(
    layer: &mut Option<Layer>,
    fresh: impl Iterator<Item = Completion>,
) -> std::vec::IntoIter<Completion> {
    let delivered = match layer {
        Some(layer) => layer.delivered(fresh),
        None => fresh.collect(),
    };
    delivered.into_iter()
}

/// True if completions are held back, so that nobody must wait for others.
pub(super) fn holds(layer: &Option<Layer>) -> bool {
    layer.as_ref().is_some_and(|layer| !layer.held.is_empty())
}
