//! TCP echo as joakimthun's io_uring server does it: multishot accept, a multishot receive per connection into a ring
//! of buffers (Linux 6.0), and one send in flight per connection, whose buffer goes back to the ring when it is over.
//!
//! `floor-uring` is what such a loop becomes when everything is tuned; this is the plain form.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU16, Ordering};

use clap::Parser;
use io_uring::squeue::Entry;
use io_uring::types::{BufRingEntry, Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use peer_common::{COMPLETION_ENTRIES, Common, SUBMISSION_ENTRIES};

const NAME: &str = "floor-multishot";
const GROUP: u16 = 0;
const DEFAULT_BUFFER_BYTES: u32 = 2 * 1024;
const BUFFERS: u16 = 4096;

/// Buffers that a connection may hold before it stops receiving, so that a peer which reads nothing leaves some to
/// the others.
const BUFFERS_EACH: usize = 64;

static ACCEPT_PAUSE: Timespec = Timespec::new().nsec(peer_common::ACCEPT_RETRY.subsec_nanos());

/// What a completion belongs to: the upper half of `user_data`, whose lower half is the descriptor.
const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;
const SEND: u64 = 3;
const ACCEPT_AGAIN: u64 = 4;
const CANCEL: u64 = 5;

/// TCP echo server on bare io_uring with multishot operations and a ring of buffers.
#[derive(Parser)]
#[command(name = NAME, version)]
struct Options {
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    peer_common::finish(NAME, run(&Options::parse()))
}

fn run(options: &Options) -> io::Result<()> {
    let listener = peer_common::start(&options.common)?;
    let mut ring = IoUring::builder().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)?;
    let pool = Pool::register(&mut ring, options.common.buffer_bytes_or(DEFAULT_BUFFER_BYTES))?;
    let listening = listener.as_raw_fd();
    let mut server =
        Server { ring, listener: listening, pool, connections: Vec::new(), starved: Vec::new() };
    server.accept()?;
    peer_common::announce(NAME, &listener)?;
    server.run()
}

struct Server {
    ring: IoUring,
    listener: RawFd,
    pool: Pool,
    /// Indexed by descriptor.
    connections: Vec<Option<Connection>>,
    /// Connections whose receive ended because there was no buffer.
    starved: Vec<RawFd>,
}

struct Connection {
    /// Received and not sent: buffers with the number of their bytes. The first one is being sent.
    received: VecDeque<(u16, usize)>,
    /// Sent of the first one.
    sent: usize,
    /// A receive is in flight.
    armed: bool,
    /// Nothing more comes, or goes: the connection closes when nothing is in flight.
    ended: bool,
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
                    ACCEPT => self.on_accept(result, completion.flags())?,
                    RECEIVE => self.on_receive(descriptor, result, completion.flags())?,
                    SEND => self.on_send(descriptor, result)?,
                    ACCEPT_AGAIN => self.accept()?,
                    // How a cancellation ends, the receive says.
                    _ => {}
                }
            }
        }
    }

    fn on_accept(&mut self, result: i32, flags: u32) -> io::Result<()> {
        if result >= 0 {
            // SAFETY: the kernel just made this descriptor, and nothing else owns it.
            let _socket = unsafe { OwnedFd::from_raw_fd(result) };
            let index = result as usize;
            if index >= self.connections.len() {
                self.connections.resize_with(index + 1, || None);
            }
            let received = VecDeque::new();
            self.connections[index] =
                Some(Connection { received, sent: 0, armed: false, ended: false, _socket });
            self.receive(result)?;
        }
        match result {
            _ if cqueue::more(flags) => Ok(()),
            ..0 if peer_common::out_of_resources(&io::Error::from_raw_os_error(-result)) => {
                self.queue(opcode::Timeout::new(&ACCEPT_PAUSE).build(), ACCEPT_AGAIN, 0)
            }
            _ => self.accept(),
        }
    }

    fn on_receive(&mut self, descriptor: RawFd, result: i32, flags: u32) -> io::Result<()> {
        let buffer = cqueue::buffer_select(flags);
        let Some(connection) = &mut self.connections[descriptor as usize] else { return Ok(()) };
        connection.armed = cqueue::more(flags);
        match (buffer, result) {
            (Some(buffer), 1..) if !connection.ended => {
                connection.received.push_back((buffer, result as usize));
                match connection.received.len() {
                    1 => self.send(descriptor)?,
                    BUFFERS_EACH => {
                        let receive = RECEIVE << 32 | descriptor as u64;
                        self.queue(opcode::AsyncCancel::new(receive).build(), CANCEL, descriptor)?;
                    }
                    _ => {}
                }
                return self.receive_unless_full(descriptor);
            }
            (Some(buffer), _) => self.pool.give_back(buffer),
            (None, _) if result == -libc::ENOBUFS => {
                self.starved.push(descriptor);
                return Ok(());
            }
            (None, _) if result == -libc::ECANCELED => return self.receive_unless_full(descriptor),
            (None, _) => {}
        }
        connection.ended = true;
        self.close_if_over(descriptor);
        Ok(())
    }

    fn on_send(&mut self, descriptor: RawFd, result: i32) -> io::Result<()> {
        let Some(connection) = &mut self.connections[descriptor as usize] else { return Ok(()) };
        let Some(&(buffer, len)) = connection.received.front() else { return Ok(()) };
        if result <= 0 {
            connection.ended = true;
            connection.received.drain(..).for_each(|(buffer, _)| self.pool.give_back(buffer));
            if connection.armed {
                let receive = RECEIVE << 32 | descriptor as u64;
                return self.queue(opcode::AsyncCancel::new(receive).build(), CANCEL, descriptor);
            }
        } else {
            connection.sent += result as usize;
            if connection.sent == len {
                connection.sent = 0;
                connection.received.pop_front();
                self.pool.give_back(buffer);
            }
            if !connection.received.is_empty() {
                self.send(descriptor)?;
            }
        }
        self.close_if_over(descriptor);
        self.receive_unless_full(descriptor)?;
        // Buffers went back.
        for starved in std::mem::take(&mut self.starved) {
            self.receive_unless_full(starved)?;
        }
        Ok(())
    }

    fn close_if_over(&mut self, descriptor: RawFd) {
        let slot = &mut self.connections[descriptor as usize];
        slot.take_if(|it| it.ended && !it.armed && it.received.is_empty());
    }

    fn receive_unless_full(&mut self, descriptor: RawFd) -> io::Result<()> {
        match &self.connections[descriptor as usize] {
            Some(it) if !it.armed && !it.ended && it.received.len() < BUFFERS_EACH / 2 => {
                self.receive(descriptor)
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self, descriptor: RawFd) -> io::Result<()> {
        if let Some(connection) = &mut self.connections[descriptor as usize] {
            connection.armed = true;
        }
        self.queue(opcode::RecvMulti::new(Fd(descriptor), GROUP).build(), RECEIVE, descriptor)
    }

    fn send(&mut self, descriptor: RawFd) -> io::Result<()> {
        let Some(connection) = &self.connections[descriptor as usize] else { return Ok(()) };
        let Some(&(buffer, len)) = connection.received.front() else { return Ok(()) };
        let rest = &self.pool.buffer(buffer)[connection.sent..len];
        let entry = opcode::Send::new(Fd(descriptor), rest.as_ptr(), rest.len() as u32);
        self.queue(entry.flags(libc::MSG_NOSIGNAL).build(), SEND, descriptor)
    }

    fn accept(&mut self) -> io::Result<()> {
        let entry = opcode::AcceptMulti::new(Fd(self.listener)).flags(libc::SOCK_CLOEXEC);
        self.queue(entry.build(), ACCEPT, 0)
    }

    fn queue(&mut self, entry: Entry, operation: u64, descriptor: RawFd) -> io::Result<()> {
        let entry = entry.user_data(operation << 32 | descriptor as u64);
        // SAFETY: an entry points to a buffer that its connection holds until the send is over, or to a static; the
        // buffers live as long as the process.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

/// The buffers, and the ring from which the kernel takes them. Both live as long as the process.
struct Pool {
    bytes: *mut u8,
    buffer_bytes: usize,
    entries: *mut BufRingEntry,
    tail: u16,
}

/// What the kernel wants the ring of buffers aligned to.
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl Pool {
    fn register(ring: &mut IoUring, buffer_bytes: usize) -> io::Result<Pool> {
        let pages = usize::from(BUFFERS) * size_of::<BufRingEntry>() / size_of::<Page>();
        let pages: Vec<Page> = (0..pages).map(|_| Page([0; 4096])).collect();
        let entries: *mut BufRingEntry = pages.leak().as_mut_ptr().cast();
        let bytes = vec![0; usize::from(BUFFERS) * buffer_bytes].leak().as_mut_ptr();
        // SAFETY: the entries are aligned to a page, as many as told, and never freed.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, 0)?
        };
        let mut pool = Pool { bytes, buffer_bytes, entries, tail: 0 };
        (0..BUFFERS).for_each(|buffer| pool.give_back(buffer));
        Ok(pool)
    }

    fn buffer(&self, number: u16) -> &[u8] {
        // SAFETY: the kernel wrote to this buffer, which a connection holds, and does not before it is given back.
        unsafe {
            let start = self.bytes.add(usize::from(number) * self.buffer_bytes);
            std::slice::from_raw_parts(start, self.buffer_bytes)
        }
    }

    fn give_back(&mut self, number: u16) {
        // SAFETY: the entry at the tail is ours until the tail moves; there are as many entries as buffers, so that it
        // is not one that the kernel has still to take. Only this thread writes the tail.
        unsafe {
            let entry = &mut *self.entries.add(usize::from(self.tail % BUFFERS));
            entry.set_addr(self.bytes.add(usize::from(number) * self.buffer_bytes) as u64);
            entry.set_len(self.buffer_bytes as u32);
            entry.set_bid(number);
            self.tail = self.tail.wrapping_add(1);
            let tail = &*BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            tail.store(self.tail, Ordering::Release);
        }
    }
}
