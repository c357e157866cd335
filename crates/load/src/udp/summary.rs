//! From the threads' counts to the report.

use super::client::{Outcome, Row};
use super::packet::Payload;
use super::sender::SocketCounts;
use super::settings::Settings;
use crate::cpu;
use crate::gates::Judged;
use crate::recorder::histogram;
use crate::report::head;
use crate::run::Ran;
use hdrhistogram::Histogram;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use twinring::measure::CallTime;
use twinring_wire::histogram::{EncodedHistogram, Latency};
use twinring_wire::tcp::Bytes;
use twinring_wire::udp::{
    Call, Errors, Histograms, Jitter, Packets, SCHEMA, Segmentation, SocketBuffers, Stream, Streams,
};
use twinring_wire::{Fields, UdpResult};

/// Worst streams that the result names.
const WORST: usize = 10;

/// Combines the threads' results.
pub(super) fn report(settings: &Settings, ran: &Ran, mut outcomes: Vec<Outcome>) -> UdpResult {
    let window = ran.window();
    let mut rows: Vec<Row> = outcomes.iter_mut().flat_map(|o| o.rows.drain(..)).collect();
    rows.sort_unstable_by_key(|row| row.number);
    let mut sockets = SocketCounts::default();
    outcomes.iter().for_each(|outcome| sockets.add(&outcome.sockets));
    let packets = packets(&outcomes, &rows, &sockets, window.seconds);
    let merged = |of: fn(&Outcome) -> &Histogram<u64>| {
        let mut all = histogram();
        for outcome in &outcomes {
            // Both have the same bounds, so every value fits.
            let _same_bounds = all.add(of(outcome));
        }
        all
    };
    let round_trip_ns = merged(|outcome| &outcome.round_trip_ns);
    let lateness_ns = merged(|outcome| &outcome.lateness_ns);
    let overrun_ns = merged(|outcome| &outcome.overrun_ns);
    let cpus: Vec<_> = outcomes.iter().map(|outcome| outcome.cpu).collect();
    let granted: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.granted).collect();
    let drops: Option<Vec<u64>> = outcomes.iter().map(|outcome| outcome.kernel_drops).collect();
    let first_error = outcomes.iter().filter_map(|outcome| outcome.totals.first_error.clone());
    let packet_bytes = u64::from(settings.packet_bytes);
    UdpResult {
        head: head(SCHEMA, settings.target.to_string(), ran),
        settings: settings.report(),
        window,
        packets,
        loss_ratio: ratio(packets.lost, packets.sent),
        bytes: Bytes {
            sent: packets.sent * packet_bytes,
            received: packets.received * packet_bytes,
        },
        jitter_us: jitter(&rows),
        round_trip_us: Latency::of(&round_trip_ns),
        send_lateness_us: Latency::of(&lateness_ns),
        wait_overrun_us: Latency::of(&overrun_ns),
        histograms: Histograms {
            round_trip: EncodedHistogram::of(&round_trip_ns),
            send_lateness: EncodedHistogram::of(&lateness_ns),
            wait_overrun: EncodedHistogram::of(&overrun_ns),
        },
        kernel_drops: drops.map(|drops| drops.iter().sum()),
        streams: streams(settings, &rows),
        calls: settings.calls.then(|| calls(&outcomes, window.seconds)),
        socket_buffers: SocketBuffers {
            asked_bytes: settings.receive_buffer(),
            granted_receive_bytes: least(granted.iter().map(|got| got.recv_buffer_bytes)),
            granted_send_bytes: least(granted.iter().map(|got| got.send_buffer_bytes)),
        },
        segmentation: Segmentation {
            gso: settings.gso && !granted.is_empty() && granted.iter().all(|got| got.gso),
            gro: !granted.is_empty() && granted.iter().all(|got| got.gro),
            fallbacks: sockets.gso_fallbacks,
        },
        errors: Errors {
            icmp_refused: sockets.icmp,
            send: sockets.refused,
            receive: outcomes.iter().map(|outcome| outcome.totals.receive_errors).sum(),
            blocked: sockets.blocked,
        },
        gates: settings.gates.judge(&Judged {
            answers_ns: &round_trip_ns,
            waits_ns: &[],
            answered: packets.received,
            unanswered: packets.lost,
        }),
        first_error: first_error.min().map(|(_, what)| what),
        cpu: cpu::report(&cpus, ran.throttling),
        runtime_counters: Fields::of(&ran.counters),
    }
}

fn packets(outcomes: &[Outcome], rows: &[Row], sockets: &SocketCounts, seconds: f64) -> Packets {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let of_rows = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    let handed_over = sum(|outcome| outcome.totals.sent);
    let refused = sockets.refused.min(handed_over);
    let sent = handed_over - refused;
    let unsent = sum(|outcome| outcome.unsent);
    // At most one reply to each packet, and none to a refused one.
    let received = sum(|outcome| outcome.totals.received).min(sent);
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    Packets {
        due: handed_over + unsent,
        sent,
        unsent,
        refused,
        received,
        lost: sent - received,
        duplicated: of_rows(|row| row.counts.duplicated),
        reordered: of_rows(|row| row.counts.reordered),
        mismatched: of_rows(|row| row.counts.mismatched),
        foreign: sum(|outcome| outcome.totals.foreign),
        late: sum(|outcome| outcome.totals.late),
        sent_per_second: per_second(sent),
        received_per_second: per_second(received),
    }
}

fn jitter(rows: &[Row]) -> Jitter {
    let answered = rows.iter().filter(|row| row.counts.received > 0);
    let mut each: Vec<f64> = answered.map(|row| row.counts.jitter_ns() / 1e3).collect();
    each.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (each.len() as f64 * share).ceil() as usize;
        each.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    };
    let mean = if each.is_empty() { 0.0 } else { each.iter().sum::<f64>() / each.len() as f64 };
    Jitter { mean, p50: at(0.5), p99: at(0.99), max: at(1.0) }
}

fn streams(settings: &Settings, rows: &[Row]) -> Streams {
    let with_ssrc = settings.payload == Payload::Rtp;
    let row = |row: &Row| Stream {
        stream: row.number,
        ssrc: if with_ssrc { row.ssrc } else { 0 },
        sent: row.counts.sent,
        received: row.counts.received,
        lost: lost(row),
        duplicated: row.counts.duplicated,
        reordered: row.counts.reordered,
        jitter_us: row.counts.jitter_ns() / 1e3,
        round_trip_us_max: row.counts.round_trip_max_ns as f64 / 1e3,
        lateness_us_max: row.counts.lateness_max_ns as f64 / 1e3,
    };
    let mut worst: Vec<&Row> = rows.iter().collect();
    worst.sort_by_key(|row| (Reverse(lost(row)), Reverse(row.counts.jitter_ns() as u64)));
    worst.truncate(WORST);
    Streams {
        asked: settings.streams,
        opened: rows.len() as u64,
        answered: rows.iter().filter(|row| row.counts.received > 0).count() as u64,
        worst: worst.into_iter().map(row).collect(),
        all: settings.per_stream.then(|| rows.iter().map(row).collect()),
    }
}

fn lost(row: &Row) -> u64 {
    row.counts.sent.saturating_sub(row.counts.received)
}

fn calls(outcomes: &[Outcome], seconds: f64) -> Vec<Call> {
    let mut kinds: BTreeMap<&'static str, (u64, u64, u64)> = BTreeMap::new();
    for CallTime { call, count, time_ns, max_ns, .. } in outcomes.iter().flat_map(|o| &o.calls) {
        let kind = kinds.entry(call).or_default();
        *kind = (kind.0 + count, kind.1 + time_ns, kind.2.max(*max_ns));
    }
    let run_s = seconds * outcomes.len() as f64;
    let row = |(call, (count, time_ns, max_ns)): (&str, (u64, u64, u64))| Call {
        call: call.to_owned(),
        count,
        time_s: time_ns as f64 / 1e9,
        run_share: if run_s > 0.0 { time_ns as f64 / 1e9 / run_s } else { 0.0 },
        mean_us: ratio(time_ns, count) / 1e3,
        max_us: max_ns as f64 / 1e3,
    };
    let mut rows: Vec<Call> = kinds.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.time_s.total_cmp(&a.time_s));
    rows
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn least(bytes: impl Iterator<Item = usize>) -> u64 {
    bytes.min().unwrap_or(0) as u64
}
