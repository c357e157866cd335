//! How the bytes of a file get into a socket.

use std::fmt;
use std::str::FromStr;

/// How the content of a file is sent. All strategies send the same bytes in the same order; they
/// differ in who copies, and in the effect of concurrent writes to the file.
///
/// With the first two, the socket queues references to the file's own pages: if they are written in
/// place before they have left, the peer gets the new content. With the other two, the peer gets
/// the content at the time of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendStrategy {
    /// sendfile(2).
    #[default]
    Sendfile,
    /// splice(2), twice: from the file into a pipe, and from the pipe into the socket. Each worker
    /// has one pipe, of 256 KiB, which is empty between two sends: bytes that the socket does not
    /// accept are dropped, and read from the file again. A peer that does not read therefore holds
    /// no pipe.
    ///
    /// By system call on both engines. The kernel passes each IORING_OP_SPLICE to one of its
    /// threads, regardless of the state of file and socket (io_uring/splice.c); the system call
    /// costs less than that detour.
    Splice,
    /// Read into memory that the kernel then sends without a copy: IORING_OP_SEND_ZC on io_uring
    /// (Linux 6.2), MSG_ZEROCOPY on epoll (Linux 4.14). Each worker has 256 buffers of 64 KiB for
    /// it. Over loopback, and to any other receiver on this machine, the kernel copies
    /// nevertheless; it reports that, and it is counted
    /// ([`zero_copy_copied`](crate::CounterSnapshot::zero_copy_copied)).
    ZeroCopy,
    /// Read and sent, in chunks of at most 64 KiB, of which a stream holds one.
    Read,
}

impl SendStrategy {
    /// All of them.
    pub const ALL: [SendStrategy; 4] =
        [SendStrategy::Sendfile, SendStrategy::Splice, SendStrategy::ZeroCopy, SendStrategy::Read];

    /// Its name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            SendStrategy::Sendfile => "sendfile",
            SendStrategy::Splice => "splice",
            SendStrategy::ZeroCopy => "zerocopy",
            SendStrategy::Read => "read",
        }
    }
}

impl fmt::Display for SendStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SendStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<SendStrategy, String> {
        let named = SendStrategy::ALL.into_iter().find(|strategy| strategy.name() == text);
        named.ok_or_else(|| "expected sendfile, splice, zerocopy or read".to_owned())
    }
}
