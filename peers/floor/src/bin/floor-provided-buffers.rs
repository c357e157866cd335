//! TCP echo as frevib's io_uring server does it today: single-shot receives that take a buffer from a group, which is
//! provided again by an operation of its own once its bytes are sent (IORING_OP_PROVIDE_BUFFERS, Linux 5.7).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;

use clap::Parser;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use peer_common::{COMPLETION_ENTRIES, Common, SUBMISSION_ENTRIES};

const NAME: &str = "floor-provided-buffers";
const GROUP: u16 = 0;
const DEFAULT_BUFFER_BYTES: u32 = 2 * 1024;
const DEFAULT_BUFFERS: u16 = 4096;

static ACCEPT_PAUSE: Timespec = Timespec::new().nsec(peer_common::ACCEPT_RETRY.subsec_nanos());

/// What a completion belongs to: the upper half of `user_data`, whose lower half is the descriptor.
const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;
const SEND: u64 = 3;
const ACCEPT_AGAIN: u64 = 4;
const PROVIDE: u64 = 5;

/// TCP echo server on bare io_uring with provided buffers.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Receive buffers of the group.
    #[arg(long, default_value_t = DEFAULT_BUFFERS, value_parser = clap::value_parser!(u16).range(1..))]
    buffers: u16,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<()> {
    let listener = peer_common::start(&options.common)?;
    let buffer_bytes = options.common.buffer_bytes_or(DEFAULT_BUFFER_BYTES);
    let mut server = Server {
        ring: IoUring::builder().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)?,
        listener: listener.as_raw_fd(),
        pool: vec![0; usize::from(options.buffers) * buffer_bytes].leak(),
        buffer_bytes,
        connections: Vec::new(),
        starved: Vec::new(),
    };
    server.provide(0, options.buffers)?;
    server.accept()?;
    peer_common::announce(NAME, &listener)?;
    server.run()
}

struct Server {
    ring: IoUring,
    listener: RawFd,
    /// All buffers, one behind the other. The kernel writes to those that are provided.
    pool: &'static mut [u8],
    buffer_bytes: usize,
    /// Indexed by descriptor.
    connections: Vec<Option<Connection>>,
    /// Connections whose receive found no buffer: they try again when one is provided.
    starved: Vec<RawFd>,
}

/// One operation is in flight: a receive, or the send of `sent..received` of a buffer.
struct Connection {
    buffer: u16,
    received: usize,
    sent: usize,
    _socket: OwnedFd,
}

impl Server {
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
                    RECEIVE => self.on_receive(descriptor, result, completion.flags())?,
                    SEND => self.on_send(descriptor, result)?,
                    ACCEPT_AGAIN => self.accept()?,
                    // Providing posts a completion only when it fails, which leaves nothing to go on with.
                    _ => return Err(io::Error::from_raw_os_error(-result)),
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
        let index = result as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] =
            Some(Connection { buffer: 0, received: 0, sent: 0, _socket: socket });
        self.receive(result)?;
        self.accept()
    }

    fn on_receive(&mut self, descriptor: RawFd, result: i32, flags: u32) -> io::Result<()> {
        if result == -libc::ENOBUFS {
            self.starved.push(descriptor);
            return Ok(());
        }
        let buffer = cqueue::buffer_select(flags);
        let slot = &mut self.connections[descriptor as usize];
        if let (Some(connection), Some(buffer), 1..) = (&mut *slot, buffer, result) {
            (connection.buffer, connection.received, connection.sent) =
                (buffer, result as usize, 0);
            return self.send(descriptor);
        }
        // Nothing is in flight; dropping the connection closes the socket.
        *slot = None;
        buffer.map_or(Ok(()), |buffer| self.give_back(buffer))
    }

    fn on_send(&mut self, descriptor: RawFd, result: i32) -> io::Result<()> {
        let slot = &mut self.connections[descriptor as usize];
        let Some(connection) = slot else { return Ok(()) };
        let buffer = connection.buffer;
        if result <= 0 {
            *slot = None;
            return self.give_back(buffer);
        }
        connection.sent += result as usize;
        if connection.sent < connection.received {
            return self.send(descriptor);
        }
        self.give_back(buffer)?;
        self.receive(descriptor)
    }

    /// Provides the buffer again, and lets a starved connection receive behind it.
    fn give_back(&mut self, buffer: u16) -> io::Result<()> {
        self.provide(buffer, 1)?;
        self.starved.pop().map_or(Ok(()), |descriptor| self.receive(descriptor))
    }

    fn provide(&mut self, first: u16, count: u16) -> io::Result<()> {
        let start = self.pool[usize::from(first) * self.buffer_bytes..].as_mut_ptr();
        let entry =
            opcode::ProvideBuffers::new(start, self.buffer_bytes as i32, count, GROUP, first);
        self.queue(entry.build().flags(Flags::SKIP_SUCCESS), PROVIDE, 0)
    }

    fn accept(&mut self) -> io::Result<()> {
        let entry =
            opcode::Accept::new(Fd(self.listener), std::ptr::null_mut(), std::ptr::null_mut());
        self.queue(entry.flags(libc::SOCK_CLOEXEC).build(), ACCEPT, 0)
    }

    fn receive(&mut self, descriptor: RawFd) -> io::Result<()> {
        let entry =
            opcode::Recv::new(Fd(descriptor), std::ptr::null_mut(), self.buffer_bytes as u32);
        let entry = entry.buf_group(GROUP).build().flags(Flags::BUFFER_SELECT);
        self.queue(entry, RECEIVE, descriptor)
    }

    fn send(&mut self, descriptor: RawFd) -> io::Result<()> {
        let Some(connection) = &self.connections[descriptor as usize] else { return Ok(()) };
        let start = usize::from(connection.buffer) * self.buffer_bytes;
        let rest = &self.pool[start + connection.sent..start + connection.received];
        let entry = opcode::Send::new(Fd(descriptor), rest.as_ptr(), rest.len() as u32);
        self.queue(entry.flags(libc::MSG_NOSIGNAL).build(), SEND, descriptor)
    }

    fn queue(&mut self, entry: Entry, operation: u64, descriptor: RawFd) -> io::Result<()> {
        let entry = entry.user_data(operation << 32 | descriptor as u64);
        // SAFETY: an entry points to the pool or to a static, which live as long as the process; a buffer of the pool
        // is read or written here only between its receive's completion and its being provided again.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}
