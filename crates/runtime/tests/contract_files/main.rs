//! The driver contract for files: every rule, on every engine configuration that has to do with them.
//!
//! The configurations, the watchdog and the macro are those of the contract suite for streams.
//! Most rules run for files of a disk, of memory and of "elsewhere", with the ring and with
//! threads for what has to wait: see `tree::Ground`.

#[macro_use]
#[path = "../contract/support.rs"]
#[allow(dead_code, reason = "shared with the suite for streams, which uses the rest")]
mod support;

mod dropping;
mod opening;
mod reading;
mod sending;
mod tree;

use std::process::ExitCode;
use support::Configuration;
use twinring::EngineChoice;

/// The configurations whose options have to do with files and with what is sent. How it is received is the matter of
/// the suite for streams.
const CONFIGURATIONS: &[Configuration] = &[
    Configuration::new("epoll", EngineChoice::Epoll, ""),
    Configuration::new("io_uring", EngineChoice::IoUring, ""),
    Configuration::new("sqpoll", EngineChoice::IoUring, "sqpoll_idle_ms=50").long(),
    Configuration::new("tiny_pool", EngineChoice::IoUring, "buffer_count=4,buffer_bytes=64").long(),
    Configuration::new("tiny_rings", EngineChoice::IoUring, "sq_entries=8,cq_entries=16").long(),
];

fn main() -> ExitCode {
    let rules = [dropping::RULES, opening::RULES, reading::RULES, sending::RULES];
    support::run(CONFIGURATIONS, &rules)
}
