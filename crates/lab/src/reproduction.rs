//! Whether a published comparison comes out the same here, and whether published figures agree
//! with themselves. Only ratios are compared: two machines have no requests per second in common.

use std::fmt;

use crate::experiment::{Experiment, Axis, Point, Protocol, Printed, Published, PublishedAgainst};
use crate::statistics::Ends;
use crate::statistics::MIN_PAIRS;
use crate::summary::{CellSummary, Comparison, Metric, Verdict};

/// How far two ratios may be apart and still be called the same. A published ratio is of one run
/// or the mean of a few, without an interval; runs of such programs scatter by several percent.
pub(crate) const MARGIN: f64 = 1.05;

/// By which factor a printed mean latency may exceed what Little's law allows, for rounding.
const LITTLE_MARGIN: f64 = 1.1;

/// What a comparison of ours says of a published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// The same within [`MARGIN`]: the same winner by as much, or no winner on either side.
    Reproduced,
    /// The same winner, by less.
    Smaller,
    /// The same winner, by more.
    Larger,
    /// There was a winner, here there is none.
    NoDifference,
    /// There was none, here there is one.
    OnlyHere,
    /// The other one wins.
    Opposite,
    /// Our interval holds the published ratio, but a tie as well.
    Undecided,
    /// The load generator was the bottleneck here, so our ratio does not compare servers.
    ClientBound,
    /// Here are too few pairs, or an audit failed.
    NoVerdict,
    /// The two programs were not measured here.
    NotMeasured,
    /// One of the two was printed without a number.
    NotPublished,
}

impl Outcome {
    /// Every outcome, in the order of a summary.
    pub(crate) const ALL: [Outcome; 11] = [
        Outcome::Reproduced,
        Outcome::Smaller,
        Outcome::Larger,
        Outcome::NoDifference,
        Outcome::OnlyHere,
        Outcome::Opposite,
        Outcome::Undecided,
        Outcome::ClientBound,
        Outcome::NoVerdict,
        Outcome::NotMeasured,
        Outcome::NotPublished,
    ];
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Reproduced => "reproduced",
            Outcome::Smaller => "same direction, smaller here",
            Outcome::Larger => "same direction, larger here",
            Outcome::NoDifference => "not reproduced: no difference detected",
            Outcome::OnlyHere => "not reproduced: a difference here only",
            Outcome::Opposite => "not reproduced: opposite",
            Outcome::Undecided => "undecided: too wide an interval",
            Outcome::ClientBound => "not judged: the load generator was the bottleneck",
            Outcome::NoVerdict => "not judged: too few pairs or a failed audit",
            Outcome::NotMeasured => "not measured here",
            Outcome::NotPublished => "no number was published",
        })
    }
}

/// A published ratio of requests per second beside one of ours.
pub(crate) struct Beside<'a> {
    pub(crate) published: &'a Published,
    pub(crate) against: &'a PublishedAgainst,
    /// What the program was measured with.
    pub(crate) printed: Printed<'a>,
    /// The published ratio of the program to the other one, if both have a number.
    pub(crate) ratio: Option<f64>,
    /// Our subject and our baseline.
    pub(crate) here: &'a [String; 2],
    /// Our cell and comparison of the same work, if it was measured.
    pub(crate) ours: Option<(&'a CellSummary, &'a Comparison)>,
}

impl Beside<'_> {
    pub(crate) fn outcome(&self) -> Outcome {
        match (self.ratio, self.ours) {
            (None, _) => Outcome::NotPublished,
            (_, None) => Outcome::NotMeasured,
            (Some(ratio), Some((_, comparison))) => outcome_of(ratio, comparison),
        }
    }
}

fn outcome_of(published: f64, comparison: &Comparison) -> Outcome {
    if comparison.throughput_is_client_bound {
        return Outcome::ClientBound;
    }
    let voided = matches!(comparison.verdict, Verdict::Void { .. });
    match comparison.ratio(Metric::RequestsPerS) {
        Some(interval) if comparison.pairs >= MIN_PAIRS && !voided => {
            interval.ends.map_or(Outcome::NoVerdict, |ends| judge(published, interval.ratio, ends))
        }
        _ => Outcome::NoVerdict,
    }
}

/// What a ratio of ours and its interval say of a published ratio.
pub(crate) fn judge(published: f64, ratio: f64, ours: Ends) -> Outcome {
    let differed = !(1.0 / MARGIN..=MARGIN).contains(&published);
    let differs = ours.excludes_one();
    let near = ours.low / MARGIN <= published && published <= ours.high * MARGIN;
    match (differed, differs) {
        (true, true) if (published > 1.0) != (ratio > 1.0) => Outcome::Opposite,
        (_, true) if near => Outcome::Reproduced,
        (true, true) if ratio.ln().abs() < published.ln().abs() => Outcome::Smaller,
        (true, true) => Outcome::Larger,
        (false, true) => Outcome::OnlyHere,
        (true, false) if ours.low <= published && published <= ours.high => Outcome::Undecided,
        (true, false) => Outcome::NoDifference,
        // A tie is shown by an interval that has no room for anything else.
        (false, false) if ours.low >= 1.0 / MARGIN.powi(2) && ours.high <= MARGIN.powi(2) => {
            Outcome::Reproduced
        }
        (false, false) => Outcome::Undecided,
    }
}

/// Every published comparison beside those of ours that answer it, in the order of the file.
pub(crate) fn beside<'a>(experiment: &'a Experiment, cells: &'a [CellSummary]) -> Vec<Beside<'a>> {
    let mut all = Vec::new();
    for published in &experiment.published {
        let Some(against) = published.against() else { continue };
        let other = experiment.published.iter().find(|other| {
            other.source() == published.source() && other.program() == against.program
        });
        let others = other.map(Published::printed).unwrap_or_default();
        for printed in published.printed() {
            let same = |it: &&Printed<'_>| {
                (it.connections, it.bytes) == (printed.connections, printed.bytes)
            };
            let divisor = others.iter().find(same).and_then(|it| it.requests_per_s);
            let ratio = printed.requests_per_s.zip(divisor).map(|(number, other)| number / other);
            for here in pairs_here(experiment, against) {
                let mut ours = comparisons(published, printed, here, cells).peekable();
                let beside = |ours| Beside { published, against, printed, ratio, here, ours };
                if ours.peek().is_none() {
                    all.push(beside(None));
                }
                all.extend(ours.map(|ours| beside(Some(ours))));
            }
        }
    }
    all
}

/// The pairs of ours whose subjects are in the experiment; if none is, the first of them, so that
/// what was published is shown all the same.
fn pairs_here<'a>(
    experiment: &Experiment,
    against: &'a PublishedAgainst,
) -> impl Iterator<Item = &'a [String; 2]> {
    let is_in = |name: &String| experiment.subjects.iter().any(|subject| subject.name == *name);
    let mut pairs: Vec<_> = against.here.iter().filter(|pair| pair.iter().all(is_in)).collect();
    if pairs.is_empty() {
        pairs.extend(against.here.first());
    }
    pairs.into_iter()
}

/// Our comparisons of the same work, one for each network.
fn comparisons<'a>(
    published: &'a Published,
    printed: Printed<'a>,
    here: &'a [String; 2],
    cells: &'a [CellSummary],
) -> impl Iterator<Item = (&'a CellSummary, &'a Comparison)> {
    let same_work = move |cell: &&CellSummary| is_same_work(published, &printed, cell);
    cells.iter().filter(same_work).filter_map(move |cell| {
        let [subject, baseline] = here;
        let is_it = |it: &&Comparison| it.subject == *subject && it.baseline == *baseline;
        Some((cell, cell.comparisons.iter().find(is_it)?))
    })
}

/// Whether a cell is of the work that was published: the same connections and bytes, one request
/// in flight on connections that stay.
pub(crate) fn is_same_work(
    published: &Published,
    printed: &Printed<'_>,
    cell: &CellSummary,
) -> bool {
    let protocol = match published {
        Published::Echo(_) => Protocol::Tcp,
        Published::Requests(_) => Protocol::Http,
        Published::Datagrams(_) => return false,
    };
    let asked = [(Axis::Connections, printed.connections), (Axis::Bytes, printed.bytes)];
    Point::new(protocol, &asked).is_ok_and(|point| point == cell.cell.point)
}

/// The longest mean latency in milliseconds that a closed loop of `connections` can have at
/// this rate: Little's law, with every connection waiting all the time.
pub(crate) fn longest_mean_ms(connections: u32, requests_per_s: f64) -> f64 {
    f64::from(connections) / requests_per_s * 1e3
}

/// The printed measurements whose mean latency contradicts their own rate, each with the longest
/// mean in milliseconds that its rate allows.
pub(crate) fn contradictions(published: &Published) -> Vec<(Printed<'_>, f64)> {
    let contradicted = |printed: Printed<'_>| {
        let longest_ms = longest_mean_ms(printed.connections, printed.requests_per_s?);
        (printed.mean_ms? > longest_ms * LITTLE_MARGIN).then_some(longest_ms)
    };
    let printed = published.printed().into_iter();
    printed.filter_map(|printed| Some((printed, contradicted(printed)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_ratio_is_judged_by_side_size_and_interval() {
        for (published, low, high, expected) in [
            // Inside, or within 5 % of an end on the same side.
            (1.50, 1.45, 1.60, Outcome::Reproduced),
            (1.50, 1.30, 1.43, Outcome::Reproduced),
            (1.50, 1.30, 1.42, Outcome::Smaller),
            (1.20, 1.30, 1.42, Outcome::Larger),
            (0.70, 0.80, 0.90, Outcome::Smaller),
            (0.80, 0.60, 0.70, Outcome::Larger),
            (1.50, 0.97, 1.02, Outcome::NoDifference),
            (1.50, 0.80, 0.90, Outcome::Opposite),
            (0.80, 1.05, 1.10, Outcome::Opposite),
            // Both 1 and the published ratio are inside: the data decide nothing.
            (1.50, 0.90, 1.60, Outcome::Undecided),
            // No difference was published either.
            (1.00, 0.97, 1.02, Outcome::Reproduced),
            (0.97, 0.99, 1.04, Outcome::Reproduced),
            (1.00, 0.70, 1.40, Outcome::Undecided),
            (1.00, 1.20, 1.40, Outcome::OnlyHere),
            (1.02, 1.03, 1.06, Outcome::Reproduced),
        ] {
            let found = judge(published, f64::sqrt(low * high), Ends { low, high });
            assert_eq!(found, expected, "{published} in [{low}, {high}]");
        }
    }

    /// The write-up prints 42.39 ms at 500 connections and 132,630 requests/s.
    #[test]
    fn littles_law_finds_the_means_that_cannot_be() {
        assert!((longest_mean_ms(500, 132_630.0) - 3.770).abs() < 0.001);
        let experiment = Experiment::find("published-nginx").unwrap();
        for published in &experiment.published {
            let found = contradictions(published);
            // All of 500 connections, none of 100.
            assert_eq!(found.len(), 4, "{}", published.program());
            assert!(found.iter().all(|(printed, _)| printed.connections == 500));
        }
        let epoll = contradictions(&experiment.published[1]);
        let (printed, longest_ms) = epoll[0];
        assert_eq!((printed.bytes, printed.mean_ms), (512, Some(42.39)));
        assert!((42.39 / longest_ms - 11.24).abs() < 0.01, "{longest_ms}");
    }
}
