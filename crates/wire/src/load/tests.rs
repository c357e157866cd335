//! Results of several load generators become one.

use super::*;
use crate::histogram::{EncodedHistogram, Lag, Latency};
use crate::http::HttpErrors;
use crate::tcp::TcpErrors;

fn recorded(values_ns: &[u64]) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 1 << 40, 3).unwrap();
    values_ns.iter().for_each(|value| histogram.record(*value).unwrap());
    histogram
}

fn encoded(ns: u64) -> EncodedHistogram {
    EncodedHistogram::of(&recorded(&[ns]))
}

/// A result in which everything is this number.
fn requests(number: u64) -> RequestResult {
    let float = number as f64;
    let mut all = RequestResult { histogram: encoded(number), ..RequestResult::default() };
    all.schedule_lag_us = Some(Lag { p99: float, ..Lag::default() });
    (all.requests.answered, all.requests.due) = (number, Some(number));
    (all.requests.per_second, all.requests.oldest_in_flight_us) = (float, Some(float));
    (all.whole_run.sent, all.whole_run.abandoned) = (number, number);
    (all.connections.served, all.connections.min_answered) = (number, number);
    (all.cpu.busiest_thread_share, all.window.seconds) = (float, float);
    all
}

fn tcp(number: u64) -> LoadResult {
    let mut result = TcpResult { all: requests(number), ..TcpResult::default() };
    (result.settings.connections, result.errors.reset) = (number, number);
    result.settings.verify = number > 1;
    LoadResult::Tcp(Box::new(result))
}

fn http(number: u64) -> LoadResult {
    let mut result = HttpResult { all: requests(number), ..HttpResult::default() };
    (result.settings.connections, result.bytes.bodies, result.errors.hash) =
        (number, number, number);
    result.settings.verify_body = (number > 1).then(|| "first".to_owned());
    LoadResult::Http(Box::new(result))
}

fn udp(number: u64) -> LoadResult {
    let mut result = UdpResult { kernel_drops: Some(number), ..UdpResult::default() };
    (result.settings.streams, result.streams.opened) = (number, number);
    (result.packets.sent, result.packets.lost) = (2 * number, number);
    result.histograms.round_trip = encoded(number);
    result.histograms.send_lateness = encoded(number);
    (result.errors.receive, result.window.seconds) = (number, number as f64);
    LoadResult::Udp(Box::new(result))
}

#[test]
fn what_the_lab_reads_is_of_all_load_generators() {
    let both = Latency::of(&recorded(&[1, 3]));
    for numbers in [[1, 3], [3, 1]] {
        let sum = |of: fn(u64) -> LoadResult| LoadResult::merged(numbers.map(of).to_vec()).unwrap();
        let assert_requests = |sum: &LoadResult| {
            let all = sum.requests().unwrap();
            let it = &all.requests;
            assert_eq!((it.answered, it.due, it.per_second), (4, Some(4), 4.0));
            assert_eq!(
                (it.oldest_in_flight_us, all.schedule_lag_us.unwrap().p99),
                (Some(3.0), 3.0)
            );
            assert_eq!((all.whole_run.sent, all.whole_run.abandoned), (4, 4));
            assert_eq!((all.connections.served, all.connections.min_answered), (4, 1));
            assert_eq!((all.cpu.busiest_thread_share, all.window.seconds), (3.0, 2.0));
            assert_eq!((all.latency_us, sum.latencies().unwrap().len()), (both, 2));
        };
        let found = sum(tcp);
        assert_requests(&found);
        let LoadResult::Tcp(found) = found else { panic!("{found:?}") };
        assert_eq!((found.settings.connections, found.settings.verify), (4, false));
        assert_eq!(found.errors.reset, 4);
        let found = sum(http);
        assert_requests(&found);
        let LoadResult::Http(found) = found else { panic!("{found:?}") };
        assert_eq!((found.settings.connections, found.settings.verify_body), (4, None));
        assert_eq!((found.bytes.bodies, found.errors.hash), (4, 4));
        let LoadResult::Udp(found) = sum(udp) else { panic!() };
        assert_eq!(
            (found.settings.streams, found.streams.opened, found.window.seconds),
            (4, 4, 2.0)
        );
        assert_eq!((found.packets.sent, found.packets.lost, found.loss_ratio), (8, 4, 0.5));
        assert_eq!((found.round_trip_us, found.send_lateness_us), (both, both));
        assert_eq!((found.kernel_drops, found.errors.receive), (Some(4), 4));
    }
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let refused = |results| LoadResult::merged(results).unwrap_err();
    assert!(refused(vec![]).contains("no result"));
    assert!(refused(vec![tcp(1), udp(1)]).contains("protocols"));
    assert!(refused(vec![tcp(1), LoadResult::Tcp(Box::default())]).contains("histogram"));
}

/// Counts of a file overflowed.
#[test]
fn errors_are_summed_up_to_the_largest_number() {
    let tcp = TcpErrors { reset: u64::MAX, timeout: 1, mismatch: 7, ..TcpErrors::default() };
    let http =
        HttpErrors { tls: u64::MAX, goaway: 1, hash: u64::MAX, status: 1, ..HttpErrors::default() };
    assert_eq!([tcp.failures(), http.failures(), http.wrong()], [u64::MAX; 3]);
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
        // With the gate, connections that could not be opened were nothing.
        (
            |r| {
                r.all.connections.established = 9;
                let gate = "max_error_rate".to_owned();
                r.all.gates.push(crate::load::Gate { gate, ..crate::load::Gate::default() });
            },
            Some("9 of 10 connections"),
            "",
        ),
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
        let short = LoadResult::Http(Box::new(result)).shortfall();
        assert_eq!(short.is_empty(), shortfall.is_empty(), "{short:?}");
        assert!(short.concat().starts_with(shortfall), "{short:?}");
    }
}
