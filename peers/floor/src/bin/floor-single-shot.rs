//! TCP echo as frevib's io_uring server of 2020 did it, and go-uring's on several rings: one receive or one send in
//! flight per connection, each submitted again, and a buffer for each connection.
//!
//! Needs Linux 5.7, which polls sockets within the ring. `--rings N` starts a thread with a ring of its own N
//! times, all of which accept from one socket.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;

use clap::Parser;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, Timespec};
use io_uring::{IoUring, opcode};
use peer_common::{COMPLETION_ENTRIES, Common, OWN_BUFFER_BYTES, SUBMISSION_ENTRIES};

const NAME: &str = "floor-single-shot";

/// Read by the kernel when it takes the timeout that makes accepting wait.
static ACCEPT_PAUSE: Timespec = Timespec::new().nsec(peer_common::ACCEPT_RETRY.subsec_nanos());

/// What a completion belongs to: the upper half of `user_data`, whose lower half is the descriptor.
const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;
const SEND: u64 = 3;
const ACCEPT_AGAIN: u64 = 4;

/// TCP echo server on bare io_uring with single-shot operations.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Threads with a ring each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    rings: u16,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<()> {
    let listener = peer_common::start(&options.common)?;
    let buffer_bytes = options.common.buffer_bytes_or(OWN_BUFFER_BYTES);
    let rings = (0..options.rings).map(|_| Server::new(&listener, buffer_bytes));
    let mut rings = rings.collect::<io::Result<Vec<Server>>>()?;
    peer_common::announce(NAME, &listener)?;
    let first = rings.remove(0);
    std::thread::scope(|scope| {
        for ring in rings {
            scope.spawn(|| std::process::exit(i32::from(ring.serve().is_err())));
        }
        first.serve()
    })
}

struct Server {
    ring: IoUring,
    listener: RawFd,
    buffer_bytes: usize,
    /// Indexed by descriptor.
    connections: Vec<Option<Connection>>,
}

/// The kernel writes to or reads from `buffer` while the connection's only operation is in flight.
struct Connection {
    buffer: Box<[u8]>,
    received: usize,
    sent: usize,
    _socket: OwnedFd,
}

impl Server {
    fn new(listener: &TcpListener, buffer_bytes: usize) -> io::Result<Server> {
        let ring = IoUring::builder().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)?;
        Ok(Server { ring, listener: listener.as_raw_fd(), buffer_bytes, connections: Vec::new() })
    }

    fn serve(mut self) -> io::Result<()> {
        let ended = self.accept().and_then(|()| self.run());
        // The kernel may still write to the buffers: they stay.
        std::mem::forget(self);
        ended
    }

    fn run(&mut self) -> io::Result<()> {
        let mut completions = Vec::new();
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                submitted => submitted?,
            };
            completions.extend(self.ring.completion());
            for completion in completions.drain(..) {
                let (user_data, result) = (completion.user_data(), completion.result());
                let descriptor = user_data as u32 as RawFd;
                match user_data >> 32 {
                    ACCEPT => self.on_accept(result)?,
                    RECEIVE => self.on_receive(descriptor, result)?,
                    SEND => self.on_send(descriptor, result)?,
                    _ => self.accept()?,
                }
            }
        }
    }

    fn on_accept(&mut self, result: i32) -> io::Result<()> {
        if result < 0 {
            if peer_common::out_of_resources(&io::Error::from_raw_os_error(-result)) {
                return self.queue(opcode::Timeout::new(&ACCEPT_PAUSE).build(), ACCEPT_AGAIN, 0);
            }
            return self.accept();
        }
        // SAFETY: the kernel just made this descriptor, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        let buffer = vec![0; self.buffer_bytes].into_boxed_slice();
        let index = result as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] =
            Some(Connection { buffer, received: 0, sent: 0, _socket: socket });
        self.receive(result)?;
        self.accept()
    }

    fn on_receive(&mut self, descriptor: RawFd, result: i32) -> io::Result<()> {
        let slot = &mut self.connections[descriptor as usize];
        match slot {
            Some(connection) if result > 0 => {
                (connection.received, connection.sent) = (result as usize, 0);
                self.send(descriptor)
            }
            _ => {
                // Nothing is in flight; dropping the connection closes the socket.
                *slot = None;
                Ok(())
            }
        }
    }

    fn on_send(&mut self, descriptor: RawFd, result: i32) -> io::Result<()> {
        let slot = &mut self.connections[descriptor as usize];
        match slot {
            Some(connection) if result > 0 => {
                connection.sent += result as usize;
                if connection.sent < connection.received {
                    return self.send(descriptor);
                }
                self.receive(descriptor)
            }
            _ => {
                *slot = None;
                Ok(())
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let entry =
            opcode::Accept::new(Fd(self.listener), std::ptr::null_mut(), std::ptr::null_mut());
        self.queue(entry.flags(libc::SOCK_CLOEXEC).build(), ACCEPT, 0)
    }

    fn receive(&mut self, descriptor: RawFd) -> io::Result<()> {
        let Some(connection) = &mut self.connections[descriptor as usize] else { return Ok(()) };
        let (start, len) = (connection.buffer.as_mut_ptr(), connection.buffer.len() as u32);
        self.queue(opcode::Recv::new(Fd(descriptor), start, len).build(), RECEIVE, descriptor)
    }

    fn send(&mut self, descriptor: RawFd) -> io::Result<()> {
        let Some(connection) = &self.connections[descriptor as usize] else { return Ok(()) };
        let rest = &connection.buffer[connection.sent..connection.received];
        let entry = opcode::Send::new(Fd(descriptor), rest.as_ptr(), rest.len() as u32);
        self.queue(entry.flags(libc::MSG_NOSIGNAL).build(), SEND, descriptor)
    }

    fn queue(&mut self, entry: Entry, operation: u64, descriptor: RawFd) -> io::Result<()> {
        let entry = entry.user_data(operation << 32 | descriptor as u64);
        // SAFETY: an entry points to the buffer of a connection, which is dropped only when its one operation has
        // completed, or to a static; the server itself is never dropped.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}
