//! The result of a run: the JSON of `docs/json.md`.

use crate::report::{Bytes, Cpu, EncodedHistogram, Latency, Window};
use serde::Serialize;
use twinring::{CounterSnapshot, Features};

/// Worst streams that the result names.
pub(super) const WORST: usize = 10;

/// The `result` line of `twinring load udp`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `"result"`.
    pub event: &'static str,
    /// Always `"twinring.load.udp/1"`.
    pub schema: &'static str,
    /// Address of the reflector.
    pub target: String,
    /// The engine of the load generator.
    pub engine: String,
    /// The engine's features in use.
    pub features: Features,
    /// Why `auto` did not take io_uring.
    pub why_not: Option<String>,
    /// The run was ended by a signal.
    pub interrupted: bool,
    /// What was asked for.
    pub settings: SettingsReport,
    /// The measured window.
    pub window: Window,
    /// Packets whose intended time lies in the window, and the replies to them.
    pub packets: Packets,
    /// `lost / sent`; 0 if nothing was sent.
    pub loss_ratio: f64,
    /// Payload of these packets and of the first replies to them.
    pub bytes: Bytes,
    /// Over the streams with replies: each one's RFC 3550 estimate at the end.
    pub jitter_us: Jitter,
    /// From the moment before the kernel got the packet until its reply was taken.
    pub round_trip_us: Latency,
    /// From the intended time to the moment before the kernel got the packet.
    pub send_lateness_us: Latency,
    /// How late the waits for ticks ended.
    pub wait_overrun_us: Latency,
    /// All values behind these.
    pub histograms: Histograms,
    /// Packets that the kernel dropped at our sockets; `None` if it does not tell.
    pub kernel_drops: Option<u64>,
    /// Streams.
    pub streams: Streams,
    /// Time of system calls, by kind, if that was asked for.
    pub calls: Option<Vec<CallRow>>,
    /// Steps of the search for the highest rate, if that was asked for.
    pub ramp: Option<Vec<RampStep>>,
    /// Socket buffers.
    pub socket_buffers: SocketBuffers,
    /// What the kernel did with large buffers.
    pub segmentation: Segmentation,
    /// Errors inside the window.
    pub errors: ErrorCounts,
    /// The first error in words.
    pub first_error: Option<String>,
    /// CPU use of the worker threads inside the window.
    pub cpu: Cpu,
    /// Counters of the runtime, over the whole run.
    pub runtime_counters: CounterSnapshot,
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct SettingsReport {
    /// Streams.
    pub streams: u64,
    /// Packets a second and stream.
    pub packets_per_s: f64,
    /// Bytes of a packet.
    pub packet_bytes: u32,
    /// `"rtp"` or `"raw"`.
    pub payload: &'static str,
    /// `"each"` or `"single"`.
    pub sockets: &'static str,
    /// `"even"` or `"burst"`.
    pub spread: &'static str,
    /// Single-shot receives in flight for each socket.
    pub pending: Option<u32>,
    /// Many packets with a system call, on epoll.
    pub batch: bool,
    /// Worker threads.
    pub threads: u64,
    /// Distance of ticks.
    pub tick_us: f64,
    /// Segmentation was asked for.
    pub gso: bool,
    /// Replies are compared byte by byte.
    pub verify: bool,
    /// Where SSRC, sequence numbers and timestamps began.
    pub seed: u64,
    /// Traffic before the window.
    pub warmup_s: f64,
    /// Length of the window.
    pub duration_s: f64,
    /// Wait for replies after the window.
    pub drain_s: f64,
}

/// Packets whose intended time lies in the window: `due = sent + unsent + refused` and
/// `sent = received + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Packets {
    /// Were to be sent.
    pub due: u64,
    /// The kernel took them.
    pub sent: u64,
    /// Not handed to the kernel: the load generator was too slow, or the socket full.
    pub unsent: u64,
    /// The kernel did not take them.
    pub refused: u64,
    /// Got a reply, equal byte by byte if that is verified.
    pub received: u64,
    /// Got none, until the wait for replies was over.
    pub lost: u64,
    /// Further replies.
    pub duplicated: u64,
    /// First replies that came behind one to a later packet of the stream.
    pub reordered: u64,
    /// Replies, in the whole run, that differ from what was sent.
    pub mismatched: u64,
    /// Replies, in the whole run, that name no packet of ours.
    pub foreign: u64,
    /// Replies, in the whole run, to packets sent so long before that they were forgotten.
    pub late: u64,
    /// `sent` per second of the window.
    pub sent_per_second: f64,
    /// `received` per second of the window.
    pub received_per_second: f64,
}

/// RFC 3550 interarrival jitter over streams, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Jitter {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// Histograms without loss.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "as the fields of the report")]
pub struct Histograms {
    pub round_trip: EncodedHistogram,
    pub send_lateness: EncodedHistogram,
    pub wait_overrun: EncodedHistogram,
}

/// Streams.
#[derive(Clone, Debug, Serialize)]
pub struct Streams {
    /// Asked for.
    pub asked: u64,
    /// Have a socket.
    pub opened: u64,
    /// Got a reply inside the window.
    pub answered: u64,
    /// Those that fared worst: most lost, then most jitter; at most 10.
    pub worst: Vec<StreamRow>,
    /// All of them, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<Vec<StreamRow>>,
}

/// One stream.
#[derive(Clone, Debug, Serialize)]
pub struct StreamRow {
    /// Its number, from 0.
    pub stream: u64,
    /// Its SSRC; 0 without RTP.
    pub ssrc: u32,
    /// As in [`Packets`].
    pub sent: u64,
    /// As in [`Packets`].
    pub received: u64,
    /// As in [`Packets`].
    pub lost: u64,
    /// As in [`Packets`].
    pub duplicated: u64,
    /// As in [`Packets`].
    pub reordered: u64,
    /// RFC 3550 estimate at the end.
    pub jitter_us: f64,
    /// Longest round trip.
    pub round_trip_us_max: f64,
    /// Latest send.
    pub lateness_us_max: f64,
}

/// The system calls of one kind inside the window.
#[derive(Clone, Debug, Serialize)]
pub struct CallRow {
    /// Name; for `io_uring_enter` with what it was asked to do.
    pub call: &'static str,
    /// How many.
    pub count: u64,
    /// How long they took together, sleep included.
    pub time_s: f64,
    /// Share of the run time of all threads.
    pub run_share: f64,
    /// How long one took on average.
    pub mean_us: f64,
    /// How long the longest took.
    pub max_us: f64,
}

/// One step of the search for the highest rate.
#[derive(Clone, Debug, Serialize)]
pub struct RampStep {
    /// Rate of each stream.
    pub packets_per_s: f64,
    /// Sent in all.
    pub sent: u64,
    /// Of those, without a reply.
    pub lost: u64,
    /// Due and not sent, or refused.
    pub unsent: u64,
    /// How late packets left.
    pub lateness_us_p99_9: f64,
    /// Nothing was lost, and the schedule was kept.
    pub loss_free: bool,
}

/// Socket buffers, the smallest of all sockets.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SocketBuffers {
    /// Receive buffer that was asked for; `None` leaves the system's default.
    pub asked_bytes: Option<u32>,
    /// What the kernel counts with: twice the wish, within its limit.
    pub granted_receive_bytes: usize,
    /// The same of the send buffer.
    pub granted_send_bytes: usize,
}

/// Segmentation by the kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Segmentation {
    /// The kernel cuts what is sent; otherwise the runtime does.
    pub gso: bool,
    /// The kernel joins what is received.
    pub gro: bool,
    /// Buffers that it would not cut.
    pub fallbacks: u64,
}

/// Errors inside the window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ErrorCounts {
    /// ICMP errors about our packets, such as "port unreachable".
    pub icmp_refused: u64,
    /// Packets that the kernel did not take.
    pub send: u64,
    /// Receives that failed.
    pub receive: u64,
    /// Sends that found the socket's buffer full, and waited in the runtime.
    pub blocked: u64,
}

impl Report {
    /// Why the run counts as failed, if it does. Plain loss is a result.
    pub fn failure(&self) -> Option<String> {
        let packets = &self.packets;
        if packets.mismatched > 0 {
            let count = packets.mismatched;
            return Some(format!("{count} replies differ from what was sent"));
        }
        if packets.received == 0 && !self.interrupted {
            let icmp = match self.errors.icmp_refused {
                0 => String::new(),
                count => format!(" ({count} ICMP errors)"),
            };
            let target = &self.target;
            return Some(format!(
                "no packet was answered inside the window{icmp}; check that a reflector listens \
                 on {target}"
            ));
        }
        None
    }
}
