//! Stopping early: the first signal ends the experiment in order, the second one at once.

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::process::Event;

/// A request to stop, shared by those that may make it and the experiment. Clones are the same
/// request.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    state: Arc<Mutex<Request>>,
}

#[derive(Debug, Default)]
struct Request {
    signal: Option<i32>,
    listener: Option<Sender<Event>>,
}

impl Stop {
    /// A request made by SIGINT, SIGTERM or SIGHUP of this process. The second of these signals
    /// ends the process at once with 128 + its number; the kernel then kills everything the lab
    /// has started.
    pub fn on_signals() -> io::Result<Stop> {
        let stop = Stop::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let request = stop.clone();
        thread::spawn(move || {
            for signal in &mut signals {
                if request.signal().is_some() {
                    std::process::exit(128 + signal);
                }
                request.request(signal);
            }
        });
        Ok(stop)
    }

    fn request(&self, signal: i32) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.signal = Some(signal);
        if let Some(listener) = &state.listener {
            // A run that has just ended listens no more; the experiment looks at `signal` next.
            let _ = listener.send(Event::Stop);
        }
    }

    /// The signal that was given, if any.
    pub fn signal(&self) -> Option<i32> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).signal
    }

    /// Wakes the run that waits on this channel when the request is made.
    pub(crate) fn wake(&self, listener: Sender<Event>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.signal.is_some() {
            let _ = listener.send(Event::Stop);
        }
        state.listener = Some(listener);
    }
}

/// Has ended children wait to be asked how they ended. Whoever started this process may ignore SIGCHLD, which is
/// inherited, and then the kernel forgets them (wait(2)); a handler that does nothing undoes that.
pub(crate) fn keep_children() -> io::Result<()> {
    signal_hook::flag::register(SIGCHLD, Arc::default()).map(drop)
}
