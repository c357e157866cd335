//! From the threads' counts to the result, and the result as tables for people.

use super::settings::Settings;
use super::traffic::Counts;
use crate::cpu;
use crate::gates::Judged;
use crate::report::head;
use crate::report::table::{self, count, grouped, row, time, times};
use crate::run::Ran;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use twinring::measure::CallTime;
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::tcp::Bytes;
use twinring_wire::udp::{
    Call, Histograms, Jitter, Packets, SCHEMA, Segmentation, SocketBuffers, Stream, Streams,
};
use twinring_wire::{Fields, UdpResult};

/// Worst streams that the result names.
const WORST: usize = 10;
/// Streams that the table shows unless all are asked for.
const WORST_SHOWN: usize = 3;

pub(super) fn report(settings: &Settings, ran: &Ran, threads: Vec<Counts>) -> UdpResult {
    let (window, count) = (ran.window(), threads.len());
    let mut all = Counts::new();
    threads.into_iter().for_each(|thread| all.merge(thread));
    let mut rows: Vec<Stream> = all.streams.iter().map(|stream| stream.counts).collect();
    rows.sort_unstable_by_key(|row| row.stream);
    for row in &mut rows {
        // At most one reply to each packet, and none to a refused one.
        row.received = row.received.min(row.sent);
        row.lost = row.sent - row.received;
    }
    let packets = packets(&all, &rows, window.seconds);
    let packet_bytes = u64::from(settings.packet_bytes);
    UdpResult {
        head: head(SCHEMA, settings.target().to_string(), ran),
        settings: settings.report(),
        window,
        packets,
        loss_ratio: ratio(packets.lost as f64, packets.sent as f64),
        bytes: Bytes {
            sent: packets.sent * packet_bytes,
            received: packets.received * packet_bytes,
        },
        jitter_us: jitter(&rows),
        round_trip_us: Latency::of(&all.round_trip_ns),
        send_lateness_us: Latency::of(&all.lateness_ns),
        wait_overrun_us: Latency::of(&all.overrun_ns),
        histograms: Histograms {
            round_trip: EncodedHistogram::of(&all.round_trip_ns),
            send_lateness: EncodedHistogram::of(&all.lateness_ns),
            wait_overrun: EncodedHistogram::of(&all.overrun_ns),
        },
        kernel_drops: all.kernel_drops,
        calls: settings.calls.then(|| calls(&all.calls, window.seconds * count as f64)),
        socket_buffers: SocketBuffers {
            asked_bytes: settings.receive_buffer(),
            granted_receive_bytes: all.granted.map_or(0, |got| got.recv_buffer_bytes as u64),
            granted_send_bytes: all.granted.map_or(0, |got| got.send_buffer_bytes as u64),
        },
        segmentation: Segmentation {
            gso: settings.gso && all.granted.is_some_and(|got| got.gso),
            gro: all.granted.is_some_and(|got| got.gro),
            fallbacks: all.gso_fallbacks,
        },
        errors: all.errors,
        gates: settings.common.gates.judge(&Judged {
            answers_ns: &all.round_trip_ns,
            waits_ns: &[],
            answered: packets.received,
            unanswered: packets.lost,
        }),
        first_error: all.first_error.map(|(_, what)| what),
        cpu: cpu::report(&all.cpu, ran.throttling),
        runtime_counters: Fields::of(&ran.counters),
        streams: streams(settings, rows),
    }
}

fn packets(all: &Counts, rows: &[Stream], seconds: f64) -> Packets {
    let sum = |of: fn(&Stream) -> u64| rows.iter().map(of).sum::<u64>();
    let (sent, received) = (sum(|row| row.sent), sum(|row| row.received));
    // Packets that the kernel refused had been handed over.
    let handed_over: u64 = all.handed_over;
    let due = all.packets.due.max(handed_over);
    Packets {
        due,
        sent,
        unsent: due - handed_over,
        refused: handed_over - sent,
        received,
        lost: sent - received,
        duplicated: sum(|row| row.duplicated),
        reordered: sum(|row| row.reordered),
        sent_per_second: ratio(sent as f64, seconds),
        received_per_second: ratio(received as f64, seconds),
        ..all.packets
    }
}

fn jitter(rows: &[Stream]) -> Jitter {
    let answered = rows.iter().filter(|row| row.received > 0);
    let mut each: Vec<f64> = answered.map(|row| row.jitter_us).collect();
    each.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (each.len() as f64 * share).ceil() as usize;
        each.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    };
    let mean = ratio(each.iter().sum(), each.len() as f64);
    Jitter { mean, p50: at(0.5), p99: at(0.99), max: at(1.0) }
}

fn streams(settings: &Settings, rows: Vec<Stream>) -> Streams {
    let mut worst = rows.clone();
    worst.sort_by_key(|row| (Reverse(row.lost), Reverse((row.jitter_us * 1e3) as u64)));
    worst.truncate(WORST);
    Streams {
        asked: settings.common.connections,
        opened: rows.len() as u64,
        answered: rows.iter().filter(|row| row.received > 0).count() as u64,
        worst,
        all: settings.per_stream.then_some(rows),
    }
}

/// The calls of all threads by kind; `run_s` is the time that the threads ran, together.
fn calls(all: &[CallTime], run_s: f64) -> Vec<Call> {
    let mut kinds: BTreeMap<&'static str, (u64, u64, u64)> = BTreeMap::new();
    for CallTime { call, count, time_ns, max_ns, .. } in all {
        let kind = kinds.entry(call).or_default();
        *kind = (kind.0 + count, kind.1 + time_ns, kind.2.max(*max_ns));
    }
    let row = |(call, (count, time_ns, max_ns)): (&str, (u64, u64, u64))| Call {
        call: call.to_owned(),
        count,
        time_s: time_ns as f64 / 1e9,
        run_share: ratio(time_ns as f64 / 1e9, run_s),
        mean_us: ratio(time_ns as f64 / 1e3, count as f64),
        max_us: max_ns as f64 / 1e3,
    };
    let mut rows: Vec<Call> = kinds.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.time_s.total_cmp(&a.time_s));
    rows
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a>(pub(crate) &'a UdpResult);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load(f)?;
        self.times(f)?;
        self.counts(f)?;
        self.sockets(f)?;
        self.streams(f)?;
        self.0.calls.as_ref().map_or(Ok(()), |calls| calls_table(f, calls))?;
        table::cpu(f, &self.0.cpu, "the schedule may not hold")?;
        table::gates(f, &self.0.gates)?;
        self.answer(f)
    }
}

impl Table<'_> {
    fn load(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.0.settings;
        row(f, "target", &self.0.head.target)?;
        let mut load = format!(
            "{} x {} packets/s x {} B (rtp), a socket each, evenly spread, tick {}",
            count(asked.streams, "stream"),
            asked.packets_per_s,
            asked.packet_bytes,
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
            ("round trip", self.0.round_trip_us, received),
            ("send late", self.0.send_lateness_us, sent),
            ("wait overrun", self.0.wait_overrun_us, sent),
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
