//! TCP echo on bare epoll: the interface without a runtime in between.
//!
//! Per message: its share of one `epoll_wait`, one `recv`, one `send`. Sockets are registered once,
//! edge-triggered for both directions, and never touched by `epoll_ctl` again. One buffer serves
//! all connections and stays hot in the cache. What a peer does not take is kept on the heap, at
//! most one buffer per connection, and nothing more is received from that peer until it is gone.
//!
//! With `--gather` what one `epoll_wait` reported is received from all first and sent to all then, so
//! that sends follow one another in a burst, as those of a ring do. With `--rearm` every message costs
//! one `epoll_ctl` more, as in servers that register a socket again after each event (EPOLLONESHOT).

use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, SockFlag, accept4, recv, send};
use peer_common::{ACCEPT_RETRY, Common};

const NAME: &str = "floor-epoll";
const DEFAULT_BUFFER_BYTES: u32 = 64 * 1024;

/// Events taken by one `epoll_wait`.
const MAX_EVENTS: usize = 512;

/// Full buffers echoed for one connection before the others get their turn.
const MAX_FILLS: usize = 4;

/// Connections accepted in one go; the level-triggered listener reports what is left.
const MAX_ACCEPTS: usize = 64;

/// Bytes that wait to be sent with `--gather` until some are sent in between.
const GATHERED_BYTES_MAX: usize = 128 * 1024;

/// The peer closed its sending half, or the connection broke.
const PEER_DONE: EpollFlags =
    EpollFlags::EPOLLRDHUP.union(EpollFlags::EPOLLHUP).union(EpollFlags::EPOLLERR);

/// TCP echo server on bare epoll.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Send only when all events of one wait have been received from.
    #[arg(long)]
    gather: bool,
    /// Register each socket again after each of its events.
    #[arg(long)]
    rearm: bool,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<()> {
    let listener = peer_common::start(&options.common)?;
    listener.set_nonblocking(true)?;
    let mut server = Server::new(listener, options)?;
    peer_common::announce(NAME, &server.listener)?;
    server.run()
}

struct Server {
    epoll: Epoll,
    listener: TcpListener,
    /// Set while accepting is off for lack of descriptors: when to try again.
    accept_again_at: Option<Instant>,
    /// Indexed by descriptor.
    connections: Vec<Option<Connection>>,
    /// Connections that used up their turn and will get no new edge for what is left.
    unfinished: Vec<RawFd>,
    /// The size of one receive.
    receive_bytes: usize,
    /// What one receive takes, behind what waits to be sent.
    buffer: Vec<u8>,
    /// Gathered sends, in order: the socket, and the place in the buffer.
    gathered: Vec<(RawFd, Range<usize>)>,
    /// Zero: nothing waits.
    gathered_bytes_max: usize,
    /// Sockets are registered for one event at a time.
    rearm: bool,
}

struct Connection {
    socket: OwnedFd,
    /// A FIN or an error was reported. It may sit behind data that was read short, and no other
    /// event will tell of it: read until `recv` says so.
    peer_done: bool,
    /// Listed in `unfinished`, at most once.
    unfinished: bool,
    unsent: Option<Box<Unsent>>,
}

/// The bytes that the socket did not take.
struct Unsent {
    bytes: Vec<u8>,
    sent: usize,
}

/// The state of a connection after its turn.
#[derive(PartialEq, Eq)]
enum Turn {
    /// The kernel reports when there is more to do.
    Waits,
    /// More to do at once.
    Unfinished,
    Over,
}

impl Server {
    fn new(listener: TcpListener, options: &Options) -> io::Result<Server> {
        let receive_bytes = options.common.buffer_bytes_or(DEFAULT_BUFFER_BYTES);
        let gathered_bytes_max = if options.gather { GATHERED_BYTES_MAX } else { 0 };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, event(EpollFlags::EPOLLIN, listener.as_raw_fd()))?;
        Ok(Server {
            epoll,
            listener,
            accept_again_at: None,
            connections: Vec::new(),
            unfinished: Vec::new(),
            receive_bytes,
            buffer: vec![0; receive_bytes + gathered_bytes_max],
            gathered: Vec::new(),
            gathered_bytes_max,
            rearm: options.rearm,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); MAX_EVENTS];
        let listener = self.listener.as_raw_fd();
        loop {
            let count = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..count] {
                let descriptor = event.data() as RawFd;
                if descriptor == listener {
                    self.accept()?;
                } else {
                    self.take_turn(descriptor, event.events());
                }
            }
            self.go_on_with_unfinished();
            self.send_gathered();
            self.resume_accepting()?;
        }
    }

    fn timeout(&self) -> EpollTimeout {
        if !self.unfinished.is_empty() {
            EpollTimeout::ZERO
        } else if self.accept_again_at.is_some() {
            EpollTimeout::try_from(ACCEPT_RETRY).unwrap_or(EpollTimeout::ZERO)
        } else {
            EpollTimeout::NONE
        }
    }

    fn take_turn(&mut self, descriptor: RawFd, events: EpollFlags) {
        let Some(slot) = self.connections.get_mut(descriptor as usize) else { return };
        let Some(connection) = slot else { return };
        connection.peer_done |= events.intersects(PEER_DONE);
        let turn = if self.gathered_bytes_max == 0 {
            connection.take_turn(&mut self.buffer)
        } else {
            let start = self.gathered.last().map_or(0, |(_, bytes)| bytes.end);
            connection.receive(&mut self.buffer[start..][..self.receive_bytes], |bytes| {
                self.gathered.push((descriptor, start..start + bytes));
            })
        };
        match turn {
            Turn::Waits if self.rearm => {
                let events = connection.once();
                if self.epoll.modify(&connection.socket, &mut event(events, descriptor)).is_err() {
                    self.connections[descriptor as usize] = None;
                }
            }
            Turn::Waits => {}
            Turn::Unfinished if connection.unfinished => {}
            Turn::Unfinished => {
                connection.unfinished = true;
                self.unfinished.push(descriptor);
            }
            // What waits goes first: it may be for this peer, who has only closed one direction.
            Turn::Over => {
                self.send_gathered();
                // Closing the only descriptor of the socket also removes it from the epoll set.
                self.connections[descriptor as usize] = None;
            }
        }
        if self.gathered.last().is_some_and(|(_, bytes)| bytes.end > self.gathered_bytes_max) {
            self.send_gathered();
        }
    }

    fn send_gathered(&mut self) {
        for (descriptor, bytes) in self.gathered.drain(..) {
            let slot = &mut self.connections[descriptor as usize];
            if let Some(connection) = slot
                && connection.send(&self.buffer[bytes]).is_err()
            {
                *slot = None;
            }
        }
    }

    fn go_on_with_unfinished(&mut self) {
        for descriptor in std::mem::take(&mut self.unfinished) {
            if let Some(Some(connection)) = self.connections.get_mut(descriptor as usize) {
                connection.unfinished = false;
                self.take_turn(descriptor, EpollFlags::empty());
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..MAX_ACCEPTS {
            match accept4(
                self.listener.as_raw_fd(),
                SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
            ) {
                Ok(descriptor) => {
                    // SAFETY: accept4 has just returned this descriptor and nothing else owns it.
                    self.add(unsafe { OwnedFd::from_raw_fd(descriptor) });
                }
                Err(Errno::EAGAIN) => break,
                Err(error) if peer_common::out_of_resources(&error.into()) => {
                    return self.pause_accepting();
                }
                // Errors of a connection that died in the backlog: accept(2) says to go on.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, socket: OwnedFd) {
        let both_ways = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        let index = socket.as_raw_fd() as usize;
        let connection = Connection { socket, peer_done: false, unfinished: false, unsent: None };
        let events = if self.rearm { connection.once() } else { both_ways };
        // Without memory for the registration the connection is closed, the server goes on.
        let socket = &connection.socket;
        if self.epoll.add(socket, event(events, socket.as_raw_fd())).is_err() {
            return;
        }
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    /// The listener stays readable while the backlog is not empty: reported again and again, it
    /// would spin. It is left out of the set until [`ACCEPT_RETRY`] has passed.
    fn pause_accepting(&mut self) -> io::Result<()> {
        self.accept_again_at = Some(Instant::now() + ACCEPT_RETRY);
        self.epoll.modify(&self.listener, &mut event(EpollFlags::empty(), 0))?;
        Ok(())
    }

    fn resume_accepting(&mut self) -> io::Result<()> {
        if self.accept_again_at.is_some_and(|at| at <= Instant::now()) {
            self.accept_again_at = None;
            let descriptor = self.listener.as_raw_fd();
            self.epoll.modify(&self.listener, &mut event(EpollFlags::EPOLLIN, descriptor))?;
        }
        Ok(())
    }
}

impl Connection {
    /// What is waited for with a registration for one event. Being writable is an event at once, so
    /// it is asked for only when something waits to be sent.
    fn once(&self) -> EpollFlags {
        let event = match self.unsent {
            Some(_) => EpollFlags::EPOLLOUT,
            None => EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP,
        };
        event | EpollFlags::EPOLLET | EpollFlags::EPOLLONESHOT
    }

    fn take_turn(&mut self, buffer: &mut [u8]) -> Turn {
        if self.unsent.is_some() {
            match self.send_rest() {
                Ok(true) => {}
                Ok(false) => return Turn::Waits,
                Err(_) => return Turn::Over,
            }
        }
        let socket = self.socket.as_raw_fd();
        for _ in 0..MAX_FILLS {
            let received = match recv(socket, buffer, MsgFlags::empty()) {
                Ok(0) => return Turn::Over,
                Ok(received) => received,
                Err(Errno::EAGAIN) => return Turn::Waits,
                Err(_) => return Turn::Over,
            };
            match self.send(&buffer[..received]) {
                Ok(()) if self.unsent.is_some() => return Turn::Waits,
                Ok(()) => {}
                Err(_) => return Turn::Over,
            }
            // A buffer that was not filled means that the socket was drained: what comes later
            // brings an edge of its own, and the `recv` that would return EAGAIN is saved.
            if received < buffer.len() && !self.peer_done {
                return Turn::Waits;
            }
        }
        Turn::Unfinished
    }

    /// One receive, whose bytes are for `gather`. Its end may be the end of the connection only once
    /// they have been sent.
    fn receive(&mut self, buffer: &mut [u8], gather: impl FnOnce(usize)) -> Turn {
        if self.unsent.is_some() {
            match self.send_rest() {
                Ok(true) => {}
                Ok(false) => return Turn::Waits,
                Err(_) => return Turn::Over,
            }
        }
        match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            Ok(0) => Turn::Over,
            Ok(received) => {
                gather(received);
                let drained = received < buffer.len() && !self.peer_done;
                if drained { Turn::Waits } else { Turn::Unfinished }
            }
            Err(Errno::EAGAIN) => Turn::Waits,
            Err(_) => Turn::Over,
        }
    }

    /// Sends what the socket takes and keeps the rest: a short send arms the edge for writing, as
    /// EAGAIN does.
    fn send(&mut self, bytes: &[u8]) -> nix::Result<()> {
        if let Some(unsent) = &mut self.unsent {
            unsent.bytes.extend_from_slice(bytes);
            return Ok(());
        }
        let sent = match send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::EAGAIN) => 0,
            Err(error) => return Err(error),
        };
        if sent < bytes.len() {
            self.unsent = Some(Box::new(Unsent { bytes: bytes[sent..].to_vec(), sent: 0 }));
        }
        Ok(())
    }

    /// Whether all of it is gone now.
    fn send_rest(&mut self) -> nix::Result<bool> {
        let Some(unsent) = &mut self.unsent else { return Ok(true) };
        match send(self.socket.as_raw_fd(), &unsent.bytes[unsent.sent..], MsgFlags::MSG_NOSIGNAL) {
            Ok(sent) => unsent.sent += sent,
            Err(Errno::EAGAIN) => {}
            Err(error) => return Err(error),
        }
        let done = unsent.sent == unsent.bytes.len();
        if done {
            self.unsent = None;
        }
        Ok(done)
    }
}

fn event(events: EpollFlags, descriptor: RawFd) -> EpollEvent {
    EpollEvent::new(events, descriptor as u64)
}
