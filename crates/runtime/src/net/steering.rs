//! Steering: which of the sockets that share an address get its new connections or datagrams.
//!
//! The kernel chooses the socket of a SYN, or of a datagram, by a program that can be replaced at
//! any time. Nothing that a socket already has is affected: its connections, those in its accept
//! queue, and handshakes in progress stay with it. So connections are moved away from a worker
//! without closing its listener, which would reset the connections in its queue.

use crate::sys::socket::{Socket, steer_group};
use libc::sock_filter;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Sockets of a group: `first`, and from there each `step`th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// The number of the first one.
    pub first: usize,
    /// The distance to the next one; at least 1.
    pub step: usize,
}

impl Targets {
    /// All sockets.
    pub const ALL: Targets = Targets { first: 0, step: 1 };

    /// True if the socket of this number is among them.
    pub fn contains(self, socket: usize) -> bool {
        socket >= self.first && (socket - self.first).is_multiple_of(self.step.max(1))
    }
}

/// Steers what arrives at an address that several sockets share. Drop it when the sockets are to be
/// closed: it holds one of them open.
#[derive(Debug)]
pub struct Steering {
    socket: Socket,
    is_ipv6: bool,
    sockets: usize,
}

impl Steering {
    pub(super) fn new(socket: Socket, address: SocketAddr, sockets: usize) -> Steering {
        Steering { socket, is_ipv6: address.is_ipv6(), sockets }
    }

    /// From now on, new connections or datagrams go to `targets`, distributed by a hash of address
    /// and port of the sender. Datagrams of one sender can be received in another order when its
    /// socket changes.
    ///
    /// # Errors
    /// When there is no such socket, or the kernel does not support it (before Linux 4.5).
    pub fn steer(&self, targets: Targets) -> io::Result<()> {
        let count = self.sockets.saturating_sub(targets.first).div_ceil(targets.step.max(1));
        if count == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let program = program(self.is_ipv6, targets, count);
        steer_group(self.socket.as_fd(), &program)
    }
}

/// Offset of the network header (`SKF_NET_OFF`). A program reads the packet from its payload on.
const NETWORK: u32 = libc::SKF_NET_OFF as u32;

/// Multiplier of Fibonacci hashing: 2^32 divided by the golden ratio.
const MULTIPLIER: u32 = 0x9E37_79B1;

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_HALF_AT_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_X_FROM_MEMORY: u32 = libc::BPF_LDX | libc::BPF_MEM;
const STORE: u32 = libc::BPF_ST;
const TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
const XOR_X: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const SHIFT_LEFT: u32 = libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K;
const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const MULTIPLY: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
const ADD: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K;
const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;

/// Hashes the address and port of the sender, and returns one of `count` targets.
fn program(is_ipv6: bool, targets: Targets, count: usize) -> Vec<sock_filter> {
    let mut steps: Vec<(u32, u32)> = Vec::new();
    if is_ipv6 {
        steps.push((LOAD_WORD, NETWORK + 8));
        for word in [12, 16, 20] {
            steps.extend([(TO_X, 0), (LOAD_WORD, NETWORK + word), (XOR_X, 0)]);
        }
        // With extension headers these bytes are not the port, and still those of one sender.
        steps.extend([(STORE, 0), (LOAD_HALF, NETWORK + 40)]);
    } else {
        steps.extend([(LOAD_WORD, NETWORK + 12), (STORE, 0)]);
        // The length of the header is in words, in the lower half of its first byte.
        steps.extend([(LOAD_BYTE, NETWORK), (AND, 0xF), (SHIFT_LEFT, 2), (TO_X, 0)]);
        steps.push((LOAD_HALF_AT_X, NETWORK));
    }
    steps.extend([(LOAD_X_FROM_MEMORY, 0), (XOR_X, 0), (MULTIPLY, MULTIPLIER), (SHIFT_RIGHT, 16)]);
    steps.extend([(MODULO, count as u32), (MULTIPLY, targets.step as u32)]);
    steps.extend([(ADD, targets.first as u32), (RETURN_A, 0)]);
    let instruction = |(code, k)| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    steps.into_iter().map(instruction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_counted_from_the_first_in_steps() {
        let odd = Targets { first: 1, step: 2 };
        assert_eq!((0..5).filter(|socket| odd.contains(*socket)).collect::<Vec<_>>(), [1, 3]);
        assert!((0..5).all(|socket| Targets::ALL.contains(socket)));
    }
}
