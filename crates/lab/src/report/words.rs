//! Numbers and sentences that all reports share.

use super::{columns, outcome};
use crate::audit::{Finding, Severity};
use crate::experiment::{Experiment, Protocol, UdpGrid, UnderTest};
use crate::machine::Fingerprint;
use crate::result::{Bundle, State};
use crate::statistics::{CONFIDENCE, Ends, Interval, MAX_REQUIRED_PAIRS, Spread};
use crate::summary::{
    Bottleneck, CellSummary, Claim, Comparison, Judgement, LeftOut, Metric, OnOccasion, Placed,
    PlacementSummary, Record, RequiredPairs, Resolution, SubjectSummary, Verdict, WouldChange,
};

/// What a number that is not there looks like.
pub(super) const NOTHING: &str = "–";

/// A whole number with its thousands set apart.
pub(super) fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("-{text}") } else { text }
}

/// Three significant digits or more.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        100.0.. => whole(value),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A count that may be far below 1.
pub(super) fn rare(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        10.0.. => short(value),
        _ if value < 0.001 => "< 0.001".to_owned(),
        _ => format!("{value:.3}"),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A share that is nothing or very little most of the time, in percent.
pub(super) fn share(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.001 => "< 0.001 %".to_owned(),
        percent if percent < 1.0 => format!("{percent:.3} %"),
        percent => format!("{percent:.1} %"),
    }
}

/// `1.25 [1.22, 1.28]`, or `1.25 [–]` of too few pairs for an interval.
pub(super) fn interval(interval: Option<&Interval>) -> String {
    interval.map_or(NOTHING.to_owned(), |it| ends(it.ratio, it.ends))
}

/// A ratio with its interval in brackets.
pub(super) fn ends(ratio: f64, ends: Option<Ends>) -> String {
    match ends {
        Some(Ends { low, high }) => format!("{ratio:.3} [{low:.3}, {high:.3}]"),
        None => format!("{ratio:.3} [{NOTHING}]"),
    }
}

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
                outcome::saved_percent(ratio),
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
            let pairs = all.pairs;
            parts.push(format!("{ratio} over all {pairs} pairs (left out: {})", why.join(", ")));
        }
        let placed = |it: &Placed| {
            let Placed { placement, ratio } = it;
            format!("{} over {} pairs {placement}", shown(ratio.ratio, ratio.ends), ratio.pairs)
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

/// How the CPUs lay to each other in a cell, if that is known.
pub(super) fn placements(cell: &CellSummary) -> Vec<String> {
    let one = |it: &PlacementSummary| {
        let PlacementSummary { placement, blocks, round_trip_ns } = it;
        format!("{placement} ({round_trip_ns:.0} ns) in {blocks}")
    };
    match &cell.placements[..] {
        [] => Vec::new(),
        [it] => {
            let PlacementSummary { placement, round_trip_ns, .. } = it;
            vec![format!(
                "CPUs {placement}: a cache line goes there and back in {round_trip_ns:.0} ns"
            )]
        }
        several => {
            let counts: Vec<String> = several.iter().map(one).collect();
            vec![format!(
                "the hypervisor moved the CPUs: {} blocks (the time is that of a cache line there \
                 and back); --placement close measures one of them",
                counts.join(" and ")
            )]
        }
    }
}

pub(super) fn bottleneck(bottleneck: Option<Bottleneck>) -> &'static str {
    bottleneck.map_or(NOTHING, Bottleneck::title)
}

/// What the latencies of a cell mean.
pub(super) fn load_mode(cell: &CellSummary) -> &'static str {
    match cell.load_mode.as_deref() {
        _ if cell.cell.protocol().workload().on_schedule => "from the moment a packet left; ",
        Some("closed") => "closed loop: a late answer delays the next request; ",
        Some("open") => "open loop, from the intended send time; ",
        _ => "",
    }
}

/// Runs that count, out of those made; and in how many of these it kept the rate.
pub(super) fn counted(subject: &SubjectSummary) -> String {
    let SubjectSummary { counted, runs, .. } = subject;
    match subject.kept_up {
        Some(kept_up) if kept_up < *counted => {
            format!("{counted} of {runs}, {kept_up} in time")
        }
        _ => format!("{counted} of {runs}"),
    }
}

/// Findings of one kind about one subject, merged into one.
pub(super) struct Told<'a> {
    pub(super) first: &'a Finding,
    pub(super) times: usize,
}

/// The findings of a cell without repetitions, the most severe first.
pub(super) fn told(cell: &CellSummary) -> Vec<Told<'_>> {
    let mut told: Vec<Told<'_>> = Vec::new();
    for finding in &cell.findings {
        // Noise is about the machine, not about the subject that was running.
        let same = |it: &&mut Told<'_>| {
            it.first.kind == finding.kind
                && (it.first.subject == finding.subject || finding.severity == Severity::Noise)
        };
        match told.iter_mut().find(same) {
            Some(known) => known.times += 1,
            None => told.push(Told { first: finding, times: 1 }),
        }
    }
    told.sort_by_key(|it| (std::cmp::Reverse(it.first.severity), it.first.kind));
    told
}

impl Told<'_> {
    /// What was found, where, how often, and what to do.
    pub(super) fn sentence(&self) -> String {
        let Finding { kind, subject, run, what, .. } = self.first;
        let run = run.map_or(String::new(), |run| format!(", run {run}"));
        let often = match self.times {
            1 => String::new(),
            times => format!(" (and in {} more runs)", times - 1),
        };
        format!("{} ({subject}{run}): {what}{often}. Advice: {}.", kind.title(), kind.advice())
    }
}

pub(super) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Void => "void",
        Severity::Noise => "noise: the block does not count",
        Severity::Warning => "warning",
    }
}

/// What a reader has to know before anything else: what was not measured as asked for.
pub(super) fn notes(bundle: &Bundle) -> Vec<String> {
    let not_run = bundle.not_run.iter().map(|it| format!("{} was not run: {}", it.subject, it.why));
    let claims = bundle.experiment.claims.iter().map(|claim| format!("Claimed elsewhere: {claim}"));
    let fallback = bundle.network_fallback.iter().cloned();
    claims.chain(fallback).chain(not_run).chain(state(&bundle.state)).collect()
}

/// How the experiment ended, if it is not complete.
fn state(state: &State) -> Option<String> {
    match state {
        State::Complete => None,
        State::Running => Some("unfinished: the lab was killed or is still running".to_owned()),
        State::Interrupted { signal } => {
            Some(format!("interrupted by signal {signal}: what is here was measured before"))
        }
        State::Failed { error } => Some(format!("ended by an error: {error}")),
    }
}

/// One line that says what was done, when, and how.
pub(super) fn setting(bundle: &Bundle) -> String {
    let experiment = &bundle.experiment;
    let runs = bundle.summary.as_ref().map_or(0, |summary| summary.runs);
    let nets: Vec<_> = bundle.networks.iter().map(|network| network.kind.phrase()).collect();
    let mut windows: Vec<String> = experiment
        .protocols()
        .map(|protocol| format!("{} s", experiment.pace_s(protocol).1))
        .collect();
    windows.dedup();
    let [windows, nets] = [windows.join(" and "), nets.join(" and ")];
    let Bundle { seed, started, occasions, .. } = bundle;
    match &occasions[..] {
        [] => format!("{runs} runs of {windows} {nets}, seed {seed}, {started}"),
        [.., last] => {
            let mut machines: Vec<&Fingerprint> = Vec::new();
            for occasion in occasions {
                if !machines.iter().any(|it| it.is_same_machine(&occasion.machine)) {
                    machines.push(&occasion.machine);
                }
            }
            let count = occasions.len();
            let machines = match machines.len() {
                1 => "one machine".to_owned(),
                several => format!("{several} machines"),
            };
            let last = &last.started;
            format!(
                "{runs} runs of {windows} {nets}, {count} occasions on {machines}, {started} to {last}"
            )
        }
    }
}

/// The command that repeats the experiment with the same order of runs.
pub(super) fn repeat(bundle: &Bundle) -> String {
    let command = quoted(&bundle.command);
    let has_seed = bundle.command.iter().any(|word| word.starts_with("--seed"));
    if has_seed { command } else { format!("{command} --seed {}", bundle.seed) }
}

/// A command as a shell takes it.
pub(super) fn quoted(command: &[String]) -> String {
    // Only a NUL byte cannot be quoted, and no argument holds one.
    shlex::try_join(command.iter().map(String::as_str)).unwrap_or_else(|_| command.join(" "))
}

/// How to read the ratios.
pub(super) fn legend(bundle: &Bundle) -> String {
    let experiment = &bundle.experiment;
    let mut per: Vec<&str> = Vec::new();
    for protocol in experiment.protocols() {
        let what = protocol.workload().per;
        if !per.contains(&what) {
            per.push(what);
        }
    }
    let mut text = format!(
        "Ratios are above 1 where the subject is better than {}; in brackets the interval at {} on \
         the geometric mean of the pairs, by the sign-flip test ([{NOTHING}]: fewer than 6 pairs have \
         none). Server CPU is everything its CPU did, interrupts included, {}.",
        baselines(experiment),
        confidence(bundle),
        per.join(" and ")
    );
    if let Some(udp) = &experiment.udp {
        text.push_str(&schedule(udp));
    }
    let mut cells = bundle.summary.iter().flat_map(|summary| &summary.cells);
    if cells.any(|cell| !columns::counts(cell).is_empty()) {
        text.push_str(&format!(" {}", columns::COUNTS_NOTE));
    }
    text
}

/// What the colours of a map are of.
pub(super) fn legend_of_maps(bundle: &Bundle) -> String {
    let mut records: Vec<String> = bundle
        .experiment
        .protocols()
        .map(|protocol| of_record(Record::of(bundle.experiment.under_test(protocol)), protocol))
        .collect();
    records.dedup();
    format!(
        "Ratios of the {}: above 1 the subject is better, below 1 the baseline. Grey: no difference \
         was detected. Hatched: too few pairs (?), too few in which both kept the rate (behind), or an \
         audit failed (void).",
        records.join(" and the ")
    )
}

/// The confidence of the intervals of all comparisons.
fn confidence(bundle: &Bundle) -> String {
    let cells = bundle.summary.iter().flat_map(|summary| &summary.cells);
    let comparisons = cells.flat_map(|cell| &cell.comparisons);
    let highest = comparisons.map(|it| it.confidence).fold(CONFIDENCE, f64::max);
    if highest > CONFIDENCE {
        let usual = CONFIDENCE * 100.0;
        return format!(
            "{:.1} % ({usual} %, widened because their width ended it)",
            highest * 100.0
        );
    }
    format!("{} %", CONFIDENCE * 100.0)
}

fn baselines(experiment: &Experiment) -> String {
    let mut names: Vec<&str> = experiment
        .protocols()
        .filter_map(|protocol| experiment.subjects_of(protocol).first().copied())
        .map(|position| experiment.subjects[position].name.as_str())
        .collect();
    names.dedup();
    names.join(" or ")
}

/// What is under test in UDP cells, and what keeping the rate means.
fn schedule(udp: &UdpGrid) -> String {
    let both = match udp.under_test {
        UnderTest::Server => "",
        UnderTest::Both => {
            " The UDP load generator is under test as much as the server: both run as the subject \
             says, and the verdict is about the CPU of both."
        }
    };
    format!(
        "{both} UDP is sent on a schedule, so CPU is compared at equal work: between runs that kept \
         the rate, with at most {} % of the packets due not back, and 99.9 % of them sent at most {} ms \
         late.",
        udp.keeps_up.missing_ratio * 100.0,
        udp.keeps_up.lateness_us_p99_9 / 1e3
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(whole(1_234_567.4), "1,234,567");
        assert_eq!(whole(999.6), "1,000");
        assert_eq!(whole(0.2), "0");
        assert_eq!(whole(-1234.0), "-1,234");
        assert_eq!([short(0.5), short(12.34), short(1234.5)], ["0.50", "12.3", "1,234"]);
        assert_eq!(percent(0.5), "50.0 %");
        let shares = [0.0, 0.000_001, 0.000_5, 0.25].map(share);
        assert_eq!(shares, ["0 %", "< 0.001 %", "0.050 %", "25.0 %"]);
    }
}
