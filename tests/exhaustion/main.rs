//! Exhaustion (descriptors, memory, locked memory, disk space), and what a process inherits: the real command,
//! sandboxed as by default, over real sockets. While something runs out, a client that was there before is served;
//! afterwards all are, and nothing of them is left.

#[path = "../support/mod.rs"]
mod support;

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
        descriptors::TESTS,
        descriptors::ENGINE_TESTS,
        disk::TESTS,
        inherited::TESTS,
        locked_memory::TESTS,
        memory::ENGINE_TESTS,
        output::TESTS,
    ])
}
