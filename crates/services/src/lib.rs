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

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::write;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Raises the soft limit of open descriptors (RLIMIT_NOFILE) to the hard one and returns it.
///
/// The soft limit is 1,024 on most systems for the sake of select(2), which this project does not
/// use. With it, a server would stop accepting at about a thousand connections.
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

/// No change of what these locks guard can end half-way in a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks the signals of a service on the calling thread. The kernel may deliver a signal to any
/// thread that does not block it; a thread that waits for a dead filesystem would never handle it.
pub fn take_no_signals() {
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1];
    // Cannot fail with a valid set; without the block the thread works as before.
    let _blocked = SigSet::from_iter(signals).thread_block();
}

/// Writes until all is written or an error occurs; returns how much was written before. A non-blocking descriptor, which
/// this process may have inherited from node, bun or ssh, is waited for like a blocking one.
pub fn write_whole(to: BorrowedFd<'_>, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        let failed = match write(to, &bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => {
                written += more;
                continue;
            }
            Err(Errno::EAGAIN) => {
                let writable = PollFd::new(to, PollFlags::POLLOUT);
                poll(&mut [writable], PollTimeout::NONE).err()
            }
            Err(error) => Some(error),
        };
        if let Some(error) = failed.filter(|error| *error != Errno::EINTR) {
            return (written, Err(error.into()));
        }
    }
    (written, Ok(()))
}
