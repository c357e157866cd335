//! Sockets that are read by recvmmsg(2), where many datagrams come at a time.
//!
//! A multishot receive costs a completion and a buffer of the ring for each datagram: 1,485 of our
//! instructions for one that is reflected, where recvmmsg(2) takes 996. It is faster when few
//! datagrams arrive at a time, which the wait itself returns, and with many sockets. A socket
//! therefore begins with one (`udp=auto`). When many datagrams have arrived at a time several times
//! in a row, the receive is cancelled. After its last completion, which follows all that it
//! received, a poll reports when there is data to read, as on epoll. When few arrive for a long
//! time, the poll is cancelled and the multishot receive continues. The order of arrival is
//! preserved.

use super::{Memory, Udp};
use crate::config::UdpReads;
use crate::datagram::Received;
use crate::driver::mmsg::{Reading, RecvBatch, Source};
use crate::driver::uring::{Op, Uring};
use crate::slots::Key;
use crate::sys::Mapping;
use io_uring::{cqueue, opcode};
use std::io;
use std::os::fd::AsRawFd;
use std::task::Waker;

/// A wait that returns this many datagrams counts as many, and this few before the socket is empty
/// as few.
const MANY: u32 = 16;
const FEW: u32 = 8;
/// Waits in a row with many, after which calls are used, and times in a row with few, after which
/// the ring is.
const MANY_IN_A_ROW: u32 = 4;
const FEW_IN_A_ROW: u32 = 64;

/// Buffers of a pool for calls, at most: a batch that is being read, another that is being sent, and
/// as many before received datagrams have to be copied.
const BUFFERS_MAX: u16 = 256;

/// How a socket is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ring,
    /// By the ring; the receive was cancelled, and its last completion has not arrived.
    LeavingRing,
    /// By calls, out of a pool with this index.
    Calls(usize),
    /// By calls; the poll was cancelled, and its last completion has not arrived.
    LeavingCalls(usize),
}

#[derive(Debug)]
pub(super) struct Reads {
    choice: UdpReads,
    state: State,
    reading: Reading,
    /// A poll is with the kernel.
    polled: bool,
    /// Datagrams of this intake, or since the socket was empty.
    came: u32,
    intake: u32,
    /// Intakes with many, or times with few, in a row.
    in_a_row: u32,
}

impl Reads {
    pub(super) fn new(choice: UdpReads) -> Reads {
        let reading = Reading::new(false);
        Reads {
            choice,
            state: State::Ring,
            reading,
            polled: false,
            came: 0,
            intake: 0,
            in_a_row: 0,
        }
    }

    /// True while a receive may be handed to the ring.
    pub(super) fn by_ring(&self) -> bool {
        self.state == State::Ring
    }

    /// The poll, if there is one to be cancelled.
    pub(super) fn armed(&self) -> Option<Op> {
        self.polled.then_some(Op::DatagramsReadable)
    }

    fn change(&mut self, state: State) {
        (self.state, self.came, self.in_a_row) = (state, 0, 0);
    }

    /// Takes note of a datagram that the ring brought; true if it is time for calls.
    fn note_arrival(&mut self, intake: u32) -> bool {
        if self.intake != intake {
            if self.came < MANY {
                self.in_a_row = 0;
            }
            (self.intake, self.came) = (intake, 0);
        }
        self.came += 1;
        self.in_a_row += u32::from(self.came == MANY);
        self.in_a_row >= MANY_IN_A_ROW && self.choice == UdpReads::Auto
    }

    /// Takes note that a call has emptied the socket; true if it is time for the ring.
    fn note_empty(&mut self) -> bool {
        self.in_a_row = if self.came < FEW { self.in_a_row + 1 } else { 0 };
        self.came = 0;
        self.in_a_row >= FEW_IN_A_ROW && self.choice == UdpReads::Auto
    }
}

impl Uring {
    /// Reads a socket by calls from now on, if that was requested by name.
    pub(super) fn begin_with_calls(&mut self, key: Key, udp: &mut Udp) {
        if udp.own.reads.choice == UdpReads::Calls && udp.own.reads.by_ring() && udp.own.armed == 0
        {
            self.read_by_calls(key, udp);
        }
    }

    /// Takes note of a datagram that a multishot receive brought, and changes to calls in time.
    pub(super) fn note_arrival(&mut self, key: Key, udp: &mut Udp) {
        let time = udp.own.reads.note_arrival(self.intake);
        if time && udp.setup.batch && udp.own.armed > 0 && !udp.rests() {
            udp.own.reads.change(State::LeavingRing);
            udp.own.expected += 1;
            self.push_cancel(key, Op::ReceiveDatagrams);
        }
    }

    /// The multishot receive of a socket is over.
    pub(super) fn after_receive(&mut self, key: Key, udp: &mut Udp) {
        if udp.own.reads.state == State::LeavingRing {
            self.read_by_calls(key, udp);
        }
    }

    fn read_by_calls(&mut self, key: Key, udp: &mut Udp) {
        if udp.outbox.closing || udp.own.released {
            return;
        }
        let count = udp.setup.buffer_count.min(BUFFERS_MAX);
        let bytes = udp.setup.buffer_bytes;
        let batches = &mut self.batches;
        let batch = batches.iter().position(|batch| batch.fits(&udp.setup, count)).or_else(|| {
            // The ring can continue without it, and an allocation that fails elsewhere ends the
            // process.
            if !Mapping::leaves_reserve(usize::from(count) * bytes) {
                return None;
            }
            // As many geometries as there are groups, which are bounded.
            batches.push(RecvBatch::new(&udp.setup, count).ok()?);
            Some(batches.len() - 1)
        });
        match batch {
            Some(batch) => {
                udp.own.reads.change(State::Calls(batch));
                self.arm_poll(key, udp);
            }
            // No memory for it: the ring has its own.
            None => self.read_by_ring(key, udp),
        }
    }

    /// Returns to the ring, and stays with it if that was not planned.
    fn read_by_ring(&mut self, key: Key, udp: &mut Udp) {
        if !matches!(udp.own.reads.state, State::LeavingCalls(_)) {
            udp.own.reads.choice = UdpReads::Ring;
        }
        udp.own.reads.change(State::Ring);
        self.arm_datagrams(key, udp);
    }

    fn arm_poll(&mut self, key: Key, udp: &mut Udp) {
        let Some(socket) = &udp.own.socket else { return };
        udp.own.reads.polled = true;
        udp.own.expected += 1;
        let poll = opcode::PollAdd::new(socket.name.fd, libc::POLLIN as u32).multi(true).build();
        let poll = poll.flags(socket.name.flags);
        // SAFETY: a poll names no memory.
        unsafe { self.ring.push(poll.user_data(Op::DatagramsReadable.tag(key))) };
    }

    /// A completion of the poll.
    pub(in crate::driver::uring) fn on_datagrams_readable(
        &mut self,
        key: Key,
        udp: &mut Udp,
        (result, flags): (i32, u32),
        wakes: &mut Vec<Waker>,
    ) {
        udp.own.reads.reading.readable = true;
        udp.receive_waiters.wake(wakes);
        if cqueue::more(flags) {
            return;
        }
        udp.own.reads.polled = false;
        udp.own.expected -= 1;
        match udp.own.reads.state {
            _ if udp.outbox.closing || udp.own.released => {}
            State::Calls(_) if result >= 0 => self.arm_poll(key, udp),
            _ => self.read_by_ring(key, udp),
        }
    }

    /// Reads a socket by calls, if that is how it is read; `None` if there is nothing.
    pub(super) fn read_datagrams(
        &mut self,
        key: Key,
        udp: &mut Udp,
        into: &mut Vec<Received>,
        most: usize,
    ) -> Option<io::Result<usize>> {
        let (State::Calls(batch) | State::LeavingCalls(batch)) = udp.own.reads.state else {
            return None;
        };
        let (reads, setup, stats) = (&mut udp.own.reads, &udp.setup, &mut udp.stats);
        if !reads.reading.readable {
            return None;
        }
        let source = Source { fd: udp.own.socket.as_ref()?.owned.as_raw_fd(), setup, stats };
        let batch = &mut self.batches[batch];
        let read = reads.reading.read(batch, source, into, most, &self.counters);
        if let Some(Ok(came)) = &read {
            reads.came = reads.came.saturating_add(*came as u32);
        }
        if !reads.reading.readable && reads.note_empty() && reads.polled {
            let State::Calls(batch) = reads.state else { return read };
            reads.change(State::LeavingCalls(batch));
            udp.own.expected += 1;
            self.push_cancel(key, Op::DatagramsReadable);
        }
        read
    }

    /// Received by calls and still with readers.
    pub(in crate::driver::uring) fn buffers_of_calls(&self) -> usize {
        self.batches.iter().map(RecvBatch::buffers_in_use).sum()
    }
}

/// True if a socket with this memory can be read by calls: receives that each have a buffer are
/// requested by name.
pub(super) fn reads_of(choice: UdpReads, multishot: bool, memory: &Memory) -> Reads {
    match (multishot, memory) {
        (true, Memory::Group(_)) => Reads::new(choice),
        _ => Reads::new(UdpReads::Ring),
    }
}
