//! The result line of `twinring load udp`.

use serde::{Deserialize, Serialize};

use crate::Fields;
use crate::histogram::{EncodedHistogram, Latency};
use crate::load::{Cpu, Gate, Head, RATE_TOLERANCE, Window, add_some, throttled};
use crate::tcp::Bytes;

/// The schema of this line.
pub const SCHEMA: &str = "twinring.load.udp/1";

/// The result of `twinring load udp`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct UdpResult {
    /// How every result begins.
    #[serde(flatten)]
    pub head: Head,
    /// The requested settings.
    pub settings: UdpSettings,
    /// The measured window.
    pub window: Window,
    /// Packets whose intended time is in the window, and the replies to them.
    pub packets: Packets,
    /// `lost / sent`; 0 if nothing was sent.
    pub loss_ratio: f64,
    /// Payload of these packets and of the first replies to them.
    pub bytes: Bytes,
    /// Over the streams with replies: the estimate of each at the end.
    pub jitter_us: Jitter,
    /// From the moment before the kernel got the packet until its reply was processed.
    pub round_trip_us: Latency,
    /// From the intended time to the moment before the kernel got the packet.
    pub send_lateness_us: Latency,
    /// How late the waits for ticks ended. A tick that came due while the thread was busy has no
    /// wait.
    pub wait_overrun_us: Latency,
    /// All values behind these.
    pub histograms: UdpHistograms,
    /// Packets that the kernel dropped at our sockets; `null` if it does not report them, and then
    /// the lab rejects the result.
    pub kernel_drops: Option<u64>,
    /// Streams.
    pub streams: Streams,
    /// Socket buffers.
    pub socket_buffers: SocketBuffers,
    /// Segmentation and coalescing by the kernel.
    pub segmentation: Segmentation,
    /// Errors inside the window.
    pub errors: UdpErrors,
    /// The requested gates: of round trips, and `max_error_rate` of the loss.
    #[serde(default)]
    pub gates: Vec<Gate>,
    /// The first error in words.
    pub first_error: Option<String>,
    /// CPU use of the load generator inside the window.
    pub cpu: Cpu,
    /// Counters of the load generator's runtime, over the whole run.
    pub runtime_counters: Fields,
}

/// The settings of `load udp`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct UdpSettings {
    /// Streams.
    pub streams: u64,
    /// Packets a second and stream.
    pub packets_per_s: f64,
    /// Bytes of a packet.
    pub packet_bytes: u64,
    /// Single-shot receives in flight for each socket, on io_uring.
    pub pending: Option<u32>,
    /// Worker threads.
    pub threads: u64,
    /// Distance of ticks.
    pub tick_us: f64,
    /// Segmentation by the kernel was requested.
    pub gso: bool,
    /// Replies are compared byte by byte.
    pub verify: bool,
    /// Determines SSRC, first sequence numbers and timestamps.
    pub seed: u64,
    /// Traffic before the window, in seconds.
    pub warmup_s: f64,
    /// Length of the window, in seconds.
    pub duration_s: f64,
    /// Wait for replies after the window, in seconds.
    pub drain_s: f64,
}

/// Packets whose intended time is in the window: `due = sent + unsent + refused` and `sent =
/// received + lost`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Packets {
    /// Were to be sent.
    pub due: u64,
    /// The kernel took them.
    pub sent: u64,
    /// Not sent: the load generator was more than 100 ms late at the end, or the socket held its
    /// maximum of unsent packets.
    pub unsent: u64,
    /// The kernel refused them.
    pub refused: u64,
    /// Got a reply, equal byte by byte if that is verified.
    pub received: u64,
    /// Without a reply until the wait for replies ended.
    pub lost: u64,
    /// Further replies.
    pub duplicated: u64,
    /// First replies that arrived behind one to a later packet of the stream (RFC 4737).
    pub reordered: u64,
    /// Replies, in the whole run, that belong to a stream of ours and differ from its packet; their
    /// packets count as lost.
    pub mismatched: u64,
    /// Replies, in the whole run, that name no stream of ours.
    pub foreign: u64,
    /// Replies, in the whole run, to packets sent so long before that they were forgotten.
    pub late: u64,
    /// `sent` per second of the window.
    pub sent_per_second: f64,
    /// `received` per second of the window.
    pub received_per_second: f64,
}

impl Packets {
    /// The share of due packets without a reply, for any reason.
    pub fn missing_ratio(&self) -> f64 {
        self.due.saturating_sub(self.received) as f64 / self.due.max(1) as f64
    }
}

/// Interarrival jitter over streams by RFC 3550 section 6.4.1, in microseconds: with the intended
/// times as the sender's timestamps, in nanoseconds. Packets of the warm-up count, duplicates do not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Jitter {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// All values of a run of datagrams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct UdpHistograms {
    /// Of `round_trip_us`.
    pub round_trip: EncodedHistogram,
    /// Of `send_lateness_us`.
    pub send_lateness: EncodedHistogram,
    /// Of `wait_overrun_us`.
    pub wait_overrun: EncodedHistogram,
}

/// Streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Streams {
    /// Requested.
    pub asked: u64,
    /// With a socket.
    pub opened: u64,
    /// Got a reply inside the window.
    pub answered: u64,
    /// The ten with most loss, then most jitter.
    pub worst: Vec<Stream>,
    /// All of them, with `--per-stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<Vec<Stream>>,
}

/// One stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Stream {
    /// Its number, from 0.
    pub stream: u64,
    /// Its SSRC.
    pub ssrc: u32,
    /// As in `packets`.
    pub sent: u64,
    /// As in `packets`.
    pub received: u64,
    /// As in `packets`.
    pub lost: u64,
    /// As in `packets`.
    pub duplicated: u64,
    /// As in `packets`.
    pub reordered: u64,
    /// Estimate of its jitter at the end.
    pub jitter_us: f64,
    /// Longest round trip.
    pub round_trip_us_max: f64,
    /// Latest send.
    pub lateness_us_max: f64,
}

/// Socket buffers, the smallest of all sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SocketBuffers {
    /// Requested receive buffer; `null` leaves the system's default.
    pub asked_bytes: Option<u32>,
    /// The size granted by the kernel: twice the requested one, within its limit.
    pub granted_receive_bytes: u64,
    /// The same of the send buffer.
    pub granted_send_bytes: u64,
}

/// Segmentation by the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Segmentation {
    /// The kernel segments sent buffers; otherwise the runtime does.
    pub gso: bool,
    /// The kernel coalesces received packets.
    pub gro: bool,
    /// Buffers that it would not cut.
    pub fallbacks: u64,
}

/// Errors of `load udp` inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct UdpErrors {
    /// ICMP errors about our packets, such as "port unreachable".
    pub icmp_refused: u64,
    /// Packets that the kernel refused.
    pub send: u64,
    /// Receives that failed.
    pub receive: u64,
    /// Sends that found the socket's buffer full, and waited in the runtime; their stamp is from
    /// before that wait.
    pub blocked: u64,
}

impl UdpResult {
    /// Why the run counts as failed, if it does. Plain loss is a result.
    pub fn failure(&self) -> Option<String> {
        let packets = &self.packets;
        if packets.mismatched > 0 {
            let count = packets.mismatched;
            return Some(format!("{count} replies differ from their packets"));
        }
        if packets.received == 0 && !self.head.interrupted {
            let icmp = match self.errors.icmp_refused {
                0 => String::new(),
                count => format!(" ({count} ICMP errors)"),
            };
            let target = &self.head.target;
            return Some(format!(
                "no packet was answered inside the window{icmp}; check that a reflector listens \
                 on {target}"
            ));
        }
        let Streams { asked, opened, .. } = self.streams;
        if opened < asked && !self.head.interrupted {
            let first = self.first_error.as_ref().map_or(String::new(), |it| format!("; {it}"));
            return Some(format!("{opened} of {asked} streams could be opened{first}"));
        }
        None
    }

    /// Why the load was not the one that was asked for, if it was not.
    pub(crate) fn shortfall(&self) -> Vec<String> {
        let Packets { due, unsent, refused, sent_per_second, .. } = self.packets;
        let missing = unsent + refused;
        let rate = (missing as f64 > RATE_TOLERANCE * due as f64).then(|| {
            format!(
                "RATE NOT REACHED: {sent_per_second:.0} packets/s; {missing} of {due} due packets were not sent"
            )
        });
        rate.into_iter().chain(throttled(&self.cpu)).collect()
    }

    pub(crate) fn add(&mut self, other: UdpResult) -> Result<(), String> {
        add_counts!(self.settings, other.settings; streams);
        self.settings.verify &= other.settings.verify;
        self.packets.add(&other.packets);
        self.loss_ratio = self.packets.lost as f64 / self.packets.sent.max(1) as f64;
        let (mine, theirs) = (&mut self.histograms, &other.histograms);
        self.round_trip_us = Latency::of(&mine.round_trip.add(&theirs.round_trip)?);
        self.send_lateness_us = Latency::of(&mine.send_lateness.add(&theirs.send_lateness)?);
        add_some(&mut self.kernel_drops, other.kernel_drops);
        add_counts!(self.streams, other.streams; asked, opened, answered);
        self.errors.add(&other.errors);
        self.first_error = self.first_error.take().or(other.first_error);
        self.cpu.add(&other.cpu);
        Ok(())
    }
}

impl UdpErrors {
    /// Adds those of others.
    pub fn add(&mut self, other: &UdpErrors) {
        add_counts!(self, other; icmp_refused, send, receive, blocked);
    }
}

impl Packets {
    /// Adds those of others.
    pub fn add(&mut self, other: &Packets) {
        add_counts!(
            self, other;
            due, sent, unsent, refused, received, lost, duplicated, reordered, mismatched, foreign,
            late
        );
        self.sent_per_second += other.sent_per_second;
        self.received_per_second += other.received_per_second;
    }
}
