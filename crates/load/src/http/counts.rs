//! The counts of a thread besides requests, errors and latencies.

use super::answer::Answer;
use super::settings::Settings;
use crate::recorder::{Recorder, histogram};
use crate::time_series::TimeSeries;
use hdrhistogram::Histogram;
use std::cell::RefMut;
use std::collections::BTreeMap;
use std::ops::Range;

/// The outcomes of the requests for one URL.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UrlCounts {
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) failed: u64,
}

/// When a request was due, and when it really began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    /// Where latency counts from: in an open loop, when the request was to be sent.
    pub(super) since_ns: u64,
    /// When it was sent, or its connection begun.
    pub(super) began_ns: u64,
}

pub(super) struct Counts {
    /// An open loop: the latency from the actual start differs.
    open: bool,
    /// From when requests really began; of the answers inside the window, in an open loop.
    pub(super) raw_ns: Histogram<u64>,
    /// To the first byte; of the answers inside the window.
    pub(super) ttfb_ns: Histogram<u64>,
    pub(super) connect_ns: Histogram<u64>,
    pub(super) series: TimeSeries,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) content_bytes: u64,
    /// Final answers from 2xx to 5xx, then others.
    pub(super) statuses: [u64; 5],
    /// Final answers inside the window by status.
    pub(super) codes: BTreeMap<u16, u64>,
    pub(super) urls: Vec<UrlCounts>,
    /// Connections that the server did not close in time.
    pub(super) kept_open: u64,
}

/// The counts of a thread, borrowed.
pub(super) struct Books<'w> {
    pub(super) recorder: RefMut<'w, Recorder>,
    pub(super) counts: RefMut<'w, Counts>,
}

impl Counts {
    pub(super) fn new(settings: &Settings) -> Counts {
        Counts {
            open: settings.rate_per_s.is_some(),
            raw_ns: histogram(),
            ttfb_ns: histogram(),
            connect_ns: histogram(),
            series: TimeSeries::new(settings.duration),
            sent_bytes: 0,
            received_bytes: 0,
            content_bytes: 0,
            statuses: [0; 5],
            codes: BTreeMap::new(),
            urls: vec![UrlCounts::default(); settings.targets.len()],
            kept_open: 0,
        }
    }

    fn url(&mut self, target: u32, count: impl Fn(&mut UrlCounts)) {
        self.urls.get_mut(target as usize).into_iter().for_each(count);
    }

    /// A request of `bytes` bytes was begun. Those of HTTP/2 are counted when they are sent.
    pub(super) fn sent(&mut self, target: u32, bytes: usize, now_ns: u64, window: &Range<u64>) {
        self.url(target, |url| url.sent += 1);
        if window.contains(&now_ns) {
            self.sent_bytes += bytes as u64;
        }
    }

    /// A complete answer arrived, valid or not.
    pub(super) fn came(&mut self, answer: &Answer, now_ns: u64, window: &Range<u64>) {
        let class = usize::from(answer.status / 100).wrapping_sub(2).min(4);
        self.statuses[class] += 1;
        if window.contains(&now_ns) {
            *self.codes.entry(answer.status).or_default() += 1;
            self.received_bytes += answer.bytes;
            self.content_bytes += answer.content_bytes;
        }
    }

    /// The last answer was valid.
    pub(super) fn answered(
        &mut self,
        target: u32,
        begin: Begin,
        first_byte_ns: u64,
        now_ns: u64,
        window: &Range<u64>,
    ) {
        self.url(target, |url| url.answered += 1);
        if !window.contains(&now_ns) {
            return;
        }
        // Zero is below the histogram's range; two readings of the clock may be equal.
        let since = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns).max(1);
        self.ttfb_ns.saturating_record(since(begin.began_ns, first_byte_ns));
        if self.open {
            self.raw_ns.saturating_record(since(begin.began_ns, now_ns));
        }
        self.series.answered(since(begin.since_ns, now_ns), now_ns, window);
    }

    /// A request has failed.
    pub(super) fn failed(&mut self, target: u32, now_ns: u64, window: &Range<u64>) {
        self.url(target, |url| url.failed += 1);
        self.series.failed(1, now_ns, window);
    }

    /// Adds the counts of another thread.
    pub(super) fn merge(&mut self, other: Counts) {
        let histograms = [
            (&mut self.raw_ns, other.raw_ns),
            (&mut self.ttfb_ns, other.ttfb_ns),
            (&mut self.connect_ns, other.connect_ns),
        ];
        for (mine, theirs) in histograms {
            // All have the same bounds, so every value fits.
            let _same_bounds = mine.add(&theirs);
        }
        self.series.merge(other.series);
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.content_bytes += other.content_bytes;
        self.kept_open += other.kept_open;
        self.statuses.iter_mut().zip(other.statuses).for_each(|(mine, theirs)| *mine += theirs);
        for (status, count) in other.codes {
            *self.codes.entry(status).or_default() += count;
        }
        for (mine, theirs) in self.urls.iter_mut().zip(other.urls) {
            mine.sent += theirs.sent;
            mine.answered += theirs.answered;
            mine.failed += theirs.failed;
        }
    }
}
