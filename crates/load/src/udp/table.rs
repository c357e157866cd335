//! The result of a run as tables for people.

use crate::report::table::{cpu, grouped, megabytes_per_s, time, window};
use std::fmt;
use twinring_wire::UdpResult;
use twinring_wire::histogram::Latency;
use twinring_wire::udp::{Call, RampStep, Stream};

/// The result of a run as tables for people.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a UdpResult);

/// A step of the search for the highest rate as a row for people.
#[derive(Clone, Copy, Debug)]
pub struct StepRow<'a>(pub &'a RampStep);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.counts(f)?;
        self.times(f)?;
        self.troubles(f)?;
        self.streams(f)?;
        if let Some(calls) = &self.0.calls {
            calls_table(f, calls)?;
        }
        if let Some(steps) = &self.0.ramp {
            ramp_table(f, steps)?;
        }
        cpu(f, &self.0.cpu, "the schedule may not hold")
    }
}

/// The parts of the table.
impl Table<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.0.settings;
        writeln!(f, "target        {}", self.0.head.target)?;
        write!(
            f,
            "load          {} x {} packets/s x {} B ({}), ",
            if asked.streams == 1 {
                "1 stream".into()
            } else {
                grouped(asked.streams) + " streams"
            },
            asked.packets_per_s,
            asked.packet_bytes,
            asked.payload
        )?;
        let sockets = if asked.sockets == "single" { "single socket" } else { "a socket each" };
        let spread = if asked.spread == "even" { "evenly spread" } else { "in bursts" };
        write!(f, "{sockets}, {spread}")?;
        if asked.gso {
            write!(f, ", segmented")?;
        }
        writeln!(f)?;
        write!(f, "engine        {}, {} thread(s), ", self.0.head.engine, asked.threads)?;
        write!(f, "tick {}", time(asked.tick_us))?;
        match asked.pending {
            Some(pending) => writeln!(f, ", {pending} pending receives per socket")?,
            None => writeln!(f)?,
        }
        window(f, &self.0.head, &self.0.window)
    }

    fn counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packets = &self.0.packets;
        let seconds = self.0.window.seconds;
        let rate = |per_second: f64, bytes| {
            let rate = grouped(per_second.round() as u64);
            format!("{rate} /s, {:.1} MB/s", megabytes_per_s(bytes, seconds))
        };
        let sent = rate(packets.sent_per_second, self.0.bytes.sent);
        let received = rate(packets.received_per_second, self.0.bytes.received);
        let loss = format!("{:.4} %", 100.0 * self.0.loss_ratio);
        writeln!(f, "packets")?;
        let rows = [
            ("due", packets.due, String::new(), true),
            ("sent", packets.sent, sent, true),
            ("received", packets.received, received, true),
            ("lost", packets.lost, loss, true),
            ("unsent", packets.unsent, "due, but not sent".into(), false),
            ("refused", packets.refused, "by the kernel".into(), false),
            ("duplicated", packets.duplicated, String::new(), true),
            ("reordered", packets.reordered, String::new(), true),
            ("mismatched", packets.mismatched, self.verified().into(), true),
            ("foreign", packets.foreign, "replies to no packet".into(), false),
            ("late", packets.late, "arrived after their packet was forgotten".into(), false),
        ];
        for (name, count, note, always) in rows {
            if always || count > 0 {
                let row = format!("  {name:<12}{:>14}  {note}", grouped(count));
                writeln!(f, "{}", row.trim_end())?;
            }
        }
        Ok(())
    }

    fn verified(&self) -> &'static str {
        if self.0.settings.verify { "every byte verified" } else { "not verified" }
    }

    fn times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["p50", "p90", "p99", "p99.9", "p99.99", "max"];
        let line = |cells: [String; 6]| cells.map(|cell| format!("{cell:>11}")).concat();
        writeln!(f, "{:<16}{}", "times", line(heads.map(str::to_owned)))?;
        let row = |of: &Latency| {
            let values = [of.p50, of.p90, of.p99, of.p99_9, of.p99_99, of.max];
            line(values.map(time))
        };
        writeln!(f, "  {:<14}{}", "round trip", row(&self.0.round_trip_us))?;
        writeln!(f, "  {:<14}{}", "send lateness", row(&self.0.send_lateness_us))?;
        writeln!(f, "  {:<14}{}", "wait overrun", row(&self.0.wait_overrun_us))?;
        let jitter = &self.0.jitter_us;
        writeln!(
            f,
            "jitter        mean {}, p50 {}, p99 {}, max {} over streams (RFC 3550)",
            time(jitter.mean),
            time(jitter.p50),
            time(jitter.p99),
            time(jitter.max)
        )
    }

    fn troubles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffers = &self.0.socket_buffers;
        writeln!(
            f,
            "sockets       {} B to receive, {} B to send",
            grouped(buffers.granted_receive_bytes),
            grouped(buffers.granted_send_bytes)
        )?;
        if self.0.settings.gso {
            let segmentation = &self.0.segmentation;
            let state = |on| if on { "on" } else { "off" };
            writeln!(
                f,
                "segmentation  GSO {}, GRO {}; {} buffers not segmented",
                state(segmentation.gso),
                state(segmentation.gro),
                grouped(segmentation.fallbacks)
            )?;
        }
        match self.0.kernel_drops {
            Some(drops) => writeln!(f, "kernel drops  {} at our sockets", grouped(drops))?,
            None => writeln!(f, "kernel drops  unknown on this kernel")?,
        }
        let errors = &self.0.errors;
        let kinds = [
            ("ICMP errors", errors.icmp_refused),
            ("refused sends", errors.send),
            ("failed receives", errors.receive),
            ("sends that waited", errors.blocked),
        ];
        let seen: Vec<String> = (kinds.iter())
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{} {name}", grouped(*count)))
            .collect();
        let all = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
        writeln!(f, "errors        {all}")?;
        self.0.first_error.iter().try_for_each(|first| writeln!(f, "  first       {first}"))
    }

    fn streams(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = &self.0.streams;
        writeln!(
            f,
            "streams       {} asked, {} opened, {} answered",
            grouped(streams.asked),
            grouped(streams.opened),
            grouped(streams.answered)
        )?;
        let rows = streams.all.as_ref().unwrap_or(&streams.worst);
        let title = if streams.all.is_some() { "all" } else { "worst" };
        let heads = ["sent", "received", "lost", "dup", "reord", "jitter", "max rtt", "max late"];
        write!(f, "  {title:<7}{:>10}", "ssrc")?;
        heads.iter().try_for_each(|head| write!(f, "{head:>11}"))?;
        writeln!(f)?;
        rows.iter().try_for_each(|row| stream_line(f, row))
    }
}

fn stream_line(f: &mut fmt::Formatter<'_>, row: &Stream) -> fmt::Result {
    let counts = [row.sent, row.received, row.lost, row.duplicated, row.reordered];
    let times = [row.jitter_us, row.round_trip_us_max, row.lateness_us_max];
    write!(f, "  {:<7}{:>10}", row.stream, format!("{:08x}", row.ssrc))?;
    counts.iter().try_for_each(|count| write!(f, "{:>11}", grouped(*count)))?;
    times.iter().try_for_each(|us| write!(f, "{:>11}", time(*us)))?;
    writeln!(f)
}

fn calls_table(f: &mut fmt::Formatter<'_>, calls: &[Call]) -> fmt::Result {
    writeln!(
        f,
        "{:<34}{:>11}{:>12}{:>11}{:>11}{:>11}",
        "calls", "time (s)", "count", "% of run", "mean", "max"
    )?;
    for row in calls {
        writeln!(
            f,
            "  {:<32}{:>11.4}{:>12}{:>11.2}{:>11}{:>11}",
            row.call,
            row.time_s,
            grouped(row.count),
            100.0 * row.run_share,
            time(row.mean_us),
            time(row.max_us)
        )?;
    }
    Ok(())
}

fn ramp_table(f: &mut fmt::Formatter<'_>, steps: &[RampStep]) -> fmt::Result {
    writeln!(
        f,
        "{:<8}{:>16}{:>14}{:>12}{:>12}{:>14}",
        "ramp", "packets/s", "sent", "lost", "unsent", "late p99.9"
    )?;
    steps.iter().try_for_each(|step| writeln!(f, "{}", StepRow(step)))?;
    match steps.iter().filter(|step| step.loss_free).map(|step| step.packets_per_s).reduce(f64::max)
    {
        Some(best) => writeln!(f, "  highest rate without loss: {best:.1} packets/s a stream"),
        None => writeln!(f, "  every rate had loss"),
    }
}

impl fmt::Display for StepRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.0.loss_free { "ok" } else { "no" };
        write!(
            f,
            "  {verdict:<6}{:>16.1}{:>14}{:>12}{:>12}{:>14}",
            self.0.packets_per_s,
            grouped(self.0.sent),
            grouped(self.0.lost),
            grouped(self.0.unsent),
            time(self.0.lateness_us_p99_9)
        )
    }
}
