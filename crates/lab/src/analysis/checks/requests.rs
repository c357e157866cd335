//! Checks of requests over connections, and of what is sent on a schedule.

use super::{Effect, Found, Seen, note, void};
use crate::experiment::Axis;
use twinring_wire::requests::RequestResult;

/// How far the requests in flight may be from Little's law, as a share.
const LITTLE_TOLERANCE: f64 = 0.10;

/// A request without an answer for this share of the window, and not shorter than [`STALLED_LEAST_US`], is lost.
const STALLED_SHARE: f64 = 0.25;

/// Twice the longest delayed acknowledgement of Linux.
const STALLED_LEAST_US: f64 = 400_000.0;

/// In an open loop, how late the 99th percentile of requests may leave, in microseconds.
const SCHEDULE_LAG_LIMIT_US: f64 = 1000.0;

/// An open loop of which more than this share was not answered in the window is overloaded.
const OVERLOAD_SHARE: f64 = 0.01;

/// A stream that should have had more packets than this in the window, and got none back, was starved.
const MANY_PACKETS: f64 = 10.0;

impl Seen<'_> {
    pub(super) fn keeps_connections(&self) -> bool {
        let point = self.run.cell.point;
        point.get(Axis::Churn) == 0 && point.on(Axis::Keepalive) != Some(0)
    }

    fn is_closed(&self) -> bool {
        self.load.is_some_and(|load| load.mode() == "closed")
    }

    /// Whether the rate is more than was answered. Then requests wait longer and longer, on every connection; that
    /// the subject misses the SLO is an outcome and no fault of the run.
    fn is_overloaded(&self, load: &RequestResult) -> bool {
        let due = if self.is_closed() { 0.0 } else { load.due(self.run.rate_per_s()) };
        (load.requests.answered as f64) < due * (1.0 - OVERLOAD_SHARE)
    }
}

pub(super) fn stalled(seen: &Seen<'_>) -> Found {
    let load = seen.load?;
    if let Some(udp) = load.udp() {
        let (rate, streams) = (f64::from(seen.run.cell.point.get(Axis::PacketsPerS)), &udp.streams);
        let starved = streams.opened.saturating_sub(streams.answered);
        let is_long = rate * udp.window.seconds > MANY_PACKETS && udp.packets.received > 0;
        // An overloaded server drops packets that arrive at the wrong moment, and a schedule brings the same
        // streams at the same moment again. What they lost is in the loss.
        return if starved > 0 && is_long {
            note(format!("{starved} streams got nothing back"))
        } else {
            None
        };
    }
    let requests = load.requests()?;
    if seen.is_overloaded(requests) {
        return None;
    }
    // A request whose packets the network lost waits for TCP to send them again, at first 200 ms and then twice as
    // long each time. No server is to blame for that.
    let excused = |found: Found| match super::network::packets(seen) {
        Some(_) => found.map(|(_, what)| (Effect::Note, format!("{what}, and packets were lost"))),
        None => found,
    };
    let asked = u64::from(seen.run.cell.point.get(Axis::Connections));
    if requests.connections.min_answered == 0 && requests.requests.answered > 10 * asked {
        let what = "a connection got no answer while the average got more than 10".to_owned();
        return excused(seen.void_unless_starved(what));
    }
    let oldest_us = requests.requests.oldest_in_flight_us.unwrap_or(0.0);
    let limit_us = STALLED_LEAST_US.max(STALLED_SHARE * requests.window.seconds * 1e6);
    match oldest_us > limit_us + seen.taken_s * 1e6 {
        true => excused(void(format!(
            "a request had waited {:.0} ms when the run ended",
            oldest_us / 1e3
        ))),
        false => None,
    }
}

/// In a closed loop as many requests as asked for are in flight at any time. Not in flight are those that the load
/// generator has in its hands between an answer and the next request: working on one takes CPU, so on average there
/// cannot be more of them than it used CPUs; while others have its CPU, it may have all of them in its hands. And
/// each place in flight has two requests that cross the ends of the window, which are counted with all of their time
/// or with none of it.
///
/// With a connection for each request, a place is also empty from an answer until the server has closed the
/// connection. That is the server's time, and no latency tells how long: then only too many in flight are a
/// contradiction.
pub(super) fn littles_law(seen: &Seen<'_>) -> Found {
    let load = seen.load.filter(|_| seen.is_closed())?.requests()?;
    let max_us = load.histogram.decode().ok()?.max() as f64 / 1e3;
    let point = seen.run.cell.point;
    let asked = f64::from(point.get(Axis::Connections)) * f64::from(point.get(Axis::Depth));
    let client_s =
        seen.run.cpu.as_ref().and_then(|cpu| Some(cpu.client.as_ref()?.cpu_s / cpu.window_s));
    // Of load generators on other machines it is not known, and each has a CPU in its hands.
    let in_hand = client_s.unwrap_or(f64::from(seen.run.generators));
    let margin = asked * (LITTLE_TOLERANCE + max_us / 1e6 / load.window.seconds);
    let held = asked * seen.taken_s / load.window.seconds;
    let least = if seen.keeps_connections() { asked - margin - in_hand - held } else { 0.0 };
    let in_flight = load.requests.per_second * load.latency_us.mean / 1e6;
    if load.requests.answered == 0 || (least..=asked + margin).contains(&in_flight) {
        return None;
    }
    void(format!(
        "{:.0} per second x mean {:.1} us = {in_flight:.1} in flight, but {asked} were kept in flight",
        load.requests.per_second, load.latency_us.mean
    ))
}

pub(super) fn schedule(seen: &Seen<'_>) -> Found {
    let load = seen.load.filter(|_| !seen.is_closed())?.requests()?;
    let lag_us = load.schedule_lag_us.as_ref()?.p99;
    // As late as the time that others took, a request may be without anybody's fault; and a subject that does not
    // read leaves the load generator nowhere to put its requests.
    let is_late = lag_us > SCHEDULE_LAG_LIMIT_US + seen.taken_s * 1e6;
    let is_own = load.cpu.saturated || !seen.is_overloaded(load);
    (is_late && is_own).then(|| {
        (Effect::Excluded, format!("1 % of the requests left more than {lag_us:.0} us late"))
    })
}
