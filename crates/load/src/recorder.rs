//! The counts of a worker thread: requests, errors, latencies.
//!
//! Each thread has its own recorder and shares nothing while the load runs; the recorders are
//! merged at the end. An event counts for the window if its own time stamp is inside it, so the
//! window has exact ends.

use crate::requests::{OVERDUE, Unsent};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use twinring_wire::http::HttpErrors;
use twinring_wire::load::Cpu;
use twinring_wire::requests::Connections;

/// Latencies are recorded from 1 ns to 26 days, which is longer than a window with its warm-up and any timeout may be.
pub(crate) const LATENCY_NS_MAX: u64 = 1 << 51;
/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 3;

/// The counter of a kind of error. Those of TCP are among those of HTTP: a `hash` is a difference of any content.
pub(crate) type Trouble = fn(&mut HttpErrors) -> &mut u64;

/// Requests: how many were sent, and their outcomes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// Sent, and neither answered nor failed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.sent - self.answered - self.failed
    }

    fn merge(&mut self, other: Counts) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.failed += other.failed;
    }
}

/// A request that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// Where latency counts from: in an open loop, when the request was to be sent.
    pub(crate) since_ns: u64,
    /// When it was sent, or its connection begun.
    pub(crate) began_ns: u64,
    pub(crate) target: u32,
    /// Taken from the quota of `-n`.
    pub(crate) drawn: bool,
}

#[derive(Default)]
pub(crate) struct Recorder {
    /// The measured window; set again before each poll of a connection, because its end may come earlier than planned.
    pub(crate) range_ns: Range<u64>,
    /// An open loop: the latency from the actual start differs.
    open: bool,
    /// Everything from the first connection to the last byte.
    pub(crate) whole: Counts,
    /// Events before the end of the window; the difference between sent and ended requests was in
    /// flight then.
    pub(crate) until_end: Counts,
    pub(crate) window: Counts,
    /// Of the answers inside the window.
    pub(crate) latency_ns: Durations,
    /// The sum of those latencies.
    pub(crate) latency_sum_ns: u64,
    /// Of the same answers from when their requests really began, in an open loop.
    pub(crate) raw_ns: Durations,
    /// To their first byte, where answers have a head.
    pub(crate) first_byte_ns: Durations,
    /// Of the requests sent inside the window, in an open loop.
    pub(crate) lag_ns: Durations,
    pub(crate) connect_ns: Durations,
    /// Bytes inside the window: of requests, of answers, of their content.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) content_bytes: u64,
    pub(crate) codes: BTreeMap<u16, u64>,
    /// By URL, over the whole run.
    pub(crate) urls: Vec<Counts>,
    /// TLS handshakes, and how many of them resumed a session.
    pub(crate) handshakes: u64,
    pub(crate) resumed: u64,
    /// Protocol and cipher suite of the first handshake.
    pub(crate) agreed: Option<[String; 2]>,
    /// The fewest streams that a server of HTTP/2 allowed on a connection.
    pub(crate) streams_max: Option<u64>,
    pub(crate) errors: HttpErrors,
    /// The time and text.
    pub(crate) first_error: Option<(u64, String)>,
    pub(crate) connections: Connections,
    // The rest is known when the run has ended.
    /// Requests of an open loop that were due inside the window; `None` if there is no schedule.
    pub(crate) due: Option<u64>,
    /// Of an open loop.
    pub(crate) unsent: Unsent,
    /// The waiting times of requests without an answer.
    pub(crate) unanswered_ns: Durations,
    /// Age of the oldest of them since it was sent.
    pub(crate) oldest_ns: u64,
    pub(crate) cpu: Cpu,
}

/// Zero is below the range of histograms; two readings of the clock may be equal.
fn since(from_ns: u64, to_ns: u64) -> u64 {
    to_ns.saturating_sub(from_ns).max(1)
}

impl Recorder {
    /// Of an open loop or a closed one, for so many URLs.
    pub(crate) fn new(open: bool, urls: usize) -> Recorder {
        let urls = vec![Counts::default(); urls];
        Recorder { range_ns: u64::MAX..u64::MAX, open, urls, ..Recorder::default() }
    }

    fn url(&mut self, target: u32, count: impl Fn(&mut Counts)) {
        self.urls.get_mut(target as usize).into_iter().for_each(count);
    }

    /// A request of `bytes` bytes leaves. Bytes of HTTP/2 are counted when they are sent.
    pub(crate) fn sent(&mut self, request: &Begun, bytes: u64) {
        let now_ns = request.began_ns;
        self.note(now_ns, |requests| requests.sent += 1);
        self.url(request.target, |url| url.sent += 1);
        if self.range_ns.contains(&now_ns) {
            self.sent_bytes += bytes;
            if self.open {
                self.lag_ns.saturating_record(now_ns.saturating_sub(request.since_ns));
            }
        }
    }

    /// A complete answer arrived, valid or not: its status, all its bytes, and those of its content.
    pub(crate) fn came(&mut self, status: u16, bytes: u64, content_bytes: u64, now_ns: u64) {
        if self.range_ns.contains(&now_ns) {
            *self.codes.entry(status).or_default() += 1;
            self.received_bytes += bytes;
            self.content_bytes += content_bytes;
        }
    }

    /// `count` answers to requests that began together arrived at `now_ns`. True if that is inside the window.
    pub(crate) fn answered(&mut self, request: &Begun, count: u64, now_ns: u64) -> bool {
        self.note(now_ns, |requests| requests.answered += count);
        self.url(request.target, |url| url.answered += count);
        let inside = self.range_ns.contains(&now_ns);
        if inside {
            let latency_ns = since(request.since_ns, now_ns);
            self.latency_ns.saturating_record_n(latency_ns, count);
            self.latency_sum_ns =
                self.latency_sum_ns.saturating_add(latency_ns.saturating_mul(count));
            if self.open {
                self.raw_ns.saturating_record_n(since(request.began_ns, now_ns), count);
            }
        }
        inside
    }

    /// The first byte of an answer inside the window.
    pub(crate) fn first_byte(&mut self, request: &Begun, first_byte_ns: u64) {
        self.first_byte_ns.saturating_record(since(request.began_ns, first_byte_ns));
    }

    /// `count` requests that began together will not be answered as they should.
    pub(crate) fn failed(&mut self, request: &Begun, count: u64, now_ns: u64) {
        self.note(now_ns, |requests| requests.failed += count);
        self.url(request.target, |url| url.failed += count);
    }

    pub(crate) fn trouble(&mut self, kind: Trouble, now_ns: u64, what: impl FnOnce() -> String) {
        *kind(&mut self.errors) += 1;
        self.first_error.get_or_insert_with(|| (now_ns, what()));
    }

    fn note(&mut self, now_ns: u64, add: impl Fn(&mut Counts)) {
        add(&mut self.whole);
        if now_ns < self.range_ns.end {
            add(&mut self.until_end);
            if now_ns >= self.range_ns.start {
                add(&mut self.window);
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Recorder) {
        self.whole.merge(other.whole);
        self.until_end.merge(other.until_end);
        self.window.merge(other.window);
        self.latency_ns.merge(&other.latency_ns);
        self.raw_ns.merge(&other.raw_ns);
        self.first_byte_ns.merge(&other.first_byte_ns);
        self.lag_ns.merge(&other.lag_ns);
        self.connect_ns.merge(&other.connect_ns);
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.content_bytes += other.content_bytes;
        for (status, count) in other.codes {
            *self.codes.entry(status).or_default() += count;
        }
        self.urls.iter_mut().zip(other.urls).for_each(|(mine, theirs)| mine.merge(theirs));
        self.handshakes += other.handshakes;
        self.resumed += other.resumed;
        self.agreed = self.agreed.take().or(other.agreed);
        self.streams_max = [self.streams_max, other.streams_max].into_iter().flatten().min();
        self.errors.add(&other.errors);
        let firsts = [self.first_error.take(), other.first_error];
        self.first_error = firsts.into_iter().flatten().min();
        self.connections.add(&other.connections);
        self.due = [self.due, other.due].into_iter().flatten().reduce(|a, b| a + b);
        self.unsent.merge(&other.unsent);
        self.unanswered_ns.merge(&other.unanswered_ns);
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
        self.cpu.add(&other.cpu);
    }

    /// The waiting times of requests without hope: unanswered at the end of the run, for longer
    /// than [`OVERDUE`] and than any answer took. A server that stops leaves such requests; one
    /// that is slow, but answers, does not.
    pub(crate) fn hopeless_ns(&self) -> Durations {
        let slowest_ns = self.latency_ns.max().max(OVERDUE.as_nanos() as u64);
        let mut hopeless_ns = Durations::default();
        for waited in self.unanswered_ns.iter_recorded() {
            if waited.value_iterated_to() > slowest_ns {
                let (value_ns, count) = (waited.value_iterated_to(), waited.count_at_value());
                hopeless_ns.saturating_record_n(value_ns, count);
            }
        }
        hopeless_ns
    }
}

/// How often times occurred, in nanoseconds, of any length that a run can have.
#[derive(Clone, Debug)]
pub(crate) struct Durations(Histogram<u64>);

impl Default for Durations {
    fn default() -> Durations {
        match Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS) {
            Ok(histogram) => Durations(histogram),
            Err(error) => unreachable!("the bounds are constants and valid: {error}"),
        }
    }
}

impl Durations {
    pub(crate) fn merge(&mut self, other: &Durations) {
        // All have the same bounds, so every value fits.
        let _same_bounds = self.0.add(&other.0);
    }
}

impl Deref for Durations {
    type Target = Histogram<u64>;

    fn deref(&self) -> &Histogram<u64> {
        &self.0
    }
}

impl DerefMut for Durations {
    fn deref_mut(&mut self) -> &mut Histogram<u64> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(since_ns: u64, began_ns: u64) -> Begun {
        Begun { since_ns, began_ns, target: 0, drawn: false }
    }

    #[test]
    fn an_event_counts_where_its_time_lies() {
        let mut recorder = Recorder::new(true, 1);
        recorder.range_ns = 100..200;
        for now in [50, 99, 100, 199, 200, 300] {
            recorder.sent(&request(now - 10, now), 5);
            recorder.sent(&request(now - 10, now), 5);
            recorder.answered(&request(now - 40, now - 30), 1, now);
        }
        assert_eq!((recorder.whole.sent, recorder.whole.answered), (12, 6));
        assert_eq!((recorder.window.sent, recorder.window.answered), (4, 2));
        assert_eq!(recorder.until_end.in_flight(), 4);
        assert_eq!((recorder.latency_ns.len(), recorder.latency_ns.max()), (2, 40));
        assert_eq!(
            (recorder.raw_ns.max(), recorder.lag_ns.max(), recorder.sent_bytes),
            (30, 10, 20)
        );
        assert_eq!((recorder.urls[0].sent, recorder.urls[0].answered), (12, 6));
        let mut all = Counts { sent: 9, answered: 4, failed: 2 };
        all.merge(Counts { sent: 5, answered: 1, failed: 1 });
        assert_eq!((all.sent, all.answered, all.failed, all.in_flight()), (14, 5, 3, 6));
    }

    /// More than a minute was a minute.
    #[test]
    fn no_latency_is_beyond_the_range() {
        let week_ns = crate::settings::TIME_MAX.as_nanos() as u64;
        for latency_ns in [1, 75_000_000_000, 3 * week_ns] {
            let mut recorder = Recorder::new(false, 0);
            recorder.range_ns = latency_ns..u64::MAX;
            recorder.answered(&request(0, 0), 3, latency_ns);
            assert_eq!(recorder.latency_ns.len(), 3);
            assert!(recorder.latency_ns.max().abs_diff(latency_ns) <= latency_ns / 1000);
        }
    }

    /// A server that is slow, but answers, has requests in flight at any end, and they are no errors.
    #[test]
    fn only_what_waits_for_longer_than_any_answer_took_is_without_hope() {
        let mut recorder = Recorder::new(false, 0);
        recorder.range_ns = 0..u64::MAX;
        for (answered_ms, waited_ms, hopeless) in
            [(1, 900, 0), (1, 1100, 1), (2000, 1900, 0), (2000, 2100, 1)]
        {
            recorder.answered(&request(0, 0), 1, answered_ms * 1_000_000);
            recorder.unanswered_ns.record(waited_ms * 1_000_000).unwrap();
            assert_eq!(recorder.hopeless_ns().len(), hopeless, "{waited_ms}");
        }
    }
}
