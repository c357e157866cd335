//! One connection: what it sends, and whether that comes back.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;

/// Length of the pattern, after which it repeats. A prime, so that no message size divides it.
const PERIOD: usize = 65_521;

/// Bytes of the pattern in memory, so that every message is one slice of it.
pub(crate) const PATTERN_BYTES: usize = 8 << 20;

/// Room for received bytes, of all connections.
const RECEIVE_BYTES: usize = 256 * 1024;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |at: usize| {
        let mixed = (at % PERIOD).wrapping_mul(0x9e37_79b9);
        (mixed >> 13) as u8 ^ mixed as u8
    };
    (0..PATTERN_BYTES + PERIOD).map(byte).collect()
});

/// Why a connection is of no use any more.
#[derive(Debug)]
pub(crate) enum Loss {
    ClosedEarly,
    Mismatch,
    Failed(io::Error),
}

pub(crate) struct Connection {
    /// Empty once it was lost.
    pub(crate) socket: Option<TcpStream>,
    /// The socket took less than was to be sent.
    pub(crate) awaits_room: bool,
    size: usize,
    depth: usize,
    /// Where in the pattern its stream begins: different on each connection, so that swapped
    /// answers are noticed.
    offset: usize,
    sent_bytes: u64,
    received_bytes: u64,
    /// When the requests without an answer were sent.
    waiting: VecDeque<u64>,
    pub(crate) answered: u64,
    stopped: bool,
    memory: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream, number: u32, size: usize, depth: usize) -> Connection {
        // Made before any load, not within it.
        LazyLock::force(&PATTERN);
        Connection {
            socket: Some(socket),
            awaits_room: false,
            size,
            depth,
            offset: number as usize * 7 % PERIOD,
            sent_bytes: 0,
            received_bytes: 0,
            waiting: VecDeque::new(),
            answered: 0,
            stopped: false,
            memory: vec![0; size.saturating_mul(depth).clamp(1, RECEIVE_BYTES)],
        }
    }

    /// Nothing new is begun.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.socket.is_some() && !self.waiting.is_empty()
    }

    /// Requests without an answer, and when the oldest was sent.
    pub(crate) fn unanswered(&self) -> (u64, Option<u64>) {
        (self.waiting.len() as u64, self.waiting.front().copied())
    }

    /// Requests that were begun.
    pub(crate) fn begun(&self) -> u64 {
        self.answered + self.waiting.len() as u64
    }

    /// Closes it; how many requests failed with it.
    pub(crate) fn give_up(&mut self) -> u64 {
        self.socket = None;
        std::mem::take(&mut self.waiting).len() as u64
    }

    fn expected(&self, at: u64, bytes: usize) -> &'static [u8] {
        let from = (self.offset + (at % PERIOD as u64) as usize) % PERIOD;
        &PATTERN[from..from + bytes]
    }

    /// Sends what is due; true if the socket is to say when it takes more.
    pub(crate) fn send(&mut self, now_ns: impl Fn() -> u64) -> Result<bool, Loss> {
        loop {
            // The rest of the request that was begun last, or a new one.
            let due = self.begun() * self.size as u64;
            let rest = (due - self.sent_bytes) as usize;
            let bytes = match rest {
                0 if self.stopped || self.waiting.len() >= self.depth => return Ok(false),
                0 => {
                    self.waiting.push_back(now_ns());
                    self.size
                }
                rest => rest,
            };
            let message = self.expected(self.sent_bytes, bytes);
            let Some(socket) = &mut self.socket else { return Ok(false) };
            match socket.write(message) {
                Ok(taken) => self.sent_bytes += taken as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(Loss::Failed(error)),
            }
        }
    }

    /// Receives once; calls back with when the request of each whole answer was sent.
    pub(crate) fn receive(&mut self, mut answered: impl FnMut(u64)) -> Result<(), Loss> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let bytes = match socket.read(&mut self.memory) {
            Ok(0) => return Err(Loss::ClosedEarly),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(Loss::Failed(error)),
        };
        let asked_for = self.received_bytes + bytes as u64 <= self.sent_bytes;
        if !asked_for || self.memory[..bytes] != *self.expected(self.received_bytes, bytes) {
            return Err(Loss::Mismatch);
        }
        self.received_bytes += bytes as u64;
        while self.received_bytes >= (self.answered + 1) * self.size as u64 {
            let Some(sent_ns) = self.waiting.pop_front() else { return Err(Loss::Mismatch) };
            self.answered += 1;
            answered(sent_ns);
        }
        Ok(())
    }
}
