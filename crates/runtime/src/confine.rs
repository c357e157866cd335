//! For programs that confine themselves: restricted rings, and reports of system calls that a
//! filter refused.
//!
//! seccomp does not see the operations that go through a ring.
//! [`Builder::confine`](crate::Builder::confine) makes the kernel refuse, in each worker's ring,
//! the operations that the program does not use.

use crate::sys;
use std::io;

/// The parts of the runtime that a program uses. A confined ring refuses all others, with EACCES.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Listeners, and the streams they accept.
    pub accept: bool,
    /// Streams that it connects.
    pub connect: bool,
    /// Datagram sockets.
    pub datagrams: bool,
    /// Files beneath a [`Dir`](crate::fs::Dir).
    pub files: bool,
}

/// Tests whether this kernel can restrict rings.
///
/// # Errors
/// The kernel's error for a test ring.
pub fn try_restrictions() -> io::Result<()> {
    sys::trial::restrict_a_ring()
}

/// Makes system calls that a filter traps (SECCOMP_RET_TRAP) fail with EPERM, and reports each on
/// standard error, once per number: an operator should learn of refused calls, but an attacker that
/// repeats them must not fill a disk. `names` are those of the calls, by their numbers.
///
/// # Errors
/// When the handler cannot be installed, or the architecture is neither x86-64 nor AArch64: there a
/// trapped call ends the process.
pub fn report_refused_calls(names: &'static [&'static str]) -> io::Result<()> {
    sys::refused::install(names)
}
