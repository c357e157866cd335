//! The loop. One round:
//!
//! 1. enter: submit everything that is queued, wait for a completion;
//! 2. reap all completions. The sends of step 1 are over by now: `MSG_DONTWAIT` makes the kernel
//!    finish or fail them while it submits, and those that failed or fell short posted a
//!    completion, which is among the reaped;
//! 3. give the buffers of those sends back;
//! 4. queue one send per connection that received something.
//!
//! So no connection ever has data queued behind a send that posts no completion, which nothing
//! would wake up. A peer that does not take what it is sent leaves this path: the rest is copied
//! to the heap, its buffers return to the pool, and its receive is cancelled until it caught up.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, Timespec};
use io_uring::{CompletionQueue, SubmissionQueue, Submitter, cqueue, opcode};

use crate::pool::{GROUP, Piece, Pool};

/// "No chunk" in the chains of chunks.
const NONE: u32 = u32::MAX;

/// Pieces that one send can gather (IOV_MAX); a connection with more is sent a copy.
const MAX_VECTORS: usize = 1024;

/// Sends what fits without waiting; a full socket is handled apart.
const SEND_NOW: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// Sends everything, waiting as long as it takes.
const SEND_ALL: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// What a completion belongs to: the upper 8 bits of `user_data`. The lower 32 hold the connection,
/// the 24 between them the first chunk of a send.
mod tag {
    pub(super) const ACCEPT: u64 = 1;
    pub(super) const RECEIVE: u64 = 2;
    pub(super) const SEND: u64 = 3;
    pub(super) const CATCH_UP: u64 = 4;
    pub(super) const ACCEPT_AGAIN: u64 = 5;
    /// Close and cancel: their outcome shows elsewhere.
    pub(super) const IGNORED: u64 = 6;
}

pub(crate) struct Server<'ring> {
    submitter: Submitter<'ring>,
    submissions: SubmissionQueue<'ring>,
    pool: Pool,
    listener: RawFd,
    split: bool,
    /// Indexed by descriptor.
    connections: Vec<Connection>,
    /// Received in this round, to be sent at its end.
    received: Vec<Chunk>,
    /// Being sent by the next enter.
    sending: Vec<Chunk>,
    /// What SENDMSG entries point to, until the enter that reads it is over.
    #[expect(clippy::vec_box, reason = "the kernel is given their addresses")]
    messages: Vec<Box<Message>>,
    /// Connections with received chunks.
    ready: Vec<u32>,
    /// Connections that ended and may be ready to be closed.
    ending: Vec<u32>,
    /// Read by the kernel when it takes the timeout entry.
    accept_pause: Timespec,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    piece: Piece,
    /// The next one of the same connection.
    next: u32,
}

struct Message {
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
}

struct Connection {
    /// Its chunks in `received`: a chain from `first` to `last`.
    first: u32,
    last: u32,
    open: bool,
    /// A multishot receive is on its way, and will post a last completion.
    armed: bool,
    /// Nothing more will be received.
    ended: bool,
    behind: Option<Box<Behind>>,
}

/// What a peer that reads too slowly has still to get. `later` grows by no more than the pool holds:
/// the receive is cancelled as soon as the peer falls behind.
struct Behind {
    /// In the hands of the kernel.
    bytes: Vec<u8>,
    sent: usize,
    later: Vec<u8>,
}

impl Connection {
    const CLOSED: Connection = Connection {
        first: NONE,
        last: NONE,
        open: false,
        armed: false,
        ended: false,
        behind: None,
    };
}

impl<'ring> Server<'ring> {
    pub(crate) fn new(
        submitter: Submitter<'ring>,
        submissions: SubmissionQueue<'ring>,
        pool: Pool,
        listener: RawFd,
        split: bool,
    ) -> Self {
        Server {
            submitter,
            submissions,
            pool,
            listener,
            split,
            connections: Vec::new(),
            received: Vec::new(),
            sending: Vec::new(),
            messages: Vec::new(),
            ready: Vec::new(),
            ending: Vec::new(),
            accept_pause: Timespec::from(peer_common::ACCEPT_RETRY),
        }
    }

    /// Serves until the kernel refuses an enter.
    pub(crate) fn run(&mut self, completions: &mut CompletionQueue<'_>) -> io::Result<()> {
        self.arm_accept()?;
        loop {
            if self.split && !self.submissions.is_empty() {
                self.enter(0)?;
                self.finish_round(completions)?;
            }
            // A connection that ends after its last send is closed when that send is over, of
            // which no completion tells. And with `split`, something may be ready to be sent.
            let idle = self.ending.is_empty() && self.ready.is_empty();
            self.enter(usize::from(idle))?;
            self.finish_round(completions)?;
            self.send_received()?;
        }
    }

    /// Steps 2 and 3 of a round.
    fn finish_round(&mut self, completions: &mut CompletionQueue<'_>) -> io::Result<()> {
        self.reap(completions)?;
        for index in 0..self.sending.len() {
            self.pool.release(self.sending[index].piece);
        }
        self.sending.clear();
        self.messages.clear();
        self.pool.publish();
        self.close_ended()
    }

    /// Submits the whole queue and waits for `want` completions.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        loop {
            self.submissions.sync();
            match self.submitter.submit_and_wait(want) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(peer_common::context("io_uring_enter", error)),
            }
            self.submissions.sync();
            // Only a kernel short of memory leaves entries behind. All of them have to be taken
            // before buffers can be given back.
            if self.submissions.is_empty() {
                return Ok(());
            }
        }
    }

    fn reap(&mut self, completions: &mut CompletionQueue<'_>) -> io::Result<()> {
        loop {
            completions.sync();
            for completion in completions.by_ref() {
                self.complete(&completion)?;
            }
            completions.sync();
            // Completions that found the queue full wait in the kernel. A short send may be among
            // them, so that no buffer goes back before they are seen.
            if !self.submissions.cq_overflow() {
                return Ok(());
            }
            self.enter(0)?;
        }
    }

    fn complete(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let user_data = completion.user_data();
        let (result, flags) = (completion.result(), completion.flags());
        let id = user_data as u32;
        match user_data >> 56 {
            tag::RECEIVE => self.on_receive(id, result, flags),
            tag::SEND => self.on_short_send(id, (user_data >> 32) as u32 & 0x00ff_ffff, result),
            tag::CATCH_UP => self.on_catch_up(id, result),
            tag::ACCEPT => self.on_accept(result, flags),
            tag::ACCEPT_AGAIN => self.arm_accept(),
            _ => Ok(()),
        }
    }

    fn on_accept(&mut self, result: i32, flags: u32) -> io::Result<()> {
        let armed = cqueue::more(flags);
        if result >= 0 {
            let index = result as usize;
            if index >= self.connections.len() {
                self.connections.resize_with(index + 1, || Connection::CLOSED);
            }
            self.connections[index] = Connection { open: true, ..Connection::CLOSED };
            self.arm_receive(result as u32)?;
        } else if !armed && peer_common::out_of_resources(&io::Error::from_raw_os_error(-result)) {
            let timeout = opcode::Timeout::new(&raw const self.accept_pause).build();
            return self.queue(&timeout.user_data(tag::ACCEPT_AGAIN << 56));
        }
        if armed { Ok(()) } else { self.arm_accept() }
    }

    fn on_receive(&mut self, id: u32, result: i32, flags: u32) -> io::Result<()> {
        let armed = cqueue::more(flags);
        self.connections[id as usize].armed = armed;
        if let Some(piece) = self.pool.take(flags, result.max(0) as u32) {
            self.keep(id, piece);
        }
        if armed {
            return Ok(());
        }
        let connection = &mut self.connections[id as usize];
        // ENOBUFS: the pool was empty, and is full again by the next enter. With data: the kernel
        // ended the multishot for a reason of its own. Anything else ends the connection.
        connection.ended |= result <= 0 && result != -libc::ENOBUFS && result != -libc::ECANCELED;
        if connection.ended {
            self.ending.push(id);
        } else if connection.behind.is_none() {
            self.arm_receive(id)?;
        }
        Ok(())
    }

    /// Queues a received piece for sending.
    fn keep(&mut self, id: u32, piece: Piece) {
        let connection = &mut self.connections[id as usize];
        if connection.ended || piece.len() == 0 {
            return self.pool.release(piece);
        }
        if let Some(behind) = &mut connection.behind {
            behind.later.extend_from_slice(self.pool.bytes(piece));
            return self.pool.release(piece);
        }
        let index = self.received.len() as u32;
        if connection.last == NONE {
            connection.first = index;
            self.ready.push(id);
        } else {
            let last = &mut self.received[connection.last as usize];
            if self.pool.merge(&mut last.piece, piece) {
                return;
            }
            last.next = index;
        }
        connection.last = index;
        self.received.push(Chunk { piece, next: NONE });
    }

    /// Step 4 of a round.
    fn send_received(&mut self) -> io::Result<()> {
        for index in 0..self.ready.len() {
            let id = self.ready[index];
            let connection = &mut self.connections[id as usize];
            let first = connection.first;
            (connection.first, connection.last) = (NONE, NONE);
            // Nothing if it fell behind, or broke, after it was listed.
            if first != NONE {
                self.send_chain(id, first)?;
            }
        }
        self.ready.clear();
        // Everything in `sending` was released after the last enter.
        std::mem::swap(&mut self.received, &mut self.sending);
        Ok(())
    }

    fn send_chain(&mut self, id: u32, first: u32) -> io::Result<()> {
        let Chunk { piece, next } = self.received[first as usize];
        let entry = if next == NONE {
            let (address, len) = (self.pool.address(piece), piece.len() as u32);
            opcode::Send::new(Fd(id as RawFd), address, len).flags(SEND_NOW).build()
        } else {
            let vectors: Vec<_> =
                chain(&self.received, first).map(|piece| self.vector(piece)).collect();
            if vectors.len() > MAX_VECTORS {
                let bytes = self.copy(&self.received, first);
                return self.fall_behind(id, bytes);
            }
            let message = Message::new(vectors);
            let header = &raw const message.header;
            self.messages.push(message);
            opcode::SendMsg::new(Fd(id as RawFd), header).flags(SEND_NOW as u32).build()
        };
        let user_data = tag::SEND << 56 | u64::from(first) << 32 | u64::from(id);
        self.queue(&entry.flags(Flags::SKIP_SUCCESS).user_data(user_data))
    }

    /// A send of the last enter failed or fell short; `first` is its first chunk.
    fn on_short_send(&mut self, id: u32, first: u32, result: i32) -> io::Result<()> {
        if result < 0 && result != -libc::EAGAIN {
            return self.give_up(id);
        }
        let mut bytes = self.copy(&self.sending, first);
        bytes.drain(..result.max(0) as usize);
        // A receive that was re-armed by the same enter may have been reaped before this.
        let connection = &mut self.connections[id as usize];
        let received_since = connection.first;
        (connection.first, connection.last) = (NONE, NONE);
        if received_since != NONE {
            bytes.extend(self.copy(&self.received, received_since));
        }
        self.fall_behind(id, bytes)
    }

    /// Takes a connection off the fast path until its peer has read `bytes`.
    fn fall_behind(&mut self, id: u32, bytes: Vec<u8>) -> io::Result<()> {
        let connection = &mut self.connections[id as usize];
        connection.behind = Some(Box::new(Behind { bytes, sent: 0, later: Vec::new() }));
        if connection.armed {
            self.cancel_receive(id)?;
        }
        self.catch_up(id)
    }

    /// Sends what is left, waiting for room.
    fn catch_up(&mut self, id: u32) -> io::Result<()> {
        let Some(behind) = &self.connections[id as usize].behind else { return Ok(()) };
        let rest = &behind.bytes[behind.sent..];
        let (address, len) = (rest.as_ptr(), rest.len() as u32);
        let entry = opcode::Send::new(Fd(id as RawFd), address, len).flags(SEND_ALL).build();
        self.queue(&entry.user_data(tag::CATCH_UP << 56 | u64::from(id)))
    }

    fn on_catch_up(&mut self, id: u32, result: i32) -> io::Result<()> {
        if result < 0 {
            self.connections[id as usize].behind = None;
            return self.give_up(id);
        }
        let connection = &mut self.connections[id as usize];
        let Some(behind) = &mut connection.behind else { return Ok(()) };
        behind.sent += result as usize;
        if behind.sent == behind.bytes.len() {
            behind.bytes = std::mem::take(&mut behind.later);
            behind.sent = 0;
        }
        if !behind.bytes.is_empty() {
            return self.catch_up(id);
        }
        connection.behind = None;
        if connection.ended {
            self.ending.push(id);
        } else if !connection.armed {
            self.arm_receive(id)?;
        }
        Ok(())
    }

    /// The peer cannot be sent anything any more: drop what it was to get, and close.
    fn give_up(&mut self, id: u32) -> io::Result<()> {
        let connection = &mut self.connections[id as usize];
        (connection.first, connection.last) = (NONE, NONE);
        connection.ended = true;
        self.ending.push(id);
        if connection.armed { self.cancel_receive(id) } else { Ok(()) }
    }

    /// Closes the connections that ended and have nothing on its way. The others are listed again
    /// when what they wait for is over.
    fn close_ended(&mut self) -> io::Result<()> {
        for id in std::mem::take(&mut self.ending) {
            let connection = &mut self.connections[id as usize];
            if !connection.open || connection.armed || connection.behind.is_some() {
                continue;
            }
            if connection.first != NONE {
                self.ending.push(id);
                continue;
            }
            *connection = Connection::CLOSED;
            let close = opcode::Close::new(Fd(id as RawFd)).build();
            self.queue(&close.flags(Flags::SKIP_SUCCESS).user_data(tag::IGNORED << 56))?;
        }
        Ok(())
    }

    fn arm_accept(&mut self) -> io::Result<()> {
        let entry = opcode::AcceptMulti::new(Fd(self.listener))
            // Not O_NONBLOCK, with which the kernel would fail CATCH_UP sends instead of waiting.
            .flags(libc::SOCK_CLOEXEC)
            .build();
        self.queue(&entry.user_data(tag::ACCEPT << 56))
    }

    fn arm_receive(&mut self, id: u32) -> io::Result<()> {
        self.connections[id as usize].armed = true;
        let entry = opcode::RecvMulti::new(Fd(id as RawFd), GROUP).build();
        self.queue(&entry.user_data(receive_user_data(id)))
    }

    fn cancel_receive(&mut self, id: u32) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(receive_user_data(id)).build();
        self.queue(&entry.flags(Flags::SKIP_SUCCESS).user_data(tag::IGNORED << 56))
    }

    fn queue(&mut self, entry: &Entry) -> io::Result<()> {
        // SAFETY: entries point to the pool (mapped for good), to `messages` and `sending` (kept
        // until the enter that reads them is over), to `Behind::bytes` (kept until CATCH_UP
        // completes) and to `accept_pause` (part of the server, which is never dropped).
        while unsafe { self.submissions.push(entry) }.is_err() {
            self.enter(0)?;
        }
        Ok(())
    }

    fn copy(&self, chunks: &[Chunk], first: u32) -> Vec<u8> {
        chain(chunks, first).flat_map(|piece| self.pool.bytes(piece)).copied().collect()
    }

    fn vector(&self, piece: Piece) -> libc::iovec {
        libc::iovec { iov_base: self.pool.address(piece).cast_mut().cast(), iov_len: piece.len() }
    }
}

impl Message {
    fn new(vectors: Vec<libc::iovec>) -> Box<Message> {
        // SAFETY: all zeroes is a valid msghdr: no name, no control data, no flags.
        let header = unsafe { std::mem::zeroed() };
        let mut message = Box::new(Message { header, vectors });
        message.header.msg_iov = message.vectors.as_mut_ptr();
        message.header.msg_iovlen = message.vectors.len();
        message
    }
}

fn chain(chunks: &[Chunk], first: u32) -> impl Iterator<Item = Piece> {
    std::iter::successors(chunks.get(first as usize), |chunk| chunks.get(chunk.next as usize))
        .map(|chunk| chunk.piece)
}

fn receive_user_data(id: u32) -> u64 {
    tag::RECEIVE << 56 | u64::from(id)
}
