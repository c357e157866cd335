//! Seeded faults between the kernel and the engines, for tests: calls and operations that do less than they
//! could or are refused, and events and completions that come later and in another order. A kernel may do all
//! of that. It loses no data, breaks no connection, and refuses nothing for long: a program does not notice it.
//!
//! Only in builds with the feature `faults`, and only with TWINRING_FAULTS in the environment. A seed repeats
//! the faults, not the timing.

use super::poll::{EpollEvent, event};
use super::ring::Wait;
use io_uring::cqueue::{self, Entry as Completion};
use io_uring::opcode::{
    Accept, AsyncCancel, Close, Connect, Nop, PollAdd, Read, Recv, RecvMsg, Send, SendMsg,
};
use io_uring::squeue::Entry;
use oorandom::Rand64;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::mem::transmute;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// A kind of fault.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The kernel accepts or delivers less than it could.
    Short,
    /// A completion or event is reported some looks after it happened.
    Late,
    /// A multishot operation ends although it could continue.
    EndedEarly,
    /// A call or an operation is not executed, for a reason that does not last.
    Refused,
    /// EMFILE, ENFILE or ENOMEM, when a connection is accepted. Holds up accepting for a tenth of a second.
    Exhausted,
    /// An armed receive does not report a reset behind data (`driver/uring/lost_events.rs`), which
    /// is found out after a second or two.
    LostReset,
}

/// The kinds, and how often in a million chances each happens at most.
const KINDS: [(Fault, u32); 6] = [
    (Fault::Short, 300_000),
    (Fault::Late, 300_000),
    (Fault::EndedEarly, 300_000),
    (Fault::Refused, 300_000),
    (Fault::Exhausted, 15_000),
    (Fault::LostReset, 100_000),
];

const EXHAUSTED: &[i32] = &[libc::EMFILE, libc::ENFILE, libc::ENOMEM];

thread_local! {
    /// Engines that this thread has created.
    static ENGINES: Cell<u64> = const { Cell::new(0) };
    /// Of the epoll engine on this thread, if it has one.
    static CALLS: RefCell<Option<CallFaults>> = const { RefCell::new(None) };
}

/// Draws the faults; the same ones for one seed.
struct Dice {
    random: Rand64,
    per_million: [u32; KINDS.len()],
}

impl Dice {
    /// If the environment has a seed, or `SEED:KIND` for faults of one kind. Each engine has its own dice, by
    /// the name of its thread, and so has each test, whose thread the harness names after it
    /// (`crates/testing`).
    fn asked_for() -> Option<Dice> {
        let asked = std::env::var("TWINRING_FAULTS").ok().filter(|asked| !asked.is_empty())?;
        let (seed, kind) = asked.split_once(':').unwrap_or((&asked, ""));
        let known = kind.is_empty() || KINDS.iter().any(|(it, _)| format!("{it:?}") == kind);
        assert!(known, "TWINRING_FAULTS={asked}: the kinds are {KINDS:?}");
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let number = ENGINES.replace(ENGINES.get() + 1);
        let own = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, name, number));
        let mut random = Rand64::new(u128::from(own));
        // A mix that the seed chooses, or those of one kind.
        let per_million = KINDS.map(|(fault, most)| match format!("{fault:?}") == kind {
            true => 333_333,
            false if kind.is_empty() && random.rand_range(0..4) > 0 => {
                most >> random.rand_range(0..6)
            }
            false => 0,
        });
        eprintln!(
            "faults in a million chances: {per_million:?}, of the most there can be: {KINDS:?}\n\
             again with: TWINRING_FAULTS={asked}, and the same test ({name}) of the same binary"
        );
        Some(Dice { random, per_million })
    }

    fn strikes(&mut self, fault: Fault) -> bool {
        let chance = u64::from(self.per_million[fault as usize]);
        chance > 0 && self.random.rand_range(0..1_000_000) < chance
    }

    /// One of these errors, if the fault occurs here.
    fn error(&mut self, fault: Fault, errnos: &[i32]) -> Option<i32> {
        let strikes = !errnos.is_empty() && self.strikes(fault);
        strikes.then(|| errnos[self.part(errnos.len()) - 1])
    }

    /// A part of `whole`, at least one of it.
    fn part(&mut self, whole: usize) -> usize {
        self.random.rand_range(1..whole.max(1) as u64 + 1) as usize
    }
}

/// The maximum number of looks for which something is held back.
const LOOKS_MAX: usize = 7;

/// What is reported some looks after it happened, with the looks that are left.
struct Held<T>(VecDeque<(usize, T)>);

impl<T> Held<T> {
    fn hold(&mut self, dice: &mut Dice, what: T) {
        self.0.push_back((dice.part(LOOKS_MAX), what));
    }

    /// A look: what was held back long enough.
    fn due(&mut self) -> Vec<T> {
        self.0.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(1));
        let due = self.0.iter().take_while(|(left, _)| *left == 0).count();
        self.0.drain(..due).map(|(_, what)| what).collect()
    }
}

/// The layer between the kernel and an epoll engine.
///
/// A program that got EAGAIN, or less than it requested, relies on an event when there is more. If
/// this layer caused it, the kernel has no event to report, so the layer owes it: the next wait
/// brings it, as if the rest had arrived just then.
struct CallFaults {
    dice: Dice,
    /// The registration of each descriptor in epoll: data and interest.
    watched: HashMap<RawFd, (u64, i32)>,
    owed: BTreeMap<RawFd, i32>,
    held: Held<EpollEvent>,
}

/// Asks the faults, if there are any.
fn with<R>(otherwise: R, ask: impl FnOnce(&mut CallFaults) -> R) -> R {
    CALLS.with_borrow_mut(|faults| match faults {
        Some(faults) => ask(faults),
        None => otherwise,
    })
}

/// Puts faults between the kernel and the calls of this thread, if they were requested.
pub(super) fn begin() {
    CALLS.set(Dice::asked_for().map(|dice| {
        let (watched, owed) = Default::default();
        CallFaults { dice, watched, owed, held: Held(VecDeque::new()) }
    }));
}

pub(super) fn end() {
    let _thread_is_gone = CALLS.try_with(RefCell::take);
}

/// How much of `wanted` bytes or messages a call on `socket` may be about, whose direction is that of
/// the event; or EAGAIN instead of the call.
pub(super) fn allowed(socket: RawFd, event: i32, wanted: usize) -> io::Result<usize> {
    with(Ok(wanted), |CallFaults { dice, owed, .. }| {
        let again = dice.error(Fault::Refused, &[libc::EAGAIN]);
        if again.is_none() && !(wanted > 1 && dice.strikes(Fault::Short)) {
            return Ok(wanted);
        }
        *owed.entry(socket).or_default() |= event;
        match again {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(dice.part(wanted)),
        }
    })
}

/// Like [`allowed`], for data to write: the allowed part.
pub(super) fn part<T>(socket: RawFd, event: i32, wanted: &mut [T]) -> io::Result<&mut [T]> {
    let most = allowed(socket, event, wanted.len())?;
    Ok(&mut wanted[..most])
}

/// Whether a connection may be accepted; or EAGAIN or exhaustion instead of the call.
pub(super) fn may_accept(listener: RawFd) -> io::Result<()> {
    match with(None, |faults| faults.dice.error(Fault::Exhausted, EXHAUSTED)) {
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => allowed(listener, libc::EPOLLIN, 1).map(drop),
    }
}

pub(super) fn watch(target: RawFd, interest: i32, data: u64) {
    with((), |faults| {
        let before = faults.watched.insert(target, (data, interest));
        if before.is_some_and(|(before, _)| before != data) {
            // The number belongs to another socket now, which is owed nothing.
            faults.owed.remove(&target);
        }
    });
}

/// How long a wait may take: no time if there are events that the kernel does not know.
pub(super) fn timeout(timeout: Option<Duration>) -> Option<Duration> {
    let knows_all = with(true, |faults| faults.owed.is_empty() && faults.held.0.is_empty());
    if knows_all { timeout } else { Some(Duration::ZERO) }
}

/// Changes the events of the kernel to those that a wait reports.
pub(super) fn report(events: &mut Vec<EpollEvent>) {
    with((), |CallFaults { dice, watched, owed, held }| {
        let due = held.due();
        events.retain(|event| {
            let is_late = dice.strikes(Fault::Late);
            if is_late {
                held.hold(dice, *event);
            }
            !is_late
        });
        events.extend(due);
        for (fd, owed) in std::mem::take(owed) {
            let Some((data, interest)) = watched.get(&fd) else { continue };
            // Events that are not watched now are reported by the kernel when they are.
            let bits = owed & interest;
            if bits != 0 {
                events.push(event(bits, *data));
            }
        }
    });
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

/// A completion with these fields of struct io_uring_cqe.
fn completion(user_data: u64, result: i32, flags: u32) -> Completion {
    let numbers = u64::from(result as u32) | u64::from(flags) << 32;
    // SAFETY: an entry is a transparent wrapper of struct io_uring_cqe, which consists of these three
    // numbers (in this order on a little-endian machine, which `ring` demands).
    unsafe { transmute::<[u64; 2], Completion>([user_data, numbers]) }
}

const SQE_SKIP_SUCCESS: u8 = 1 << 6;
const ACCEPT_MULTISHOT: u16 = 1;
const RECV_MULTISHOT: u16 = 2;
const POLL_MULTI: u32 = 1;

/// A reset this soon after data may have arrived together with it.
const TOGETHER: Duration = Duration::from_millis(200);

/// The maximum length of a receive that is made short.
const SHORT_RECEIVE_BYTES_MAX: usize = 64;

/// The layer between the kernel and a ring.
///
/// A refused operation goes to the kernel as a no-op with the same user data, whose completion then
/// reports the refusal; like a refused operation, it never ran.
pub(super) struct RingFaults {
    dice: Dice,
    /// Operations that have not ended, by user data, if their completions may be affected. Those
    /// that complete only on failure are not among them.
    pending: HashMap<u64, Submitted>,
    held: Held<Completion>,
    /// Receives that have ended with a reset while the program regards them as armed.
    lost: HashSet<u64>,
    /// Later receives that report it: the kernel has done so, once.
    owed: HashSet<u64>,
}

struct Submitted {
    may_be_held: bool,
    /// The result that the completion of the no-op in its place reports.
    refused: Option<i32>,
    /// Of a receive from a stream that was not cancelled: when it last received data and continued.
    heard: Option<Instant>,
}

impl RingFaults {
    pub(super) fn asked_for() -> Option<RingFaults> {
        let (pending, lost, owed) = Default::default();
        let held = Held(VecDeque::new());
        Some(RingFaults { dice: Dice::asked_for()?, pending, held, lost, owed })
    }

    /// True if completions are held back.
    pub(super) fn holds_back(&self) -> bool {
        !self.held.0.is_empty()
    }

    /// The wait of an enter: not for others if completions are held back.
    pub(super) fn wait(&self, wait: Wait) -> Wait {
        match self.holds_back() && wait.timeout != Some(Duration::ZERO) {
            true => Wait { completions: 0, timeout: None },
            false => wait,
        }
    }

    /// An entry as the kernel gets it. It names the same memory, or less.
    pub(super) fn submit(&mut self, entry: Entry) -> Entry {
        // SAFETY: an entry is a transparent wrapper of struct io_uring_sqe, which has this layout and size;
        // any numbers are valid.
        let mut sqe = unsafe { transmute::<Entry, Sqe>(entry) };
        self.change(&mut sqe);
        // SAFETY: as before.
        unsafe { transmute::<Sqe, Entry>(sqe) }
    }

    fn change(&mut self, sqe: &mut Sqe) {
        use libc::{EAGAIN, ECANCELED, EINTR, ENOBUFS};
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
        // The errors that may end it, and whether its completion may be held back. None lets one
        // datagram overtake another: with many receives of one socket in flight, their order has a
        // meaning. Sends have ended when the enter that submits them returns, so their completions
        // come then or never.
        let (errnos, may_be_held): (&[i32], bool) = match sqe.opcode {
            Recv::CODE | RecvMsg::CODE if stream || multishot => {
                (&[ENOBUFS, ECANCELED, EINTR], true)
            }
            Accept::CODE => (&[ECANCELED, EINTR], true),
            Send::CODE | SendMsg::CODE if stream && at_once => (&[EAGAIN], false),
            Send::CODE | SendMsg::CODE if stream => (&[EINTR], false),
            Connect::CODE | AsyncCancel::CODE | Close::CODE | PollAdd::CODE | Read::CODE => {
                (&[], true)
            }
            _ => (&[], false),
        };
        let exhausted = if sqe.opcode == Accept::CODE { EXHAUSTED } else { &[] };
        let owed = self.owed.remove(&sqe.user_data).then_some(libc::ECONNRESET);
        let refused = owed
            .or_else(|| self.dice.error(Fault::Exhausted, exhausted))
            .or_else(|| self.dice.error(Fault::Refused, errnos));
        let (user_data, long_ago) = (sqe.user_data, Instant::now() - TOGETHER);
        let heard = (stream && sqe.opcode == Recv::CODE).then_some(long_ago);
        match refused {
            Some(_) => *sqe = Sqe { opcode: Nop::CODE, fd: -1, user_data, ..Sqe::default() },
            None => self.reduce(sqe, stream),
        }
        if sqe.flags & SQE_SKIP_SUCCESS == 0 {
            self.pending.insert(user_data, Submitted { may_be_held, refused, heard });
        }
    }

    /// A receive that has lost its reset is cancelled like any other, and the others lose none any
    /// more.
    fn end_lost(&mut self, user_data: u64) {
        if self.lost.remove(&user_data) {
            self.owed.insert(user_data);
            self.held.0.push_back((1, completion(user_data, -libc::ECANCELED, 0)));
        } else if let Some(submitted) = self.pending.get_mut(&user_data) {
            submitted.heard = None;
        }
    }

    fn reduce(&mut self, sqe: &mut Sqe, stream: bool) {
        let dice = &mut self.dice;
        match sqe.opcode {
            Send::CODE if stream && sqe.len > 1 && dice.strikes(Fault::Short) => {
                sqe.len = dice.part(sqe.len as usize) as u32;
                // A short send always posts a completion.
                sqe.flags &= !SQE_SKIP_SUCCESS;
            }
            Recv::CODE => {
                if sqe.ioprio & RECV_MULTISHOT != 0 && dice.strikes(Fault::EndedEarly) {
                    sqe.ioprio &= !RECV_MULTISHOT;
                }
                let single = sqe.ioprio & RECV_MULTISHOT == 0 && stream;
                if single && dice.strikes(Fault::Short) {
                    sqe.len = dice.part(SHORT_RECEIVE_BYTES_MAX) as u32;
                }
            }
            Accept::CODE if dice.strikes(Fault::EndedEarly) => sqe.ioprio &= !ACCEPT_MULTISHOT,
            PollAdd::CODE if dice.strikes(Fault::EndedEarly) => sqe.len &= !POLL_MULTI,
            _ => {}
        }
    }

    /// What the program sees of a completion, and whether it may be held back.
    fn reported(&mut self, entry: Completion) -> Option<(Completion, bool)> {
        let (user_data, flags) = (entry.user_data(), entry.flags());
        let Some(submitted) = self.pending.get_mut(&user_data) else { return Some((entry, false)) };
        if cqueue::more(flags) {
            submitted.heard = submitted.heard.map(|_| Instant::now());
            return Some((entry, submitted.may_be_held));
        }
        let submitted = self.pending.remove(&user_data)?;
        if let Some(errno) = submitted.refused {
            return Some((completion(user_data, -errno, flags), submitted.may_be_held));
        }
        if submitted.heard.is_some_and(|since| Instant::now() - since < TOGETHER)
            && entry.result() == -libc::ECONNRESET
            && self.dice.strikes(Fault::LostReset)
        {
            self.lost.insert(user_data);
            return None;
        }
        Some((entry, submitted.may_be_held))
    }
}

/// The completions that the program sees, those included that were held back long enough: they may come
/// behind those of operations that ended later.
pub(super) fn delivered(
    faults: &mut Option<RingFaults>,
    fresh: Vec<Completion>,
) -> Vec<Completion> {
    let Some(faults) = faults else { return fresh };
    let mut delivered = faults.held.due();
    for entry in fresh {
        let Some((entry, may_be_held)) = faults.reported(entry) else { continue };
        let is_same = |held: &(_, Completion)| held.1.user_data() == entry.user_data();
        if faults.held.0.iter().any(is_same) || may_be_held && faults.dice.strikes(Fault::Late) {
            faults.held.hold(&mut faults.dice, entry);
        } else {
            delivered.push(entry);
        }
    }
    delivered
}
