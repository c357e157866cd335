//! What may be wrong with a run of UDP.

use crate::audit::{Audit, DUE_TOLERANCE, Kind, Severity, differ, is_unanswered};
use crate::contract::{UdpResult, sum};
use crate::experiment::{Axis, Point};

/// A stream that should have had more packets than this in the window, and got none back, was
/// starved and had no bad luck alone.
const MANY_PACKETS: f64 = 10.0;

impl Audit<'_> {
    pub(crate) fn udp(&mut self, load: &UdpResult, point: Point) {
        let [streams, rate, message_bytes] =
            [Axis::Streams, Axis::PacketsPerS, Axis::Bytes].map(|axis| point.get(axis));
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
        if packets.due != sum([packets.sent, packets.unsent, packets.refused])
            || packets.sent != sum([packets.received, packets.lost])
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
            let at_server = self.run.service_counter("received");
            let came = at_server.map_or(String::new(), |came| {
                format!("; {came} came to the server over its whole life")
            });
            let what = format!("{} packets were sent and none came back{came}", packets.sent);
            self.find(Severity::Warning, Kind::NothingAnswered, what);
        } else if packets.received == 0 {
            self.void_unless_starved(Kind::NothingAnswered, "no packet came back".to_owned());
        }
        let errors = &load.errors;
        if errors.icmp_refused > 0 || errors.receive > 0 {
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
        let at_server = self.run.service_counter("kernel_drops");
        if let Some(drops @ 1.0..) = at_server {
            let what = format!("{drops} packets found the receive buffer of the server full");
            self.find(Severity::Warning, Kind::KernelDrops, what);
        }
    }
}
