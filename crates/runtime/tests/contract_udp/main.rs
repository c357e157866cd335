//! The driver contract for datagrams: every rule, on every engine configuration.
//!
//! The configurations, the watchdog and the macro are those of the contract suite for streams.
//! Most rules run for several sets of socket options too, so that the slower ways of receiving
//! and sending (single-shot receives, one call per datagram) and tick mode keep the same promises.

#[macro_use]
#[path = "../contract/support.rs"]
#[allow(dead_code, reason = "shared with the suite for streams, which uses the rest")]
mod support;

mod ancillary;
mod conversing;
mod dropping;
mod errors;
mod exhaustion;
mod modes;
mod peers;
mod releasing;
mod segmentation;
