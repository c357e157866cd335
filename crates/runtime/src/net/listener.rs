//! Listening and accepting.

use super::names::bind_first;
use super::{SocketHandle, TcpStream, bind_each, internet_address, new_socket, patiently};
use crate::driver::udp::is_icmp_error;
use crate::driver::{Driver, Side};
use crate::event::Event;
use crate::race;
use crate::runtime::{current, failed};
use crate::sys::Mapping;
use crate::sys::socket::{Socket, Type};
use crate::task::wait;
use crate::time::sleep;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

/// Connections in a row that cannot be accepted for a reason of their own, before accepting pauses.
const BROKEN_MAX: u32 = 16;

/// Errors of the connection, not of the listener, beside ICMP errors: accept(2) passes pending network errors on.
const BROKEN: [i32; 5] =
    [libc::ECONNABORTED, libc::ENETDOWN, libc::EPERM, libc::EINTR, libc::EAGAIN];

/// How long accepting pauses when the process is out of descriptors or memory, unless this worker closes a
/// descriptor.
const STALL: Duration = Duration::from_millis(100);

/// Connections accepted between two checks of the memory. A check takes two system calls.
const ACCEPTS_PER_LOOK: u32 = 16;

/// Memory that must be left for accepting another connection. A failed allocation ends the process, so this
/// reserve is for the queued data of existing sockets, and for the tables of the worker, which double when
/// they are full.
const RESERVE_BYTES: usize = 16 << 20;

/// Options of listening sockets. Accepted connections have TCP_NODELAY: without it, a reply sent in
/// two chunks waits for a delayed acknowledgement.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Connections the kernel holds for us before we accept them; it caps this at
    /// net.core.somaxconn. 4,096 by default.
    pub backlog: u32,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions { backlog: 4096 }
    }
}

impl ListenOptions {
    /// Binds `address` once for each of `workers`, sharing the port between them; the kernel then
    /// distributes connections by a hash of the addresses. Port 0 picks one free port. If the
    /// address is in use, binding is retried for 100 ms, because that of a killed io_uring process
    /// is freed late; not on a serving worker, which must not block.
    pub fn bind(&self, address: SocketAddr, workers: usize) -> io::Result<Vec<BoundListener>> {
        let backlog = self.backlog.min(i32::MAX as u32) as i32;
        let bind = |address, share| {
            let socket = patiently(|| bind_once(address, share))?;
            let address = internet_address(socket.local_addr()?)?;
            Ok((address, BoundListener { socket, address }))
        };
        let listen = || {
            let bound = bind_each(address, workers, bind)?;
            // Not before all are bound: a failure leaves no connection behind.
            bound.iter().try_for_each(|listener| listener.socket.listen(backlog))?;
            Ok(bound)
        };
        let refused = |error| failed(format_args!("cannot listen on {address}"), &error);
        listen().map_err(refused)
    }

    /// Takes over a listening Internet socket, such as one that systemd passes, for `workers`, which share it.
    pub fn adopt(
        &self,
        listener: std::net::TcpListener,
        workers: usize,
    ) -> io::Result<Vec<BoundListener>> {
        let address = listener.local_addr()?;
        let socket = Socket::from(listener);
        if !socket.is_listener()? {
            let what = format!("the socket of {address} does not listen");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        socket.set_tcp_nodelay(true)?;
        let bound = |socket| BoundListener { socket, address };
        let more = (1..workers).map(|_| socket.try_clone().map(bound));
        let mut all = more.collect::<io::Result<Vec<_>>>()?;
        all.push(bound(socket));
        Ok(all)
    }
}

fn bind_once(address: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = new_socket(address, Type::STREAM, share)?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A bound socket that can be sent to its worker.
#[derive(Debug)]
pub struct BoundListener {
    socket: Socket,
    address: SocketAddr,
}

impl BoundListener {
    /// The address, with the port the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

/// A listening TCP socket of the current worker. Its constructors panic outside a runtime.
#[derive(Debug)]
pub struct TcpListener {
    acceptor: Acceptor,
    address: SocketAddr,
}

/// A listening socket of any kind.
#[derive(Debug)]
pub(super) struct Acceptor {
    pub(super) socket: SocketHandle,
    unix: bool,
    /// Connections in a row that could not be accepted.
    broken: Cell<u32>,
    /// Connections that may be accepted before the next check of the memory.
    accepts_left: Cell<u32>,
    told_of_descriptors: Cell<bool>,
    told_of_memory: Cell<bool>,
}

impl TcpListener {
    /// Binds and listens with the default [`ListenOptions`]. A name that is no address blocks on the
    /// system's resolver, and its first address that can be bound is taken.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let mut bound = bind_first(address, |address| ListenOptions::default().bind(address, 1))?;
        match bound.pop() {
            Some(listener) => TcpListener::from_bound(listener),
            None => Err(io::Error::other("binding for one worker gave no socket")),
        }
    }

    /// Adds a socket that was bound beforehand to the current worker.
    pub fn from_bound(bound: BoundListener) -> io::Result<TcpListener> {
        let acceptor = Acceptor::new(OwnedFd::from(bound.socket), false)?;
        Ok(TcpListener { acceptor, address: bound.address })
    }

    /// Adds a listening socket of the standard library to the current worker. Accepted connections
    /// inherit its options, such as TCP_NODELAY: set it, or call
    /// [`set_nodelay`](TcpStream::set_nodelay) on each.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        let address = listener.local_addr()?;
        Ok(TcpListener { acceptor: Acceptor::new(OwnedFd::from(listener), false)?, address })
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection. Dropping the future loses none.
    ///
    /// Running out of descriptors or memory is not an error: it waits, without using CPU, until
    /// some are available, and notifies the handler of
    /// [`Builder::on_event`](crate::Builder::on_event) once. Memory counts as exhausted when less
    /// than 16 MiB is available. Connections that broke in the backlog are skipped. Fails when the
    /// listening socket itself is unusable.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        self.acceptor.accept().await
    }

    /// Like [`accept`](Self::accept), with the address of the peer, which takes a system call of its own.
    pub async fn accept_from(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let stream = self.accept().await?;
            // It fails if the connection was reset since then.
            if let Ok(peer) = stream.peer_addr() {
                return Ok((stream, peer));
            }
        }
    }
}

impl Acceptor {
    pub(super) fn new(socket: OwnedFd, unix: bool) -> io::Result<Acceptor> {
        let worker = current();
        let key = worker.driver.borrow_mut().add_listener(socket)?;
        Ok(Acceptor {
            socket: SocketHandle::new(worker, key),
            unix,
            accepts_left: Cell::new(0),
            broken: Cell::new(0),
            told_of_descriptors: Cell::new(false),
            told_of_memory: Cell::new(false),
        })
    }

    pub(super) async fn accept(&self) -> io::Result<TcpStream> {
        loop {
            if !self.has_memory() {
                self.stall(Event::MemoryShort, &"less than 16 MiB of memory is left").await;
                continue;
            }
            let mut accept = self.socket.operation(Side::Receive);
            self.socket.worker.executor.spend_or_yield().await;
            let accepted = poll_fn(|cx| accept.poll(cx, Driver::poll_accept));
            match accepted.await {
                Ok(socket) => {
                    self.broken.set(0);
                    let stream =
                        self.socket.worker.driver.borrow_mut().add_stream(socket, self.unix);
                    return Ok(TcpStream::new(Rc::clone(&self.socket.worker), stream));
                }
                Err(error) => match error.raw_os_error().unwrap_or(0) {
                    libc::EMFILE | libc::ENFILE => self.stall(Event::AcceptStalled, &error).await,
                    // The machine or its memory is too short for another socket.
                    libc::ENOBUFS | libc::ENOMEM => self.stall(Event::MemoryShort, &error).await,
                    errno if BROKEN.contains(&errno) || is_icmp_error(errno) => {
                        // A filter or a firewall may refuse every connection.
                        self.broken.set(self.broken.get() + 1);
                        if self.broken.get() >= BROKEN_MAX {
                            self.broken.set(0);
                            self.stall(Event::AcceptStalled, &error).await;
                        }
                    }
                    _ => return Err(error),
                },
            }
        }
    }

    /// Checks the memory periodically; once it is short, each time.
    fn has_memory(&self) -> bool {
        let left = self.accepts_left.get();
        if left > 0 {
            self.accepts_left.set(left - 1);
            return true;
        }
        self.socket.worker.counters.syscalls.add(2);
        let fits = Mapping::fits(RESERVE_BYTES);
        self.accepts_left.set(if fits { ACCEPTS_PER_LOOK - 1 } else { 0 });
        fits
    }

    /// Waits until a descriptor of this worker is closed, or for a while; says why once for each reason.
    async fn stall(&self, event: fn(String) -> Event, reason: &dyn fmt::Display) {
        let event = event(reason.to_string());
        let told = match event {
            Event::MemoryShort(_) => &self.told_of_memory,
            _ => &self.told_of_descriptors,
        };
        if !told.replace(true) {
            (self.socket.worker.on_event)(event);
        }
        self.socket.worker.counters.accept_stalls.add(1);
        let _either = race(wait(&self.socket.worker.descriptor_waiters), sleep(STALL)).await;
    }
}
