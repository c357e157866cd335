//! Attacks on `twinring serve`, on both engines, over real sockets; then exhaustion (descriptors, memory, locked memory),
//! and what a process inherits.
//!
//! Each attack starts the command as an operator would, sandbox and all, and attacks it with the same
//! crowd twice, or up to five times: until allocator and caches have seen it all. While an
//! attack runs, another client is served, and every answer to it is right; afterwards memory,
//! descriptors, slots and buffers are what they were before; and SIGTERM ends the server with
//! exit code 0 and nothing left ([`siege`]).
//!
//! `TWINRING_ATTACKERS` says how many connections an attack has at once (250 without it). Above
//! 4,000, run one test at a time: each takes as many of this process's descriptors.

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod datagrams;
mod exhaustion;
mod inherited;
mod locked_memory;
mod siege;

fn main() -> std::process::ExitCode {
    testing::run(&[
        connections::ENGINE_TESTS,
        datagrams::ENGINE_TESTS,
        exhaustion::TESTS,
        inherited::TESTS,
        locked_memory::TESTS,
    ])
}
