//! The settings of a load of datagrams.

use super::packet::RTP_HEADER_BYTES;
use crate::schedule::{Arrivals, Schedule};
use crate::settings::{Common, between};
use std::net::SocketAddr;
use std::time::Duration;
use twinring::{config::UringOptions, net::UdpOptions};
use twinring_wire::udp as wire;

const STREAMS_MAX: u64 = 1 << 18;
/// Longest packet: the payload of the largest datagram on IPv4.
const PACKET_BYTES_MAX: u64 = 65_507;
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// Packets a second of all streams together, at most.
const PACKETS_PER_S_MAX: f64 = 1e8;
/// Packets that a stream remembers, at least and at most.
const REMEMBERED: std::ops::RangeInclusive<u64> = 64..=1 << 22;

/// Memory that a small packet takes in a socket's queue besides its content, approximately: the
/// overhead that the kernel counts against SO_RCVBUF.
const PACKET_OVERHEAD_BYTES: f64 = 768.0;
/// Receive buffer for a socket with many packets.
const LARGE_RECEIVE_BUFFER_BYTES: u32 = 4 << 20;
/// The usual default of a socket (net.core.rmem_default).
const DEFAULT_RECEIVE_BUFFER_BYTES: f64 = 212_992.0;

/// The settings of a load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Streams (as connections), times, and the address of the reflector, the first.
    pub common: Common,
    /// Millionths of a packet a second and stream.
    pub rate: u64,
    /// Bytes of a packet: the payload of a datagram, RTP header included.
    pub packet_bytes: u32,
    /// io_uring: single-shot receives in flight for each socket, instead of one multishot receive.
    pub pending: Option<u32>,
    /// epoll: up to 64 packets with a system call.
    pub batch: bool,
    /// Let the kernel segment larger buffers into packets, and coalesce received ones.
    pub gso: bool,
    /// Distance of the moments at which a thread wakes and sends.
    pub tick: Duration,
    /// How long replies are awaited after the window.
    pub drain: Duration,
    /// Verify each received byte.
    pub verify: bool,
    /// Where SSRC, sequence numbers and timestamps begin.
    pub seed: u64,
    /// Bytes of receive buffer to request for each socket.
    pub receive_buffer_bytes: Option<u32>,
    /// Bytes of send buffer to request for each socket.
    pub send_buffer_bytes: Option<u32>,
    /// Time each system call.
    pub calls: bool,
    /// Report each stream.
    pub per_stream: bool,
}

impl Settings {
    /// Checks whether the settings are valid.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn check(&self) -> Result<(), String> {
        self.common.check("--streams", STREAMS_MAX)?;
        let least = RTP_HEADER_BYTES as u64;
        between("--size", self.packet_bytes.into(), least, PACKET_BYTES_MAX)?;
        if let Some(pending) = self.pending {
            between("--pending", pending, 1, 4096)?;
        }
        between("--pps", self.per_stream_s(), 0.001, PACKETS_PER_S_MAX)?;
        if self.packets_per_s() > PACKETS_PER_S_MAX {
            let packets = self.packets_per_s();
            return Err(format!("--pps x --streams is {packets}: expected at most 100000000"));
        }
        between("--drain", self.drain, Duration::ZERO, DRAIN_MAX)?;
        between("--tick", self.tick, Duration::from_micros(50), Duration::from_secs(1))
    }

    pub(super) fn target(&self) -> SocketAddr {
        self.common.addresses[0]
    }

    /// The schedule of all streams, whose first packet is due at `start_ns`.
    pub(super) fn schedule(&self, start_ns: u64) -> Schedule {
        let streams = self.common.connections;
        Schedule::new(start_ns, self.rate * streams, streams, Arrivals::Periodic)
    }

    fn per_stream_s(&self) -> f64 {
        self.rate as f64 / 1e6
    }

    pub(super) fn packets_per_s(&self) -> f64 {
        self.per_stream_s() * self.common.connections as f64
    }

    /// Packets that each stream remembers: those of a second, or of the wait for replies if that is
    /// longer.
    pub(super) fn remembered(&self) -> usize {
        let seconds = self.drain.as_secs_f64().max(1.0);
        let packets = (self.per_stream_s() * seconds).ceil() as u64;
        packets.clamp(*REMEMBERED.start(), *REMEMBERED.end()).next_power_of_two() as usize
    }

    /// Bytes of receive buffer to request for a socket: the configured size, or enough for a
    /// quarter of a second. `None` keeps the default, which is plenty for slow streams.
    pub(super) fn receive_buffer(&self) -> Option<u32> {
        if self.receive_buffer_bytes.is_some() {
            return self.receive_buffer_bytes;
        }
        let packet = f64::from(self.packet_bytes) + PACKET_OVERHEAD_BYTES;
        let wanted = self.per_stream_s() * packet / 4.0;
        (wanted > DEFAULT_RECEIVE_BUFFER_BYTES)
            .then(|| wanted.min(f64::from(LARGE_RECEIVE_BUFFER_BYTES)) as u32)
    }

    pub(super) fn socket_options(&self) -> UdpOptions {
        // One byte more than a packet, so that a longer reply is detected; whole cache lines.
        let buffer_bytes = (self.packet_bytes + 1).next_multiple_of(64).min(65_535);
        // The packets of 20 ms: replies that arrive during a delay wait in the kernel.
        let packets = (self.packets_per_s() / self.common.workers.threads as f64 / 50.0) as u32;
        UdpOptions {
            recv_buffer_bytes: self.receive_buffer(),
            send_buffer_bytes: self.send_buffer_bytes,
            buffer_bytes,
            buffer_count: match self.gso {
                true => 128,
                false => packets.clamp(1024, 1 << 15).next_power_of_two(),
            },
            gro: self.gso,
            pending: self.pending.unwrap_or(0),
            batch: self.batch,
            ..UdpOptions::default()
        }
    }

    /// Rings for the work of thousands of sockets between two ticks, unless configured.
    pub(super) fn tuned_uring(&self) -> UringOptions {
        let mut options = self.common.workers.uring.clone();
        options.sq_entries = options.sq_entries.or(Some(4096));
        options.cq_entries = options.cq_entries.or(Some(32_768));
        options
    }

    pub(super) fn report(&self) -> wire::Settings {
        let common = &self.common;
        wire::Settings {
            streams: common.connections,
            packets_per_s: self.per_stream_s(),
            packet_bytes: self.packet_bytes.into(),
            pending: self.pending,
            batch: self.batch,
            threads: common.workers.threads as u64,
            tick_us: self.tick.as_secs_f64() * 1e6,
            gso: self.gso,
            verify: self.verify,
            seed: self.seed,
            warmup_s: common.warmup.as_secs_f64(),
            duration_s: common.duration.as_secs_f64(),
            drain_s: self.drain.as_secs_f64(),
        }
    }
}
