//! For programs that confine themselves: restricted rings.
//!
//! seccomp does not see the operations that go through a ring.
//! [`Builder::confine`](crate::Builder::confine) makes the kernel refuse, in each worker's ring,
//! the operations that the program does not use.

/// The parts of the runtime that a program uses. A confined ring refuses all others, with EACCES.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Listeners, and the streams they accept.
    pub accept: bool,
    /// Streams that it connects.
    pub connect: bool,
    /// Datagram sockets.
    pub datagrams: bool,
    /// Reads of files beneath a [`Dir`](crate::fs::Dir).
    pub files: bool,
}
