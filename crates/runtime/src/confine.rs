//! For programs that confine themselves: what their rings may do, and a way to hear of system
//! calls that a filter refused.
//!
//! What goes through a ring is not seen by seccomp. [`Builder::confine`](crate::Builder::confine)
//! has the kernel refuse, in each worker's ring, what the program does not use.

use crate::sys;
use std::io;

/// What a program uses of the runtime. A confined ring is refused all else, with EACCES.
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
    /// Files sent with [`SendStrategy::ZeroCopy`](crate::fs::SendStrategy::ZeroCopy).
    pub zero_copy: bool,
}

/// Tries whether this kernel restricts rings.
///
/// # Errors
/// What it says to a ring that is made for the trial.
pub fn try_restrictions() -> io::Result<()> {
    sys::trial::restrict_a_ring()
}

/// Has system calls that a filter answers with SECCOMP_RET_TRAP fail with EPERM, and tells of each
/// on standard error, once for every number: an operator has to learn what a program was refused,
/// and who tries it again and again must not fill a disk. `name` is called in a signal handler and
/// may do no more than look up a constant.
///
/// # Errors
/// When the handler cannot be installed, or this architecture is none of x86-64 and AArch64: there
/// a trapped call ends the process.
pub fn report_refused_calls(name: fn(i64) -> Option<&'static str>) -> io::Result<()> {
    sys::refused::install(name)
}
