//! Checks what happens when a future is dropped: to the bytes that it was receiving or sending, to
//! connections, descriptors, and the memory that the kernel writes to.
//!
//! `select!`, timeouts and aborts drop futures at an await. A runtime may give any of several
//! promises about that, and documentation rarely says which. This crate states the promises as rules
//! and finds out which of them hold, by behaviour at real sockets: implement [`Subject`] for a
//! runtime, make [`Quarantine`] the global allocator of the program, and call [`check`].
//!
//! ```text
//! #[global_allocator]
//! static ALLOCATOR: Quarantine = Quarantine::new();
//!
//! for finding in twinring_cancellation::check(&MyRuntime) {
//!     println!("{finding}");
//! }
//! ```
//!
//! A finding is a fact and no verdict: a runtime may document that a receive must not be dropped.
//! No rule depends on how fast the machine is. All of them use loopback and at most 300 descriptors.

mod quarantine;
mod rules;
mod support;

pub use quarantine::{Quarantine, RECV_BUFFER_BYTES};

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// A runtime under test, and one way of using it.
pub trait Subject {
    /// Its stream.
    type Stream;
    /// Its listener.
    type Listener;

    /// Runs a future on a new runtime of one thread, which is gone when this returns.
    fn run<T>(&self, main: impl Future<Output = T>) -> T;

    /// Adopts a listening socket, which is in blocking mode.
    fn listener(&self, listener: std::net::TcpListener) -> io::Result<Self::Listener>;

    /// Adopts a connected socket, which is in blocking mode.
    fn stream(&self, stream: std::net::TcpStream) -> io::Result<Self::Stream>;

    /// The next connection.
    fn accept(&self, listener: &Self::Listener) -> impl Future<Output = io::Result<Self::Stream>>;

    /// A new connection.
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>>;

    /// The next bytes; none at the end of the stream. A runtime that receives into memory of the
    /// caller gets a vector of [`RECV_BUFFER_BYTES`], made for this call, so that the quarantine
    /// recognises it.
    fn recv(&self, stream: &mut Self::Stream) -> impl Future<Output = io::Result<Vec<u8>>>;

    /// Sends all bytes.
    fn send(
        &self,
        stream: &mut Self::Stream,
        bytes: Vec<u8>,
    ) -> impl Future<Output = io::Result<()>>;

    /// Waits, and lets the runtime do what it has to do meanwhile.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()>;
}

/// What a program may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// A dropped receive loses no byte: the next one returns what arrived for it.
    ReceivedBytes,
    /// A dropped accept loses no connection: the next one returns it.
    AcceptedConnections,
    /// A dropped send has sent all of its bytes, or none.
    SentBytes,
    /// Dropped connects, receives and accepts leave no open descriptor, once the runtime has had its
    /// turns.
    Descriptors,
    /// Dropping a stream together with its waiting receive closes the connection: the peer sees the
    /// end.
    Close,
    /// The kernel writes to no memory of a dropped receive after that was freed, neither while the
    /// runtime runs nor behind its end.
    Buffers,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::ReceivedBytes => "received bytes",
            Rule::AcceptedConnections => "accepted connections",
            Rule::SentBytes => "sent bytes",
            Rule::Descriptors => "descriptors",
            Rule::Close => "close",
            Rule::Buffers => "buffers",
        })
    }
}

/// What was found about one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// True if it held.
    pub holds: bool,
    /// What was seen, with counts.
    pub seen: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "holds" } else { "broken" };
        write!(f, "{:20} {verdict:6} {}", self.rule, self.seen)
    }
}

/// Checks all rules, each on a runtime of its own.
///
/// Call it from a program that does nothing else meanwhile: descriptors are counted for the whole
/// process. Panics when the machine refuses what a rule needs (a socket, a thread), or an operation
/// fails that was not dropped.
pub fn check<S: Subject>(subject: &S) -> Vec<Finding> {
    let of = |rule, (holds, seen)| Finding { rule, holds, seen };
    vec![
        of(Rule::ReceivedBytes, rules::received_bytes(subject)),
        of(Rule::AcceptedConnections, rules::accepted_connections(subject)),
        of(Rule::SentBytes, rules::sent_bytes(subject)),
        of(Rule::Descriptors, rules::descriptors(subject)),
        of(Rule::Close, rules::close(subject)),
        of(Rule::Buffers, rules::buffers(subject)),
    ]
}
