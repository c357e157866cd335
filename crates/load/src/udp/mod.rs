//! Streams of RTP packets to a reflector, like those of a media server: thousands with a few packets
//! per second each, or one with very many. Each has its own socket.
//!
//! Each worker thread has its own engine and its share of the streams, and wakes once per tick. It
//! sends the packets due by a [schedule](crate::schedule), then processes the replies. Packets are
//! sent regardless of missing replies: it is an open loop. For the counts, see
//! [`UdpResult`](twinring_wire::UdpResult) and `docs/json.md`:
//!
//! - A packet belongs to the measured window if its *intended* time does.
//! - Lateness is the time from there to the moment directly before the kernel gets the packet, with
//!   one stamp for a few dozen packets; on io_uring before the enter that submits them, on epoll
//!   before the first of their system calls.
//! - A round trip is the time from that stamp until the worker processes the reply, which it does
//!   once per tick; so it includes up to a tick of waiting on this side.
//! - Jitter is the estimate of RFC 3550, section 6.4.1, with the intended times as the senders'
//!   timestamps, in nanoseconds instead of units of 125 us. Duplicates do not count.

mod client;
#[doc(hidden)]
pub mod fuzzing;
mod packet;
mod report;
mod stream;
mod traffic;

pub(crate) use report::table;

use self::packet::RTP_HEADER_BYTES;
use crate::run::{Environment, Generator, run, unreachable};
use crate::schedule::{Arrivals, Schedule};
use crate::settings::{Common, between};
use clap::{ArgAction, Args};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use twinring::Builder;
use twinring::config::{Features, UringOptions};
use twinring::measure::monotonic_ns;
use twinring::net::UdpOptions;
use twinring_input::quantity::{count, count_u32, duration, rate_millionths, size_u32};
use twinring_wire::LoadResult;
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
#[derive(Args, Clone, Debug)]
pub struct UdpSettings {
    /// Address of the reflector: IP:PORT or NAME:PORT; IPv6 in brackets.
    #[arg(value_name = "ADDR")]
    pub target: String,
    /// Streams, in total.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub streams: u64,
    /// Packets per second of each stream; may be a fraction.
    // In millionths.
    #[arg(long, value_name = "R", default_value = "50", value_parser = rate_millionths)]
    pub pps: u64,
    /// Size of a packet: the payload of a datagram, including the RTP header of 12 bytes.
    #[arg(short, long, value_name = "BYTES", default_value = "172", value_parser = size_u32)]
    pub size: u32,
    /// How long to wait for replies after the window.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    pub drain: Duration,
    // Behind it options would be under the last of its headings.
    /// Times, threads, and the address of the reflector, the first.
    #[command(flatten)]
    pub common: Common,
    /// Interval between wake-ups at which packets are sent.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = duration,
          help_heading = "Pattern")]
    pub tick: Duration,
    /// Do not verify the content of replies.
    #[arg(long = "no-verify", action = ArgAction::SetFalse, help_heading = "Pattern")]
    pub verify: bool,
    /// Seed of SSRC, sequence numbers and timestamps [default: a new one each time].
    // The clock differs enough between runs; that is all a seed is for.
    #[arg(long, value_name = "N", value_parser = count, default_value_t = monotonic_ns(),
          hide_default_value = true, help_heading = "Pattern")]
    pub seed: u64,
    /// Let the kernel segment larger buffers into packets (GSO), and coalesce received ones (GRO).
    #[arg(long, help_heading = "Network")]
    pub gso: bool,
    /// On io_uring, keep this many single-shot receives in flight on each socket, as
    /// AsyncUdpTests does, instead of one multishot receive.
    #[arg(long, value_name = "N", value_parser = count_u32, help_heading = "Network")]
    pub pending: Option<u32>,
    /// Receive buffer of each socket (SO_RCVBUF) [default: enough for a quarter of a second, at
    /// least the system's default].
    #[arg(long, value_name = "BYTES", value_parser = size_u32, help_heading = "Network")]
    pub rcvbuf: Option<u32>,
    /// Send buffer of each socket (SO_SNDBUF) [default: the system's].
    #[arg(long, value_name = "BYTES", value_parser = size_u32, help_heading = "Network")]
    pub sndbuf: Option<u32>,
    /// Print all streams, not only the ten worst.
    #[arg(long, help_heading = "Output")]
    pub per_stream: bool,
}

impl UdpSettings {
    fn target(&self) -> SocketAddr {
        self.common.addresses[0]
    }

    /// The schedule of all streams, whose first packet is due at `start_ns`.
    fn schedule(&self, start_ns: u64) -> Schedule {
        Schedule::new(start_ns, self.pps * self.streams, self.streams, Arrivals::Periodic)
    }

    fn per_stream_s(&self) -> f64 {
        self.pps as f64 / 1e6
    }

    fn packets_per_s(&self) -> f64 {
        self.per_stream_s() * self.streams as f64
    }

    /// Packets that each stream remembers: those of a second, or of the wait for replies if that is
    /// longer.
    fn remembered(&self) -> usize {
        let seconds = self.drain.as_secs_f64().max(1.0);
        let packets = (self.per_stream_s() * seconds).ceil() as u64;
        packets.clamp(*REMEMBERED.start(), *REMEMBERED.end()).next_power_of_two() as usize
    }

    /// Bytes of receive buffer to request for a socket: the configured size, or enough for a
    /// quarter of a second. `None` keeps the default, which is plenty for slow streams.
    fn receive_buffer(&self) -> Option<u32> {
        if self.rcvbuf.is_some() {
            return self.rcvbuf;
        }
        let packet = f64::from(self.size) + PACKET_OVERHEAD_BYTES;
        let wanted = self.per_stream_s() * packet / 4.0;
        (wanted > DEFAULT_RECEIVE_BUFFER_BYTES)
            .then(|| wanted.min(f64::from(LARGE_RECEIVE_BUFFER_BYTES)) as u32)
    }

    fn socket_options(&self) -> UdpOptions {
        // One byte more than a packet, so that a longer reply is detected; whole cache lines.
        let buffer_bytes = (self.size + 1).next_multiple_of(64).min(65_535);
        // The packets of 20 ms: replies that arrive during a delay wait in the kernel.
        let packets = (self.packets_per_s() / f64::from(self.common.workers.threads) / 50.0) as u32;
        UdpOptions {
            recv_buffer_bytes: self.receive_buffer(),
            send_buffer_bytes: self.sndbuf,
            buffer_bytes,
            buffer_count: match self.gso {
                true => 128,
                false => packets.clamp(1024, 1 << 15).next_power_of_two(),
            },
            gro: self.gso,
            pending: self.pending.unwrap_or(0),
            ..UdpOptions::default()
        }
    }

    fn report(&self) -> wire::UdpSettings {
        let common = &self.common;
        wire::UdpSettings {
            streams: self.streams,
            packets_per_s: self.per_stream_s(),
            packet_bytes: self.size.into(),
            pending: self.pending,
            threads: common.workers.threads.into(),
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

impl Generator for UdpSettings {
    const UNIT: &'static str = "replies";

    fn common(&mut self) -> &mut Common {
        &mut self.common
    }

    fn check(&self) -> Result<(), String> {
        self.common.check("--streams", self.streams, STREAMS_MAX)?;
        between("--size", self.size.into(), RTP_HEADER_BYTES as u64, PACKET_BYTES_MAX)?;
        between("--pending", self.pending.unwrap_or(1), 1, 4096)?;
        between("--pps", self.per_stream_s(), 0.001, PACKETS_PER_S_MAX)?;
        between("--pps x --streams", self.packets_per_s(), 0.0, PACKETS_PER_S_MAX)?;
        between("--drain", self.drain, Duration::ZERO, DRAIN_MAX)?;
        between("--tick", self.tick, Duration::from_micros(50), Duration::from_secs(1))
    }

    fn runtime(&self) -> Builder {
        let (mut uring, default) = (self.common.workers.uring.clone(), UringOptions::default());
        // Rings for the work of thousands of sockets between two ticks, unless others than the default were configured.
        if uring.sq_entries == default.sq_entries {
            uring.sq_entries = 4096;
        }
        if uring.cq_entries == default.cq_entries {
            uring.cq_entries = 32_768;
        }
        self.common.workers.builder(uring)
    }

    fn run(self, environment: Environment<'_>) -> Result<LoadResult, String> {
        // With a submission thread the kernel may take packets before the enter.
        let submits = matches!(
            environment.runtime.features(), Features::IoUring(uring) if uring.sqpoll_idle_ms == 0
        );
        let settings = Arc::new(self);
        let limits = (&settings.common, None);
        let (threads, ran) = run(environment, limits, |index, control| {
            client::run_thread(index, Arc::clone(&settings), control, submits)
        })?;
        let result = report::report(&settings, &ran, threads);
        if result.streams.opened == 0 && !result.head.interrupted {
            return unreachable(&result.head.target, result.first_error.as_deref());
        }
        Ok(LoadResult::Udp(Box::new(result)))
    }
}
