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

/// The configurations whose options have to do with datagrams. How the ring is set up and entered is the matter of
/// the suite for streams.
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
    let always = ["epoll", "io_uring", "single_shot"];
    let long = ["epoll_tiny_pool", "sqpoll", "tiny_pool", "tiny_rings"];
    support::run(&always, &long, &rules)
}
