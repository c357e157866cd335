//! Exhaustion (descriptors, memory, locked memory, receive buffers, disk space), and what a
//! process inherits: the real command, sandboxed as by default, on both engines, over real sockets. Each test
//! prints a line for each engine, so that `cargo test --test exhaustion -- --nocapture` reads as
//! evidence: how fast other clients were served, and what was left afterwards.

#[path = "../support/mod.rs"]
mod support;

mod buffers;
mod clients;
mod descriptors;
mod disk;
mod inherited;
mod limits;
mod locked_memory;
mod memory;
mod output;

fn main() -> std::process::ExitCode {
    testing::run(&[
        buffers::ENGINE_TESTS,
        descriptors::ENGINE_TESTS,
        disk::TESTS,
        disk::ENGINE_TESTS,
        inherited::TESTS,
        locked_memory::TESTS,
        memory::ENGINE_TESTS,
        output::ENGINE_TESTS,
    ])
}
