//! Streams of datagrams to a reflector, like those of a media server: thousands with a few packets
//! per second each, or one with very many.
//!
//! Each worker thread has its own engine and its share of the streams, and wakes once per tick. It
//! sends the packets due by a [schedule](plan) that is a pure function of time, then processes the
//! replies. Packets are sent regardless of missing replies: it is an open loop. For the counts, see
//! [`UdpResult`] and `docs/json.md`:
//!
//! - A packet belongs to the measured window if its *intended* time does.
//! - Lateness is the time from there to the moment directly before the kernel gets the packet, with
//!   one stamp for a few dozen packets; on io_uring before the enter that submits them, on epoll
//!   before the first of their system calls.
//! - A round trip is the time from that stamp until the worker processes the reply, which it does
//!   once per tick; so it includes up to a tick of waiting on this side.
//! - Jitter is the estimate of RFC 3550, section 6.4.1, with the intended times as the senders'
//!   timestamps, in nanoseconds instead of units of 125 us. Duplicates do not count.

mod conductor;
mod control;
#[doc(hidden)]
pub mod fuzzing;
mod ledger;
mod packet;
pub mod plan;
mod ramp;
mod settings;
mod summary;
mod table;
mod traffic;
mod worker;

pub use packet::{Payload, RTP_HEADER_BYTES};
pub use plan::{Rate, Spread};
pub use settings::Settings;
pub use table::{StepRow, Table};

use self::conductor::Conductor;
use self::control::{Control, Note};
use self::ramp::Ramp;
use self::summary::{Run, ramp_step};
use crate::beside::beside;
use crate::observer::{Observer, Progress};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use twinring::{Features, Runtime, RuntimeError};
use twinring_wire::UdpResult;
use twinring_wire::udp::RampStep;

/// Traffic before each step of a ramp.
const RAMP_WARMUP: Duration = Duration::from_millis(250);

/// Why a run has no result.
#[derive(Debug)]
pub enum LoadError {
    /// The engine failed.
    Engine(RuntimeError),
    /// Not a single socket could be opened.
    NoSocket {
        /// Address of the reflector.
        target: String,
        /// The first failure.
        why: String,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Engine(error) => write!(f, "the load generator's engine: {error}"),
            LoadError::NoSocket { target, why } => {
                write!(f, "no socket to {target} could be opened: {why}")
            }
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LoadError::Engine(error) => Some(error),
            LoadError::NoSocket { .. } => None,
        }
    }
}

/// Ends a run early, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    stopped: Arc<AtomicBool>,
}

impl Stopper {
    /// Ends the window now; the run then reports the result so far.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// A load that is ready to run.
pub struct Load {
    settings: Settings,
    runtime: Runtime,
    stopped: Arc<AtomicBool>,
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Load {
    /// Chooses the engine. The settings must have been [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a requested feature is refused.
    pub fn new(settings: Settings) -> Result<Load, RuntimeError> {
        let runtime = build(&settings)?;
        Ok(Load { settings, runtime, stopped: Arc::default() })
    }

    /// The engine and its features.
    pub fn features(&self) -> &Features {
        self.runtime.features()
    }

    /// Why `auto` did not choose io_uring.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.runtime.fallback_reason()
    }

    /// A handle to end the run early.
    pub fn stopper(&self) -> Stopper {
        Stopper { stopped: Arc::clone(&self.stopped) }
    }

    /// Opens sockets, loads, measures. Returns when all of it has ended. With a ramp, first
    /// searches for the highest rate, in at most 24 steps of the configured length, and measures
    /// there; `on_step` is called for each step.
    ///
    /// # Errors
    /// When the engine fails or no socket can be opened.
    pub fn run(
        self,
        observer: &mut dyn Observer,
        mut on_step: impl FnMut(&RampStep),
    ) -> Result<UdpResult, LoadError> {
        let Load { mut settings, runtime, stopped } = self;
        let Some(step_duration) = settings.ramp else {
            return run_once(&settings, runtime, &stopped, observer);
        };
        let mut ramp = Ramp::new(settings.rate, settings.highest_rate());
        let mut steps: Vec<RampStep> = Vec::new();
        while let Some(rate) = ramp.next_rate() {
            let (duration, warmup) = (step_duration, RAMP_WARMUP);
            let step = Settings { rate, duration, warmup, ..settings.clone() };
            let runtime = build(&step).map_err(LoadError::Engine)?;
            let report = run_once(&step, runtime, &stopped, &mut WithoutWindow(observer))?;
            if report.head.interrupted {
                return Ok(UdpResult { ramp: Some(steps), ..report });
            }
            let step = ramp_step(&report);
            ramp.tried(rate, step.loss_free);
            on_step(&step);
            steps.push(step);
            // Without a loss-free rate, the lowest one tried.
            settings.rate = ramp.best().unwrap_or(rate);
        }
        let report = run_once(&settings, runtime, &stopped, observer)?;
        Ok(UdpResult { ramp: Some(steps), ..report })
    }
}

fn build(settings: &Settings) -> Result<Runtime, RuntimeError> {
    let builder = settings.workers.builder(settings.tuned_uring());
    builder.call_times(settings.calls).build()
}

fn run_once(
    settings: &Settings,
    runtime: Runtime,
    stopped: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<UdpResult, LoadError> {
    let (notes, heard) = channel();
    let control = Arc::new(Control::new(settings.workers.threads, Arc::clone(stopped), notes));
    let (handle, features) = (runtime.handle(), runtime.features().clone());
    let fallback_reason = runtime.fallback_reason().map(str::to_owned);
    // With a submission thread the kernel may take packets before the enter.
    let submits = matches!(&features, Features::IoUring(uring) if uring.sqpoll_idle_ms == 0);
    let shared = Arc::new(settings.clone());
    let mut conductor = Conductor::new(settings, &control, heard, observer);
    let (workers, ended) = (Arc::clone(&control), Arc::clone(&control));
    let outcomes = beside(
        runtime,
        move |index| worker::work(index, Arc::clone(&shared), Arc::clone(&workers), submits),
        move || ended.note(Note::Ended),
        || conductor.conduct(),
    );
    let outcomes: Vec<_> = outcomes.map_err(LoadError::Engine)?.into_iter().flatten().collect();
    let run = Run {
        settings,
        features,
        fallback_reason,
        window: control.window(),
        interrupted: control.is_stopped(),
        throttling: conductor.throttling(),
        counters: handle.counters(),
    };
    let report = run.report(outcomes);
    if report.streams.opened == 0 && !report.head.interrupted {
        let why = report.first_error.unwrap_or_else(|| "no reason is known".into());
        return Err(LoadError::NoSocket { target: report.head.target, why });
    }
    Ok(report)
}

/// Hears of the progress of a ramp's steps, and not of their windows.
struct WithoutWindow<'a>(&'a mut dyn Observer);

impl Observer for WithoutWindow<'_> {
    fn window_started(&mut self, _: u64) {}

    fn window_ended(&mut self, _: u64) {}

    fn progress(&mut self, progress: &Progress) {
        self.0.progress(progress);
    }
}
