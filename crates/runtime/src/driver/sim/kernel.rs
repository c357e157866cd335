//! The simulated kernel: a clock, sockets, and events that lie ahead.
//!
//! Nothing happens by itself. Events are carried out in the order of their time, and those of one
//! time in the order in which they were scheduled, so equal seeds give equal histories.

use super::datagram::{Packet, Udp};
use super::socket::{Kind, Socket};
use super::trace::Trace;
use crate::driver::faults::{Dice, Fault, Faults, OF_DESCRIPTORS};
use crate::driver::slots::Key;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::rc::Rc;

/// Descriptors of simulated sockets count from here: beyond any limit, so that the real kernel
/// knows none of them, and a call that reaches it by mistake fails with EBADF.
pub(crate) const FIRST_FD: RawFd = 1 << 24;

/// When the clock of a world begins, and what is missing to the time since 1970 then: it begins in
/// 2026. Not at zero, where a difference taken the wrong way round would not show.
const FIRST_NS: u64 = 1_000_000_000_000;
pub(crate) const SINCE_1970_NS: u64 = 1_767_225_600_000_000_000 - FIRST_NS;

const FIRST_PORT: u16 = 32768;
/// How late a completion is reported that is reported at once.
pub(super) const PROMPT_NS: u64 = 5_000;

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Accept = 1,
    Receive = 2,
    Send = 4,
    Connect = 8,
    /// A file: its key names a slot of the driver's, and no socket is concerned.
    File = 16,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Accept => "accept reported",
            Op::Receive => "receive reported",
            Op::Send => "send reported",
            Op::Connect => "connect reported",
            Op::File => "file reported",
        }
    }

    /// What may end it before it did anything.
    fn refusals(self) -> &'static [(Fault, i32)] {
        match self {
            Op::Receive => &[
                (Fault::NoBuffers, libc::ENOBUFS),
                (Fault::Cancelled, libc::ECANCELED),
                (Fault::Again, libc::EAGAIN),
                (Fault::Interrupted, libc::EINTR),
            ],
            Op::Accept | Op::Send => &[
                (Fault::Cancelled, libc::ECANCELED),
                (Fault::Again, libc::EAGAIN),
                (Fault::Interrupted, libc::EINTR),
            ],
            Op::Connect | Op::File => &[],
        }
    }
}

/// What the kernel reports of an operation that a driver armed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) key: Key,
    pub(crate) op: Op,
    /// The errno with which it ended without having been carried out; else it can be now.
    pub(crate) refused: Option<i32>,
    /// It goes on, and may complete again.
    pub(crate) more: bool,
}

pub(super) enum Event {
    Complete {
        fd: RawFd,
        op: Op,
        refused: Option<i32>,
        more: bool,
    },
    FileDone {
        driver: usize,
        key: Key,
    },
    Syn {
        client: RawFd,
        tries: u32,
    },
    Established {
        client: RawFd,
        errno: Option<i32>,
    },
    /// Bytes of this socket go to its peer.
    Carry {
        from: RawFd,
    },
    Break {
        fd: RawFd,
        errno: i32,
    },
    Datagram {
        to: SocketAddr,
        packet: Packet,
        sender: RawFd,
    },
    /// Room in the send buffer of a datagram socket.
    Departed {
        from: RawFd,
        bytes: usize,
    },
}

/// Completions of one driver that it has not taken.
struct Queue {
    completions: VecDeque<Completion>,
    /// Those that found the queue full.
    overflow: VecDeque<Completion>,
    most: usize,
}

pub(crate) struct Kernel {
    clock: Rc<Cell<u64>>,
    pub(super) dice: Dice,
    pub(super) trace: Trace,
    pub(super) sockets: BTreeMap<RawFd, Socket>,
    next_fd: RawFd,
    /// Descriptors that are copies, and of what.
    pub(super) copies: BTreeMap<RawFd, RawFd>,
    /// Number of descriptors that the program holds.
    pub(super) open: usize,
    /// RLIMIT_NOFILE.
    pub(super) descriptors_max: usize,
    next_port: u16,
    /// Who is bound where; several with SO_REUSEPORT.
    pub(super) names: BTreeMap<(bool, SocketAddr), Vec<RawFd>>,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    /// When the last event was carried out, or the world last rested.
    pub(super) quiet_since_ns: u64,
    queues: Vec<Queue>,
    /// Payload that programs received.
    pub(super) received_bytes: u64,
    /// What must never be; found while no one could be told.
    pub(super) wrong: Option<String>,
    /// One way of a packet takes at least this long, and at most four times that.
    pub(super) latency_ns: u64,
    pub(super) cuts_datagrams: bool,
}

/// A kernel and the clock that all of a world read.
pub(crate) struct Machine {
    pub(crate) clock: Rc<Cell<u64>>,
    pub(crate) kernel: RefCell<Kernel>,
}

impl Machine {
    pub(crate) fn new(seed: u64, faults: Faults) -> Rc<Machine> {
        let clock = Rc::new(Cell::new(FIRST_NS));
        let mut dice = Dice::new(seed, faults);
        let latency_ns = [2_000, 20_000, 200_000, 5_000_000][dice.between(0..4) as usize];
        let cuts_datagrams = dice.between(0..2) == 0;
        let kernel = Kernel {
            clock: Rc::clone(&clock),
            dice,
            trace: Trace::default(),
            sockets: BTreeMap::new(),
            next_fd: FIRST_FD,
            copies: BTreeMap::new(),
            open: 0,
            descriptors_max: descriptors_max(),
            next_port: FIRST_PORT,
            names: BTreeMap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            quiet_since_ns: FIRST_NS,
            queues: Vec::new(),
            received_bytes: 0,
            wrong: None,
            latency_ns,
            cuts_datagrams,
        };
        Rc::new(Machine { clock, kernel: RefCell::new(kernel) })
    }
}

/// What the process may have.
fn descriptors_max() -> usize {
    crate::sys::probe::nofile_limits().0.map_or(usize::MAX, |soft| soft as usize)
}

pub(super) fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Kernel {
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.get()
    }

    pub(super) fn note(&mut self, what: &'static str, fd: RawFd, value: i64) {
        self.trace.note(self.clock.get(), what, i64::from(fd - FIRST_FD), value);
    }

    /// Remembers the first thing that must never be.
    pub(super) fn complain(&mut self, what: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(what);
    }

    pub(super) fn schedule(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now_ns() + after_ns, self.sequence), event);
    }

    /// One way through the network.
    pub(super) fn travel_ns(&mut self) -> u64 {
        self.dice.between(self.latency_ns..4 * self.latency_ns)
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        self.events.keys().next().map(|(at_ns, _)| *at_ns)
    }

    /// Carries out what is due.
    pub(crate) fn run_due(&mut self) {
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= self.clock.get()
        {
            self.quiet_since_ns = self.clock.get();
            match entry.remove() {
                Event::Complete { fd, op, refused, more } => self.complete(fd, op, refused, more),
                Event::FileDone { driver, key } => {
                    let more = false;
                    self.enqueue(driver, Completion { key, op: Op::File, refused: None, more });
                }
                Event::Syn { client, tries } => self.on_syn(client, tries),
                Event::Established { client, errno } => self.on_established(client, errno),
                Event::Carry { from } => self.carry(from),
                Event::Break { fd, errno } => self.break_socket(fd, errno),
                Event::Datagram { to, packet, sender } => self.arrive(to, packet, sender),
                Event::Departed { from, bytes } => self.departed(from, bytes),
            }
        }
    }

    /// A queue for the completions of one more driver.
    pub(super) fn add_driver(&mut self) -> usize {
        let most = 16 << self.dice.between(0..8);
        self.queues.push(Queue { completions: VecDeque::new(), overflow: VecDeque::new(), most });
        self.queues.len() - 1
    }

    /// The driver is gone: nothing is reported to it any more.
    pub(super) fn remove_driver(&mut self, driver: usize) {
        self.queues[driver].completions.clear();
        self.queues[driver].overflow.clear();
        for socket in self.sockets.values_mut() {
            if socket.owner.is_some_and(|(owner, _)| owner == driver) {
                socket.owner = None;
            }
        }
    }

    pub(super) fn has_completions(&self, driver: usize) -> bool {
        !self.queues[driver].completions.is_empty()
    }

    /// The next completion of a driver; true beside it if the queue had overflowed.
    pub(super) fn take_completion(&mut self, driver: usize) -> Option<(Completion, bool)> {
        let queue = &mut self.queues[driver];
        let taken = queue.completions.pop_front()?;
        let overflowed = queue.completions.is_empty() && !queue.overflow.is_empty();
        if overflowed {
            std::mem::swap(&mut queue.completions, &mut queue.overflow);
        }
        Some((taken, overflowed))
    }

    fn enqueue(&mut self, driver: usize, completion: Completion) {
        let strikes = self.dice.strikes(Fault::Overflow);
        let queue = &mut self.queues[driver];
        // An empty queue takes one at least, or nobody would ever look for the others.
        let full = queue.completions.len() >= queue.most || !queue.overflow.is_empty();
        match full || strikes && !queue.completions.is_empty() {
            true => queue.overflow.push_back(completion),
            false => queue.completions.push_back(completion),
        }
    }

    pub(super) fn next_fd(&mut self) -> RawFd {
        self.next_fd += 1;
        self.next_fd - 1
    }

    pub(super) fn new_fd(&mut self, socket: Socket) -> RawFd {
        let fd = self.next_fd();
        self.sockets.insert(fd, socket);
        fd
    }

    /// EAGAIN to an engine that sends, although there is room: it has to ask when there is, and go on.
    /// Programs whose calls do not wait are spared. One that writes until a socket is full, as peers
    /// in tests do, takes the first EAGAIN for that.
    pub(super) fn may_refuse(&mut self) -> io::Result<()> {
        if self.dice.strikes(Fault::Again) { Err(error(libc::EAGAIN)) } else { Ok(()) }
    }

    /// Whether the program may have one more descriptor.
    pub(crate) fn may_have_descriptor(&mut self) -> io::Result<()> {
        match self.dice.errno(OF_DESCRIPTORS) {
            Some(errno) => Err(error(errno)),
            None if self.open_descriptors() >= self.descriptors_max => Err(error(libc::EMFILE)),
            None => Ok(()),
        }
    }

    /// socket(2).
    pub(crate) fn socket(&mut self, stream: bool, ipv6: bool) -> io::Result<RawFd> {
        self.may_have_descriptor()?;
        self.open += 1;
        let kind = if stream { Kind::Fresh } else { Kind::Udp(Udp::default()) };
        Ok(self.new_fd(Socket::new(stream, ipv6, kind)))
    }

    /// bind(2); port 0 takes the next that is free.
    pub(crate) fn bind(&mut self, fd: RawFd, address: SocketAddr) -> io::Result<()> {
        if !address.ip().is_loopback() && !address.ip().is_unspecified() {
            // The machine has no other interface.
            return Err(error(libc::EADDRNOTAVAIL));
        }
        let socket = self.socket_mut(fd)?;
        let (stream, share) = (socket.stream, socket.share);
        let address = self.free_name(stream, address, share)?;
        self.names.entry((stream, address)).or_default().push(fd);
        self.socket_mut(fd)?.local = Some(address);
        Ok(())
    }

    fn free_name(
        &mut self,
        stream: bool,
        address: SocketAddr,
        share: bool,
    ) -> io::Result<SocketAddr> {
        if address.port() != 0 {
            let taken = self.names.get(&(stream, address)).is_some_and(|fds| !fds.is_empty());
            return if taken && !share { Err(error(libc::EADDRINUSE)) } else { Ok(address) };
        }
        for _ in FIRST_PORT..u16::MAX {
            let port = self.next_port;
            self.next_port = if port == u16::MAX { FIRST_PORT } else { port + 1 };
            let candidate = SocketAddr::new(address.ip(), port);
            if !self.names.contains_key(&(stream, candidate)) {
                return Ok(candidate);
            }
        }
        Err(error(libc::EADDRNOTAVAIL))
    }

    /// Gives a socket that is about to send a name of its own.
    pub(super) fn name_for(&mut self, fd: RawFd, peer: SocketAddr) -> io::Result<SocketAddr> {
        let socket = self.socket_mut(fd)?;
        if let Some(local) = socket.local.filter(|local| local.port() != 0) {
            return Ok(local);
        }
        let ip = match (socket.local, peer.ip()) {
            (Some(local), _) => local.ip(),
            (None, IpAddr::V4(_)) => IpAddr::from([127, 0, 0, 1]),
            (None, IpAddr::V6(_)) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]),
        };
        self.bind(fd, SocketAddr::new(ip, 0))?;
        Ok(self.socket_mut(fd)?.local.unwrap_or(peer))
    }

    /// Who is bound to `address`, or to its port on all addresses.
    pub(super) fn bound_to(&self, stream: bool, address: SocketAddr) -> Option<&Vec<RawFd>> {
        let everywhere = match address.ip() {
            IpAddr::V4(_) => IpAddr::from([0, 0, 0, 0]),
            IpAddr::V6(_) => IpAddr::from([0u16; 8]),
        };
        let wild = SocketAddr::new(everywhere, address.port());
        self.names.get(&(stream, address)).or_else(|| self.names.get(&(stream, wild)))
    }

    pub(super) fn socket_mut(&mut self, fd: RawFd) -> io::Result<&mut Socket> {
        self.sockets.get_mut(&fd).ok_or_else(|| error(libc::EBADF))
    }

    /// Whose completions this socket's are from now on.
    pub(super) fn set_owner(&mut self, fd: RawFd, driver: usize, key: Key) {
        if let Some(socket) = self.sockets.get_mut(&fd) {
            socket.owner = Some((driver, key));
        }
    }

    /// Starts an operation, which completes when it can be carried out.
    pub(super) fn arm(&mut self, fd: RawFd, op: Op) {
        if let Some(socket) = self.sockets.get_mut(&fd) {
            socket.armed |= op as u8;
            self.look(fd, op);
        }
    }

    /// Ends an operation that has nothing under way; one that has reports it still.
    pub(super) fn disarm(&mut self, fd: RawFd, op: Op) {
        if let Some(socket) = self.sockets.get_mut(&fd) {
            socket.armed &= !(op as u8);
        }
    }

    /// Reports an operation if it waits and can be carried out now.
    pub(super) fn look(&mut self, fd: RawFd, op: Op) {
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        let waits = socket.armed & op as u8 != 0 && socket.announced & op as u8 == 0;
        if !waits || !socket.is_ready(op) {
            return;
        }
        socket.announced |= op as u8;
        let late_ns = if self.dice.strikes(Fault::Late) {
            self.dice.between(1_000_000..20_000_000)
        } else if self.dice.strikes(Fault::Reordered) {
            self.dice.between(PROMPT_NS..50 * PROMPT_NS)
        } else {
            PROMPT_NS
        };
        let refused = self.dice.errno(op.refusals());
        let multishot = matches!(op, Op::Accept | Op::Receive);
        let more = multishot && refused.is_none() && !self.dice.strikes(Fault::EndedEarly);
        self.schedule(late_ns, Event::Complete { fd, op, refused, more });
    }

    fn complete(&mut self, fd: RawFd, op: Op, refused: Option<i32>, more: bool) {
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        socket.announced &= !(op as u8);
        if !more {
            socket.armed &= !(op as u8);
        }
        if let Some((driver, key)) = socket.owner {
            self.note(op.name(), fd, refused.map_or(i64::from(more), |errno| -i64::from(errno)));
            self.enqueue(driver, Completion { key, op, refused, more });
        }
    }

    /// Completes an operation on a file some time later.
    pub(super) fn start_file(&mut self, driver: usize, key: Key) {
        let slow = self.dice.strikes(Fault::Late);
        let after_ns = self.dice.between(if slow { 1_000_000..50_000_000 } else { 5_000..200_000 });
        self.schedule(after_ns, Event::FileDone { driver, key });
    }

    /// Number of descriptors that the program holds.
    pub(crate) fn open_descriptors(&self) -> usize {
        self.open
    }

    /// Gives up what a socket is called.
    pub(super) fn forget_name(&mut self, fd: RawFd) {
        let Some(socket) = self.sockets.get(&fd) else { return };
        let Some(name) = socket.local.map(|local| (socket.stream, local)) else { return };
        if let Some(fds) = self.names.get_mut(&name) {
            fds.retain(|bound| *bound != fd);
            if fds.is_empty() {
                self.names.remove(&name);
            }
        }
    }

    /// close(2).
    pub(crate) fn close(&mut self, fd: RawFd) -> io::Result<()> {
        let socket = self.socket_mut(self.socket_of(fd))?;
        if !socket.open {
            return Err(error(libc::EBADF));
        }
        if socket.copies > 0 {
            socket.copies -= 1;
            return self.close_copy(fd);
        }
        socket.open = false;
        self.open -= 1;
        let fd = self.copies.remove(&fd).unwrap_or(fd);
        let socket = self.socket_mut(fd)?;
        (socket.owner, socket.armed) = (None, 0);
        match &mut socket.kind {
            Kind::Tcp(_) => self.close_tcp(fd),
            Kind::Listener { backlog, .. } => {
                for pending in std::mem::take(backlog) {
                    self.reset_peer_of(pending);
                    self.sockets.remove(&pending);
                }
                self.forget_name(fd);
                self.sockets.remove(&fd);
            }
            Kind::Fresh | Kind::Udp(_) => {
                self.forget_name(fd);
                self.sockets.remove(&fd);
            }
        }
        self.note("close", fd, 0);
        Ok(())
    }
}
