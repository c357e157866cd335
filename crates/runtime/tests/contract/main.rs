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

mod closing;
mod connecting;
mod dropping;
mod exhaustion;
mod fairness;
mod receiving;
mod sending;
mod tasks;
mod teardown;
mod workers;

use std::process::ExitCode;
use support::Configuration;
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
        closing::RULES,
        connecting::RULES,
        dropping::RULES,
        exhaustion::RULES,
        fairness::RULES,
        receiving::RULES,
        sending::RULES,
        tasks::RULES,
        teardown::RULES,
        workers::RULES,
    ];
    support::run(CONFIGURATIONS, &rules)
}
