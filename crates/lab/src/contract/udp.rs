//! The result line of `twinring load udp`.

use serde::Deserialize;

use super::{ClientCpu, EncodedHistogram, Window};

/// The schema of this line.
pub(super) const SCHEMA: &str = "twinring.load.udp/1";

/// The result of `twinring load udp`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct UdpResult {
    pub(crate) settings: Settings,
    pub(crate) window: Window,
    pub(crate) packets: Packets,
    pub(crate) loss_ratio: f64,
    pub(crate) jitter_us: Jitter,
    pub(crate) round_trip_us: Quantiles,
    pub(crate) send_lateness_us: Quantiles,
    pub(crate) histograms: Histograms,
    pub(crate) kernel_drops: u64,
    pub(crate) streams: Streams,
    pub(crate) calls: Option<Vec<Call>>,
    pub(crate) errors: Errors,
    pub(crate) first_error: Option<String>,
    pub(crate) cpu: ClientCpu,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Settings {
    pub(crate) streams: u64,
    pub(crate) packets_per_s: f64,
    pub(crate) packet_bytes: u64,
    pub(crate) verify: bool,
}

/// Packets whose intended time lies in the window.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Packets {
    /// All of them.
    pub(crate) due: u64,
    /// Handed to the kernel.
    pub(crate) sent: u64,
    /// Not tried before the run ended.
    pub(crate) unsent: u64,
    /// Refused by the kernel.
    pub(crate) refused: u64,
    /// Came back, each counted once.
    pub(crate) received: u64,
    /// Sent and not come back.
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    /// Came back with another payload.
    pub(crate) mismatched: u64,
    /// Came and belong to no stream.
    pub(crate) foreign: u64,
    pub(crate) received_per_second: f64,
}

impl Packets {
    /// Due packets that did not come back, for whatever reason.
    pub(crate) fn missing_ratio(&self) -> f64 {
        self.due.saturating_sub(self.received) as f64 / self.due.max(1) as f64
    }
}

/// Over the streams: each one's estimate by RFC 3550 at the end.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Jitter {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Histograms {
    pub(crate) round_trip: EncodedHistogram,
    pub(crate) send_lateness: EncodedHistogram,
    pub(crate) wait_overrun: EncodedHistogram,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Streams {
    pub(crate) asked: u64,
    pub(crate) opened: u64,
    /// Got at least one packet back.
    pub(crate) answered: u64,
}

/// One kind of system call of the load generator.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Call {
    pub(crate) call: String,
    pub(crate) count: u64,
    /// Its part of the run.
    pub(crate) run_share: f64,
    pub(crate) mean_us: f64,
    pub(crate) max_us: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Errors {
    /// ICMP said that nobody listens.
    pub(crate) icmp_refused: u64,
    pub(crate) send: u64,
    pub(crate) receive: u64,
}
