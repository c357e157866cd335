//! The result of a run as tables for people.

use crate::report::table::{self, Times, count, cpu, gates, grouped, row, time, times};
use std::fmt;
use twinring_wire::udp::{Call, Stream};
use twinring_wire::{Fields, UdpResult};

/// Streams that are shown unless all are asked for.
const WORST_SHOWN: usize = 3;

/// The result of a run as tables for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a>(pub(crate) &'a UdpResult);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.times(f)?;
        self.counts(f)?;
        self.sockets(f)?;
        self.streams(f)?;
        self.0.calls.as_ref().map_or(Ok(()), |calls| calls_table(f, calls))?;
        cpu(f, &self.0.cpu, "the schedule may not hold")?;
        gates(f, &self.0.gates)?;
        self.answer(f)
    }
}

/// The parts of the table.
impl Table<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.0.settings;
        row(f, "target", &self.0.head.target)?;
        let sockets = if asked.sockets == "single" { "single socket" } else { "a socket each" };
        let spread = if asked.spread == "even" { "evenly spread" } else { "in bursts" };
        let mut load = format!(
            "{} x {} packets/s x {} B ({}), {sockets}, {spread}, tick {}",
            count(asked.streams, "stream"),
            asked.packets_per_s,
            asked.packet_bytes,
            asked.payload,
            time(asked.tick_us)
        );
        if asked.gso {
            load += ", segmented";
        }
        if let Some(pending) = asked.pending {
            load += &format!(", {pending} pending receives per socket");
        }
        row(f, "load", &load)?;
        table::begin(f, &self.0.head, asked.threads, &self.0.window, &self.0.shortfall())
    }

    fn times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (received, sent) = (self.0.packets.received, self.0.packets.sent);
        let rows = [
            Times::new("round trip", &self.0.round_trip_us, received),
            Times::new("send late", &self.0.send_lateness_us, sent),
            Times::new("wait overrun", &self.0.wait_overrun_us, sent),
        ];
        times(f, "times", &rows, None)?;
        let jitter = &self.0.jitter_us;
        let each = [jitter.mean, jitter.p50, jitter.p99, jitter.max].map(time);
        let [mean, p50, p99, max] = each;
        let text = format!("mean {mean}, p50 {p50}, p99 {p99}, max {max} over streams (RFC 3550)");
        row(f, "jitter", if received == 0 { "none" } else { &text })
    }

    fn counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packets = &self.0.packets;
        let counts = [
            (packets.due, "due", true),
            (packets.sent, "sent", true),
            (packets.received, "received", true),
            (packets.lost, "lost", true),
            (packets.unsent, "due but not sent", false),
            (packets.refused, "refused by the kernel", false),
            (packets.duplicated, "duplicated", false),
            (packets.reordered, "reordered", false),
            (packets.mismatched, "mismatched", false),
            (packets.foreign, "replies to no packet", false),
            (packets.late, "after their packet was forgotten", false),
        ];
        let shown = counts.iter().filter(|(number, _, always)| *always || *number > 0);
        let shown = shown.map(|(number, what, _)| format!("{} {what}", grouped(*number)));
        let verified = if self.0.settings.verify { "every byte verified" } else { "not verified" };
        row(f, "packets", &format!("{}; {verified}", shown.collect::<Vec<_>>().join(", ")))
    }

    fn sockets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffers = &self.0.socket_buffers;
        let drops = match self.0.kernel_drops {
            Some(drops) => format!("{} dropped by the kernel", grouped(drops)),
            None => "drops are not known on this kernel".to_owned(),
        };
        let mut text = format!(
            "{} B to receive, {} B to send; {drops}",
            grouped(buffers.granted_receive_bytes),
            grouped(buffers.granted_send_bytes)
        );
        if self.0.settings.gso {
            let segmentation = &self.0.segmentation;
            let state = |on| if on { "on" } else { "off" };
            text += &format!(
                "; GSO {}, GRO {}, {} buffers not segmented",
                state(segmentation.gso),
                state(segmentation.gro),
                grouped(segmentation.fallbacks)
            );
        }
        row(f, "sockets", &text)?;
        let fields = Fields::of(&self.0.errors);
        let is_clean = fields.0.values().all(|count| count.as_u64() == Some(0));
        if is_clean && self.0.first_error.is_none() {
            return Ok(());
        }
        let how = "inside the window";
        table::errors(f, &fields, how, self.0.first_error.as_deref())
    }

    fn streams(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = &self.0.streams;
        let text = format!(
            "{} of {} opened, {} answered",
            grouped(streams.opened),
            grouped(streams.asked),
            grouped(streams.answered)
        );
        row(f, "streams", &text)?;
        let (title, rows) = match &streams.all {
            Some(all) => ("all", all.as_slice()),
            None => ("worst", &streams.worst[..streams.worst.len().min(WORST_SHOWN)]),
        };
        let heads = ["sent", "back", "lost", "dup", "reord"];
        write!(f, "  {title:<7}{:>9}", "ssrc")?;
        heads.iter().try_for_each(|head| write!(f, "{head:>8}"))?;
        writeln!(f, "{:>11}{:>11}", "jitter", "max rtt")?;
        rows.iter().try_for_each(|row| stream_line(f, row))
    }

    fn answer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (packets, trips) = (&self.0.packets, &self.0.round_trip_us);
        let trips = match packets.received {
            0 => "round trip none".to_owned(),
            received => table::summary(trips, received),
        };
        let text = format!(
            "{} packets/s came back, {:.3} % lost; {trips}",
            grouped(packets.received_per_second.round() as u64),
            100.0 * self.0.loss_ratio
        );
        row(f, "ANSWER", &text)
    }
}

fn stream_line(f: &mut fmt::Formatter<'_>, row: &Stream) -> fmt::Result {
    let counts = [row.sent, row.received, row.lost, row.duplicated, row.reordered];
    write!(f, "  {:<7}{:>9}", row.stream, format!("{:08x}", row.ssrc))?;
    counts.iter().try_for_each(|count| write!(f, "{count:>8}"))?;
    writeln!(f, "{:>11}{:>11}", time(row.jitter_us), time(row.round_trip_us_max))
}

fn calls_table(f: &mut fmt::Formatter<'_>, calls: &[Call]) -> fmt::Result {
    let heads = ["time (s)", "count", "% of run", "mean", "max"];
    write!(f, "{:<30}", "calls")?;
    heads.iter().try_for_each(|head| write!(f, "{head:>10}"))?;
    writeln!(f)?;
    calls.iter().try_for_each(|row| {
        writeln!(
            f,
            "  {:<28}{:>10.4}{:>10}{:>10.2}{:>10}{:>10}",
            row.call,
            row.time_s,
            row.count,
            100.0 * row.run_share,
            time(row.mean_us),
            time(row.max_us)
        )
    })
}
