//! The third engine, for tests: sockets, datagrams, files and timers of a simulated machine.
//!
//! Several runtimes share one [`World`]: a kernel in memory (`kernel`), one virtual clock, and a
//! seed from which everything follows that may go one way or another. Within the world a
//! runtime that is built is on this engine, whatever was asked for, and clock and sockets of the C
//! library are those of the world (`crate::sys::simulated`), so services and clients run on it
//! unchanged.
//!
//! The engine works with completions, as io_uring does: it arms an operation, the kernel reports
//! once that it can be carried out, and carries it out then. A report may come late, in another
//! order than the others, or say that the operation has ended without having been carried out.

mod blocking;
mod datagram;
mod files;
mod kernel;
mod socket;
mod stream;
mod tcp;
mod threads;
mod trace;
mod udp;
mod world;

pub(crate) use blocking::Patience;
pub(crate) use datagram::Outbound;
pub(crate) use kernel::{FIRST_FD, Kernel, Machine, Op, SINCE_1970_NS};
pub(crate) use threads::{join, start_thread};
pub(crate) use world::{Course, Outputs, give_way, machine, wait};
pub use world::{Place, Running, Summary, World};

use self::files::FileSlot;
use self::kernel::{Completion, PROMPT_NS};
use self::stream::Stream;
use self::udp::Datagrams;
use super::linger::Lingering;
use super::slots::{Key, Slots};
use super::{DriverSetup, InUse, Side, closed};
use crate::buf::Pool;
use crate::config::SimFeatures;
use crate::counters::Counters;
use crate::sys;
use crate::task::{WaitQueue, Waiter};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Completions handled before their tasks run.
const PORTION: usize = 32;
/// What a call that hands over operations takes at most.
const CALL_NS_MAX: u64 = 2_000;
/// Looks at what has arrived that one drain takes at most.
const DRAIN_ROUNDS_MAX: usize = 256;

enum Entry {
    Listener(Listener),
    Stream(Box<Stream>),
    Udp(Box<Datagrams>),
}

struct Listener {
    socket: OwnedFd,
    armed: bool,
    accepted: VecDeque<io::Result<OwnedFd>>,
    waiters: WaitQueue,
}

/// One worker's share of a simulated machine.
pub(crate) struct SimDriver {
    machine: Rc<Machine>,
    /// Readable when another thread wakes this worker.
    wake_fd: RawFd,
    /// The world leads its worker step by step; it has no thread that could wait.
    led: bool,
    /// Number of this driver at its kernel.
    id: usize,
    entries: Slots<Entry>,
    files: Slots<FileSlot>,
    /// What streams receive into.
    pool: Rc<Pool>,
    /// What datagram sockets receive into, one for each geometry.
    datagram_pools: Vec<Rc<Pool>>,
    lingering: Lingering,
    counters: Arc<Counters>,
    turn: u32,
}

impl SimDriver {
    pub(crate) fn new(features: &SimFeatures, setup: &DriverSetup) -> io::Result<SimDriver> {
        let outside = || io::Error::other("the simulated engine exists only inside a World");
        let machine = machine().ok_or_else(outside)?;
        let id = machine.kernel.borrow_mut().add_driver();
        let pool = Rc::new(Pool::new(features.buffer_count, features.buffer_bytes)?);
        world::keep_account_of(&pool);
        Ok(SimDriver {
            machine,
            wake_fd: setup.wake_fd,
            led: false,
            id,
            entries: Slots::new(),
            files: Slots::new(),
            pool,
            datagram_pools: Vec::new(),
            lingering: Lingering::new(setup.linger),
            counters: Arc::clone(&setup.counters),
            turn: 0,
        })
    }

    fn kernel(&self) -> std::cell::RefMut<'_, Kernel> {
        self.machine.kernel.borrow_mut()
    }

    /// Files a socket; what the kernel reports of it carries its key from now on.
    fn insert(&mut self, fd: RawFd, entry: Entry) -> Key {
        let key = self.entries.insert(entry);
        self.kernel().set_owner(fd, self.id, key);
        key
    }

    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> io::Result<Key> {
        let fd = socket.as_raw_fd();
        let (accepted, waiters) = (VecDeque::new(), WaitQueue::default());
        Ok(self.insert(fd, Entry::Listener(Listener { socket, armed: false, accepted, waiters })))
    }

    pub(crate) fn poll_accept(
        &mut self,
        key: Key,
        waiter: &mut Waiter<'_>,
    ) -> Poll<io::Result<OwnedFd>> {
        let Some(Entry::Listener(listener)) = self.entries.get_mut(key) else {
            return Poll::Ready(Err(closed()));
        };
        if let Some(accepted) = listener.accepted.pop_front() {
            return Poll::Ready(accepted);
        }
        listener.waiters.add(waiter);
        let fd = listener.socket.as_raw_fd();
        if !std::mem::replace(&mut listener.armed, true) {
            self.kernel().arm(fd, Op::Accept);
        }
        Poll::Pending
    }

    fn on_accept(&mut self, key: Key, completion: Completion, wakes: &mut Vec<Waker>) {
        let Some(Entry::Listener(listener)) = self.entries.get_mut(key) else { return };
        listener.armed &= completion.more;
        listener.waiters.wake(wakes);
        if completion.refused.is_none() {
            let accepted = self.machine.kernel.borrow_mut().accept(listener.socket.as_raw_fd());
            let nothing = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            if accepted.is_err() {
                // It has ended, whatever the completion said: what is there is not told again.
                listener.armed = false;
            }
            if !accepted.as_ref().is_err_and(nothing) {
                // SAFETY: the kernel made this number for this call; nobody else knows it, and
                // closing it is answered by the simulated kernel.
                let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
                listener.accepted.push_back(accepted.map(own));
            }
        }
    }

    pub(crate) fn wait_queue(&mut self, key: Key, side: Side) -> Option<&mut WaitQueue> {
        Some(match (self.entries.get_mut(key)?, side) {
            (Entry::Stream(stream), Side::Receive) => &mut stream.received.waiters,
            (Entry::Stream(stream), Side::Send) => &mut stream.queued.waiters,
            (Entry::Udp(udp), _) => udp.wait_queue(side),
            (Entry::Listener(listener), _) => &mut listener.waiters,
        })
    }

    pub(crate) fn wake_waiters(&mut self, key: Key, wakes: &mut Vec<Waker>) {
        match self.entries.get_mut(key) {
            Some(Entry::Listener(listener)) => listener.waiters.wake(wakes),
            Some(Entry::Stream(stream)) => {
                stream.received.waiters.wake(wakes);
                stream.queued.waiters.wake(wakes);
            }
            Some(Entry::Udp(udp)) => udp.wake_waiters(wakes),
            None => {}
        }
    }

    pub(crate) fn fd(&self, key: Key) -> Option<RawFd> {
        Some(match self.entries.get(key)? {
            Entry::Listener(listener) => listener.socket.as_raw_fd(),
            Entry::Stream(stream) => stream.fd(),
            Entry::Udp(udp) => udp.fd(),
        })
    }

    /// Gives up a socket. What is queued is still sent, within the linger limit.
    pub(crate) fn close(&mut self, key: Key) {
        let lingers = match self.entries.get_mut(key) {
            Some(Entry::Stream(stream)) => {
                stream.closing = true;
                stream.must_linger()
            }
            Some(Entry::Udp(udp)) => {
                udp.closing = true;
                udp.must_linger()
            }
            Some(Entry::Listener(_)) | None => false,
        };
        if lingers {
            self.lingering.push(key);
        } else {
            self.remove(key);
        }
    }

    /// Its descriptor is closed with it; the kernel must not be borrowed then.
    fn remove(&mut self, key: Key) {
        drop(self.entries.remove(key));
    }

    pub(crate) fn has_arrivals(&self) -> bool {
        self.kernel().has_completions(self.id)
    }

    /// From now on [`turn`](SimDriver::turn) does not wait.
    pub(crate) fn be_led(&mut self) {
        self.led = true;
    }

    pub(crate) fn in_use(&self) -> InUse {
        let datagrams = self.datagram_pools.iter().map(|pool| pool.in_use());
        let buffers = self.pool.in_use() + datagrams.sum::<usize>();
        InUse { sockets: self.entries.len(), operations: self.files.len(), buffers }
    }

    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        wakes: &mut Vec<Waker>,
    ) -> io::Result<()> {
        self.counters.waits.add(1);
        if !self.led {
            self.wait(timeout);
        }
        self.take(PORTION, wakes);
        Ok(())
    }

    /// There is nothing to hand over: operations are with the kernel as soon as they are armed. But a
    /// worker that runs until its next tick calls this again and again, and the tick has to come.
    pub(crate) fn submit(&mut self) {
        world::spend(CALL_NS_MAX);
    }

    /// Leaves the machine to others, until something has arrived for this worker.
    fn wait(&mut self, timeout: Option<Duration>) {
        let resting = timeout.is_none_or(|timeout| !timeout.is_zero());
        if let Err(what) = self.check(resting) {
            self.kernel().complain(|| what);
        }
        if !resting {
            world::spend(world::STEP_NS_MAX);
            return give_way();
        }
        let now_ns = self.machine.clock.get();
        let until_ns = timeout.map(|timeout| now_ns.saturating_add(timeout.as_nanos() as u64));
        wait(until_ns, &mut || self.has_arrivals() || sys::simulated::is_readable(self.wake_fd));
    }

    /// Takes what has arrived. What lies behind it in the sockets is reported a moment later, while
    /// this goes on.
    pub(crate) fn drain(&mut self, wakes: &mut Vec<Waker>) -> io::Result<()> {
        for _ in 0..DRAIN_ROUNDS_MAX {
            self.take(usize::MAX, wakes);
            self.machine.clock.set(self.machine.clock.get() + PROMPT_NS);
            self.kernel().run_due();
            if !self.has_arrivals() {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, most: usize, wakes: &mut Vec<Waker>) {
        self.turn = self.turn.wrapping_add(1);
        for _ in 0..most {
            let taken = self.kernel().take_completion(self.id);
            let Some((completion, overflowed)) = taken else { break };
            self.counters.completions.add(1);
            self.counters.cq_overflows.add(u64::from(overflowed));
            self.complete(completion, wakes);
        }
        while let Some(key) = self.lingering.pop_expired() {
            if let Some(entry) = self.entries.get_mut(key) {
                if let Entry::Stream(stream) = entry {
                    stream.cut_off(&self.machine);
                }
                self.counters.lingers_expired.add(1);
                self.remove(key);
            }
        }
    }

    fn complete(&mut self, completion: Completion, wakes: &mut Vec<Waker>) {
        let key = completion.key;
        if completion.op == Op::File {
            return self.on_file(key, wakes);
        }
        match self.entries.get(key) {
            Some(Entry::Listener(_)) => self.on_accept(key, completion, wakes),
            Some(Entry::Stream(_)) => self.on_stream(key, completion, wakes),
            Some(Entry::Udp(_)) => self.on_udp(key, completion, wakes),
            // Its socket was closed meanwhile.
            None => {}
        }
    }

    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        let entries = &self.entries;
        self.lingering.next_deadline(|key| entries.get(key).is_some())
    }

    pub(crate) fn is_lingering(&mut self) -> bool {
        self.next_deadline().is_some()
    }

    pub(crate) fn teardown(&mut self, wakes: &mut Vec<Waker>) {
        for key in self.entries.keys() {
            self.wake_waiters(key, wakes);
            if let Some(Entry::Stream(stream)) = self.entries.get_mut(key) {
                stream.cut_off(&self.machine);
            }
            self.remove(key);
        }
        for key in self.files.keys() {
            wakes.extend(self.abandon_file(key));
        }
        self.files = Slots::new();
        self.kernel().remove_driver(self.id);
    }

    /// What has to hold after every step; `resting` says that nobody has anything to do.
    pub(crate) fn check(&self, resting: bool) -> Result<(), String> {
        for key in self.entries.keys() {
            let found = match self.entries.get(key) {
                Some(Entry::Stream(stream)) => stream.check(&self.pool, resting),
                Some(Entry::Udp(udp)) => udp.check(resting),
                Some(Entry::Listener(listener)) => {
                    let lost = !listener.accepted.is_empty() && !listener.waiters.is_empty();
                    if lost && resting {
                        Err("a task waits for a connection that is there")
                    } else {
                        Ok(())
                    }
                }
                None => Ok(()),
            };
            found.map_err(|what| {
                let socket = self.fd(key).unwrap_or(FIRST_FD) - FIRST_FD;
                format!("socket #{socket}: {what}")
            })?;
        }
        Ok(())
    }
}
