//! The counts of a worker thread: requests, errors, latencies.
//!
//! Each thread has its own recorder and shares nothing while the load runs; the recorders are
//! merged at the end. An event counts for the window if its own time stamp is inside it, so the
//! window has exact ends.

use hdrhistogram::Histogram;
use std::ops::Range;

/// Latencies are recorded from 1 ns to 26 days, which is longer than a window with its warm-up and any timeout may be.
pub(crate) const LATENCY_NS_MAX: u64 = 1 << 51;
/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 3;

/// Why a connection or an attempt to connect was lost, or an answer was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Connect,
    Tls,
    Reset,
    ClosedEarly,
    Timeout,
    /// The received bytes differ from the sent ones.
    Mismatch,
    /// The received bytes are not an answer.
    Malformed,
    Status,
    Length,
    Hash,
    /// HTTP/2: a connection ended by GOAWAY.
    GoAway,
    /// HTTP/2: a request that the server reset.
    StreamReset,
    /// HTTP/2: a request that the server refused to process.
    RefusedStream,
    Other,
}

/// How often each trouble was met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Troubles([u64; Trouble::Other as usize + 1]);

impl Troubles {
    pub(crate) fn count(&self, kind: Trouble) -> u64 {
        self.0[kind as usize]
    }

    /// All kinds together.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn merge(&mut self, other: &Troubles) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// Requests: how many were sent, and their outcomes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
}

impl Requests {
    /// Sent, and neither answered nor failed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.sent - self.answered - self.failed
    }

    fn merge(&mut self, other: Requests) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.failed += other.failed;
    }
}

pub(crate) struct Recorder {
    /// Everything from the first connection to the last byte.
    pub(crate) whole: Requests,
    /// Events before the end of the window; the difference between sent and ended requests was in
    /// flight then.
    pub(crate) until_end: Requests,
    /// Events inside the window.
    pub(crate) window: Requests,
    /// Of the answers inside the window.
    pub(crate) latency_ns: Histogram<u64>,
    /// Of the requests sent inside the window, in an open loop.
    pub(crate) lag_ns: Histogram<u64>,
    /// The sum of those latencies.
    pub(crate) latency_sum_ns: u64,
    pub(crate) troubles: Troubles,
    /// The time and text.
    pub(crate) first_error: Option<(u64, String)>,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            whole: Requests::default(),
            until_end: Requests::default(),
            window: Requests::default(),
            latency_ns: histogram(),
            lag_ns: histogram(),
            latency_sum_ns: 0,
            troubles: Troubles::default(),
            first_error: None,
        }
    }

    /// `count` requests left at `now_ns`.
    pub(crate) fn sent(&mut self, count: u64, now_ns: u64, window: &Range<u64>) {
        self.note(now_ns, window, |requests| requests.sent += count);
    }

    /// A request that was intended for `intended_ns` leaves at `now_ns`.
    pub(crate) fn lagged(&mut self, intended_ns: u64, now_ns: u64, window: &Range<u64>) {
        if window.contains(&now_ns) {
            self.lag_ns.saturating_record(now_ns.saturating_sub(intended_ns));
        }
    }

    /// `count` answers to requests sent at `since_ns` arrived at `now_ns`. True if that is inside
    /// the window.
    pub(crate) fn answered(
        &mut self,
        count: u64,
        since_ns: u64,
        now_ns: u64,
        window: &Range<u64>,
    ) -> bool {
        self.note(now_ns, window, |requests| requests.answered += count);
        let inside = window.contains(&now_ns);
        if inside {
            // Zero is below the histogram's range; two readings of the clock may be equal.
            let latency_ns = now_ns.saturating_sub(since_ns).max(1);
            self.latency_ns.saturating_record_n(latency_ns, count);
            self.latency_sum_ns =
                self.latency_sum_ns.saturating_add(latency_ns.saturating_mul(count));
        }
        inside
    }

    /// `count` requests will not be answered.
    pub(crate) fn failed(&mut self, count: u64, now_ns: u64, window: &Range<u64>) {
        self.note(now_ns, window, |requests| requests.failed += count);
    }

    pub(crate) fn trouble(&mut self, kind: Trouble, now_ns: u64, what: impl FnOnce() -> String) {
        self.troubles.0[kind as usize] += 1;
        if self.first_error.is_none() {
            self.first_error = Some((now_ns, what()));
        }
    }

    fn note(&mut self, now_ns: u64, window: &Range<u64>, add: impl Fn(&mut Requests)) {
        add(&mut self.whole);
        if now_ns < window.end {
            add(&mut self.until_end);
            if now_ns >= window.start {
                add(&mut self.window);
            }
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: Recorder) {
        self.whole.merge(other.whole);
        self.until_end.merge(other.until_end);
        self.window.merge(other.window);
        // Both have the same bounds, so every value fits.
        let _same_bounds = self.latency_ns.add(&other.latency_ns);
        let _same_bounds = self.lag_ns.add(&other.lag_ns);
        self.troubles.merge(&other.troubles);
        let firsts = [self.first_error.take(), other.first_error];
        self.first_error = firsts.into_iter().flatten().min();
    }
}

/// For times in nanoseconds, of any length that a run can have.
pub(crate) fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("the bounds are constants and valid: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_counts_where_its_time_lies() {
        let window = 100..200;
        let mut recorder = Recorder::new();
        for now in [50, 99, 100, 199, 200, 300] {
            recorder.sent(2, now, &window);
            recorder.answered(1, now - 40, now, &window);
        }
        assert_eq!((recorder.whole.sent, recorder.whole.answered), (12, 6));
        assert_eq!((recorder.window.sent, recorder.window.answered), (4, 2));
        assert_eq!(recorder.until_end.in_flight(), 4);
        assert_eq!((recorder.latency_ns.len(), recorder.latency_ns.max()), (2, 40));
    }

    /// More than a minute was a minute.
    #[test]
    fn no_latency_is_beyond_the_range() {
        let week_ns = crate::limits::TIME_MAX.as_nanos() as u64;
        for latency_ns in [1, 75_000_000_000, 3 * week_ns] {
            let mut recorder = Recorder::new();
            recorder.answered(3, 0, latency_ns, &(0..u64::MAX));
            assert_eq!(recorder.latency_ns.len(), 3);
            assert!(recorder.latency_ns.max().abs_diff(latency_ns) <= latency_ns / 1000);
        }
    }

    #[test]
    fn merging_keeps_the_earliest_error() {
        let (mut a, mut b) = (Recorder::new(), Recorder::new());
        a.trouble(Trouble::Reset, 20, || "later".into());
        b.trouble(Trouble::Timeout, 10, || "earlier".into());
        a.merge(b);
        assert_eq!(a.first_error, Some((10, "earlier".into())));
        let counts =
            [Trouble::Reset, Trouble::Timeout, Trouble::Other].map(|k| a.troubles.count(k));
        assert_eq!((counts, a.troubles.total()), ([1, 1, 0], 2));
    }
}
