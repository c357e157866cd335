//! `cargo run --manifest-path peers/Cargo.toml -p cancel-check -- tokio|monoio|compio|twinring-epoll|twinring-uring`
//!
//! Checks the rules of `twinring-cancellation` against one runtime, as its documentation shows it:
//! the plain calls for receiving, sending, accepting and connecting. Prints what it does with what dropped
//! futures were working on. Each runs in a process of its own, because descriptors and freed buffers are counted for
//! the whole process.

mod subjects;

use subjects::{Compio, Monoio, Tokio, Twinring};
use twinring::EngineChoice;
use twinring_cancellation::{Quarantine, check};

#[global_allocator]
static ALLOCATOR: Quarantine = Quarantine::new();

fn main() -> Result<(), &'static str> {
    let findings = match std::env::args().nth(1).unwrap_or_default().as_str() {
        "tokio" => check(&Tokio),
        "monoio" => check(&Monoio),
        "compio" => check(&Compio),
        "twinring-epoll" => check(&Twinring(EngineChoice::Epoll)),
        "twinring-uring" => check(&Twinring(EngineChoice::IoUring)),
        _ => return Err("expected tokio, monoio, compio, twinring-epoll or twinring-uring"),
    };
    findings.iter().for_each(|finding| println!("{finding}"));
    Ok(())
}
