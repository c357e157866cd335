//! Verdicts as sentences, with the figures they rest on.

use super::numbers::{NOTHING, ends, saved_percent, share, short};
use crate::experiment::Protocol;
use crate::statistics::{Ends, Interval, MAX_REQUIRED_PAIRS, Spread};
use crate::summary::{
    CellSummary, Claim, Comparison, Judgement, LeftOut, Metric, OnOccasion, Pairs, Placed, Record,
    RequiredPairs, Resolution, Verdict, WouldChange,
};

/// An interval with its level, in a sentence.
fn at_level(ends: Option<Ends>, confidence: f64) -> String {
    // One decimal where it is no whole number: 96.4 %.
    let percent = (confidence * 1000.0).round() / 10.0;
    match ends {
        Some(Ends { low, high }) => format!("{percent} % interval {low:.3} to {high:.3}"),
        None => format!("too few pairs for a {percent} % interval"),
    }
}

/// The verdict in words, and the figures it rests on.
pub(super) fn claim_and_figures(
    cell: &CellSummary,
    comparison: &Comparison,
) -> (String, Option<String>) {
    let Comparison { subject, baseline, verdict, .. } = comparison;
    let record = of_record(comparison.record, cell.cell.protocol());
    let both = || format!("{subject} and {baseline}: {verdict}");
    match (verdict, comparison.of_record()) {
        (
            Verdict::Ahead { winner, .. }
            | Verdict::NotAfterCorrection { claim: Claim::Ahead, winner, .. }
            | Verdict::AaFailed { winner },
            Some(interval),
        ) => {
            let Interval { ratio, ends, pairs, .. } = *interval;
            // From the winner's side, whichever is the baseline.
            let inverted = winner == baseline;
            let (loser, ratio, ends) = match inverted {
                true => (subject, 1.0 / ratio, ends.map(Ends::inverse)),
                false => (baseline, ratio, ends),
            };
            let figures = format!(
                "{:.1} % less {record}; {loser} needs {ratio:.3} times as much, {}, {pairs} pairs{}{}",
                saved_percent(ratio),
                at_level(ends, comparison.confidence),
                q_value(comparison),
                beside(comparison, inverted)
            );
            (verdict.to_string(), Some(figures))
        }
        (
            Verdict::NoDifference { would_have_seen_percent: seen }
            | Verdict::Equivalent { would_have_seen_percent: seen, .. }
            | Verdict::AaPassed { would_have_seen_percent: seen },
            Some(interval),
        ) => {
            let Interval { ratio, ends, pairs, .. } = interval;
            let (range, resolution) = match (verdict, comparison.equivalence) {
                // The interval of the test that it rests on.
                (Verdict::Equivalent { .. }, Some(it)) => {
                    (at_level(it.ends, it.confidence), String::new())
                }
                _ => (at_level(*ends, comparison.confidence), resolution(comparison, *seen)),
            };
            let figures = format!(
                "{baseline} needs {ratio:.3} times the {}, {range}, {pairs} pairs{resolution}{}",
                record.replacen(" per ", &format!(" of {subject} per "), 1),
                beside(comparison, false)
            );
            (both(), Some(figures))
        }
        (Verdict::OnlyOneKeepsRate { .. } | Verdict::NotAfterCorrection { .. }, _) => {
            (verdict.to_string(), kept_up(cell, comparison))
        }
        (Verdict::UnequalWork { .. }, _) => (both(), kept_up(cell, comparison)),
        (Verdict::TooFewPairs { .. } | Verdict::TooFewOccasions { .. }, _) => {
            let all = beside(comparison, false);
            (both(), all.strip_prefix("; ").map(str::to_owned))
        }
        _ => (both(), None),
    }
}

/// What stands beside a verdict: the ratio over all pairs if some are left out, over each placement of
/// the CPUs if there were several, what is left out, and what would change the verdict. `inverted` is
/// from the baseline's side.
fn beside(comparison: &Comparison, inverted: bool) -> String {
    let mut parts = vec![occasions(comparison, inverted)];
    if let Some(all) = &comparison.all_pairs {
        let shown = |ratio: f64, range: Option<Ends>| match inverted {
            true => ends(1.0 / ratio, range.map(Ends::inverse)),
            false => ends(ratio, range),
        };
        if !all.left_out.is_empty() {
            let why = |it: &LeftOut| format!("{} {}", it.pairs, it.why.title());
            let why: Vec<String> = all.left_out.iter().map(why).collect();
            let ratio = all.ratio.map_or(NOTHING.to_owned(), |ratio| shown(ratio, all.ends));
            let (pairs, why) = (Pairs(all.pairs), why.join(", "));
            parts.push(format!("{ratio} over all {pairs} (left out: {why})"));
        }
        let placed = |it: &Placed| {
            let Placed { placement, ratio } = it;
            let pairs = Pairs(ratio.pairs);
            format!("{} over {pairs} {placement}", shown(ratio.ratio, ratio.ends))
        };
        let placed: Vec<String> = all.placed.iter().map(placed).collect();
        parts.extend((!placed.is_empty()).then(|| placed.join(", ")));
    }
    let would_change = would_change(comparison);
    parts.extend((!would_change.is_empty()).then(|| format!("would change with {would_change}")));
    parts.iter().map(|part| format!("; {part}")).collect()
}

/// The ratio on each occasion and how far apart they are, or that there was one only.
fn occasions(comparison: &Comparison, inverted: bool) -> String {
    let Some(Spread { percent, occasions }) = comparison.spread else {
        return "one occasion".to_owned();
    };
    let one = |it: &OnOccasion| {
        let Interval { ratio, ends: range, .. } = it.ratio;
        match inverted {
            true => ends(1.0 / ratio, range.map(Ends::inverse)),
            false => ends(ratio, range),
        }
    };
    let ratios: Vec<String> = comparison.occasions.iter().map(one).collect();
    format!("{occasions} occasions, {percent:.1} % apart: {}", ratios.join(", "))
}

/// Which other choice of pairs would lead to which verdict.
fn would_change(comparison: &Comparison) -> String {
    let one = |it: &WouldChange| {
        let to = match it.to {
            Judgement::SubjectAhead => format!("{} ahead", comparison.subject),
            Judgement::BaselineAhead => format!("{} ahead", comparison.baseline),
            Judgement::Equivalent => "equivalent".to_owned(),
            Judgement::NoDifference => "no difference detected".to_owned(),
        };
        format!("{} ({to})", it.with.title())
    };
    comparison.would_change.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The q value, where it took the claim back.
fn q_value(comparison: &Comparison) -> String {
    match (&comparison.verdict, comparison.q_value) {
        (Verdict::NotAfterCorrection { .. }, Some(q_value)) => format!(", q = {q_value:.3}"),
        _ => String::new(),
    }
}

/// How many pairs would detect less than `seen` percent; for a subject and itself, what numbers of
/// pairs detect.
fn resolution(comparison: &Comparison, seen: f64) -> String {
    if let Some(aa) = &comparison.aa {
        let one = |it: &Resolution| format!("{} pairs detect {:.1} %", it.pairs, it.percent);
        let seen: Vec<String> = aa.resolution.iter().map(one).collect();
        return if seen.is_empty() { String::new() } else { format!("; {}", seen.join(", ")) };
    }
    let mut smaller = comparison.required_pairs.iter().filter(|it| it.percent < seen);
    let pairs = |it: &RequiredPairs| match it.pairs {
        Some(pairs) => format!("{} % would take about {pairs} pairs", it.percent),
        None => format!("{} % would take more than {MAX_REQUIRED_PAIRS} pairs", it.percent),
    };
    // The largest that was not seen is the next one to ask for.
    smaller.next_back().map_or(String::new(), |it| format!("; {}", pairs(it)))
}

/// The primary metric in words.
pub(super) fn of_record(record: Record, protocol: Protocol) -> String {
    let cpu = match record {
        Record::ServerCpu => "server CPU",
        Record::BothCpus => "CPU on both sides",
    };
    format!("{cpu} per {}", protocol.unit())
}

/// How often each kept the rate, and how far it was behind.
fn kept_up(cell: &CellSummary, comparison: &Comparison) -> Option<String> {
    let kept = comparison.kept_up?;
    let one = |name: &str, times: usize| {
        let subject = cell.subjects.iter().find(|subject| subject.name == name)?;
        let behind = subject.figures.as_ref().and_then(|figures| {
            Some(format!(
                "{} of the packets not back, p99.9 sent {} ms late",
                share(figures.get(Metric::MissingRatio)?),
                short(figures.get(Metric::LatenessUsP99_9)? / 1e3)
            ))
        });
        let nothing = (subject.unanswered > 0)
            .then(|| format!("in {} runs nothing came back at all", subject.unanswered));
        let how: Vec<String> = behind.into_iter().chain(nothing).collect();
        let how = if how.is_empty() { String::new() } else { format!(" ({})", how.join("; ")) };
        Some(format!("{name} kept the rate in {times} of {} pairs{how}", comparison.pairs))
    };
    let subject = one(&comparison.subject, kept.subject)?;
    Some(format!("{subject}, {}", one(&comparison.baseline, kept.baseline)?))
}

/// The verdict with its figures, as one sentence.
pub(super) fn headline(cell: &CellSummary, comparison: &Comparison) -> String {
    match claim_and_figures(cell, comparison) {
        (claim, Some(figures)) => format!("{claim}: {figures}"),
        (claim, None) => claim,
    }
}

/// What has to be said about the throughput, if anything.
pub(super) fn throughput_note(comparison: &Comparison) -> Option<String> {
    comparison.throughput_is_client_bound.then(|| {
        format!(
            "{} and {}: the load generator was the bottleneck of one of them, so its throughput is \
             a lower bound and only CPU per request can be compared",
            comparison.subject, comparison.baseline
        )
    })
}
