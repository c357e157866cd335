//! The load generators of twinring.
//!
//! They run on the `twinring` library like any other program of it. A run has a warm-up, a
//! measured window and a short time in which outstanding answers may still come; only the window
//! is measured. What comes back is checked (each byte where it is known, else status, length and
//! hash), so a server cannot be fast by being wrong.
//!
//! - [`tcp`]: requests over TCP to a server that echoes them.
//! - [`http`]: requests over HTTP/1.1, with TLS or without.
//! - [`udp`]: streams of datagrams, by default RTP, to a reflector.
//! - [`schedule`]: when the requests of an open loop are due.
//! - [`pattern`]: the bytes that are sent.
//! - [`gates`]: limits that a run has to stay within.
//! - [`hgrm`]: latencies as a table of percentiles.
//!
//! The result of a run is a type of `twinring_wire` (`docs/json.md`); its `Table` shows it to people.

mod beside;
mod cpu;
pub mod gates;
pub mod hgrm;
pub mod http;
mod limits;
pub mod observer;
pub mod pattern;
mod recorder;
mod report;
mod run;
pub mod schedule;
pub mod tcp;
mod time_series;
mod turn;
pub mod udp;
