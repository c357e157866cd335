//! The driver contract as observable behaviour: every rule, on every engine configuration that has to do with it.
//!
//! Each rule is a function that gets a [`Configuration`](support::Configuration) and talks, through
//! the public API, to peers of the standard library on loopback. There is one test for each pair, so
//! that a failure names both: `closing::queued_data_and_fin_follow_a_dropped_stream::io_uring`.
//! What each engine does by default is tested always, with the configurations that differ most from that;
//! the others are ignored tests, for `-- --include-ignored` (`.ci/long`).
//! The tests of a configuration that the kernel refuses are ignored. With the feature `faults` and TWINRING_FAULTS=SEED
//! in the environment, the same rules run with seeded faults between the kernel and the engines (`src/sys/faults`). Each
//! test then has its own, and prints them when it fails.

#[macro_use]
mod support;

mod closing;
mod connecting;
mod dropping;
mod exhaustion;
mod files;
mod receiving;
mod refusals;
mod sending;
mod tasks;
mod teardown;
mod udp;
mod workers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let rules = [
        closing::RULES,
        connecting::RULES,
        dropping::RULES,
        exhaustion::RULES,
        receiving::RULES,
        sending::RULES,
        tasks::RULES,
        teardown::RULES,
        workers::RULES,
    ];
    let mut cases = support::cases(
        &["epoll", "io_uring", "single_shot", "tiny_pool"],
        &["epoll_ungathered", "epoll_tiny_pool", "sqpoll", "tiny_rings"],
        &rules,
    );
    let long = ["sqpoll", "tiny_pool", "tiny_rings"];
    cases.extend(support::cases(&["epoll", "io_uring"], &long, files::RULES));
    // They have their own faults.
    if std::env::var_os("TWINRING_FAULTS").is_none() {
        cases.extend(support::cases(&["epoll", "io_uring"], &[], &[refusals::RULES]));
        cases.extend(support::cases(&["epoll"], &[], &[refusals::OF_EPOLL]));
        cases.extend(support::cases(&["io_uring"], &[], &[refusals::OF_IO_URING]));
    }
    let long = ["epoll_tiny_pool", "sqpoll", "tiny_pool", "tiny_rings"];
    cases.extend(support::cases(&["epoll", "io_uring", "single_shot"], &long, udp::RULES));
    testing::run_cases(cases)
}
