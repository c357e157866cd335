//! The settings of a load.

use crate::settings::{CONNECTIONS_MAX, Common, between};
use twinring::config::UringOptions;
use twinring_wire::tcp as wire;

/// Requests in flight per connection in an open loop, by default. Large, so that requests leave on
/// schedule while a server stalls; bounded, so that a server that never answers cannot make the
/// queue grow without end.
pub const OPEN_LOOP_DEPTH: u32 = 1024;

const MESSAGE_BYTES_MAX: u32 = 16 * 1024 * 1024;
const DEPTH_MAX: u32 = 1 << 20;

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
    /// Verify each received byte.
    pub verify: bool,
}

impl Settings {
    /// Messages of 128 bytes.
    pub fn new(common: Common) -> Settings {
        Settings { common, message_bytes: 128, depth: None, churn: None, idle: 0, verify: true }
    }

    /// Checks whether the settings are valid.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn check(&self) -> Result<(), String> {
        self.common.check("--connections", CONNECTIONS_MAX)?;
        between("--idle", self.idle, 0, CONNECTIONS_MAX)?;
        between("--size", self.message_bytes, 1, MESSAGE_BYTES_MAX)?;
        between("--depth", self.depth.unwrap_or(1), 1, DEPTH_MAX)?;
        between("--churn", self.churn.unwrap_or(1), 1, u64::MAX - 1)
    }

    pub(super) fn depth_in_use(&self) -> u64 {
        let default = if self.common.is_open() { OPEN_LOOP_DEPTH } else { 1 };
        self.depth.unwrap_or(default).into()
    }

    /// Receive buffers that suit the bytes that a connection receives at once, unless configured:
    /// many small ones, or few large ones, so that the pool stays inside the cache.
    pub(super) fn tuned_uring(&self) -> UringOptions {
        let at_once = u64::from(self.message_bytes) * u64::from(self.depth.unwrap_or(1));
        let (bytes, count) = if at_once <= 2048 {
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
            mode: common.mode(),
            rate_per_s: common.rate_per_s,
            arrivals: common.arrivals(),
            churn: self.churn,
            idle: self.idle,
            verify: self.verify,
            messages: common.requests,
            warmup_s: common.warmup.as_secs_f64(),
            duration_s: common.duration.as_secs_f64(),
        }
    }
}
