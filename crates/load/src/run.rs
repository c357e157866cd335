//! A run of any load: worker threads, each with its own engine, that open what they need, begin together, and count
//! inside the same window.
//!
//! A protocol is a [`Client`]. The loop of a thread is [`work`]; the calling thread conducts (`conductor.rs`): it
//! decides when the window begins and ends, and informs the observer.

mod conductor;
mod control;

pub(crate) use self::control::{Control, Note};

use self::conductor::conduct;
use crate::settings::Common;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use twinring::{
    Builder, Either, Runtime,
    config::Features,
    measure::{CounterSnapshot, monotonic_ns, thread_cpu_clock_ns, thread_cpu_time_ns},
    race, shutdown_requested, sleep_until,
};
use twinring_input::cgroup::CpuQuota;
use twinring_wire::LoadResult;
use twinring_wire::load::{Cpu, SATURATED_SHARE, Window};

/// How long closed sockets may still send after the run: their requests were abandoned.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// A kind of load: the settings, which are options of a command line, and the run.
pub trait Generator: Sized {
    /// The unit of its counts.
    const UNIT: &'static str;

    /// The settings of every load.
    fn common(&mut self) -> &mut Common;

    /// Checks whether the settings are valid.
    ///
    /// # Errors
    /// The error, for a user.
    fn check(&self) -> Result<(), String>;

    /// The engine and threads for settings that are valid.
    fn runtime(&self) -> Builder;

    /// Connects, loads, measures. Returns when all of it has ended.
    ///
    /// # Errors
    /// When the engine fails, TLS cannot be set up as configured, or nothing can be opened.
    fn run(self, environment: Environment<'_>) -> Result<LoadResult, String>;
}

/// What a run needs besides its settings.
pub struct Environment<'a> {
    /// That of [`Generator::runtime`].
    pub runtime: Runtime,
    /// Ends the run early.
    pub stopper: &'a Stopper,
    /// Watches the run.
    pub observer: &'a mut dyn Observer,
}

/// Watches a run.
pub trait Observer {
    /// All connections are open, or all sockets. Returns when the traffic begins on CLOCK_MONOTONIC, in nanoseconds, at
    /// once if that has passed; `None` if there is to be none.
    fn connected(&mut self) -> Option<u64>;
    /// The window begins or ends now: `window_start`, `window_end`.
    fn mark(&mut self, event: &str, monotonic_ns: u64);
    /// Called about four times a second.
    fn progress(&mut self, progress: &Progress);
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Where it is.
    pub phase: Phase,
    /// Answers inside the window so far.
    pub answered: u64,
    /// The latencies of these answers, added up, in seconds.
    pub latency_s: f64,
    /// Errors so far.
    pub errors: u64,
    /// Seconds of the window so far.
    pub window_s: f64,
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections are being opened, or sockets.
    Connecting,
    /// Traffic that is not measured.
    WarmingUp,
    /// The measured window.
    Measuring,
}

/// What a worker thread does for a protocol.
pub(crate) trait Client: Sized {
    /// The counts of the thread.
    type Outcome: Send + 'static;

    /// Opens connections or sockets, as many as can be. Returns how many are open.
    async fn open(&mut self) -> u64;

    /// Starts the traffic, whose first request is due at `first_ns`.
    fn begin(&mut self, first_ns: u64);

    fn window_ends(&mut self) {}

    async fn drain(&mut self);

    fn outcome(self, cpu: Cpu) -> Self::Outcome;
}

/// The run of a thread, from its first connection to its counts.
pub(crate) async fn work<C: Client>(
    mut client: C,
    control: &Control,
    warmup: Duration,
) -> C::Outcome {
    let opened = match race(client.open(), shutdown_requested()).await {
        Either::Left(opened) => opened,
        Either::Right(()) => return client.outcome(Cpu::default()),
    };
    control.note(Note::Ready { opened });
    if let Either::Right(()) = race(control.announced(), shutdown_requested()).await {
        return client.outcome(Cpu::default());
    }
    let window = control.window();
    let first_ns = window.start - warmup.as_nanos() as u64;
    race(sleep_until(instant_at(first_ns)), shutdown_requested()).await;
    client.begin(first_ns);
    let mut cpu = Cpu::default();
    let begins = sleep_until(instant_at(window.start));
    if let Either::Left(()) = race(begins, shutdown_requested()).await {
        let start = clocks();
        // The end may come earlier than planned; the conductor then requests it.
        race(sleep_until(instant_at(window.end)), shutdown_requested()).await;
        cpu = cpu_since(start);
    }
    client.window_ends();
    client.drain().await;
    client.outcome(cpu)
}

/// The clocks of the calling thread: in user mode, in the kernel, both exactly, and the time itself.
fn clocks() -> [u64; 4] {
    let (user_ns, system_ns) = thread_cpu_time_ns();
    [user_ns, system_ns, thread_cpu_clock_ns(), monotonic_ns()]
}

fn cpu_since(start: [u64; 4]) -> Cpu {
    let now = clocks();
    let passed_s = |at: usize| now[at].saturating_sub(start[at]) as f64 / 1e9;
    let [user_s, system_s, used_s, elapsed_s] = std::array::from_fn(passed_s);
    let busiest_thread_share = if elapsed_s > 0.0 { used_s / elapsed_s } else { 0.0 };
    let saturated = busiest_thread_share >= SATURATED_SHARE;
    Cpu { user_s, system_s, busiest_thread_share, saturated, ..Cpu::default() }
}

/// A time of CLOCK_MONOTONIC as the `Instant` that timers use.
pub(crate) fn instant_at(ns: u64) -> Instant {
    // An unknown time counts as 30 years ahead.
    let ahead = ns.saturating_sub(monotonic_ns()).min(946_080_000_000_000_000);
    Instant::now() + Duration::from_nanos(ahead)
}

/// Why a run has no result: nothing could be opened, by the first error.
pub(crate) fn unreachable<T>(target: &str, first: Option<&str>) -> Result<T, String> {
    let why = first.unwrap_or("no reason is known");
    let advice = "check that the server is running and listens on that address";
    Err(format!("no connection to {target} could be made ({why}); {advice}"))
}

/// Once set, from any thread, ends the window; the run then reports the result so far.
#[derive(Clone, Debug, Default)]
pub struct Stopper(pub Arc<AtomicBool>);

/// Runs `work` on each thread, with its index, and conducts: the window ends early with so many answered `requests`.
/// Returns the threads' results when all have ended.
pub(crate) fn run<T, F>(
    Environment { runtime, stopper, observer }: Environment<'_>,
    (common, requests): (&Common, Option<u64>),
    work: impl Fn(usize, Arc<Control>) -> F + Send + Sync,
) -> Result<(Vec<T>, Ran), String>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (notes, heard) = channel();
    let control = Arc::new(Control::new(common.workers.threads, requests, notes));
    let (handle, features) = (runtime.handle(), runtime.features().clone());
    let fallback_reason = runtime.fallback_reason().map(str::to_owned);
    let (outcomes, quota) = thread::scope(|scope| {
        let workers = Arc::clone(&control);
        let engine = scope.spawn(move || {
            // Also after a panic: otherwise the conductor would never know.
            let _ended = Ended(&workers);
            runtime.run(|index| work(index, Arc::clone(&workers)))
        });
        let quota = conduct(common, &control, heard, stopper, observer);
        handle.shutdown();
        (engine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), quota)
    });
    let outcomes = outcomes.map_err(|error| format!("the load generator's engine: {error}"))?;
    // If the window never began, it is empty, at the end of the run.
    let end_monotonic_ns = control.window().end.min(monotonic_ns());
    let start_monotonic_ns = control.window().start.min(end_monotonic_ns);
    let seconds = (end_monotonic_ns - start_monotonic_ns) as f64 / 1e9;
    let ran = Ran {
        features,
        fallback_reason,
        window: Window { start_monotonic_ns, end_monotonic_ns, seconds },
        interrupted: stopper.0.load(Ordering::Relaxed),
        quota,
        served_at_once_max: control.served_max.load(Ordering::Relaxed),
        counters: handle.counters(),
    };
    Ok((outcomes.into_iter().flatten().collect(), ran))
}

struct Ended<'a>(&'a Control);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.note(Note::Ended);
    }
}

/// The facts of a run besides the threads' counts.
pub(crate) struct Ran {
    pub(crate) features: Features,
    pub(crate) fallback_reason: Option<String>,
    pub(crate) window: Window,
    pub(crate) interrupted: bool,
    /// The CPU quota, and what it did inside the window.
    pub(crate) quota: CpuQuota,
    pub(crate) served_at_once_max: u64,
    pub(crate) counters: CounterSnapshot,
}

impl Ran {
    /// What its threads used, with what the quota did.
    pub(crate) fn cpu(&self, threads: Cpu) -> Cpu {
        let CpuQuota { cpus: quota_cpus, throttled_periods } = self.quota;
        Cpu { quota_cpus, throttled_periods, ..threads }
    }
}
