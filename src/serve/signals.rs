//! SIGTERM and SIGINT: the first drains, the second stops at once. The service defines the actions of
//! other signals.

use super::notices::{finish, tell, tell_manager};
use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use twinring::Handle;

/// A second signal this soon after the first is the same request: timeout(1), for example, signals
/// its child and then the whole process group.
const SAME_REQUEST: Duration = Duration::from_millis(20);

/// How long the workers may take to end after their deadline (after a second signal, immediately)
/// until the process ends without them. A worker can be in a system call that does not return, such as
/// opening a file of a dead server. Longer than a runtime's shutdown, which waits for half a second for
/// operations on files.
const LATE_MAX: Duration = Duration::from_secs(2);

/// The signals received; 0 for none.
#[derive(Debug, Default)]
pub(super) struct Received {
    first: AtomicI32,
    second: AtomicI32,
    /// The workers have ended, or a deadline ends the process without them.
    ending: AtomicBool,
}

/// What a service does on signals that do not end it, such as SIGHUP.
///
/// An action runs on the signal thread, which also receives the signals that end the service, so it must
/// not block. Opening a file can block: its filesystem may never answer.
pub(super) type Actions = Vec<(i32, Box<dyn Fn() + Send>)>;

/// Handles `signals`, SIGTERM and SIGINT from now on: this thread and those that it starts later receive none. The
/// first signal that ends the service gives it `drain_timeout`.
pub(super) fn watch(
    signals: Option<Signals>,
    actions: Actions,
    handle: Handle,
    drain_timeout: Duration,
) -> io::Result<Arc<Received>> {
    let mut signals = signals.map_or_else(|| Signals::new([SIGTERM, SIGINT]), Ok)?;
    let mut handled = SigSet::empty();
    for signal in actions.iter().map(|(signal, _)| *signal).chain([SIGTERM, SIGINT]) {
        signals.add_signal(signal)?;
        handled.add(Signal::try_from(signal)?);
    }
    let received = Arc::new(Received::default());
    let by_thread = Arc::clone(&received);
    Builder::new().name("signals".to_owned()).spawn(move || {
        let mut drain_since: Option<Instant> = None;
        for signal in signals.forever() {
            if !matches!(signal, SIGTERM | SIGINT) {
                let asked = actions.iter().filter(|(other, _)| *other == signal);
                asked.for_each(|(_, action)| action());
                continue;
            }
            let since = *drain_since.get_or_insert_with(Instant::now);
            if by_thread.first.load(Ordering::Acquire) == 0 {
                by_thread.first.store(signal, Ordering::Release);
                handle.shutdown();
                tell_manager("STOPPING=1");
                by_thread.end_anyhow(drain_timeout.saturating_add(LATE_MAX));
            } else if since.elapsed() > SAME_REQUEST
                && by_thread.second.swap(signal, Ordering::AcqRel) == 0
            {
                handle.stop();
                by_thread.end_anyhow(LATE_MAX);
            }
        }
    })?;
    // A worker in a system call that does not return would keep the signal that the kernel gave it.
    handled.thread_block()?;
    Ok(received)
}

impl Received {
    /// Ends the process after this time, if its workers have not ended by themselves.
    fn end_anyhow(self: &Arc<Self>, limit: Duration) {
        let received = Arc::clone(self);
        // Without memory for a thread there is no deadline.
        let _without = Builder::new().name("deadline".to_owned()).spawn(move || {
            std::thread::sleep(limit);
            // Of two deadlines, one ends the process.
            if received.ending.swap(true, Ordering::AcqRel) {
                return;
            }
            tell(format!(
                "twinring: a worker did not end within {limit:?}: it is in a system call that does not \
                 return (a dead filesystem server?); the process ends without it"
            ));
            finish();
            // The deadline of the first signal may be the earlier one after a second, too.
            std::process::exit(match received.second.load(Ordering::Acquire) {
                0 => 1,
                signal => 128 + signal,
            });
        });
    }

    /// All workers have ended; the following steps have bounds of their own.
    pub(super) fn workers_have_ended(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// The reason for the end of the service, for the last line of its report.
    pub(super) fn reason(&self) -> String {
        match self.second.load(Ordering::Acquire) {
            0 => name(self.first.load(Ordering::Acquire)).to_owned(),
            second => format!("second signal: {}", name(second)),
        }
    }

    /// True once a second signal has requested an immediate end.
    pub(super) fn stops_at_once(&self) -> bool {
        self.second.load(Ordering::Acquire) != 0
    }

    /// 0 after a drain; 130 or 143, as a shell reports SIGINT and SIGTERM, after a stop.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.second.load(Ordering::Acquire) {
            0 => ExitCode::SUCCESS,
            signal => ExitCode::from(128 + signal as u8),
        }
    }
}

fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("end of service")
}
