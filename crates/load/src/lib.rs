//! The load generators of twinring.
//!
//! They run on the `twinring` library like any other program of it. A run has a warm-up, a
//! measured window and a short time in which outstanding answers may still come; only the window
//! is measured. Each byte that comes back is compared with the byte that was sent, so a server
//! cannot be fast by being wrong.
//!
//! - [`tcp`]: requests over TCP to a server that echoes them.
//! - [`udp`]: streams of datagrams, by default RTP, to a reflector.
//! - [`schedule`]: when the requests of an open loop are due.
//! - [`pattern`]: the bytes that are sent.
//! - [`report`]: the result, as JSON (`docs/json.md`) and as a table.

mod cpu;
pub mod observer;
pub mod pattern;
mod recorder;
pub mod report;
pub mod schedule;
pub mod tcp;
mod turn;
pub mod udp;
