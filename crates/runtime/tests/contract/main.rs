//! The driver contract as observable behaviour: every rule, on every engine configuration.
//!
//! Each rule is a function that gets a [`Configuration`](support::Configuration) and talks, through
//! the public API, to peers of the standard library on loopback. `contract!` makes one test of
//! each pair, so that a failure names both: `closing::fin_follows_a_dropped_stream::io_uring`.
//! A configuration that the kernel refuses is skipped, and the test says so. With the feature `sim`
//! the same rules run on simulated machines too, peers and all (docs/simulation.md).

#[macro_use]
mod support;

mod backpressure;
mod cancelling;
mod closing;
mod connecting;
mod conversation;
mod descriptors;
mod dropping;
mod exhaustion;
mod fairness;
mod idle;
mod ordering;
mod receiving;
mod releasing;
mod slots;
mod tasks;
mod teardown;
mod timers;
mod waking;
mod workers;
