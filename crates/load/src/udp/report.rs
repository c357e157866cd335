//! From the threads' counts to the result, and the result as tables for people.

use super::UdpSettings;
use super::traffic::ThreadCounts;
use crate::report::{Lines, count, grouped, head, ratio, summary, time};
use crate::run::Ran;
use std::cmp::Reverse;
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::tcp::Bytes;
use twinring_wire::udp::{
    Jitter, Packets, SCHEMA, Segmentation, SocketBuffers, Stream, Streams, UdpHistograms,
};
use twinring_wire::{Fields, UdpResult};

/// Worst streams that the result names.
const WORST: usize = 10;
/// Streams that the table shows unless all are asked for.
const WORST_SHOWN: usize = 3;

pub(super) fn report(settings: &UdpSettings, ran: &Ran, threads: Vec<ThreadCounts>) -> UdpResult {
    let window = ran.window;
    let mut all = ThreadCounts::default();
    threads.into_iter().for_each(|thread| all.merge(thread));
    let mut rows: Vec<Stream> = all.streams.iter().map(|stream| stream.counts).collect();
    rows.sort_unstable_by_key(|row| row.stream);
    for row in &mut rows {
        // At most one reply to each packet, and none to a refused one.
        row.received = row.received.min(row.sent);
        row.lost = row.sent - row.received;
    }
    let packets = packets(&all, &rows, window.seconds);
    let packet_bytes = u64::from(settings.size);
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
        histograms: UdpHistograms {
            round_trip: EncodedHistogram::of(&all.round_trip_ns),
            send_lateness: EncodedHistogram::of(&all.lateness_ns),
            wait_overrun: EncodedHistogram::of(&all.overrun_ns),
        },
        kernel_drops: (!all.drops_unknown).then_some(all.kernel_drops),
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
        gates: settings.common.gates.judge(&all.round_trip_ns, &[], packets.received, packets.lost),
        first_error: all.first_error.map(|(_, what)| what),
        cpu: ran.cpu(all.cpu),
        runtime_counters: Fields::of(&ran.counters),
        streams: streams(settings, rows),
    }
}

fn packets(all: &ThreadCounts, rows: &[Stream], seconds: f64) -> Packets {
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

fn streams(settings: &UdpSettings, rows: Vec<Stream>) -> Streams {
    let mut worst = rows.clone();
    worst.sort_by_key(|row| (Reverse(row.lost), Reverse((row.jitter_us * 1e3) as u64)));
    worst.truncate(WORST);
    Streams {
        asked: settings.streams,
        opened: rows.len() as u64,
        answered: rows.iter().filter(|row| row.received > 0).count() as u64,
        worst,
        all: settings.per_stream.then_some(rows),
    }
}

pub(crate) fn table(lines: &mut Lines, result: &UdpResult, shortfall: &[String]) {
    let (asked, packets, streams) = (&result.settings, &result.packets, &result.streams);
    let load = format!(
        "{} x {} packets/s x {} B (rtp), a socket each, evenly spread, tick {}{}{}",
        count(asked.streams, "stream"),
        asked.packets_per_s,
        asked.packet_bytes,
        time(asked.tick_us),
        if asked.gso { ", segmented" } else { "" },
        asked.pending.map_or(String::new(), |it| format!(", {it} pending receives per socket"))
    );
    lines.row("target", &result.head.target);
    lines.row("load", &load);
    lines.begin(&result.head, asked.threads, &result.window, shortfall);
    let rows = [
        ("round trip", result.round_trip_us, packets.received),
        ("send late", result.send_lateness_us, packets.sent),
        ("wait overrun", result.wait_overrun_us, packets.sent),
    ];
    lines.times("times", &rows, None);
    let jitter = &result.jitter_us;
    let [mean, p50, p99, max] = [jitter.mean, jitter.p50, jitter.p99, jitter.max].map(time);
    let text = format!("mean {mean}, p50 {p50}, p99 {p99}, max {max} over streams (RFC 3550)");
    lines.row("jitter", if packets.received == 0 { "none" } else { &text });
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
    let verified = if asked.verify { "every byte verified" } else { "not verified" };
    lines.row("packets", &format!("{}; {verified}", Vec::from_iter(shown).join(", ")));
    sockets(lines, result);
    let text = format!(
        "{} of {} opened, {} answered",
        grouped(streams.opened),
        grouped(streams.asked),
        grouped(streams.answered)
    );
    lines.row("streams", &text);
    stream_rows(lines, streams);
    lines.cpu_and_gates(&result.cpu, "the schedule may not hold", &result.gates);
    let text = format!(
        "{} packets/s back, {:.3} % lost; {}",
        grouped(packets.received_per_second.round() as u64),
        100.0 * result.loss_ratio,
        summary("round trip", &result.round_trip_us, packets.received)
    );
    lines.row("ANSWER", &text);
}

/// Their buffers, segmentation and errors.
fn sockets(lines: &mut Lines, result: &UdpResult) {
    let (buffers, segmentation) = (&result.socket_buffers, &result.segmentation);
    let drops = match result.kernel_drops {
        Some(drops) => format!("{} dropped by the kernel", grouped(drops)),
        None => "drops are not known on this kernel".to_owned(),
    };
    let mut text = format!(
        "{} B to receive, {} B to send; {drops}",
        grouped(buffers.granted_receive_bytes),
        grouped(buffers.granted_send_bytes)
    );
    if result.settings.gso {
        let state = |on| if on { "on" } else { "off" };
        text += &format!(
            "; GSO {}, GRO {}, {} buffers not segmented",
            state(segmentation.gso),
            state(segmentation.gro),
            grouped(segmentation.fallbacks)
        );
    }
    lines.row("sockets", &text);
    let fields = Fields::of(&result.errors);
    let is_clean = fields.0.values().all(|count| count.as_u64() == Some(0));
    if !is_clean || result.first_error.is_some() {
        lines.errors(&fields, "inside the window", result.first_error.as_deref());
    }
}

fn stream_rows(lines: &mut Lines, streams: &Streams) {
    let (title, rows) = match &streams.all {
        Some(all) => ("all", all.as_slice()),
        None => ("worst", &streams.worst[..streams.worst.len().min(WORST_SHOWN)]),
    };
    let heads = ["sent", "back", "lost", "dup", "reord"].map(|it| format!("{it:>8}")).concat();
    lines.0 += &format!("  {title:<7}{:>9}{heads}{:>11}{:>11}\n", "ssrc", "jitter", "max rtt");
    for row in rows {
        let counts = [row.sent, row.received, row.lost, row.duplicated, row.reordered];
        let counts = counts.map(|it| format!("{it:>8}")).concat();
        let times = [row.jitter_us, row.round_trip_us_max];
        let [jitter, longest] =
            times.map(|us| if row.received == 0 { "none".to_owned() } else { time(us) });
        lines.0 +=
            &format!("  {:<7} {:08x}{counts}{jitter:>11}{longest:>11}\n", row.stream, row.ssrc);
    }
}
