//! The load generators of twinring.
//!
//! They use the `twinring` library like any other program. A run has a warm-up, a measured window
//! and a short time in which outstanding answers may still arrive; only the window is measured.
//! Answers are verified (each byte if it is known, otherwise status, length and hash), so a server
//! cannot be fast by being wrong.
//!
//! - [`tcp`]: requests over TCP to a server that echoes them.
//! - [`http`]: requests over HTTP/1.1 or HTTP/2, with TLS or without.
//! - [`udp`]: streams of datagrams, by default RTP, to a reflector.
//! - [`address`]: which addresses a server has, and which of them it answers at.
//! - [`schedule`]: when the requests of an open loop are due.
//! - [`pattern`]: the content that is sent.
//! - [`gates`]: limits that a run must meet.
//!
//! A load is a [`Generator`]: its settings are the options of `twinring load`. Its result is a type of `twinring_wire`
//! (`docs/json.md`), which [`table()`] shows to people.

pub mod address;
pub mod gates;
pub mod http;
pub mod pattern;
mod recorder;
mod report;
mod requests;
mod run;
pub mod schedule;
mod settings;
pub mod tcp;
pub mod udp;

pub use report::{table, write_hgrm};
pub use run::{Environment, Generator, Observer, Phase, Progress, Stopper};
pub use settings::{Common, RequestSettings, Workers};
