//! Services and load clients on simulated machines: one seed is one machine, one mix of faults, one
//! service, one load, and their outcome, the same each time.
//!
//! Each run ends with a shutdown of the service and a check: every answer was right, every request
//! is accounted for, no worker, connection, descriptor or buffer is left. A violation panics, with
//! the command that repeats it.
#![cfg(feature = "sim")]

mod echo;
mod hostile;
mod http;
mod operator;
mod plan;
mod programs;
mod site;
mod udp;
mod visitor;

pub use plan::{Kind, replay_command};

use plan::Plan;
use std::time::Duration;
use twinring::sim::{Fault, Faults, Summary, World};
use twinring::{Handle, Runtime};

/// Faults that may break a connection, or prevent one.
const BREAKING: &[Fault] = &[
    Fault::Reset,
    Fault::TimedOut,
    Fault::Silent,
    Fault::Slow,
    Fault::NoDescriptor,
    Fault::FileTableFull,
    Fault::NoMemory,
];

/// How long the end of a service may take, in simulated time: its drain, the lingering of closed
/// connections, and a slow network.
const END_MAX: Duration = Duration::from_secs(40);

/// The outcome of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The kind of service.
    pub kind: Kind,
    /// Requests or packets that were answered.
    pub answered: u64,
    /// The history of the world.
    pub summary: Summary,
}

/// Runs one seed; the seed also chooses the kind unless one is given.
///
/// # Panics
/// On a failure that no fault explains.
pub fn run(seed: u64, kind: Option<Kind>) -> Outcome {
    run_with(seed, kind, Faults::of_seed(seed))
}

/// As [`run`], with faults of the caller's choice.
///
/// # Panics
/// As [`run`].
pub fn run_with(seed: u64, kind: Option<Kind>, faults: Faults) -> Outcome {
    let mut plan = Plan::new(seed);
    let chosen = plan.kind();
    let world = World::new(seed, faults);
    world.replay_with(replay_command(seed, kind));
    let kind = kind.unwrap_or(chosen);
    let claim = match kind {
        Kind::Echo => echo::run(&world, &mut plan),
        Kind::Udp => udp::run(&world, &mut plan),
        Kind::Http => http::run(&world, &mut plan),
    };
    let Claim { count: answered, bytes_each } = claim;
    let summary = world.finish();
    let (least, received) = (answered * bytes_each, summary.received_bytes);
    assert!(least <= received, "{answered} answers need {least} bytes, {received} were received");
    Outcome { kind, answered, summary }
}

/// The result that a load reports.
#[derive(Clone, Copy, Debug)]
struct Claim {
    count: u64,
    /// The minimum that the two sides received for each of them.
    bytes_each: u64,
}

/// True if no fault here may break a connection.
fn breaks_nothing(world: &World) -> bool {
    world.faults().is_free_of(BREAKING)
}

/// Repeats an operation that needs a descriptor until it gets one: they may be short for a moment,
/// and an operator would retry.
fn patiently<T>(world: &World, mut attempt: impl FnMut() -> std::io::Result<T>) -> T {
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(!breaks_nothing(world), "binding: {error}"),
        }
    }
}

/// A runtime on the machine of the world, which ends with the first panic of a task.
fn runtime(workers: usize) -> Runtime {
    let builder = Runtime::builder().workers(workers).stop_on_panic(true);
    builder.build().expect("a world has an engine")
}

/// Asks a service to end, and waits until it has.
fn end(world: &World, handle: &Handle, service: twinring::sim::Running<std::io::Result<()>>) {
    handle.shutdown();
    assert!(world.run_until(END_MAX, || service.is_over()), "the service does not come to an end");
    for outcome in service.outcome().expect("the engine works") {
        outcome.expect("it was not stopped").expect("the service works");
    }
}

/// Without an observer.
struct Unwatched;

impl twinring_load::observer::Observer for Unwatched {
    fn window_started(&mut self, _: u64) {}

    fn window_ended(&mut self, _: u64) {}

    fn progress(&mut self, _: &twinring_load::observer::Progress) {}
}
