//! UDP: streams of packets on a schedule.
//!
//! Loss and lateness are outcomes here, not faults: the summary compares CPU between runs that
//! kept up only. A fault is what contradicts itself, or what no network may do to a packet.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::requests::follows_subject;
use super::{Axis, Grid, Load, Place, Point, Points, Workload, bytes, combinations, rate};
use crate::audit::{Audit, Kind, Severity, differ, is_unanswered};
use crate::commands::Values;
use crate::contract::{self, UdpResult};
use crate::error::LabError;
use crate::experiment::{Check, Subject};
use crate::summary::{Figures, Metric, Table};

pub(super) const WORKLOAD: Workload = Workload {
    unit: "packet",
    per: "per packet that came back",
    latency: "Round trip",
    over_tcp: false,
    on_schedule: true,
    tables: &[Table::Each, Table::Packets],
    figures: &["datagrams"],
    service: &["udp", "--listen", "{addr}", "--allow", "any"],
};

/// How far the packets due may be from streams x rate x window, as a share. Each stream may also
/// have one packet more or less by its phase.
pub const DUE_TOLERANCE: f64 = 0.01;

/// A stream that should have had more packets than this in the window, and got none back, was
/// starved and had no bad luck alone.
const MANY_PACKETS: f64 = 10.0;

/// The most that IPv4 carries in a datagram, in bytes.
const DATAGRAM_BYTES_MAX: u32 = 65_507;

/// UDP: every combination of the axes is a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpGrid {
    /// Streams at once.
    pub streams: Vec<u32>,
    /// Packets per second of each stream.
    pub packets_per_s: Vec<u32>,
    /// Bytes of a packet's payload.
    pub message_bytes: Vec<u32>,
    /// Load before the window opens, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_s: Option<f64>,
    /// The measured window, in seconds, if other than the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// Whose work the verdict is about.
    #[serde(default)]
    pub under_test: UnderTest,
    /// When a subject has done the work that was asked for.
    #[serde(default)]
    pub keeps_up: KeepsUp,
    /// The command of the load generator, with placeholders in braces. It must print the JSON
    /// lines of `twinring load udp`.
    pub load: Vec<String>,
}

/// Whose CPU a verdict on UDP is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnderTest {
    /// The server. The load generator is the same for every subject.
    #[default]
    Server,
    /// Server and load generator, which both run as the subject says (`{engine}` and
    /// [`Subject::load_arguments`]).
    Both,
}

/// The limits within which a run has done the work that was asked for. CPU is compared between
/// runs within them only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepsUp {
    /// Most of the packets due in the window that may be lost, refused or never sent, as a share.
    pub missing_ratio: f64,
    /// How late the 99.9th percentile of packets may leave, in microseconds.
    pub lateness_us_p99_9: f64,
}

impl Default for KeepsUp {
    fn default() -> KeepsUp {
        KeepsUp { missing_ratio: 0.001, lateness_us_p99_9: 10_000.0 }
    }
}

impl KeepsUp {
    pub(super) fn are_kept(&self, figures: &Figures) -> Option<bool> {
        let missing = figures.get(Metric::MissingRatio)?;
        let in_time = figures[Metric::LatenessUsP99_9] <= self.lateness_us_p99_9;
        Some(in_time && missing <= self.missing_ratio)
    }
}

/// A point of the grid of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpPoint {
    /// Streams at once.
    pub streams: u32,
    /// Packets per second of each stream.
    pub packets_per_s: u32,
    /// Bytes of a packet's payload.
    pub message_bytes: u32,
}

impl Grid for UdpGrid {
    fn axes(&mut self) -> Vec<Points<'_>> {
        let axis = |key, option, points, bounds| Points { key, option, points, bounds };
        vec![
            axis("streams", "--streams", &mut self.streams, [1, 1_000_000]),
            axis("packets_per_s", "--pps", &mut self.packets_per_s, [1, 100_000_000]),
            axis("message_bytes", "--sizes", &mut self.message_bytes, [1, DATAGRAM_BYTES_MAX]),
        ]
    }

    fn points(&self) -> Vec<Point> {
        let point = |[message_bytes, packets_per_s, streams]: [u32; 3]| {
            Point::Udp(UdpPoint { streams, packets_per_s, message_bytes })
        };
        let all = combinations([&self.message_bytes, &self.packets_per_s, &self.streams]);
        all.into_iter().map(point).collect()
    }

    fn check(&self, check: &Check<'_>, subjects: &[Subject]) -> Result<(), LabError> {
        check.load("udp.load", &self.load, "{addr}")?;
        check.unless(
            (0.0..=1.0).contains(&self.keeps_up.missing_ratio)
                && self.keeps_up.lateness_us_p99_9 > 0.0,
            "udp.keeps_up",
            format!("{:?}", self.keeps_up),
            "missing_ratio from 0 to 1 and lateness_us_p99_9 above 0",
        )?;
        let differs = follows_subject(&self.load)
            || subjects.iter().any(|subject| !subject.load_arguments.is_empty());
        check.unless(
            self.under_test == UnderTest::Both || !differs,
            "udp.load",
            "the load of [udp] depends on the subject",
            "under_test = \"both\", or neither {engine} nor load_arguments",
        )
    }

    fn under_test(&self) -> UnderTest {
        self.under_test
    }
}

impl Load for UdpPoint {
    fn axes(&self) -> Vec<(Axis, &'static str, u32)> {
        vec![
            (Axis::Bytes, "message_bytes", self.message_bytes),
            (Axis::Streams, "streams", self.streams),
            (Axis::PacketsPerS, "packets_per_s", self.packets_per_s),
        ]
    }

    fn copied_bytes(&self) -> f64 {
        2.0 * f64::from(self.message_bytes)
    }

    fn divided(&self, part: &dyn Fn(u32) -> u32) -> Point {
        Point::Udp(UdpPoint { streams: part(self.streams), ..*self })
    }

    fn fill(&self, _: &mut Values, _: &Place<'_>) -> Result<(), LabError> {
        Ok(())
    }
}

impl fmt::Display for UdpPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UdpPoint { streams, packets_per_s, message_bytes } = *self;
        let plural = if streams == 1 { "" } else { "s" };
        let (rate, bytes) = (rate(packets_per_s), bytes(message_bytes));
        write!(f, "{streams} stream{plural} x {rate}/s x {bytes}")
    }
}

impl Audit<'_> {
    pub(super) fn udp(&mut self, load: &UdpResult, point: UdpPoint) {
        let UdpPoint { streams, packets_per_s: rate, message_bytes } = point;
        self.schedule(load, f64::from(streams), f64::from(rate), message_bytes);
        self.packets(load);
        self.streams(load, u64::from(streams), f64::from(rate));
        self.histograms(load);
        self.buffers(load);
        self.overflows();
    }

    /// The load asked for is the load that was put on.
    fn schedule(&mut self, load: &UdpResult, streams: f64, rate: f64, bytes: u32) {
        let settings = &load.settings;
        let is_as_asked = settings.streams as f64 == streams
            && !differ(settings.packets_per_s, rate)
            && settings.packet_bytes == u64::from(bytes);
        if !is_as_asked {
            self.void(
                Kind::BadResult,
                format!(
                    "{streams} streams x {rate}/s x {bytes} B were asked for, the result is of {} \
                     x {}/s x {} B",
                    settings.streams, settings.packets_per_s, settings.packet_bytes
                ),
            );
        }
        let expected = streams * rate * load.window.seconds;
        let margin = streams + DUE_TOLERANCE * expected;
        let due = load.packets.due as f64;
        if (due - expected).abs() > margin {
            self.void(
                Kind::ScheduleLag,
                format!("{due} packets were due in the window, {expected:.0} were asked for"),
            );
        }
        if differ(load.window.between_marks_s(), load.window.seconds) {
            let (between, said) = (load.window.between_marks_s(), load.window.seconds);
            let what = format!("{between} s between the marks are not a window of {said} s");
            self.void(Kind::BadResult, what);
        }
    }

    fn packets(&mut self, load: &UdpResult) {
        let packets = &load.packets;
        if packets.due != packets.sent + packets.unsent + packets.refused
            || packets.sent != packets.received + packets.lost
        {
            self.void(
                Kind::Unbalanced,
                format!(
                    "{} due, {} sent + {} unsent + {} refused; of those sent {} came back + {} lost",
                    packets.due,
                    packets.sent,
                    packets.unsent,
                    packets.refused,
                    packets.received,
                    packets.lost
                ),
            );
        }
        let rate = packets.received as f64 / load.window.seconds;
        let loss_ratio = packets.lost as f64 / packets.sent.max(1) as f64;
        if differ(rate, packets.received_per_second) || differ(loss_ratio, load.loss_ratio) {
            self.void(
                Kind::BadResult,
                format!(
                    "{} of {} packets back in {} s are not {} per second with a loss of {}",
                    packets.received,
                    packets.sent,
                    load.window.seconds,
                    packets.received_per_second,
                    load.loss_ratio
                ),
            );
        }
        if packets.mismatched > 0 {
            let what = format!("{} packets came back changed", packets.mismatched);
            self.void(Kind::PayloadMismatch, what);
        }
        if packets.foreign > 0 {
            let what = format!("{} packets came that no stream had sent", packets.foreign);
            self.find(Severity::Warning, Kind::ForeignPackets, what);
        }
        if !load.settings.verify {
            let what = "packets were counted, not compared".to_owned();
            self.find(Severity::Warning, Kind::UnverifiedPayload, what);
        }
        if is_unanswered(self.run) {
            let at_server = contract::service_counter(self.run.server_final.as_ref(), "received");
            let came = at_server.map_or(String::new(), |came| {
                format!("; {came} came to the server over its whole life")
            });
            let what = format!("{} packets were sent and none came back{came}", packets.sent);
            self.find(Severity::Warning, Kind::NothingAnswered, what);
        } else if packets.received == 0 {
            self.void_unless_starved(Kind::NothingAnswered, "no packet came back".to_owned());
        }
        let errors = &load.errors;
        if errors.icmp_refused + errors.receive > 0 {
            let first = load.first_error.as_deref().unwrap_or("not told");
            self.void(
                Kind::ClientErrors,
                format!(
                    "{} sends met a closed port, {} receives failed ({} sends failed); the first: \
                     {first}",
                    errors.icmp_refused, errors.receive, errors.send
                ),
            );
        }
    }

    fn streams(&mut self, load: &UdpResult, asked: u64, rate: f64) {
        let streams = &load.streams;
        if streams.opened < asked || streams.asked != asked {
            let what = format!("{asked} streams asked for, {} opened", streams.opened);
            self.void(Kind::UnequalAdmission, what);
        } else if streams.answered < streams.opened
            && load.packets.received > 0
            && rate * load.window.seconds > MANY_PACKETS
        {
            // An overloaded server drops packets that arrive at the wrong moment, and a schedule brings the
            // same streams at the same moment again. What they lost is in the loss.
            let what = format!("{} streams got nothing back", streams.opened - streams.answered);
            self.find(Severity::Warning, Kind::StarvedConnection, what);
        }
    }

    fn histograms(&mut self, load: &UdpResult) {
        let decode = || {
            let all = &load.histograms;
            Ok((all.round_trip.decode()?, all.send_lateness.decode()?, all.wait_overrun.decode()?))
        };
        let (round_trips, lateness) = match decode() {
            Ok((round_trips, lateness, _)) => (round_trips, lateness),
            Err(why) => return self.void(Kind::BadResult, why),
        };
        let us = |histogram: &hdrhistogram::Histogram<u64>, share| {
            histogram.value_at_quantile(share) as f64 / 1e3
        };
        for (name, histogram, count, share, said_us) in [
            ("round trips", &round_trips, load.packets.received, 0.99, load.round_trip_us.p99),
            ("sends", &lateness, load.packets.sent, 0.999, load.send_lateness_us.p99_9),
        ] {
            let found_us = us(histogram, share);
            if histogram.len() != count || differ(found_us, said_us) {
                self.void(
                    Kind::BadResult,
                    format!(
                        "the histogram holds {} {name} with {found_us} us at {share}, the result \
                         says {count} with {said_us} us",
                        histogram.len()
                    ),
                );
            }
        }
    }

    fn buffers(&mut self, load: &UdpResult) {
        match load.kernel_drops {
            None => {
                let what = "the load generator does not know what the kernel dropped".to_owned();
                self.void(Kind::BadResult, what);
            }
            Some(0) => {}
            Some(drops) => {
                let what =
                    format!("{drops} answers found a receive buffer of the load generator full");
                self.find(Severity::Warning, Kind::KernelDrops, what);
            }
        }
        let at_server = contract::service_counter(self.run.server_final.as_ref(), "kernel_drops");
        if let Some(drops @ 1.0..) = at_server {
            let what = format!("{drops} packets found the receive buffer of the server full");
            self.find(Severity::Warning, Kind::KernelDrops, what);
        }
    }
}
