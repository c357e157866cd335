//! Results of several load generators become one: every field by its rule.

use super::*;
use crate::Fields;
use crate::histogram::{EncodedHistogram, Lag, Latency};
use crate::{http as http_wire, udp as udp_wire};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// What becomes of two numbers, or of `false`, which is 1 here, and `true`, which is 10.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Sum,
    First,
    Least,
    Most,
    Mean,
    Is(f64),
    /// Tested on its own.
    OfHistogram,
}

/// Of fields that begin with this path; the last that fits, and the sum of all others.
const RULES: [(&str, Rule); 32] = [
    ("", Rule::Sum),
    ("settings", Rule::First),
    ("settings.connections", Rule::Sum),
    ("settings.streams", Rule::Sum),
    ("settings.threads", Rule::Sum),
    ("settings.idle", Rule::Sum),
    ("settings.rate_per_s", Rule::Sum),
    ("settings.verify", Rule::Least),
    ("interrupted", Rule::Most),
    ("window", Rule::First),
    ("window.seconds", Rule::Mean),
    ("requests.oldest_in_flight_us", Rule::Most),
    ("schedule_lag_us", Rule::Most),
    ("connections.min_answered", Rule::Least),
    ("connections.max_answered", Rule::Most),
    ("cpu.busiest_thread_share", Rule::Most),
    ("cpu.saturated", Rule::Most),
    ("requests.rate_reached", Rule::Least),
    ("segmentation.g", Rule::First),
    ("latency_us", Rule::OfHistogram),
    ("ttfb_us", Rule::OfHistogram),
    ("connect_us", Rule::OfHistogram),
    ("round_trip_us", Rule::OfHistogram),
    ("send_lateness_us", Rule::OfHistogram),
    ("wait_overrun_us", Rule::OfHistogram),
    ("loss_ratio", Rule::Is(1.0)),
    // Weighted by streams: 1 x 1 and 10 x 10, of 11.
    ("jitter_us", Rule::Is(101.0 / 11.0)),
    ("jitter_us.p99", Rule::Most),
    ("jitter_us.max", Rule::Most),
    ("socket_buffers", Rule::First),
    // Weighted by calls.
    ("calls.0.mean_us", Rule::Is(101.0 / 11.0)),
    ("calls.0.max_us", Rule::Most),
];

/// Every number and flag of a result, by its path.
fn numbers(result: &impl Serialize) -> BTreeMap<String, f64> {
    fn collect(path: &str, value: &Value, into: &mut BTreeMap<String, f64>) {
        let below = |name: &str| format!("{path}{}{name}", if path.is_empty() { "" } else { "." });
        match value {
            Value::Number(number) => {
                into.insert(path.to_owned(), number.as_f64().unwrap());
            }
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| collect(&below(name), value, into));
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                items.for_each(|(at, value)| collect(&below(&at.to_string()), value, into));
            }
            Value::Bool(is) => {
                into.insert(path.to_owned(), if *is { 10.0 } else { 1.0 });
            }
            Value::Null | Value::String(_) => {}
        }
    }
    let mut all = BTreeMap::new();
    collect("", &serde_json::to_value(result).unwrap(), &mut all);
    all
}

/// The same result with this number in the place of every number.
fn filled<T: Serialize + DeserializeOwned>(result: &T, number: u64) -> T {
    fn fill(value: &mut Value, number: u64) {
        match value {
            Value::Number(_) => *value = number.into(),
            Value::Object(fields) => fields.values_mut().for_each(|it| fill(it, number)),
            Value::Array(items) => items.iter_mut().for_each(|it| fill(it, number)),
            Value::Bool(is) => *is = number == 10,
            Value::Null | Value::String(_) => {}
        }
    }
    let mut value = serde_json::to_value(result).unwrap();
    fill(&mut value, number);
    serde_json::from_value(value).unwrap()
}

fn recorded(values_ns: &[u64]) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 1 << 40, 3).unwrap();
    values_ns.iter().for_each(|value| histogram.record(*value).unwrap());
    histogram
}

/// Merges results full of 1 and of 10, in both orders: every number has to follow its rule.
fn assert_rules<T: Serialize + DeserializeOwned>(result: &T, wrap: fn(T) -> LoadResult) {
    for both in [[1, 10], [10, 1]] {
        let merged = numbers(&sum_of(wrap, both.map(|it| filled(result, it))));
        let [first, second] = both.map(|it| it as f64);
        for (path, found) in merged {
            let fits = RULES.iter().rev().find(|(start, _)| path.starts_with(start)).unwrap();
            let expected = match fits.1 {
                Rule::Sum => first + second,
                Rule::First => first,
                Rule::Least => first.min(second),
                Rule::Most => first.max(second),
                Rule::Mean => f64::midpoint(first, second),
                Rule::Is(number) => number,
                Rule::OfHistogram => continue,
            };
            assert!((found - expected).abs() < 1e-9, "{path} of {first} and {second}: {found}");
        }
    }
}

fn requests() -> RequestResult {
    let mut all = RequestResult {
        histogram: EncodedHistogram::of(&recorded(&[1_000])),
        schedule_lag_us: Some(Lag::default()),
        runtime_counters: Fields::of(&BTreeMap::from([("wakes", 1)])),
        ..RequestResult::default()
    };
    all.requests.oldest_in_flight_us = Some(0.0);
    (all.requests.due, all.requests.rate_reached) = (Some(0), Some(true));
    all.connections.idle_established = Some(0);
    all.connections.kept_open = Some(0);
    all
}

fn tcp_result() -> TcpResult {
    let mut result = TcpResult { all: requests(), ..TcpResult::default() };
    let settings = &mut result.settings;
    (settings.rate_per_s, settings.churn, settings.messages) = (Some(0), Some(0), Some(0));
    result
}

fn http_result() -> HttpResult {
    let histogram = EncodedHistogram::of(&recorded(&[2_000]));
    let mut result = HttpResult {
        all: requests(),
        histograms: Some(http_wire::HttpHistograms {
            raw: Some(histogram.clone()),
            ttfb: histogram.clone(),
            connect: histogram,
        }),
        urls: vec![http_wire::Url::default()],
        ..HttpResult::default()
    };
    (result.settings.rate_per_s, result.settings.requests) = (Some(0), Some(0));
    result
}

fn udp_result() -> UdpResult {
    let histogram = EncodedHistogram::of(&recorded(&[3_000]));
    let mut result = UdpResult {
        histograms: udp_wire::UdpHistograms {
            round_trip: histogram.clone(),
            send_lateness: histogram.clone(),
            wait_overrun: histogram,
        },
        kernel_drops: Some(0),
        calls: Some(vec![udp_wire::Call { call: "sendmsg".into(), ..udp_wire::Call::default() }]),
        runtime_counters: Fields::of(&BTreeMap::from([("wakes", 1)])),
        ..UdpResult::default()
    };
    result.settings.pending = Some(0);
    result.socket_buffers.asked_bytes = Some(0);
    result.streams.worst = vec![udp_wire::Stream::default()];
    result.streams.all = Some(vec![udp_wire::Stream::default()]);
    result
}

fn sum_of<T: DeserializeOwned>(wrap: fn(T) -> LoadResult, both: [T; 2]) -> T {
    let sum = LoadResult::merged(both.map(wrap).to_vec()).unwrap();
    serde_json::from_value(serde_json::to_value(sum).unwrap()).unwrap()
}

fn tcp(result: TcpResult) -> LoadResult {
    LoadResult::Tcp(Box::new(result))
}

fn http(result: HttpResult) -> LoadResult {
    LoadResult::Http(Box::new(result))
}

fn udp(result: UdpResult) -> LoadResult {
    LoadResult::Udp(Box::new(result))
}

#[test]
fn every_number_has_a_rule() {
    assert_rules(&tcp_result(), tcp);
    assert_rules(&http_result(), http);
    assert_rules(&udp_result(), udp);
}

#[test]
fn latencies_come_from_the_sum_of_the_histograms() {
    let (few, many) = (recorded(&[1_000]), recorded(&[5_000, 5_000, 9_000_000_000]));
    let sum = recorded(&[1_000, 5_000, 5_000, 9_000_000_000]);
    let mut second = tcp_result();
    second.all.histogram = EncodedHistogram::of(&many);
    let merged = sum_of(tcp, [tcp_result(), second]).all;
    assert_eq!(merged.histogram.decode(), Ok(sum.clone()));
    assert_eq!(merged.latency_us, Latency::of(&sum));

    let mut second = http_result();
    let histograms = second.histograms.as_mut().unwrap();
    (histograms.ttfb, histograms.connect) =
        (EncodedHistogram::of(&few), EncodedHistogram::of(&many));
    let merged = sum_of(http, [http_result(), second]);
    assert_eq!(merged.ttfb_us, Latency::of(&recorded(&[1_000, 2_000])));
    assert_eq!(merged.all.connect_us.max, Latency::of(&many).max);
    assert_eq!(
        (merged.all.raw_latency_us, &merged.histograms.as_ref().unwrap().raw),
        (None, &None)
    );
    assert_eq!((merged.urls.len(), merged.all.gates.len()), (0, 0));

    let mut second = udp_result();
    second.histograms.round_trip = EncodedHistogram::of(&few);
    second.histograms.wait_overrun = EncodedHistogram::of(&many);
    let merged = sum_of(udp, [udp_result(), second]);
    assert_eq!(merged.round_trip_us, Latency::of(&recorded(&[1_000, 3_000])));
    assert_eq!(merged.send_lateness_us, Latency::of(&recorded(&[3_000, 3_000])));
    assert_eq!(merged.wait_overrun_us.max, Latency::of(&many).max);
    assert!(merged.streams.worst.is_empty() && merged.streams.all.is_none());
    assert_eq!(merged.runtime_counters, Fields::default());
}

#[test]
fn what_one_of_them_lacks_the_sum_lacks() {
    for (first, second) in [(true, false), (false, true), (true, true), (false, false)] {
        let of_tcp = |is: bool| {
            let mut result = tcp_result();
            result.settings.rate_per_s = is.then_some(5);
            result.all.first_error = is.then(|| "broken".to_owned());
            result
        };
        let merged = sum_of(tcp, [of_tcp(first), of_tcp(second)]);
        assert_eq!(merged.settings.rate_per_s, (first && second).then_some(10));
        assert_eq!(merged.all.first_error.is_some(), first || second);
        assert_eq!(merged.all.runtime_counters, Fields::default());
        let of_http = |is: bool| {
            let mut result = http_result();
            result.settings.verify_body = is.then(|| "first".to_owned());
            result
        };
        let merged = sum_of(http, [of_http(first), of_http(second)]);
        assert_eq!(merged.settings.verify_body.is_some(), first && second);
    }
}

#[test]
fn system_calls_are_added_by_name() {
    let of = |calls: &[(&str, u64, f64)]| {
        let call = |(name, count, mean_us): &(&str, u64, f64)| udp_wire::Call {
            call: (*name).to_owned(),
            count: *count,
            mean_us: *mean_us,
            ..udp_wire::Call::default()
        };
        let calls = Some(calls.iter().map(call).collect());
        UdpResult { calls, ..udp_result() }
    };
    let merged = sum_of(
        udp,
        [
            of(&[("recvmsg", 1, 4.0), ("never", 0, 0.0)]),
            of(&[("sendmsg", 2, 5.0), ("never", 0, 0.0), ("recvmsg", 3, 8.0)]),
        ],
    );
    let calls = merged.calls.unwrap();
    let found: Vec<_> = calls.iter().map(|it| (it.call.as_str(), it.count, it.mean_us)).collect();
    assert_eq!(found, [("recvmsg", 4, 7.0), ("never", 0, 0.0), ("sendmsg", 2, 5.0)]);
    let without = UdpResult { calls: None, ..udp_result() };
    assert_eq!(sum_of(udp, [udp_result(), without]).calls, None);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let refused = |results| LoadResult::merged(results).unwrap_err();
    assert!(refused(vec![]).contains("no result"));
    assert!(refused(vec![tcp(tcp_result()), udp(udp_result())]).contains("protocols"));
    let mut damaged = tcp_result();
    damaged.all.histogram.data.clear();
    assert!(refused(vec![tcp(tcp_result()), tcp(damaged)]).contains("damaged"));
    let without = HttpResult { histograms: None, ..http_result() };
    assert!(refused(vec![http(http_result()), http(without)]).contains("without the histograms"));
}

/// Counts of a file overflowed.
#[test]
fn errors_are_summed_up_to_the_largest_number() {
    for (number, expected) in [(1, [5, 9, 4]), (u64::MAX, [u64::MAX; 3])] {
        let tcp = filled(&TcpResult::default(), number).errors;
        let http = filled(&HttpResult::default(), number).errors;
        assert_eq!([tcp.failures(), http.failures(), http.wrong()], expected);
    }
}

/// A rate that was not reached, failed answers and throttling ended with 0.
#[test]
fn a_result_says_what_was_not_as_asked() {
    type Change = fn(&mut HttpResult);
    let cases: [(Change, Option<&str>, &str); 8] = [
        (|_| {}, None, ""),
        (|r| r.all.requests.failed = 3, Some("3 of 103 requests failed"), ""),
        (
            |r| {
                r.all.requests.failed = 3;
                let gate = "max_error_rate".to_owned();
                r.all.gates.push(crate::load::Gate { gate, ..crate::load::Gate::default() });
            },
            None,
            "",
        ),
        (|r| r.all.requests.answered = 0, Some("no request was answered"), ""),
        (|r| r.all.connections.established = 9, Some("9 of 10 connections"), ""),
        (|r| r.all.requests.rate_reached = Some(false), None, "RATE NOT REACHED: 50 of 1000 /s"),
        (|r| r.all.requests.overdue = 7, None, "NOT ANSWERED: 7 requests"),
        (
            |r| (r.all.cpu.throttled_periods, r.all.cpu.quota_cpus) = (4, Some(0.2)),
            None,
            "THROTTLED: the CPU quota of 0.20 CPUs stopped the load generator in 4 periods",
        ),
    ];
    for (change, failure, shortfall) in cases {
        let mut result = HttpResult::default();
        result.settings.rate_per_s = Some(1000);
        result.all.requests.answered = 100;
        result.all.requests.per_second = 50.0;
        (result.all.connections.asked, result.all.connections.established) = (10, 10);
        change(&mut result);
        let failed = result.failure();
        assert_eq!(failed.is_some(), failure.is_some(), "{failed:?}");
        assert!(failed.unwrap_or_default().starts_with(failure.unwrap_or_default()));
        let short = http(result).shortfall();
        assert_eq!(short.is_empty(), shortfall.is_empty(), "{short:?}");
        assert!(short.concat().starts_with(shortfall), "{short:?}");
    }
}
