//! Checks of what the load generator says, of every protocol.

use hdrhistogram::Histogram;

use super::{Found, Seen, differ, note, void, void_unless};
use crate::experiment::{Axis, Protocol};
use crate::record::Failed;
use twinring_wire::{HttpResult, LoadResult, UdpResult, sum};

/// How far what was due in a window may be from rate x window, as a share. Each stream or connection may also have
/// one more or less by its phase.
const DUE_TOLERANCE: f64 = 0.01;

/// How far the number of random arrivals in a window may be from rate x window, in standard deviations of a Poisson
/// process: once in two million runs it is further.
const DUE_DEVIATIONS: f64 = 5.0;

pub(super) fn result(seen: &Seen<'_>) -> Found {
    if let Some(failure) = seen.failed(&[Failed::BadLine]) {
        return if seen.is_of_server() { None } else { void(failure.to_string()) };
    }
    let load = match seen.run.load_result()? {
        Ok(load) => load,
        Err(why) => return void(why),
    };
    let (got, wanted) = (Protocol::from(&load), seen.run.cell.protocol());
    void_unless(got == wanted, || format!("a result of {got} load in a cell of {wanted}"))
        .or_else(|| void(contradiction(&load)?))
}

/// What contradicts itself in a result.
fn contradiction(load: &LoadResult) -> Option<String> {
    let window = load.window();
    let (spans, window_s) = (window.between_marks_s(), window.seconds);
    if differ(spans, window_s) {
        return Some(format!("{spans} s between the marks are not a window of {window_s} s"));
    }
    let said = match (load.udp(), load.requests()) {
        (Some(udp), _) => udp.packets.received_per_second,
        (_, Some(requests)) => requests.requests.per_second,
        (None, None) => return None,
    };
    let done = load.done();
    if differ(done as f64 / window_s, said) {
        return Some(format!("{done} answers in {window_s} s are not {said} per second"));
    }
    let histograms = match load.udp() {
        Some(udp) => of_packets(udp),
        None => load.latencies().map(|latencies| {
            let said_us = load.requests().map_or(0.0, |requests| requests.latency_us.p99);
            vec![("latencies", latencies, done, 0.99, said_us)]
        }),
    };
    let histograms = match histograms {
        Ok(histograms) => histograms,
        Err(why) => return Some(why),
    };
    let differs = |(name, values, count, share, said_us): PrintedQuantile| {
        let found_us = values.value_at_quantile(share) as f64 / 1e3;
        (values.len() != count || differ(found_us, said_us)).then(|| {
            let held = values.len();
            format!(
                "the histogram holds {held} {name} with {found_us} us at {share}, the result says {count} \
                 with {said_us} us"
            )
        })
    };
    if let Some(why) = histograms.into_iter().find_map(differs) {
        return Some(why);
    }
    let udp = load.udp()?;
    let loss_ratio = udp.packets.lost as f64 / udp.packets.sent.max(1) as f64;
    if differ(loss_ratio, udp.loss_ratio) {
        return Some(format!("a loss of {loss_ratio} is not {}", udp.loss_ratio));
    }
    let unknown = "the load generator does not know what the kernel dropped";
    udp.kernel_drops.is_none().then(|| unknown.to_owned())
}

/// A histogram by name, how many values it should hold, and a quantile of it as it was printed.
type PrintedQuantile = (&'static str, Histogram<u64>, u64, f64, f64);

fn of_packets(udp: &UdpResult) -> Result<Vec<PrintedQuantile>, String> {
    let all = &udp.histograms;
    all.wait_overrun.decode()?;
    Ok(vec![
        (
            "round trips",
            all.round_trip.decode()?,
            udp.packets.received,
            0.99,
            udp.round_trip_us.p99,
        ),
        (
            "sends",
            all.send_lateness.decode()?,
            udp.packets.sent.saturating_add(udp.packets.refused),
            0.999,
            udp.send_lateness_us.p99_9,
        ),
    ])
}

pub(super) fn as_asked(seen: &Seen<'_>) -> Found {
    let point = seen.run.cell.point;
    let is_as_asked = match seen.load? {
        LoadResult::Tcp(load) => {
            let settings = &load.settings;
            settings.connections == u64::from(point.get(Axis::Connections))
                && settings.message_bytes == u64::from(point.get(Axis::Bytes))
                && settings.depth == u64::from(point.get(Axis::Depth))
        }
        LoadResult::Udp(load) => {
            let settings = &load.settings;
            settings.streams == u64::from(point.get(Axis::Streams))
                && !differ(settings.packets_per_s, f64::from(point.get(Axis::PacketsPerS)))
                && settings.packet_bytes == u64::from(point.get(Axis::Bytes))
        }
        LoadResult::Http(load) => http_is_as_asked(load, seen),
    };
    let others = || format!("{point} was asked for; the settings of the result are others");
    void_unless(is_as_asked, others).or_else(|| due(seen))
}

fn http_is_as_asked(load: &HttpResult, seen: &Seen<'_>) -> bool {
    let (settings, point) = (&load.settings, seen.run.cell.point);
    settings.urls == u64::from(point.get(Axis::Files))
        && settings.connections == u64::from(point.get(Axis::Connections))
        && settings.pipeline == u64::from(point.get(Axis::Depth))
        && settings.keepalive == point.is(Axis::Keepalive)
        && settings.tls.is_some() == point.is(Axis::Tls)
        && (settings.http == "2") == point.is(Axis::Http2)
        // With fewer streams, less would be in flight than asked for.
        && settings.streams_max.is_none_or(|streams| streams >= u64::from(point.get(Axis::Depth)))
}

/// Another schedule than the one that was asked for. Without this a load generator that asks for less would make
/// any subject meet the SLO.
fn due(seen: &Seen<'_>) -> Found {
    let (load, point) = (seen.load?, seen.run.cell.point);
    let window_s = load.window().seconds;
    let (_, clients) = point.clients();
    let by_rate = |due: Option<u64>, arrivals: &Option<String>| {
        let is_random = arrivals.as_deref() == Some("poisson");
        Some((due?, f64::from(seen.run.rate_per_s()), is_random))
    };
    let (due, rate, is_random) = match load {
        LoadResult::Udp(udp) => {
            let of = |axis| f64::from(point.get(axis));
            (udp.packets.due, of(Axis::Streams) * of(Axis::PacketsPerS), false)
        }
        LoadResult::Tcp(_) | LoadResult::Http(_) if load.mode() == "closed" => {
            let was_asked = seen.run.rate_per_s() == 0;
            return void_unless(was_asked, || {
                "a closed loop, where a rate was asked for".to_owned()
            });
        }
        LoadResult::Tcp(tcp) => by_rate(tcp.all.requests.due, &tcp.settings.arrivals)?,
        LoadResult::Http(http) => by_rate(http.all.requests.due, &http.settings.arrivals)?,
    };
    let expected = rate * window_s;
    let random = if is_random { DUE_DEVIATIONS * expected.sqrt() } else { 0.0 };
    let margin = DUE_TOLERANCE * expected + f64::from(clients) + random;
    let is_due = (due as f64 - expected).abs() <= margin;
    void_unless(is_due, || format!("{due} were due in the window, {expected:.0} were asked for"))
}

pub(super) fn bytes(seen: &Seen<'_>) -> Found {
    match seen.load? {
        LoadResult::Tcp(load) => {
            let count = load.errors.mismatch;
            void_unless(count == 0, || format!("{count} answers differ from what was sent"))
        }
        LoadResult::Udp(load) => {
            let count = load.packets.mismatched;
            void_unless(count == 0, || format!("{count} packets came back changed"))
        }
        LoadResult::Http(load) => {
            if load.errors.wrong() > 0 {
                let first = load.all.first_error.as_deref().unwrap_or("not told");
                let (wrong, kinds) = (load.errors.wrong(), kinds(&load.errors));
                return void(format!("{wrong} wrong answers ({kinds}); the first: {first}"));
            }
            // The lab made the files, so it knows the right answer independently of the load generator.
            let answered = load.all.requests.answered;
            let expected = answered.saturating_mul(u64::from(seen.run.cell.point.get(Axis::Bytes)));
            let found = load.bytes.bodies;
            void_unless(found == expected, || {
                format!("{answered} answers had {found} bytes of content, not {expected}")
            })
        }
    }
}

pub(super) fn errors(seen: &Seen<'_>) -> Found {
    let load = seen.load?;
    let (failures, kinds, first) = match load {
        LoadResult::Tcp(load) => {
            (load.errors.failures(), kinds(&load.errors), &load.all.first_error)
        }
        LoadResult::Http(load) => {
            (load.errors.failures(), kinds(&load.errors), &load.all.first_error)
        }
        LoadResult::Udp(load) => {
            let failures = sum([load.errors.icmp_refused, load.errors.receive]);
            (failures, kinds(&load.errors), &load.first_error)
        }
    };
    let first = first.as_deref().unwrap_or("not told");
    void_unless(failures == 0, || format!("{failures} errors ({kinds}); the first: {first}"))
}

/// The errors that occurred, with their numbers.
fn kinds(errors: &impl serde::Serialize) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(errors) else {
        return String::new();
    };
    let occurred = fields
        .iter()
        .filter_map(|(name, count)| Some((name, count.as_u64().filter(|it| *it > 0)?)));
    let each: Vec<String> =
        occurred.map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect();
    each.join(", ")
}

pub(super) fn admission(seen: &Seen<'_>) -> Found {
    let load = seen.load?;
    if let Some(udp) = load.udp() {
        let (asked, streams) = (u64::from(seen.run.cell.point.get(Axis::Streams)), &udp.streams);
        let all = streams.opened >= asked && streams.asked == asked;
        return void_unless(all, || {
            format!("{asked} streams asked for, {} opened", streams.opened)
        });
    }
    let asked = u64::from(seen.run.cell.point.get(Axis::Connections));
    let (connections, whole) = (&load.requests()?.connections, &load.requests()?.whole_run);
    let replaced = 2 * u128::from(connections.reconnects) >= u128::from(whole.answered);
    if seen.keeps_connections() && whole.answered > 0 && replaced {
        return void(
            "the server closes the connection after each answer: measure a connection for each request, with \
             `lab run http --set keepalive=false`"
                .to_owned(),
        );
    }
    // With a connection for each request, those that were served are counted by their place.
    let (served, how) = match seen.keeps_connections() {
        true => (connections.served_at_once_max, " at once"),
        false => (connections.served, ""),
    };
    if served >= asked {
        return None;
    }
    seen.void_unless_starved(format!("{asked} connections asked for, {served} served{how}"))
}

pub(super) fn balance(seen: &Seen<'_>) -> Found {
    let load = seen.load?;
    if let Some(udp) = load.udp() {
        let it = &udp.packets;
        let is_balanced = it.due == sum([it.sent, it.unsent, it.refused])
            && it.sent == sum([it.received, it.lost]);
        return void_unless(is_balanced, || {
            format!(
                "{} due, {} sent + {} unsent + {} refused; of those sent {} came back + {} lost",
                it.due, it.sent, it.unsent, it.refused, it.received, it.lost
            )
        });
    }
    let whole = &load.requests()?.whole_run;
    let accounted = sum([whole.answered, whole.failed, whole.abandoned]);
    void_unless(whole.sent == accounted, || {
        format!(
            "{} sent, but {} answered + {} failed + {} abandoned = {accounted}",
            whole.sent, whole.answered, whole.failed, whole.abandoned
        )
    })
}

pub(super) fn answers(seen: &Seen<'_>) -> Found {
    let load = seen.load?;
    if load.done() > 0 {
        return None;
    }
    if super::is_unanswered(seen.run) {
        let sent = load.udp().map_or(0, |udp| udp.packets.sent);
        return note(format!("{sent} packets were sent and none came back"));
    }
    seen.void_unless_starved("no answer inside the window".to_owned())
}

pub(super) fn verified(seen: &Seen<'_>) -> Found {
    let what = match seen.load? {
        LoadResult::Tcp(load) if !load.settings.verify => "answers were counted, not compared",
        LoadResult::Udp(load) if !load.settings.verify => "packets were counted, not compared",
        LoadResult::Udp(load) if load.packets.foreign > 0 => {
            return note(format!("{} packets came that no stream had sent", load.packets.foreign));
        }
        LoadResult::Http(load) if load.settings.verify_body.is_none() => {
            "status and length were compared, content was not"
        }
        _ => return None,
    };
    note(what.to_owned())
}
