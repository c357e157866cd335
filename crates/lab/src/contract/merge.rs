//! The results of several load generators that loaded one server at the same time, as one result.
//!
//! Counts and rates are added. Latencies come from the sum of the histograms, which loses nothing.
//! Each load generator counts inside its own window; the windows are equally long and open at the
//! same time but for a little (audited), so the sum is that of one window of the mean length. Of
//! what cannot be added without its raw data, the worst is taken, and is said where it is done.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};

use super::http::{HttpHistograms, Quantiles as HttpQuantiles};
use super::requests::{Latency, RequestResult, ScheduleLag};
use super::udp::{Call, Jitter, Quantiles};
use super::{ClientCpu, EncodedHistogram, HttpResult, LoadResult, TcpResult, UdpResult, Window};

impl LoadResult {
    /// What several load generators did together.
    ///
    /// # Errors
    /// When they are of different kinds, none at all, or their histograms cannot be added.
    pub(crate) fn merged(results: Vec<LoadResult>) -> Result<LoadResult, String> {
        let mut results = results.into_iter();
        let mut sum = results.next().ok_or("there is no result")?;
        let mut windows = vec![sum.window().clone()];
        for result in results {
            windows.push(result.window().clone());
            match (&mut sum, result) {
                (LoadResult::Tcp(sum), LoadResult::Tcp(result)) => add_tcp(sum, *result)?,
                (LoadResult::Udp(sum), LoadResult::Udp(result)) => add_udp(sum, *result)?,
                (LoadResult::Http(sum), LoadResult::Http(result)) => add_http(sum, *result)?,
                _ => return Err("the load generators speak different protocols".to_owned()),
            }
        }
        *sum.window_mut() = mean(&windows);
        Ok(sum)
    }

    fn window_mut(&mut self) -> &mut Window {
        match self {
            LoadResult::Tcp(result) => &mut result.all.window,
            LoadResult::Udp(result) => &mut result.window,
            LoadResult::Http(result) => &mut result.all.window,
        }
    }
}

/// A window as long as these on average, beginning with the first; by the clock of its host.
fn mean(windows: &[Window]) -> Window {
    let of = |field: fn(&Window) -> f64| {
        windows.iter().map(field).sum::<f64>() / windows.len().max(1) as f64
    };
    let start_monotonic_ns = windows.first().map_or(0, |window| window.start_monotonic_ns);
    let end_monotonic_ns = start_monotonic_ns + (of(Window::between_marks_s) * 1e9).round() as u64;
    Window { start_monotonic_ns, end_monotonic_ns, seconds: of(|window| window.seconds) }
}

fn add_tcp(sum: &mut TcpResult, other: TcpResult) -> Result<(), String> {
    sum.settings.connections += other.settings.connections;
    sum.settings.verify &= other.settings.verify;
    let (errors, more) = (&mut sum.errors, &other.errors);
    errors.connect += more.connect;
    errors.reset += more.reset;
    errors.closed_early += more.closed_early;
    errors.timeout += more.timeout;
    errors.mismatch += more.mismatch;
    errors.other += more.other;
    add_requests(&mut sum.all, other.all)
}

fn add_http(sum: &mut HttpResult, other: HttpResult) -> Result<(), String> {
    sum.settings.connections += other.settings.connections;
    if other.settings.verify_body.is_none() {
        sum.settings.verify_body = None;
    }
    sum.bytes.bodies += other.bytes.bodies;
    let (errors, more) = (&mut sum.errors, &other.errors);
    errors.connect += more.connect;
    errors.tls += more.tls;
    errors.reset += more.reset;
    errors.closed_early += more.closed_early;
    errors.timeout += more.timeout;
    errors.malformed += more.malformed;
    errors.status += more.status;
    errors.length += more.length;
    errors.hash += more.hash;
    errors.other += more.other;
    let no_histograms = || "a result without the histograms of its first bytes".to_owned();
    let all = sum.histograms.as_mut().ok_or_else(no_histograms)?;
    let HttpHistograms { ttfb, connect } = other.histograms.ok_or_else(no_histograms)?;
    let quantiles = |histogram: &Histogram<u64>| HttpQuantiles {
        p50: quantile_us(histogram, 0.5),
        p99: quantile_us(histogram, 0.99),
    };
    sum.ttfb_us = quantiles(&add_histogram(&mut all.ttfb, &ttfb)?);
    sum.connect_us = quantiles(&add_histogram(&mut all.connect, &connect)?);
    add_requests(&mut sum.all, other.all)
}

fn add_requests(sum: &mut RequestResult, other: RequestResult) -> Result<(), String> {
    sum.requests.answered += other.requests.answered;
    sum.requests.per_second += other.requests.per_second;
    let oldest = [sum.requests.oldest_in_flight_us, other.requests.oldest_in_flight_us];
    sum.requests.oldest_in_flight_us = oldest.into_iter().flatten().reduce(f64::max);
    let (whole, more) = (&mut sum.whole_run, &other.whole_run);
    whole.sent += more.sent;
    whole.answered += more.answered;
    whole.failed += more.failed;
    whole.abandoned += more.abandoned;
    let latencies = add_histogram(&mut sum.histogram, &other.histogram)?;
    sum.latency_us = Latency { mean: latencies.mean() / 1e3, p99: quantile_us(&latencies, 0.99) };
    // Of the schedules the latest.
    let lags = [&sum.schedule_lag_us, &other.schedule_lag_us];
    let latest = lags.into_iter().flatten().map(|lag| lag.p99).reduce(f64::max);
    sum.schedule_lag_us = latest.map(|p99| ScheduleLag { p99 });
    let (connections, more) = (&mut sum.connections, &other.connections);
    connections.served_at_once_max += more.served_at_once_max;
    connections.served += more.served;
    connections.min_answered = connections.min_answered.min(more.min_answered);
    sum.first_error = sum.first_error.take().or(other.first_error);
    sum.cpu = busiest(&sum.cpu, &other.cpu);
    Ok(())
}

fn add_udp(sum: &mut UdpResult, other: UdpResult) -> Result<(), String> {
    // Streams of a load generator are alike; of the hosts the mean is taken, by their streams.
    let [mine, theirs] = [sum.streams.opened, other.streams.opened].map(|count| count as f64);
    let weighted = |a: f64, b: f64| (a * mine + b * theirs) / (mine + theirs).max(1.0);
    sum.jitter_us = Jitter {
        p50: weighted(sum.jitter_us.p50, other.jitter_us.p50),
        // Of the tails the longer one: it is at least as long as that of all streams together.
        p99: sum.jitter_us.p99.max(other.jitter_us.p99),
    };
    sum.settings.streams += other.settings.streams;
    sum.settings.verify &= other.settings.verify;
    let (packets, more) = (&mut sum.packets, &other.packets);
    packets.due += more.due;
    packets.sent += more.sent;
    packets.unsent += more.unsent;
    packets.refused += more.refused;
    packets.received += more.received;
    packets.lost += more.lost;
    packets.duplicated += more.duplicated;
    packets.reordered += more.reordered;
    packets.mismatched += more.mismatched;
    packets.foreign += more.foreign;
    packets.received_per_second += more.received_per_second;
    sum.loss_ratio = packets.lost as f64 / packets.sent.max(1) as f64;
    let quantiles = |histogram: &Histogram<u64>| Quantiles {
        p99: quantile_us(histogram, 0.99),
        p99_9: quantile_us(histogram, 0.999),
    };
    let (all, more) = (&mut sum.histograms, &other.histograms);
    sum.round_trip_us = quantiles(&add_histogram(&mut all.round_trip, &more.round_trip)?);
    sum.send_lateness_us = quantiles(&add_histogram(&mut all.send_lateness, &more.send_lateness)?);
    add_histogram(&mut all.wait_overrun, &more.wait_overrun)?;
    sum.kernel_drops += other.kernel_drops;
    sum.streams.asked += other.streams.asked;
    sum.streams.opened += other.streams.opened;
    sum.streams.answered += other.streams.answered;
    sum.errors.icmp_refused += other.errors.icmp_refused;
    sum.errors.send += other.errors.send;
    sum.errors.receive += other.errors.receive;
    sum.calls = sum.calls.take().zip(other.calls).map(|(mine, theirs)| add_calls(mine, theirs));
    sum.first_error = sum.first_error.take().or(other.first_error);
    sum.cpu = busiest(&sum.cpu, &other.cpu);
    Ok(())
}

/// Calls by name; their parts of the run add up to more than one with several threads already.
fn add_calls(mut sum: Vec<Call>, other: Vec<Call>) -> Vec<Call> {
    for call in other {
        let Some(known) = sum.iter_mut().find(|known| known.call == call.call) else {
            sum.push(call);
            continue;
        };
        let count = known.count + call.count;
        let time_us = known.mean_us * known.count as f64 + call.mean_us * call.count as f64;
        known.mean_us = time_us / count.max(1) as f64;
        known.count = count;
        known.run_share += call.run_share;
        known.max_us = known.max_us.max(call.max_us);
    }
    sum
}

/// The one that is nearer to its limit: if any of them is there, the load is limited by it.
fn busiest(a: &ClientCpu, b: &ClientCpu) -> ClientCpu {
    ClientCpu {
        busiest_thread_share: a.busiest_thread_share.max(b.busiest_thread_share),
        saturated: a.saturated || b.saturated,
    }
}

/// Adds `other` to `sum`, and returns the sum.
fn add_histogram(
    sum: &mut EncodedHistogram,
    other: &EncodedHistogram,
) -> Result<Histogram<u64>, String> {
    let mut all = sum.decode()?;
    let other = other.decode()?;
    all.auto(true);
    all.add(&other).map_err(|error| format!("histograms that cannot be added: {error}"))?;
    *sum = EncodedHistogram::of(&all)?;
    Ok(all)
}

fn quantile_us(histogram: &Histogram<u64>, share: f64) -> f64 {
    histogram.value_at_quantile(share) as f64 / 1e3
}

impl EncodedHistogram {
    fn of(histogram: &Histogram<u64>) -> Result<EncodedHistogram, String> {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(histogram, &mut bytes);
        written.map_err(|error| format!("histogram: {error:?}"))?;
        let (unit, encoding) = ("ns".to_owned(), "hdr-v2-base64".to_owned());
        Ok(EncodedHistogram { unit, encoding, data: STANDARD.encode(bytes) })
    }
}
