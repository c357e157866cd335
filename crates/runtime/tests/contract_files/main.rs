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

/// The configurations whose options have to do with files and with what is sent. How it is received is the matter of
/// the suite for streams.
fn main() -> ExitCode {
    let rules = [dropping::RULES, opening::RULES, reading::RULES, sending::RULES];
    let always = ["epoll", "io_uring"];
    let long = ["sqpoll", "tiny_pool", "tiny_rings"];
    support::run(&always, &long, &rules)
}
