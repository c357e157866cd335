//! The driver contract for datagrams: every rule, on every engine configuration that has to do with
//! them.
//!
//! The configurations, the watchdog and the macro are those of the contract suite for streams.
//! Most rules run for several sets of socket options too, so that the slower ways of receiving
//! and sending (single-shot receives, one call per datagram) keep the same promises.

#[macro_use]
#[path = "../contract/support.rs"]
#[allow(dead_code, reason = "shared with the suite for streams, which uses the rest")]
mod support;

mod ancillary;
mod dropping;
mod errors;
mod exhaustion;
mod modes;
mod peers;
mod reflecting;
mod segmentation;

use std::process::ExitCode;
use support::Configuration;
use twinring::EngineChoice;

/// The configurations whose options have to do with datagrams. How the ring is set up and entered is the matter of
/// the suite for streams.
const CONFIGURATIONS: &[Configuration] = &[
    Configuration::new("epoll", EngineChoice::Epoll, ""),
    Configuration::new("epoll_tiny_pool", EngineChoice::Epoll, "buffer_count=4,buffer_bytes=64")
        .long(),
    Configuration::new("io_uring", EngineChoice::IoUring, ""),
    Configuration::new("single_shot", EngineChoice::IoUring, "multishot=off"),
    Configuration::new("sqpoll", EngineChoice::IoUring, "sqpoll_idle_ms=50").long(),
    Configuration::new("tiny_pool", EngineChoice::IoUring, "buffer_count=4,buffer_bytes=64").long(),
    Configuration::new("tiny_rings", EngineChoice::IoUring, "sq_entries=8,cq_entries=16").long(),
];

fn main() -> ExitCode {
    let rules = [
        ancillary::RULES,
        dropping::RULES,
        errors::RULES,
        exhaustion::RULES,
        modes::RULES,
        reflecting::RULES,
        segmentation::RULES,
    ];
    support::run(CONFIGURATIONS, &rules)
}
