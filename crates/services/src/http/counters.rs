//! What the HTTP service counts. As for every service, each worker writes its own.

use super::status::Status;
use crate::server::Count;
use serde::Serialize;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters of one worker.
        #[derive(Debug, Default)]
        pub(super) struct WorkerCounters {
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
    /// Further ones, accepted and closed at once because there were too many.
    refused,
    /// The same, because there were too many of one address.
    refused_of_address,
    /// Connections that ended with an error: the peer reset them or became unreachable.
    reset,
    /// TLS handshakes that were completed.
    tls_handshakes,
    /// Those of them that resumed an earlier session.
    tls_resumed,
    /// Connections on which something else came than TLS, or nothing that both ends can speak.
    tls_failures,
    /// Connections whose peer ended them without saying so (close_notify).
    tls_truncated,
    /// Connections reset because the handshake was not done in time.
    handshake_timeouts,
    /// Connections closed between two requests, after the idle timeout.
    idle_closed,
    /// Connections closed because the head of a request did not come in time.
    header_timeouts,
    /// The same for its body.
    body_timeouts,
    /// Connections reset because an answer was not taken.
    send_timeouts,
    /// Connections cut at the drain timeout, with work unfinished.
    cut,
    /// Answers that were broken off because the file was changed meanwhile.
    broken_off,
    /// Requests that were answered, with any status.
    requests,
    /// Those of them with a status of 200 to 299.
    responses_2xx,
    /// With 300 to 399.
    responses_3xx,
    /// With 400 to 499.
    responses_4xx,
    /// With 500 to 599.
    responses_5xx,
    /// Requests answered from the cache, without asking the file system.
    cache_hits,
    /// Requests for which it was asked.
    cache_misses,
    /// Times that a resource was read because it was not in the cache, or had changed.
    cache_loads,
    /// Memory in use for the cache.
    cache_bytes,
    /// Files kept open for the cache.
    cache_files,
    /// Bytes received.
    received_bytes,
    /// Bytes handed over to the engine for sending; what a broken connection dropped is included.
    sent_bytes,
    /// Those of them that were sent from a file, and not from the cache.
    sent_file_bytes,
}

impl WorkerCounters {
    pub(super) fn count_answer(&self, status: Status) {
        self.requests.add(1);
        let class = match status.code() / 100 {
            2 => &self.responses_2xx,
            3 => &self.responses_3xx,
            4 => &self.responses_4xx,
            _ => &self.responses_5xx,
        };
        class.add(1);
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
