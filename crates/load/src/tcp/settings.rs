//! The settings of a load.

use crate::settings::{CONNECTIONS_MAX, Common, between, optional};
use twinring::config::UringOptions;
use twinring_wire::tcp as wire;

/// Requests in flight per connection in an open loop, by default. Large, so that requests leave on
/// schedule while a server stalls; bounded, so that a server that never answers cannot make the
/// queue grow without end.
pub const OPEN_LOOP_DEPTH: u32 = 1024;

/// The read rate of a slow reader on each connection.
pub const SLOW_READ_BYTES_PER_S: u64 = 64 * 1024;

/// SO_RCVBUF of a slow reader; with larger ones it takes megabytes until the server notices.
pub const SLOW_RECV_BUFFER_BYTES: usize = 16 * 1024;

/// The maximum that a slow reader sends without answers on each connection.
pub const SLOW_UNANSWERED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Largest message in bytes.
const MESSAGE_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Largest depth.
const DEPTH_MAX: u32 = 1 << 20;

/// How requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Closed,
    Open,
    SlowReader,
}

/// The settings of a load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Connections, rate, times and addresses.
    pub common: Common,
    /// Size of a message in bytes.
    pub message_bytes: u32,
    /// Requests in flight per connection; 1, or [`OPEN_LOOP_DEPTH`] in an open loop.
    pub depth: Option<u32>,
    /// Requests per connection before it is closed and replaced.
    pub churn: Option<u64>,
    /// Further connections that only stay open.
    pub idle: u64,
    /// Send without waiting, read slowly.
    pub slow_reader: bool,
    /// Verify each received byte.
    pub verify: bool,
}

impl Settings {
    /// Messages of 128 bytes.
    pub fn new(common: Common) -> Settings {
        Settings {
            common,
            message_bytes: 128,
            depth: None,
            churn: None,
            idle: 0,
            slow_reader: false,
            verify: true,
        }
    }

    /// Checks whether the settings are valid.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn check(&self) -> Result<(), String> {
        self.common.check()?;
        between("--idle", self.idle, 0, CONNECTIONS_MAX)?;
        between("--size", self.message_bytes.into(), 1, MESSAGE_BYTES_MAX.into())?;
        optional(&[
            ("--depth", self.depth.map(u64::from), u64::from(DEPTH_MAX)),
            ("--churn", self.churn, u64::MAX - 1),
        ])?;
        if self.slow_reader && (self.common.is_open() || self.churn.is_some()) {
            return Err("--slow-reader excludes --rate and --churn: it sends all it can".into());
        }
        Ok(())
    }

    pub(super) fn pace(&self) -> Pace {
        match (self.slow_reader, self.common.is_open()) {
            (true, _) => Pace::SlowReader,
            (false, true) => Pace::Open,
            (false, false) => Pace::Closed,
        }
    }

    /// Requests that a connection may have in flight.
    pub(super) fn depth_in_use(&self) -> u64 {
        match self.pace() {
            Pace::Closed => self.depth.unwrap_or(1).into(),
            Pace::Open => self.depth.unwrap_or(OPEN_LOOP_DEPTH).into(),
            Pace::SlowReader => (SLOW_UNANSWERED_BYTES_MAX / u64::from(self.message_bytes)).max(1),
        }
    }

    /// Receive buffers that suit the bytes that a connection receives at once, unless configured:
    /// many small ones, or few large ones, so that the pool stays inside the cache.
    pub(super) fn tuned_uring(&self) -> UringOptions {
        let at_once = u64::from(self.message_bytes) * u64::from(self.depth.unwrap_or(1));
        let (bytes, count) = if at_once <= 2048 && !self.slow_reader {
            (2048, (2 * self.common.share()).clamp(64, 1024).next_power_of_two() as u32)
        } else {
            (16 * 1024, 64)
        };
        self.common.workers.uring_with_buffers(bytes, count)
    }

    pub(super) fn report(&self) -> wire::Settings {
        let common = &self.common;
        wire::Settings {
            connections: common.connections,
            message_bytes: self.message_bytes.into(),
            depth: self.depth_in_use(),
            threads: common.workers.threads as u64,
            mode: if common.is_open() { "open" } else { "closed" }.to_owned(),
            rate_per_s: common.rate_per_s,
            arrivals: common.schedule().map(|(_, arrivals)| arrivals.to_string()),
            churn: self.churn,
            idle: self.idle,
            slow_reader: self.slow_reader,
            verify: self.verify,
            messages: common.requests,
            warmup_s: common.warmup.as_secs_f64(),
            duration_s: common.duration.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn settings() -> Settings {
        Settings::new(Common::new(vec![([127, 0, 0, 1], 7000).into()]))
    }

    #[test]
    fn invalid_settings_are_named() {
        assert_eq!(settings().check(), Ok(()));
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 10] = [
            (|s| s.message_bytes = 0, "--size 0"),
            (|s| s.depth = Some(0), "--depth 0"),
            (|s| s.common.rate_per_s = Some(0), "--rate 0"),
            (|s| s.common.connections = 0, "--connections 0"),
            (|s| s.common.workers.threads = 2, "--threads 2"),
            (|s| s.common.duration = Duration::ZERO, "--duration 0"),
            (|s| s.common.local = vec![[0, 0, 0, 0, 0, 0, 0, 1].into()], "--local ::1"),
            (|s| s.common.addresses[0].set_port(0), "127.0.0.1:0"),
            (|s| s.common.addresses.clear(), "no address"),
            (|s| (s.slow_reader, s.churn) = (true, Some(1)), "--slow-reader"),
        ];
        for (change, named) in cases {
            let mut settings = settings();
            change(&mut settings);
            let error = settings.check().unwrap_err();
            assert!(error.starts_with(named), "{error}");
        }
    }

    #[test]
    fn configured_options_are_not_tuned() {
        let mut settings = settings();
        settings.common.workers.uring = "buffer_bytes=4096".parse().unwrap();
        assert_eq!(settings.tuned_uring(), settings.common.workers.uring);
        settings.common.workers.uring = "buffer_count=256".parse().unwrap();
        let tuned = settings.tuned_uring();
        assert_eq!((tuned.buffer_bytes, tuned.buffer_count), (Some(2048), Some(256)));
    }
}
