//! The driver contract for files: every rule, on every engine configuration.
//!
//! The configurations, the watchdog and the macro are those of the contract suite for streams.
//! Most rules run for files of a disk, of memory and of "elsewhere", with the ring and with
//! threads for what has to wait, and in tick mode: see `tree::in_all_ways`.

#[macro_use]
#[path = "../contract/support.rs"]
#[allow(dead_code, reason = "shared with the suite for streams, which uses the rest")]
mod support;

mod breaking;
mod cold;
mod dropping;
mod opening;
mod reading;
mod sending;
mod sharing;
mod strategies;
mod tree;
