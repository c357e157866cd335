//! The settings of a load of datagrams.

use super::packet::{Payload, STREAMS_MAX};
use super::plan::Spread;
use crate::gates::Gates;
use crate::run::Plan;
use crate::schedule::Rate;
use crate::settings::{THREADS_MAX, TIME_MAX, between, sources, times};
use crate::workers::Workers;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use twinring::{config::UringOptions, net::UdpOptions};
use twinring_wire::udp as wire;

/// Longest packet: the payload of the largest datagram on IPv4.
const PACKET_BYTES_MAX: u32 = 65_507;
/// Longest wait for replies.
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

/// The settings of a load. Streams are the total over all threads.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the reflector.
    pub target: SocketAddr,
    /// Streams.
    pub streams: u64,
    /// Packets a second and stream.
    pub rate: Rate,
    /// Bytes of a packet: the payload of a datagram, RTP header included.
    pub packet_bytes: u32,
    /// The content of a packet.
    pub payload: Payload,
    /// One socket for all streams of a thread, instead of one per stream.
    pub single_socket: bool,
    /// The relative timing of different streams.
    pub spread: Spread,
    /// io_uring: single-shot receives in flight for each socket, instead of one multishot receive.
    pub pending: Option<u32>,
    /// epoll: up to 64 packets with a system call.
    pub batch: bool,
    /// Let the kernel segment larger buffers into packets, and coalesce received ones.
    pub gso: bool,
    /// Distance of the moments at which a thread wakes and sends.
    pub tick: Duration,
    /// Verify each received byte.
    pub verify: bool,
    /// Where SSRC, sequence numbers and timestamps begin.
    pub seed: u64,
    /// Traffic before the window.
    pub warmup: Duration,
    /// Length of the window.
    pub duration: Duration,
    /// How long replies are awaited after the window.
    pub drain: Duration,
    /// Worker threads and their engine.
    pub workers: Workers,
    /// Bytes of receive buffer to request for each socket.
    pub receive_buffer_bytes: Option<u32>,
    /// Bytes of send buffer to request for each socket.
    pub send_buffer_bytes: Option<u32>,
    /// Source addresses, used in turn; empty leaves them to the kernel.
    pub local: Vec<IpAddr>,
    /// Limits of the round trips and of the loss.
    pub gates: Gates,
    /// Time each system call.
    pub calls: bool,
    /// Report each stream.
    pub per_stream: bool,
}

impl Settings {
    /// Settings for `target`: one stream of 50 packets per second with 172 bytes each, 1 s of
    /// warm-up, 10 s of window.
    pub fn new(target: SocketAddr) -> Settings {
        Settings {
            target,
            streams: 1,
            rate: Rate::per_second(50.0),
            packet_bytes: 172,
            payload: Payload::Rtp,
            single_socket: false,
            spread: Spread::Even,
            pending: None,
            batch: true,
            gso: false,
            tick: Duration::from_millis(1),
            verify: true,
            seed: 1,
            warmup: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            drain: Duration::from_millis(500),
            workers: Workers::default(),
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            local: Vec::new(),
            gates: Gates::default(),
            calls: false,
            per_stream: false,
        }
    }

    /// Checks whether the settings are valid.
    ///
    /// # Errors
    /// The error, for a user.
    pub fn check(&self) -> Result<(), String> {
        between("--streams", self.streams, 1, STREAMS_MAX)?;
        between("--size", self.packet_bytes.into(), 1, PACKET_BYTES_MAX.into())?;
        between("--threads", self.workers.threads as u64, 1, THREADS_MAX as u64)?;
        if let Some(pending) = self.pending {
            between("--pending", pending.into(), 1, 4096)?;
        }
        let (bytes, least) = (self.packet_bytes, self.payload.header_bytes());
        if (bytes as usize) < least {
            return Err(format!("--size {bytes}: the header of a packet alone takes {least}"));
        }
        if !Rate::RANGE.contains(&self.rate) {
            return Err(format!("--pps {}: expected 0.001 to {PACKETS_PER_S_MAX}", self.rate));
        }
        if self.packets_per_s() > PACKETS_PER_S_MAX {
            let packets = self.packets_per_s();
            return Err(format!("--pps x --streams is {packets}: expected at most 100000000"));
        }
        if self.workers.threads as u64 > self.streams {
            let (threads, streams) = (self.workers.threads, self.streams);
            return Err(format!("--threads {threads} with --streams {streams}: each needs one"));
        }
        sources(&self.local, &[self.target])?;
        self.check_times()
    }

    fn check_times(&self) -> Result<(), String> {
        let microsecond = Duration::from_micros(1);
        let second = Duration::from_secs(1);
        times(&[
            ("--warmup", self.warmup, Duration::ZERO, TIME_MAX),
            ("--duration", self.duration, microsecond, TIME_MAX),
            ("--drain", self.drain, Duration::ZERO, DRAIN_MAX),
            ("--tick", self.tick, 50 * microsecond, second),
        ])
    }

    pub(super) fn plan(&self) -> Plan {
        let (threads, warmup, duration) = (self.workers.threads, self.warmup, self.duration);
        Plan { threads, warmup, duration, requests: None }
    }

    /// Packets a second of all streams together.
    pub(super) fn packets_per_s(&self) -> f64 {
        self.rate.number_per_s() * self.streams as f64
    }

    /// Streams of thread number `thread`.
    pub(super) fn streams_of(&self, thread: usize) -> u64 {
        (self.streams + self.workers.threads as u64 - 1 - thread as u64)
            / self.workers.threads as u64
    }

    /// Packets that each stream remembers: those of a second, or of the wait for replies if that is
    /// longer.
    pub(super) fn remembered(&self) -> usize {
        let seconds = self.drain.as_secs_f64().max(1.0);
        let packets = (self.rate.number_per_s() * seconds).ceil() as u64;
        packets.clamp(*REMEMBERED.start(), *REMEMBERED.end()).next_power_of_two() as usize
    }

    /// Packets that may be sent at once, before replies are processed.
    pub(super) fn at_once_max(&self, least: u64) -> u64 {
        let in_a_tick = self.packets_per_s() * self.tick.as_secs_f64();
        least.max(2 * in_a_tick as u64)
    }

    /// Bytes of receive buffer to request for a socket: the configured size, or enough for a
    /// quarter of a second. `None` keeps the default, which is plenty for slow streams.
    pub(super) fn receive_buffer(&self) -> Option<u32> {
        if self.receive_buffer_bytes.is_some() {
            return self.receive_buffer_bytes;
        }
        if self.single_socket {
            return Some(LARGE_RECEIVE_BUFFER_BYTES);
        }
        let packet = f64::from(self.packet_bytes) + PACKET_OVERHEAD_BYTES;
        let wanted = self.rate.number_per_s() * packet / 4.0;
        (wanted > DEFAULT_RECEIVE_BUFFER_BYTES)
            .then(|| wanted.min(f64::from(LARGE_RECEIVE_BUFFER_BYTES)) as u32)
    }

    /// The options of sockets.
    pub(super) fn socket_options(&self) -> UdpOptions {
        // One byte more than a packet, so that a longer reply is detected; whole cache lines.
        let buffer_bytes = (self.packet_bytes + 1).next_multiple_of(64).min(65_535);
        // The packets of 20 ms: replies that arrive during a delay wait in the kernel.
        let packets = (self.packets_per_s() / self.workers.threads as f64 / 50.0) as u32;
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
        let mut options = self.workers.uring.clone();
        options.sq_entries = options.sq_entries.or(Some(4096));
        options.cq_entries = options.cq_entries.or(Some(32_768));
        options
    }

    pub(super) fn report(&self) -> wire::Settings {
        wire::Settings {
            streams: self.streams,
            packets_per_s: self.rate.number_per_s(),
            packet_bytes: self.packet_bytes.into(),
            payload: if self.payload == Payload::Rtp { "rtp" } else { "raw" }.to_owned(),
            sockets: if self.single_socket { "single" } else { "each" }.to_owned(),
            spread: if self.spread == Spread::Even { "even" } else { "burst" }.to_owned(),
            pending: self.pending,
            batch: self.batch,
            threads: self.workers.threads as u64,
            tick_us: self.tick.as_secs_f64() * 1e6,
            gso: self.gso,
            verify: self.verify,
            seed: self.seed,
            warmup_s: self.warmup.as_secs_f64(),
            duration_s: self.duration.as_secs_f64(),
            drain_s: self.drain.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(SocketAddr::from(([127, 0, 0, 1], 9000)))
    }

    #[test]
    fn invalid_settings_are_named() {
        assert_eq!(settings().check(), Ok(()));
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 9] = [
            (|s| s.packet_bytes = 11, "--size 11"),
            (|s| s.packet_bytes = 65_508, "--size 65508"),
            (|s| s.rate = Rate::per_second(0.0), "--pps 0"),
            (|s| (s.streams, s.rate) = (200, Rate::per_second(1e6)), "--pps x --streams"),
            (|s| s.workers.threads = 2, "--threads 2"),
            (|s| s.duration = Duration::ZERO, "--duration 0"),
            (|s| s.tick = Duration::from_secs(2), "--tick 2s"),
            (|s| s.pending = Some(0), "--pending 0"),
            (|s| s.local = vec![[0, 0, 0, 0, 0, 0, 0, 1].into()], "--local ::1"),
        ];
        for (change, named) in cases {
            let mut settings = settings();
            change(&mut settings);
            let error = settings.check().unwrap_err();
            assert!(error.starts_with(named), "{error}");
        }
    }

    #[test]
    fn buffers_suit_the_load() {
        let mut settings = settings();
        assert_eq!((settings.receive_buffer(), settings.remembered()), (None, 64));
        assert_eq!(settings.socket_options().buffer_bytes, 192);
        settings.streams = 8000;
        assert_eq!(settings.socket_options().buffer_count, 8192);
        settings.rate = Rate::per_second(200_000.0);
        assert_eq!(settings.receive_buffer(), Some(4 << 20));
        assert_eq!(settings.remembered(), 1 << 18);
        settings.receive_buffer_bytes = Some(1000);
        assert_eq!(settings.receive_buffer(), Some(1000));
    }

    #[test]
    fn every_stream_has_a_thread() {
        let mut settings = Settings { streams: 10, ..settings() };
        settings.workers.threads = 4;
        let shares: Vec<_> = (0..4).map(|thread| settings.streams_of(thread)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
    }
}
