//! What happens when something runs out (descriptors, memory, locked memory, receive buffers, room
//! on a disk) or jumps (the clock): the real command, sandboxed as by default, on both engines, over
//! real sockets. Each test prints a line for each engine, so that
//! `cargo test --test exhaustion -- --nocapture` reads as evidence: who was served meanwhile and how
//! fast, and what was left afterwards.

#[path = "../support/mod.rs"]
mod support;

mod buffers;
mod clock;
mod crowd;
mod descriptors;
mod disk;
mod limits;
mod locked_memory;
mod memory;
mod output;
