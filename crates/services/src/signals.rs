//! Threads that take no signals.

use nix::sys::signal::{SigSet, Signal};

/// Has the calling thread take none of the signals that a service acts on. The kernel may give a
/// signal to any thread that takes it; one that waits for a filesystem whose server is gone would
/// keep it for ever.
pub fn take_no_signals() {
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1];
    // Cannot fail with a valid set; a thread that still takes them is no worse than before.
    let _blocked = SigSet::from_iter(signals).thread_block();
}
