//! What a process inherits must not change what the command does. This is called before anything else.
//!
//! - A parent may block signals (the JVM, .NET and Ruby do); the command could then be ended by SIGKILL alone.
//! - It may ignore SIGCHLD; there would be no exit status to wait for (wait(2)).
//! - It may ignore SIGTERM. (SIGINT and SIGHUP may be ignored on purpose: by `&` of a shell, and by nohup.)
//! - It may limit the size of files; SIGXFSZ would end a server whose log reaches the limit.

use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Undoes what was inherited. `handles_term` for a command that handles SIGTERM itself.
pub(crate) fn undo(handles_term: bool) {
    // Neither these calls nor a missing /proc are reasons to give up: the command then runs as before.
    let _as_before = SigSet::empty().thread_set_mask();
    let ignored = ignored();
    let is_ignored = |signal: i32| ignored & (1 << (signal - 1)) != 0;
    if is_ignored(SIGCHLD) {
        // A handler, which a child does not inherit, takes the place of the disposition.
        let _as_before = flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)));
    }
    if is_ignored(SIGTERM) && !handles_term {
        let always = Arc::new(AtomicBool::new(true));
        let _as_before = flag::register_conditional_default(SIGTERM, always);
    }
    // With a handler, the write fails with EFBIG.
    let _as_before = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
