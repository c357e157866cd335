//! A line of the log, for the fuzz targets of `fuzz/`.

use super::LogFormat;
use super::line::{Client, Ended, LogLine, Outcome, Said};
use crate::http::date::Clock;
use std::time::Duration;

/// The parts of a line that a client controls.
#[derive(Clone, Copy, Debug)]
pub struct Logged<'a> {
    /// The request line, or its beginning; empty if there was none.
    pub request: &'a [u8],
    /// It was understood.
    pub is_valid: bool,
    /// Value of the field `Host`.
    pub host: Option<&'a [u8]>,
    /// Value of the field `Referer`.
    pub referer: Option<&'a [u8]>,
    /// Value of the field `User-Agent`.
    pub user_agent: Option<&'a [u8]>,
}

/// The line, its end included. The client is 192.0.2.7, and was answered with 404 after 1.5 ms.
pub fn log_line(logged: Logged<'_>, format: LogFormat) -> Vec<u8> {
    let Logged { request, is_valid, host, referer, user_agent } = logged;
    let said = Said { request, is_valid, host, user: None, referer, user_agent };
    let client = Client { address: "192.0.2.7".parse().ok(), port: 4711 };
    let (duration, outcome) = (Duration::from_micros(1500), Outcome::Ends);
    let ended = Ended { status: 404, bytes: 300, body_bytes: 36, duration, outcome, worker: 0 };
    let mut text = Vec::new();
    LogLine::new(format, &Clock::new(), client, said).write(format, &ended, &mut text);
    text
}
