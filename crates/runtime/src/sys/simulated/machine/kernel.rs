//! The simulated kernel: a clock, sockets, and future events.
//!
//! Only events change its state. They are executed in the order of their time, and those of one
//! time in the order in which they were scheduled, so equal seeds give equal histories.

use super::datagram::{Packet, Udp};
use super::poll::Polling;
use super::ring::Ring;
use super::socket::{Kind, Socket};
use super::trace::Trace;
use crate::sys::faults::{Dice, Faults, OF_DESCRIPTORS};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptors of simulated sockets count from here: beyond any limit, so that they do not exist in
/// the real kernel, and a call that reaches it by mistake fails with EBADF. Each world has its own
/// range, until all have been used: a descriptor that is closed after the end of its world, or used
/// within another, has no owner.
pub(crate) const FIRST_FD: RawFd = 1 << 24;
const RANGES: i32 = (RawFd::MAX / FIRST_FD) - 1;
static NEXT_RANGE: AtomicI32 = AtomicI32::new(0);

/// When the clock of a world begins, and the difference to the time since 1970: it begins in 2026.
/// Not at zero, which would hide a difference of the wrong sign.
const FIRST_NS: u64 = 1_000_000_000_000;
pub(crate) const SINCE_1970_NS: u64 = 1_767_225_600_000_000_000 - FIRST_NS;

const FIRST_PORT: u16 = 32768;

/// The event that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Accept,
    Receive,
    Send,
    Connect,
}

pub(super) enum Event {
    /// Watchers of this socket are notified that it may have these bits.
    Told {
        socket: RawFd,
        bits: u32,
    },
    /// The kernel needs the bytes of a send no more that it did not copy.
    Released {
        fd: RawFd,
        number: u32,
    },
    /// An operation of a ring is to be retried.
    RingWork {
        ring: RawFd,
        id: u64,
    },
    RingReleased {
        ring: RawFd,
        user_data: u64,
    },
    Syn {
        client: RawFd,
        tries: u32,
    },
    Established {
        client: RawFd,
        errno: Option<i32>,
    },
    /// Bytes of this socket move to its peer.
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
    /// Space in the send buffer of a datagram socket.
    Departed {
        from: RawFd,
        bytes: usize,
    },
}

pub(crate) struct Kernel {
    clock: Rc<Cell<u64>>,
    pub(crate) dice: Dice,
    pub(super) trace: Trace,
    pub(super) sockets: BTreeMap<RawFd, Socket>,
    first_fd: RawFd,
    next_fd: RawFd,
    pub(super) polling: Polling,
    pub(super) rings: BTreeMap<RawFd, Ring>,
    /// Duplicated descriptors, and their originals.
    pub(super) copies: BTreeMap<RawFd, RawFd>,
    /// Number of descriptors that the program holds.
    pub(super) open: usize,
    /// RLIMIT_NOFILE.
    pub(super) descriptors_max: usize,
    next_port: u16,
    /// Bound addresses and their sockets; several with SO_REUSEPORT.
    pub(super) names: BTreeMap<(bool, SocketAddr), Vec<RawFd>>,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    /// When the last event was carried out, or the world last rested.
    pub(super) idle_since_ns: u64,
    /// Payload that programs received.
    pub(super) received_bytes: u64,
    /// The first violated invariant, found where it could not be reported.
    pub(super) wrong: Option<String>,
    /// The one-way delay of a packet is at least this, and at most four times that.
    pub(super) latency_ns: u64,
    pub(super) cuts_datagrams: bool,
}

/// A kernel and the clock that all of a world read.
pub(crate) struct Machine {
    pub(crate) clock: Rc<Cell<u64>>,
    first_fd: RawFd,
    pub(crate) kernel: RefCell<Kernel>,
}

impl Machine {
    /// It has created this descriptor.
    pub(super) fn owns(&self, fd: RawFd) -> bool {
        (self.first_fd..=self.first_fd + (FIRST_FD - 1)).contains(&fd)
    }

    pub(crate) fn new(seed: u64, faults: Faults) -> Rc<Machine> {
        let clock = Rc::new(Cell::new(FIRST_NS));
        let mut dice = Dice::new(seed, faults);
        let latency_ns = [2_000, 20_000, 200_000, 5_000_000][dice.between(0..4) as usize];
        let cuts_datagrams = dice.between(0..2) == 0;
        let range = NEXT_RANGE.fetch_add(1, Ordering::Relaxed).rem_euclid(RANGES);
        let first_fd = FIRST_FD * (1 + range);
        let kernel = Kernel {
            clock: Rc::clone(&clock),
            dice,
            trace: Trace::default(),
            sockets: BTreeMap::new(),
            first_fd,
            next_fd: first_fd,
            polling: Polling::default(),
            rings: BTreeMap::new(),
            copies: BTreeMap::new(),
            open: 0,
            descriptors_max: descriptors_max(),
            next_port: FIRST_PORT,
            names: BTreeMap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            idle_since_ns: FIRST_NS,
            received_bytes: 0,
            wrong: None,
            latency_ns,
            cuts_datagrams,
        };
        Rc::new(Machine { clock, first_fd, kernel: RefCell::new(kernel) })
    }
}

/// The limit of the process.
fn descriptors_max() -> usize {
    crate::sys::probe::nofile_limits().0.map_or(usize::MAX, |soft| soft as usize)
}

pub(crate) fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Kernel {
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.get()
    }

    pub(super) fn note(&mut self, what: &'static str, fd: RawFd, value: i64) {
        self.trace.note(self.clock.get(), what, i64::from(fd - self.first_fd), value);
    }

    /// It is the number of a descriptor of this machine.
    pub(super) fn is_own(&self, fd: RawFd) -> bool {
        fd >= self.first_fd
    }

    /// Records the first violated invariant.
    pub(super) fn complain(&mut self, what: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(what);
    }

    pub(super) fn schedule(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now_ns() + after_ns, self.sequence), event);
    }

    /// A one-way delay of the network.
    pub(super) fn travel_ns(&mut self) -> u64 {
        self.dice.between(self.latency_ns..4 * self.latency_ns)
    }

    /// Sockets with pending delayed notifications.
    pub(super) fn sockets_to_be_told(&self) -> BTreeSet<RawFd> {
        let told = self.events.values().filter_map(|event| match event {
            Event::Told { socket, .. } => Some(*socket),
            _ => None,
        });
        told.collect()
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        self.events.keys().next().map(|(at_ns, _)| *at_ns)
    }

    /// Executes due events.
    pub(crate) fn run_due(&mut self) {
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= self.clock.get()
        {
            self.idle_since_ns = self.clock.get();
            match entry.remove() {
                Event::Told { socket, bits } => self.tell_now(socket, bits),
                Event::RingWork { ring, id } => self.put_down(ring, id),
                Event::RingReleased { ring, user_data } => self.ring_notify(ring, user_data),
                Event::Released { fd, number } => self.released(fd, number),
                Event::Syn { client, tries } => self.on_syn(client, tries),
                Event::Established { client, errno } => self.on_established(client, errno),
                Event::Carry { from } => self.carry(from),
                Event::Break { fd, errno } => self.break_socket(fd, errno),
                Event::Datagram { to, packet, sender } => self.arrive(to, packet, sender),
                Event::Departed { from, bytes } => self.departed(from, bytes),
            }
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

    /// bind(2); port 0 takes the next free one.
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

    /// Assigns a local address to a socket that is about to send.
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

    /// The sockets bound to `address`, or to its port on all addresses.
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

    /// Number of descriptors that the program holds.
    pub(crate) fn open_descriptors(&self) -> usize {
        self.open
    }

    /// Releases the address of a socket.
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
        if self.close_polling(fd) {
            return Ok(());
        }
        self.forget_watches(self.socket_of(fd), fd);
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
        match &mut self.socket_mut(fd)?.kind {
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
