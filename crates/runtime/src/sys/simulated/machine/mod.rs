//! A simulated machine: its kernel, its clock, and the order in which its programs run
//! (docs/simulation.md).

pub(crate) mod blocking;
pub(crate) mod datagram;
mod engine;
pub(crate) mod kernel;
pub(crate) mod poll;
pub(crate) mod ring;
mod ring_memory;
mod socket;
mod tcp;
pub(crate) mod threads;
mod trace;
pub(crate) mod world;
