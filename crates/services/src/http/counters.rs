//! The counters of the HTTP service. As for every service, each worker writes its own.

use super::Status;
use super::hosts::Sites;
use crate::server::{Count, Reading};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The counters of the service, each with the metric that shows it and its label there; none for those that metrics
/// derive others from.
macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident = $metric:literal $label:literal,)*) => {
        #[derive(Debug, Default)]
        pub(super) struct WorkerCounters {
            $(pub(super) $name: Count,)*
        }

        impl WorkerCounters {
            /// Metric, label, description and value of each.
            fn shown(&self) -> impl Iterator<Item = Shown> {
                let all = [$(Shown {
                    metric: $metric,
                    label: $label,
                    help: concat!($($doc,)*),
                    value: self.$name.get(),
                },)*];
                all.into_iter().filter(|shown| !shown.metric.is_empty())
            }
        }

        /// Counters of the service, summed over its workers, at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct HttpCounters {
            /// Connections that are open: `accepted - closed`.
            pub open: u64,
            /// Lines written to the access log.
            pub log_lines: u64,
            /// Lines that were not, because the log fell behind or could not be written.
            pub log_dropped: u64,
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl HttpCounters {
            fn add(&mut self, worker: &WorkerCounters) {
                $(self.$name += worker.$name.get();)*
            }
        }
    };
}

counters! {
    /// Connections that are closed. Read before `accepted`, which it therefore never exceeds.
    closed = "" "",
    /// Connections that were accepted and served.
    accepted = "connections_accepted_total" "",
    /// Connections accepted and closed immediately because of the maximum.
    refused = "connections_refused_total" "limit=\"connections\"",
    /// The same, because of the maximum per address.
    refused_of_address = "connections_refused_total" "limit=\"connections_per_address\"",
    /// Connections that ended with an error: the peer reset them or became unreachable.
    reset = "connections_ended_early_total" "reason=\"reset\"",
    /// TLS handshakes that were completed.
    tls_handshakes = "" "",
    /// Handshakes that resumed an earlier session.
    tls_resumed = "tls_handshakes_total" "resumed=\"true\"",
    /// Connections that did not speak TLS, or nothing that both ends support.
    tls_failures = "connections_ended_early_total" "reason=\"tls_failure\"",
    /// Connections that the peer ended without close_notify.
    tls_truncated = "connections_ended_early_total" "reason=\"tls_truncated\"",
    /// Connections of proxies that did not begin with a header of the PROXY protocol.
    proxy_failures = "connections_ended_early_total" "reason=\"proxy_header\"",
    /// Connections reset because the handshake was not done in time.
    handshake_timeouts = "connections_ended_early_total" "reason=\"handshake_timeout\"",
    /// Connections that spoke HTTP/2.
    http2_connections = "http2_connections_total" "",
    /// Connections ended because their requests were a flood: mostly reset before their answers, or
    /// in frames without content.
    http2_floods = "connections_ended_early_total" "reason=\"http2_flood\"",
    /// Connections closed between two requests, after the idle timeout.
    idle_closed = "connections_ended_early_total" "reason=\"idle_timeout\"",
    /// Connections closed because the head of a request did not arrive in time.
    header_timeouts = "connections_ended_early_total" "reason=\"header_timeout\"",
    /// The same for its body.
    body_timeouts = "connections_ended_early_total" "reason=\"body_timeout\"",
    /// Connections reset because the peer did not read an answer.
    send_timeouts = "connections_ended_early_total" "reason=\"send_timeout\"",
    /// Connections cut at the drain timeout, with work unfinished.
    cut = "connections_ended_early_total" "reason=\"drain_timeout\"",
    /// Answers broken off because the file was changed.
    broken_off = "connections_ended_early_total" "reason=\"file_changed\"",
    /// Requests that were answered, with any status.
    requests = "" "",
    /// Answers with a status of 200 to 299.
    responses_2xx = "responses_total" "class=\"2xx\"",
    /// With 300 to 399.
    responses_3xx = "responses_total" "class=\"3xx\"",
    /// With 400 to 499.
    responses_4xx = "responses_total" "class=\"4xx\"",
    /// With 500 to 599.
    responses_5xx = "responses_total" "class=\"5xx\"",
    /// Requests answered from the cache, without asking the file system.
    cache_hits = "cache_lookups_total" "result=\"hit\"",
    /// Requests that needed a lookup in the file system.
    cache_misses = "cache_lookups_total" "result=\"miss\"",
    /// Times that a resource was read because it was not in the cache, or had changed.
    cache_loads = "cache_loads_total" "",
    /// Memory in use for the cache.
    cache_bytes = "cache_bytes" "",
    /// Files kept open for the cache.
    cache_files = "cache_open_files" "",
    /// Files that were compressed on the fly, each time for one coding.
    compressions = "" "",
    /// Those of them that failed.
    compression_failures = "compressions_total" "result=\"failed\"",
    /// Bytes of content that were not sent because it was compressed on the fly.
    compression_saved_bytes = "compression_saved_bytes_total" "",
    /// Bytes received.
    received_bytes = "received_bytes_total" "",
    /// Bytes passed to the engine for sending, including those dropped by a broken connection.
    sent_bytes = "sent_bytes_total" "",
    /// Bytes sent from a file, and not from the cache.
    sent_file_bytes = "sent_file_bytes_total" "",
}

pub(super) struct Shown {
    pub(super) metric: &'static str,
    pub(super) label: &'static str,
    /// With a leading space.
    pub(super) help: &'static str,
    pub(super) value: u64,
}

impl WorkerCounters {
    pub(super) fn count_answer(&self, status: Status) {
        self.requests.add(1);
        let class = match status.as_u16() / 100 {
            2 => &self.responses_2xx,
            3 => &self.responses_3xx,
            4 => &self.responses_4xx,
            _ => &self.responses_5xx,
        };
        class.add(1);
    }

    /// All that metrics show, those of a metric together.
    pub(super) fn metrics(&self) -> Vec<Shown> {
        let derived = |metric, label, help, value| Shown { metric, label, help, value };
        // Read first, so that it never exceeds the other.
        let closed = self.closed.get();
        let open = self.accepted.get().saturating_sub(closed);
        let full = self.tls_handshakes.get().saturating_sub(self.tls_resumed.get());
        let done = self.compressions.get().saturating_sub(self.compression_failures.get());
        let derived = [
            derived("connections_open", "", " Connections that are open.", open),
            derived("tls_handshakes_total", "resumed=\"false\"", "", full),
            derived("compressions_total", "result=\"done\"", "", done),
        ];
        let mut all: Vec<Shown> = self.shown().chain(derived).collect();
        all.sort_by_key(|shown| shown.metric);
        all
    }

    /// The work of this worker.
    pub(super) fn reading(&self) -> Reading {
        let bytes = self.received_bytes.get() + self.sent_bytes.get();
        let (units, connections) = (self.requests.get(), self.accepted.get());
        Reading { units, bytes, connections, ..Reading::default() }
    }
}

impl HttpCounters {
    pub(super) fn sum<'a>(workers: impl Iterator<Item = &'a WorkerCounters>) -> HttpCounters {
        let mut sum = HttpCounters::default();
        workers.for_each(|worker| sum.add(worker));
        sum.open = sum.accepted.saturating_sub(sum.closed);
        sum
    }
}

/// Upper bounds of the buckets of durations, in microseconds; a last bucket has the rest.
pub(super) const BOUNDS_US: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 10_000_000,
];

/// Classes of status that answers have.
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Hosts that are told apart, since the start. Requests for further ones count for the default site.
const HOSTS_MAX: usize = 100;

const DEFAULT_HOST: &str = "*";

/// The label of requests for which there is no site, and of invalid ones.
const NO_HOST: &str = "";

/// Durations of requests: from the end of the head to when the answer was handed over for sending.
#[derive(Debug, Default)]
pub(super) struct Durations<T> {
    /// Each without those of the buckets before it.
    pub(super) buckets: [T; BOUNDS_US.len() + 1],
    pub(super) sum_us: T,
}

/// The durations of one host on one worker, by class of the status.
#[derive(Debug, Default)]
pub(super) struct HostDurations([Durations<Count>; CLASSES.len()]);

impl HostDurations {
    pub(super) fn observe(&self, status: Status, duration: Duration) {
        let class = &self.0[usize::from(status.as_u16() / 100).clamp(2, 5) - 2];
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // Nearly all are in the first buckets.
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        class.buckets[bucket].add(1);
        class.sum_us.add(us);
    }
}

/// The durations of one worker, by host. The worker writes them; others read them.
#[derive(Debug, Default)]
pub(super) struct WorkerDurations(Mutex<BTreeMap<String, Arc<HostDurations>>>);

impl WorkerDurations {
    /// Those of each site, by its number, and behind them those of requests without a site.
    pub(super) fn of_sites(&self, sites: &Sites) -> Vec<Arc<HostDurations>> {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut find = |label: String| {
            let has_room = hosts.len() < HOSTS_MAX || hosts.contains_key(&label);
            let label = if has_room { label } else { DEFAULT_HOST.to_owned() };
            Arc::clone(hosts.entry(label).or_default())
        };
        let none = find(NO_HOST.to_owned());
        let of_sites =
            sites.names().map(|name| find(name.unwrap_or_else(|| DEFAULT_HOST.to_owned())));
        of_sites.chain([none]).collect()
    }

    /// The sums of those hosts and classes that had requests.
    pub(super) fn sum(
        workers: &[Arc<WorkerDurations>],
    ) -> BTreeMap<(String, &'static str), Durations<u64>> {
        let mut sums: BTreeMap<_, Durations<u64>> = BTreeMap::new();
        for worker in workers {
            let hosts = worker.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for (host, durations) in hosts {
                for (class, counted) in CLASSES.into_iter().zip(&durations.0) {
                    let buckets = counted.buckets.each_ref().map(Count::get);
                    if buckets.iter().any(|count| *count > 0) {
                        let sum = sums.entry((host.clone(), class)).or_default();
                        sum.buckets.iter_mut().zip(buckets).for_each(|(sum, count)| *sum += count);
                        sum.sum_us += counted.sum_us.get();
                    }
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::hosts::Site;

    /// Each reload may bring other hosts.
    #[test]
    fn durations_are_in_their_buckets_and_hosts_have_a_bound() {
        let worker = Arc::new(WorkerDurations::default());
        for number in 0..2 * HOSTS_MAX {
            let mut sites = Sites::new(None);
            let name = format!("h{number}.org").parse().unwrap();
            sites.add(&[name], Site::without_files()).unwrap();
            for us in [0, 100, 101, 10_000_001] {
                worker.of_sites(&sites)[0].observe(Status::OK, Duration::from_micros(us));
            }
        }
        let sums = WorkerDurations::sum(&[worker]);
        assert!(sums.len() <= HOSTS_MAX + 1, "{}", sums.len());
        let Durations { buckets, sum_us } = &sums[&("h0.org".to_owned(), "2xx")];
        assert_eq!((buckets[0], buckets[1], buckets[14], *sum_us), (2, 1, 1, 10_000_202));
        assert!(sums[&(DEFAULT_HOST.to_owned(), "2xx")].buckets[1] >= HOSTS_MAX as u64);
    }
}
