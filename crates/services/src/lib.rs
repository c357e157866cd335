//! The services of the `twinring` command, written once against the public API of the runtime: none knows the engine.
//!
//! A service is a [`Server`]: `server.rs` has one part of it for each worker, and tells when all are ready;
//! `server/` admits connections, ends those that take too long, and drains. [`echo::EchoService`] is the shortest
//! service over TCP. [`http::HttpService`] serves files; the module [`http`] names the files on the path of a
//! request. [`udp::UdpService`] answers datagrams. Arguments, signals, sandbox and reports are the command's
//! (`src/serve`).

pub mod echo;
pub mod http;
mod rate;
mod server;
pub mod udp;

pub use server::{AllowList, Network, Running, Server, Service, ServiceCounters};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use std::io;

/// Raises the soft limit of open descriptors (RLIMIT_NOFILE) to the hard one and returns it.
///
/// The soft limit is 1,024 on most systems for the sake of select(2), which this project does not
/// use. With it, a server would stop accepting at about a thousand connections.
///
/// # Errors
/// The error of getrlimit(2) or setrlimit(2).
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The soft limit of open descriptors; unlimited if it cannot be read.
pub(crate) fn descriptor_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Blocks the signals of a service on the calling thread. The kernel may deliver a signal to any
/// thread that does not block it; a thread that waits for a dead filesystem would never handle it.
pub fn take_no_signals() {
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1];
    // Cannot fail with a valid set; without the block the thread works as before.
    let _blocked = SigSet::from_iter(signals).thread_block();
}
