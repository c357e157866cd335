//! SIGTERM and SIGINT: the first drains, the second stops at once.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use twinring::Handle;

/// A second signal this soon after the first is the same request: timeout(1), for one, signals
/// its child and then the whole process group.
const SAME_REQUEST: Duration = Duration::from_millis(20);

/// The signals that came; 0 for none.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    first: Arc<AtomicI32>,
    second: Arc<AtomicI32>,
}

/// Takes the signals over from now on.
pub(super) fn watch(handle: Handle) -> io::Result<Received> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let received = Received::default();
    let by_thread = received.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut drain_since: Option<Instant> = None;
        for signal in signals.forever() {
            let since = *drain_since.get_or_insert_with(Instant::now);
            if by_thread.first.load(Ordering::Acquire) == 0 {
                by_thread.first.store(signal, Ordering::Release);
                handle.shutdown();
            } else if since.elapsed() > SAME_REQUEST {
                by_thread.second.store(signal, Ordering::Release);
                handle.stop();
            }
        }
    })?;
    Ok(received)
}

impl Received {
    /// What ended the service, for the last line of its report.
    pub(super) fn reason(&self) -> String {
        let second = self.second.load(Ordering::Acquire);
        match second {
            0 => name(self.first.load(Ordering::Acquire)).to_owned(),
            second => format!("second signal: {}", name(second)),
        }
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
