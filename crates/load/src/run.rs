//! A run over connections: worker threads, each with its own engine, that connect, begin together,
//! and count inside the same window.

mod conductor;
mod connect;
mod control;
mod pace;
mod thread;
mod unsent;

pub(crate) use self::conductor::Plan;
pub(crate) use self::connect::{connect_failure, connect_share, dial, not_within};
pub(crate) use self::control::Control;
pub(crate) use self::pace::{Connections, Loaded};
pub(crate) use self::thread::{Share, Thread};
pub(crate) use self::unsent::LATE;

use self::conductor::Conductor;
use self::control::Note;
use crate::beside::beside;
use crate::cpu::Throttling;
use crate::observer::Observer;
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use twinring::{CounterSnapshot, Features, Runtime, RuntimeError, monotonic_ns};
use twinring_wire::load::Window;

/// How long closed sockets may still send after the run: their requests were abandoned.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// Why a run has no result.
#[derive(Debug)]
pub enum LoadError {
    /// The engine failed.
    Engine(RuntimeError),
    /// TLS cannot be set up as configured.
    Tls(String),
    /// A request cannot be built as configured.
    Request(String),
    /// No connection could be opened.
    NoConnection {
        /// Address of the server.
        target: String,
        /// The first failure.
        why: String,
        /// Attempts.
        attempts: u64,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Engine(error) => write!(f, "the load generator's engine: {error}"),
            LoadError::Tls(why) | LoadError::Request(why) => f.write_str(why),
            LoadError::NoConnection { target, why, attempts } => write!(
                f,
                "no connection to {target} could be made ({attempts} tried; {why}); check that \
                 the server is running and listens on that address"
            ),
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LoadError::Engine(error) => Some(error),
            LoadError::Tls(_) | LoadError::Request(_) | LoadError::NoConnection { .. } => None,
        }
    }
}

/// Ends a run early, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    notes: Sender<Note>,
}

impl Stopper {
    /// Ends the window now; the run then reports the result so far.
    pub fn stop(&self) {
        // Fails only when the run is over.
        let _over = self.notes.send(Note::Stop);
    }
}

/// An engine that is ready for a run.
pub(crate) struct Stage {
    runtime: Runtime,
    notes: Sender<Note>,
    heard: Receiver<Note>,
}

impl Stage {
    pub(crate) fn new(runtime: Runtime) -> Stage {
        let (notes, heard) = channel();
        Stage { runtime, notes, heard }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn stopper(&self) -> Stopper {
        Stopper { notes: self.notes.clone() }
    }

    /// Runs `work` on each thread, with its index, and conducts. Returns the threads' results when
    /// all have ended.
    pub(crate) fn run<T, F>(
        self,
        plan: Plan,
        observer: &mut dyn Observer,
        work: impl Fn(usize, Arc<Control>) -> F + Send + Sync + 'static,
    ) -> Result<(Vec<T>, Ran), LoadError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let Stage { runtime, notes, heard } = self;
        let control = Arc::new(Control::new(plan.threads, plan.requests, notes));
        let (handle, features) = (runtime.handle(), runtime.features().clone());
        let fallback_reason = runtime.fallback_reason().map(str::to_owned);
        let mut conductor = Conductor::new(plan, &control, heard, &handle, observer);
        let (workers, ended) = (Arc::clone(&control), Arc::clone(&control));
        let outcomes = beside(
            runtime,
            move |index| work(index, Arc::clone(&workers)),
            move || ended.note(Note::Ended),
            || conductor.conduct(),
        );
        let outcomes = outcomes.map_err(LoadError::Engine)?.into_iter().flatten().collect();
        let ran = Ran {
            features,
            fallback_reason,
            window: control.window(),
            interrupted: conductor.interrupted(),
            throttling: conductor.throttling(),
            served_at_once_max: control.served_at_once_max(),
            counters: handle.counters(),
        };
        Ok((outcomes, ran))
    }
}

/// The facts of a run besides the threads' counts.
pub(crate) struct Ran {
    pub(crate) features: Features,
    pub(crate) fallback_reason: Option<String>,
    pub(crate) window: Range<u64>,
    pub(crate) interrupted: bool,
    pub(crate) throttling: Throttling,
    pub(crate) served_at_once_max: u64,
    pub(crate) counters: CounterSnapshot,
}

impl Ran {
    /// The engine in use, and why `auto` did not choose io_uring.
    pub(crate) fn engine(&self) -> (&Features, Option<&str>) {
        (&self.features, self.fallback_reason.as_deref())
    }

    /// The actual window.
    pub(crate) fn window(&self) -> Window {
        window(self.window.clone())
    }

    /// Without a single connection there is nothing to report, unless the run was interrupted.
    pub(crate) fn check_connected(
        &self,
        share: &Share,
        target: &str,
        asked: u64,
    ) -> Result<(), LoadError> {
        if !share.answered.is_empty() || self.interrupted {
            return Ok(());
        }
        let first = share.recorder.first_error.as_ref().map(|(_, what)| what.clone());
        Err(LoadError::NoConnection {
            target: target.to_owned(),
            why: first.unwrap_or_else(|| "no reason is known".into()),
            attempts: asked,
        })
    }
}

/// The actual window. If it never began, it is empty, at the end of the run.
pub(crate) fn window(planned: Range<u64>) -> Window {
    let now_ns = monotonic_ns();
    let end_monotonic_ns = planned.end.min(now_ns);
    let start_monotonic_ns = planned.start.min(end_monotonic_ns);
    let seconds = (end_monotonic_ns - start_monotonic_ns) as f64 / 1e9;
    Window { start_monotonic_ns, end_monotonic_ns, seconds }
}
