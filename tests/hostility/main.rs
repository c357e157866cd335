//! Attacks on `twinring serve`, on both engines, over real sockets.
//!
//! Each test starts the command as an operator would, sandbox and all, and attacks it with the same
//! crowd twice, or up to five times: until allocator and caches have seen it all. While an
//! attack runs, others are served, and every answer to them is right; afterwards memory,
//! descriptors, slots and buffers are what they were before; and SIGTERM ends the server with
//! exit code 0 and nothing left. `-- --nocapture` prints a line of figures for each
//! ([`siege`]); latencies are stated there and not judged, as they are the machine's.
//!
//! `TWINRING_ATTACKERS` says how many connections an attack has at once (250 without it). Above
//! 4,000, run one test at a time: each takes as many of this process's descriptors.

#[path = "../support/mod.rs"]
mod support;

mod peers;
mod siege;

mod bystanders;
mod dribbling;
mod flooding;
mod never_reading;
mod resetting;
mod vanishing;

fn main() -> std::process::ExitCode {
    testing::run(&[
        bystanders::LONG_TESTS,
        dribbling::ENGINE_TESTS,
        flooding::ENGINE_TESTS,
        flooding::LONG_TESTS,
        never_reading::ENGINE_TESTS,
        never_reading::LONG_TESTS,
        resetting::ENGINE_TESTS,
        resetting::LONG_TESTS,
        vanishing::LONG_TESTS,
    ])
}
