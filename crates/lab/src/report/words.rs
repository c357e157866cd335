//! Numbers and sentences that all reports share.

use super::columns;
use crate::audit::{Finding, Severity};
use crate::experiment::{Experiment, Protocol, UdpGrid, UnderTest};
use crate::result::{Bundle, State};
use crate::statistics::{CONFIDENCE, Interval, MAX_REQUIRED_PAIRS};
use crate::summary::{
    Bottleneck, CellSummary, Claim, Comparison, LeftOut, Metric, Placed, PlacementSummary, Record,
    RequiredPairs, Resolution, SubjectSummary, Verdict,
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

/// `1.25 [1.22, 1.28]`.
pub(super) fn interval(interval: Option<&Interval>) -> String {
    match interval {
        Some(Interval { ratio, low, high, .. }) => format!("{ratio:.3} [{low:.3}, {high:.3}]"),
        None => NOTHING.to_owned(),
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
            Verdict::Ahead { winner }
            | Verdict::NotAfterCorrection { claim: Claim::Ahead, winner, .. }
            | Verdict::FalseDifference { winner },
            Some(interval),
        ) => {
            let Interval { ratio, low, high, pairs, .. } = *interval;
            // Said from the winner's side, whoever is the baseline.
            let (loser, ratio, low, high) = if winner == baseline {
                (subject, 1.0 / ratio, 1.0 / high, 1.0 / low)
            } else {
                (baseline, ratio, low, high)
            };
            let figures = format!(
                "{loser} needs {ratio:.3} times its {record} [{low:.3}, {high:.3}], {pairs} pairs{}{}",
                accident(comparison),
                all_pairs(comparison, winner == baseline)
            );
            (verdict.to_string(), Some(figures))
        }
        (
            Verdict::NoDifference { would_have_seen_percent: seen }
            | Verdict::Alike { would_have_seen_percent: seen },
            Some(interval),
        ) => {
            let Interval { ratio, low, high, pairs, .. } = interval;
            let figures = format!(
                "{baseline} needs {ratio:.3} times the {} [{low:.3}, {high:.3}], {pairs} pairs{}{}",
                record.replacen(" per ", &format!(" of {subject} per "), 1),
                resolution(comparison, *seen),
                all_pairs(comparison, false)
            );
            (both(), Some(figures))
        }
        (Verdict::OnlyOneKeepsUp { .. } | Verdict::NotAfterCorrection { .. }, _) => {
            (verdict.to_string(), kept_up(cell, comparison))
        }
        (Verdict::UnequalWork { .. }, _) => (both(), kept_up(cell, comparison)),
        (Verdict::TooFewPairs { .. }, _) => {
            let all = all_pairs(comparison, false);
            (both(), all.strip_prefix("; ").map(str::to_owned))
        }
        _ => (both(), None),
    }
}

/// The ratio with nothing left out, and what is left out for which reason; nothing if all count.
/// `inverted` is said from the baseline's side.
fn all_pairs(comparison: &Comparison, inverted: bool) -> String {
    let Some(all) = comparison.all_pairs.as_ref().filter(|it| !it.left_out.is_empty()) else {
        return String::new();
    };
    let why = |it: &LeftOut| format!("{} {}", it.pairs, it.why.title());
    let why: Vec<String> = all.left_out.iter().map(why).collect();
    let ratio = all.ratio.map(|ratio| if inverted { 1.0 / ratio } else { ratio });
    let ratio = ratio.map_or(NOTHING.to_owned(), |ratio| format!("{ratio:.3}"));
    format!("; {ratio} over all {} pairs (left out: {})", all.pairs, why.join(", "))
}

/// Among so many comparisons, how probable an accident is; where that took the verdict back.
fn accident(comparison: &Comparison) -> String {
    match (&comparison.verdict, comparison.q_value) {
        (Verdict::NotAfterCorrection { .. }, Some(q_value)) => format!(", q = {q_value:.3}"),
        _ => String::new(),
    }
}

/// What it would take to see less than `seen` percent; for a subject and itself, what numbers of
/// pairs see.
fn resolution(comparison: &Comparison, seen: f64) -> String {
    if let Some(aa) = &comparison.aa {
        let one = |it: &Resolution| format!("{} pairs see {:.1} %", it.pairs, it.percent);
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

/// Who kept up how often, and how far the others were behind.
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
        Some(format!("{name} kept up in {times} of {} pairs{how}", comparison.pairs))
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

/// How the CPUs lay to each other in a cell, if that is known; and what it did to the ratios, if
/// they lay in more than one way.
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
            let mut lines = vec![format!(
                "the hypervisor moved the CPUs: {} blocks (the time is that of a cache line there \
                 and back); --placement close measures one of them",
                counts.join(" and ")
            )];
            lines.extend(cell.comparisons.iter().filter_map(placed));
            lines
        }
    }
}

fn placed(comparison: &Comparison) -> Option<String> {
    let one = |it: &Placed| {
        format!("{} {} in {} pairs", it.placement, interval(Some(&it.ratio)), it.ratio.pairs)
    };
    let ratios: Vec<String> = comparison.placed.iter().map(one).collect();
    let Comparison { subject, baseline, .. } = comparison;
    (!ratios.is_empty()).then(|| format!("{subject} : {baseline}: {}", ratios.join(", ")))
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

/// Runs that count, out of those made; and in how many of these it kept up.
pub(super) fn counted(subject: &SubjectSummary) -> String {
    let SubjectSummary { counted, runs, .. } = subject;
    match subject.kept_up {
        Some(kept_up) if kept_up < *counted => {
            format!("{counted} of {runs}, {kept_up} in time")
        }
        _ => format!("{counted} of {runs}"),
    }
}

/// Findings of one kind about one subject, told once.
pub(super) struct Told<'a> {
    pub(super) first: &'a Finding,
    pub(super) times: usize,
}

/// The findings of a cell without repetitions, the gravest first.
pub(super) fn told(cell: &CellSummary) -> Vec<Told<'_>> {
    let mut told: Vec<Told<'_>> = Vec::new();
    for finding in &cell.findings {
        // Noise is about the machine, whoever was running.
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
    format!(
        "{runs} runs of {} {}, seed {}, {}",
        windows.join(" and "),
        nets.join(" and "),
        bundle.seed,
        bundle.started
    )
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
        "Ratios are above 1 where the subject is better than {}; intervals at {} on the geometric \
         mean of the pairs. Server CPU is everything its CPU did, interrupts included, {}.",
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
         was detected. Hatched: too few pairs (?), too few in which both kept up (behind), or an \
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

/// What is under test in UDP cells, and what keeping up means.
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
         up, with at most {} % of the packets due not back, and 99.9 % of them sent at most {} ms \
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
