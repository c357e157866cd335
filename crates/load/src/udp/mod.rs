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

mod client;
#[doc(hidden)]
pub mod fuzzing;
mod ledger;
mod packet;
pub mod plan;
mod ramp;
mod sender;
mod settings;
mod summary;
mod table;
mod traffic;

pub use crate::schedule::Rate;
pub use packet::{Payload, RTP_HEADER_BYTES};
pub use plan::Spread;
pub use settings::Settings;
pub use table::StepRow;
pub(crate) use table::Table;

use self::ramp::Ramp;
use self::summary::{ramp_step, report};
use crate::observer::{Observer, Progress};
use crate::run::{LoadError, Stopper, run};
use std::sync::Arc;
use std::time::Duration;
use twinring::{Features, Runtime, RuntimeError};
use twinring_wire::UdpResult;
use twinring_wire::udp::RampStep;

/// Traffic before each step of a ramp.
const RAMP_WARMUP: Duration = Duration::from_millis(250);

/// A load that is ready to run.
pub type Load = crate::Load<Settings>;

impl Load {
    /// Chooses the engine. The settings must have been [checked](Settings::check).
    ///
    /// # Errors
    /// When the engine or a requested feature is refused.
    pub fn new(settings: Settings) -> Result<Load, RuntimeError> {
        let runtime = build(&settings)?;
        Ok(Load { settings, runtime, stopper: Stopper::default() })
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
        let Load { mut settings, runtime, stopper } = self;
        let Some(step_duration) = settings.ramp else {
            return run_once(&settings, runtime, &stopper, observer);
        };
        let mut ramp = Ramp::new(settings.rate, settings.highest_rate());
        let mut steps: Vec<RampStep> = Vec::new();
        while let Some(rate) = ramp.next_rate() {
            let (duration, warmup) = (step_duration, RAMP_WARMUP);
            let step = Settings { rate, duration, warmup, ..settings.clone() };
            let runtime = build(&step).map_err(LoadError::Engine)?;
            let report = run_once(&step, runtime, &stopper, &mut WithoutWindow(observer))?;
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
        let report = run_once(&settings, runtime, &stopper, observer)?;
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
    stopper: &Stopper,
    observer: &mut dyn Observer,
) -> Result<UdpResult, LoadError> {
    // With a submission thread the kernel may take packets before the enter.
    let submits =
        matches!(runtime.features(), Features::IoUring(uring) if uring.sqpoll_idle_ms == 0);
    let shared = Arc::new(settings.clone());
    let (outcomes, ran) =
        run(runtime, stopper, settings.plan(), observer, move |index, control| {
            client::run_thread(index, Arc::clone(&shared), control, submits)
        })?;
    let report = report(settings, &ran, outcomes);
    if report.streams.opened == 0 && !report.head.interrupted {
        let why = report.first_error.unwrap_or_else(|| "no reason is known".into());
        return Err(LoadError::Unreachable { target: report.head.target, why });
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
