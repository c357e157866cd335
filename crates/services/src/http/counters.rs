//! The counters of the HTTP service. As for every service, each worker writes its own.

use super::Status;
use super::hosts::Sites;
use crate::lock;
use crate::server::Count;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The counters of a worker, which docs/json.md and the metrics explain.
#[derive(Debug, Default, Serialize)]
pub(super) struct WorkerCounters {
    pub(super) closed: Count,
    pub(super) accepted: Count,
    pub(super) refused: Count,
    pub(super) refused_of_address: Count,
    pub(super) reset: Count,
    pub(super) tls_handshakes: Count,
    pub(super) tls_resumed: Count,
    pub(super) tls_failures: Count,
    pub(super) tls_truncated: Count,
    pub(super) proxy_failures: Count,
    pub(super) handshake_timeouts: Count,
    pub(super) http2_connections: Count,
    pub(super) http2_floods: Count,
    pub(super) idle_closed: Count,
    pub(super) header_timeouts: Count,
    pub(super) body_timeouts: Count,
    pub(super) send_timeouts: Count,
    pub(super) cut: Count,
    pub(super) broken_off: Count,
    pub(super) requests: Count,
    pub(super) responses_2xx: Count,
    pub(super) responses_3xx: Count,
    pub(super) responses_4xx: Count,
    pub(super) responses_5xx: Count,
    pub(super) cache_hits: Count,
    pub(super) cache_misses: Count,
    pub(super) cache_loads: Count,
    pub(super) cache_bytes: Count,
    pub(super) cache_files: Count,
    pub(super) compressions: Count,
    pub(super) compression_failures: Count,
    pub(super) compression_saved_bytes: Count,
    pub(super) received_bytes: Count,
    pub(super) sent_bytes: Count,
    pub(super) sent_file_bytes: Count,
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
}

/// The metrics of the counters, and what they show.
pub(super) const METRICS: &[(&str, &str)] = &[
    ("access_log_lines_total", "Lines of the access log, by outcome."),
    ("cache_bytes", "Memory in use for the cache."),
    ("cache_loads_total", "Resources read, because they were new or had changed."),
    ("cache_lookups_total", "Files looked for in the cache."),
    ("cache_open_files", "Files kept open for the cache."),
    ("compression_saved_bytes_total", "Bytes not sent because content was compressed on the fly."),
    ("compressions_total", "Files compressed on the fly, each time for one coding."),
    ("connections_accepted_total", "Connections that were accepted and served."),
    ("connections_ended_early_total", "Connections that neither side ended in order."),
    ("connections_open", "Connections that are open."),
    ("connections_refused_total", "Connections closed at once, by the limit they met."),
    ("http2_connections_total", "Connections that spoke HTTP/2."),
    ("received_bytes_total", "Bytes received."),
    ("responses_total", "Answers, by the class of their status."),
    ("sent_bytes_total", "Bytes passed to the engine for sending, whether they arrived or not."),
    ("sent_file_bytes_total", "Bytes sent from a file, and not from the cache."),
    ("tls_handshakes_total", "TLS handshakes that were completed."),
];

/// Each counter that is shown, with its metric and its label there.
pub(super) const SHOWN: &[(&str, &str, &str)] = &[
    ("log_lines", "access_log_lines_total", r#"result="written""#),
    ("log_dropped", "access_log_lines_total", r#"result="dropped""#),
    ("cache_bytes", "cache_bytes", ""),
    ("cache_loads", "cache_loads_total", ""),
    ("cache_hits", "cache_lookups_total", r#"result="hit""#),
    ("cache_misses", "cache_lookups_total", r#"result="miss""#),
    ("cache_files", "cache_open_files", ""),
    ("compression_saved_bytes", "compression_saved_bytes_total", ""),
    ("compressions_done", "compressions_total", r#"result="done""#),
    ("compression_failures", "compressions_total", r#"result="failed""#),
    ("accepted", "connections_accepted_total", ""),
    ("reset", "connections_ended_early_total", r#"reason="reset""#),
    ("tls_failures", "connections_ended_early_total", r#"reason="tls_failure""#),
    ("tls_truncated", "connections_ended_early_total", r#"reason="tls_truncated""#),
    ("proxy_failures", "connections_ended_early_total", r#"reason="proxy_header""#),
    ("handshake_timeouts", "connections_ended_early_total", r#"reason="handshake_timeout""#),
    ("http2_floods", "connections_ended_early_total", r#"reason="http2_flood""#),
    ("idle_closed", "connections_ended_early_total", r#"reason="idle_timeout""#),
    ("header_timeouts", "connections_ended_early_total", r#"reason="header_timeout""#),
    ("body_timeouts", "connections_ended_early_total", r#"reason="body_timeout""#),
    ("send_timeouts", "connections_ended_early_total", r#"reason="send_timeout""#),
    ("cut", "connections_ended_early_total", r#"reason="drain_timeout""#),
    ("broken_off", "connections_ended_early_total", r#"reason="file_changed""#),
    ("open", "connections_open", ""),
    ("refused", "connections_refused_total", r#"limit="connections""#),
    ("refused_of_address", "connections_refused_total", r#"limit="connections_per_address""#),
    ("http2_connections", "http2_connections_total", ""),
    ("received_bytes", "received_bytes_total", ""),
    ("responses_2xx", "responses_total", r#"class="2xx""#),
    ("responses_3xx", "responses_total", r#"class="3xx""#),
    ("responses_4xx", "responses_total", r#"class="4xx""#),
    ("responses_5xx", "responses_total", r#"class="5xx""#),
    ("sent_bytes", "sent_bytes_total", ""),
    ("sent_file_bytes", "sent_file_bytes_total", ""),
    ("tls_resumed", "tls_handshakes_total", r#"resumed="true""#),
    ("tls_full", "tls_handshakes_total", r#"resumed="false""#),
];

/// Upper bounds of the buckets of durations, in microseconds; a last bucket has the rest.
pub(super) const BOUNDS_US: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 10_000_000,
];

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Hosts that are told apart, since the start. Requests for further ones count for the default site.
const HOSTS_MAX: usize = 100;

const DEFAULT_HOST: &str = "*";

/// The label of requests for which there is no site, and of invalid ones.
const NO_HOST: &str = "";

/// Requests by their duration, from the first byte (HTTP/2: the last of the head) to when the answer was handed over:
/// in each bucket without those of the buckets before it; and the sum of the durations, in microseconds.
pub(super) type Durations<T> = [T; BOUNDS_US.len() + 2];

const SUM: usize = BOUNDS_US.len() + 1;

/// The durations of one host on one worker, by class of the status.
#[derive(Debug, Default)]
pub(super) struct HostDurations([Durations<Count>; CLASSES.len()]);

impl HostDurations {
    pub(super) fn observe(&self, status: Status, duration: Duration) {
        let class = &self.0[usize::from(status.as_u16() / 100).clamp(2, 5) - 2];
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // Nearly all are in the first buckets.
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        class[bucket].add(1);
        class[SUM].add(us);
    }
}

/// The durations of one worker, by host. The worker writes them; others read them.
#[derive(Debug, Default)]
pub(super) struct WorkerDurations(Mutex<BTreeMap<String, Arc<HostDurations>>>);

impl WorkerDurations {
    /// Those of each site, by its number, and behind them those of requests without a site.
    pub(super) fn of_sites(&self, sites: &Sites) -> Vec<Arc<HostDurations>> {
        let mut hosts = lock(&self.0);
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
            let hosts = lock(&worker.0).clone();
            for (host, durations) in hosts {
                for (class, counted) in CLASSES.into_iter().zip(&durations.0) {
                    let sum = sums.entry((host.clone(), class)).or_default();
                    sum.iter_mut().zip(counted).for_each(|(sum, count)| *sum += count.get());
                }
            }
        }
        sums.retain(|_, sum| sum[..SUM].iter().any(|count| *count > 0));
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
            let mut sites = Sites::default();
            let names = vec![format!("h{number}.org").parse().unwrap()];
            sites.add(Site { names, ..Site::default() }).unwrap();
            for us in [0, 100, 101, 10_000_001] {
                worker.of_sites(&sites)[0].observe(Status::OK, Duration::from_micros(us));
            }
        }
        let sums = WorkerDurations::sum(&[worker]);
        assert!(sums.len() <= HOSTS_MAX + 1, "{}", sums.len());
        let first = &sums[&("h0.org".to_owned(), "2xx")];
        assert_eq!((first[0], first[1], first[14], first[SUM]), (2, 1, 1, 10_000_202));
        assert!(sums[&(DEFAULT_HOST.to_owned(), "2xx")][1] >= HOSTS_MAX as u64);
    }
}
