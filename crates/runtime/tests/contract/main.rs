//! The driver contract as observable behaviour: every rule, on every engine configuration.
//!
//! Each rule is a function that gets a [`Configuration`](support::Configuration) and talks, through
//! the public API, to peers of the standard library on loopback. There is one test for each pair, so
//! that a failure names both: `closing::fin_follows_a_dropped_stream::io_uring`.
//! What each engine does by default is tested always, with the configurations that differ most from that;
//! the others are ignored tests, for `-- --include-ignored` (`.ci/long`).
//! The tests of a configuration that the kernel refuses are ignored. With the feature `faults` and TWINRING_FAULTS=SEED in the environment, the same rules run with seeded faults
//! between the kernel and the engines (`src/sys/faulty`). Each test then has its own, and prints them when
//! it fails.

#[macro_use]
mod support;

mod backpressure;
mod cancelling;
mod closing;
mod confined;
mod connecting;
mod descriptors;
mod dropping;
mod exhaustion;
mod fairness;
mod foreign;
mod gathering;
mod idle;
mod ordering;
mod receiving;
mod releasing;
mod slots;
mod tasks;
mod teardown;
mod timers;
mod transcripts;
mod unix;
mod waiting;
mod waking;
mod workers;

use std::process::ExitCode;
use support::Configuration;
use testing::Case;
use twinring::EngineChoice;

/// The configurations; those marked long run only with `--include-ignored` (`.ci/long`).
const CONFIGURATIONS: &[Configuration] = &[
    Configuration::new("epoll", EngineChoice::Epoll, ""),
    Configuration::new("epoll_ungathered", EngineChoice::Epoll, "gather=off").long(),
    Configuration::new(
        "epoll_tiny_pool",
        EngineChoice::Epoll,
        "buffer_count=4,buffer_bytes=64,gather=2",
    )
    .long(),
    Configuration::new("io_uring", EngineChoice::IoUring, ""),
    Configuration::new("single_shot", EngineChoice::IoUring, "multishot=off"),
    Configuration::new("ungathered", EngineChoice::IoUring, "gather=off").long(),
    Configuration::new("sqpoll", EngineChoice::IoUring, "sqpoll_idle_ms=50").long(),
    Configuration::new("tiny_pool", EngineChoice::IoUring, "buffer_count=4,buffer_bytes=64"),
    Configuration::new("tiny_rings", EngineChoice::IoUring, "sq_entries=8,cq_entries=16").long(),
];

fn main() -> ExitCode {
    let rules = [
        backpressure::RULES,
        cancelling::RULES,
        closing::RULES,
        confined::RULES,
        connecting::RULES,
        descriptors::RULES,
        dropping::RULES,
        exhaustion::RULES,
        fairness::RULES,
        foreign::RULES,
        gathering::RULES,
        idle::RULES,
        ordering::RULES,
        receiving::RULES,
        releasing::RULES,
        slots::RULES,
        tasks::RULES,
        teardown::RULES,
        timers::RULES,
        unix::RULES,
        waiting::RULES,
        waking::RULES,
        workers::RULES,
    ];
    let same = "transcripts::every_configuration_has_the_same_transcript";
    let same = Case::new(same, false, || {
        support::watched("transcripts", || {
            transcripts::every_configuration_has_the_same_transcript(CONFIGURATIONS);
        });
    });
    support::run(CONFIGURATIONS, &rules, vec![same])
}
