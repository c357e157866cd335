//! Threads that handle no signals.

use nix::sys::signal::{SigSet, Signal};

/// Blocks the signals of a service on the calling thread. The kernel may deliver a signal to any
/// thread that does not block it; a thread that waits for a dead filesystem would never handle it.
pub fn take_no_signals() {
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1];
    // Cannot fail with a valid set; without the block the thread works as before.
    let _blocked = SigSet::from_iter(signals).thread_block();
}
