//! SIGINT and SIGTERM: the first ends the window and reports, the second ends the program.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The first signal received, 0 before.
#[derive(Clone, Default)]
pub(super) struct First(Arc<AtomicU8>);

impl First {
    pub(super) fn first(&self) -> Option<u8> {
        Some(self.0.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }
}

/// Handles the signals from now on; the first calls `stop`.
pub(super) fn watch(stop: impl Fn() + Send + 'static) -> io::Result<First> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let first = First::default();
    let seen = first.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if seen.first().is_some() {
                std::process::exit(128 + signal);
            }
            seen.0.store(signal as u8, Ordering::Release);
            stop();
        }
    })?;
    Ok(first)
}
