//! The counters of the HTTP service. As for every service, each worker writes its own.

use super::Status;
use crate::server::{Count, Work};
use serde::Serialize;
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters of one worker.
        #[derive(Debug, Default)]
        pub(super) struct WorkerCounters {
            /// Microseconds of the exchanges that were observed, and their number.
            latency_us: Count,
            latencies: Count,
            $(pub(super) $name: Count,)*
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
            $($(#[$doc])* pub $name: u64,)*
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
    closed,
    /// Connections that were accepted and served.
    accepted,
    /// Connections accepted and closed immediately because of the maximum.
    refused,
    /// The same, because of the maximum per address.
    refused_of_address,
    /// Connections that ended with an error: the peer reset them or became unreachable.
    reset,
    /// TLS handshakes that were completed.
    tls_handshakes,
    /// Handshakes that resumed an earlier session.
    tls_resumed,
    /// Connections that did not speak TLS, or nothing that both ends support.
    tls_failures,
    /// Connections that the peer ended without close_notify.
    tls_truncated,
    /// Connections of proxies that did not begin with a header of the PROXY protocol.
    proxy_failures,
    /// Connections reset because the handshake was not done in time.
    handshake_timeouts,
    /// Connections that spoke HTTP/2.
    http2_connections,
    /// Connections ended because their requests were a flood: mostly reset before their answers, or
    /// in frames without content.
    http2_floods,
    /// Connections closed between two requests, after the idle timeout.
    idle_closed,
    /// Connections closed because the head of a request did not arrive in time.
    header_timeouts,
    /// The same for its body.
    body_timeouts,
    /// Connections reset because the peer did not read an answer.
    send_timeouts,
    /// Connections cut at the drain timeout, with work unfinished.
    cut,
    /// Answers broken off because the file was changed.
    broken_off,
    /// Requests that were answered, with any status.
    requests,
    /// Answers with a status of 200 to 299.
    responses_2xx,
    /// With 300 to 399.
    responses_3xx,
    /// With 400 to 499.
    responses_4xx,
    /// With 500 to 599.
    responses_5xx,
    /// Requests answered from the cache, without asking the file system.
    cache_hits,
    /// Requests that needed a lookup in the file system.
    cache_misses,
    /// Times that a resource was read because it was not in the cache, or had changed.
    cache_loads,
    /// Memory in use for the cache.
    cache_bytes,
    /// Files kept open for the cache.
    cache_files,
    /// Files that were compressed on the fly, each time for one coding.
    compressions,
    /// Those of them that failed.
    compression_failures,
    /// Bytes of content that were not sent because it was compressed on the fly.
    compression_saved_bytes,
    /// Bytes received.
    received_bytes,
    /// Bytes passed to the engine for sending, including those dropped by a broken connection.
    sent_bytes,
    /// Bytes sent from a file, and not from the cache.
    sent_file_bytes,
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

    /// Counts the duration of an observed exchange.
    pub(super) fn count_latency(&self, duration: Duration) {
        self.latency_us.add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        self.latencies.add(1);
    }

    /// The work of this worker.
    pub(super) fn work(&self) -> Work {
        let (closed, accepted) = (self.closed.get(), self.accepted.get());
        let bytes = self.received_bytes.get() + self.sent_bytes.get();
        let open = accepted.saturating_sub(closed);
        let (latency_us, latencies) = (self.latency_us.get(), self.latencies.get());
        Work { units: self.requests.get(), bytes, accepted, open, latency_us, latencies }
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
