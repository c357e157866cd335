//! Exhaustion (descriptors, memory, locked memory), and what a process inherits: the real command,
//! sandboxed as by default, over real sockets. While something runs out, a client that was there before is served;
//! afterwards all are, and nothing of them is left.

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod inherited;
mod locked_memory;

fn main() -> std::process::ExitCode {
    testing::run(&[
        connections::TESTS,
        connections::ENGINE_TESTS,
        inherited::TESTS,
        locked_memory::TESTS,
    ])
}
