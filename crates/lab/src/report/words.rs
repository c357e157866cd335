//! Sentences that all reports share.

use super::columns;
use super::numbers::NOTHING;
use super::verdicts::of_record;
use crate::audit::{Finding, Severity};
use crate::experiment::{Experiment, Grid, UnderTest};
use crate::machine::Fingerprint;
use crate::result::{Bundle, State};
use crate::statistics::CONFIDENCE;
use crate::summary::{CellSummary, PlacementSummary, Record};

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

/// What the latencies of a cell mean.
pub(super) fn load_mode(cell: &CellSummary) -> &'static str {
    match cell.load_mode.as_deref() {
        _ if cell.cell.protocol().workload().on_schedule => "from the moment a packet left; ",
        Some("closed") => "closed loop: a late answer delays the next request; ",
        Some("open") => "open loop, from the intended send time; ",
        _ => "",
    }
}

/// Findings of one kind about one subject, merged into one.
pub(super) struct FindingGroup<'a> {
    pub(super) first: &'a Finding,
    pub(super) times: usize,
}

/// The findings of a cell without repetitions, the most severe first.
pub(super) fn finding_groups(cell: &CellSummary) -> Vec<FindingGroup<'_>> {
    let mut groups: Vec<FindingGroup<'_>> = Vec::new();
    for finding in &cell.findings {
        // Noise is about the machine, not about the subject that was running.
        let same = |it: &&mut FindingGroup<'_>| {
            it.first.kind == finding.kind
                && (it.first.subject == finding.subject || finding.severity == Severity::Noise)
        };
        match groups.iter_mut().find(same) {
            Some(known) => known.times += 1,
            None => groups.push(FindingGroup { first: finding, times: 1 }),
        }
    }
    groups.sort_by_key(|it| (std::cmp::Reverse(it.first.severity), it.first.kind));
    groups
}

impl FindingGroup<'_> {
    /// What was found, where, how often, and what to do.
    pub(super) fn sentence(&self) -> String {
        let Finding { kind, subject, run, what, .. } = self.first;
        let run = run.map_or(String::new(), |run| format!(", run {run}"));
        let often = match self.times {
            1 => String::new(),
            2 => " (and in 1 more run)".to_owned(),
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
    let experiment = &bundle.experiment;
    let mut records: Vec<String> = Vec::new();
    for protocol in experiment.protocols() {
        let record = of_record(Record::of(experiment.under_test(protocol)), protocol);
        if !records.contains(&record) {
            records.push(record);
        }
    }
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
fn schedule(udp: &Grid) -> String {
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
        udp.slo.of_packets().0 * 100.0,
        udp.slo.of_packets().1 / 1e3
    )
}
