//! The answer in sentences, and what limits it.

use super::chart::{Row, percent, sections};
use crate::accounting::IdleClock;
use crate::analysis::Bottleneck;
use crate::error::shortened;
use crate::experiment::NetKind;
use crate::result::{Bundle, State};
use std::collections::BTreeMap;

const SENTENCES_MAX: usize = 6;

/// Sessions that begin within so many minutes share what disturbs them.
const APART_LEAST: i64 = 30;

/// Of an error there is as much on the page; all of it is in the bundle.
const ERROR_CHARS_MAX: usize = 100;

/// One sentence for each pair of subjects and class of load.
pub(super) fn answer(bundle: &Bundle) -> Vec<String> {
    let mut sentences = Vec::new();
    let sections = sections(bundle);
    let several = sections.len() > 1;
    for ([baseline, subject], rows) in &sections {
        for is_saturated in [false, true] {
            let of_class: Vec<&Row<'_>> =
                rows.iter().filter(|row| row.cell.is_saturated() == is_saturated).collect();
            if of_class.is_empty() {
                continue;
            }
            let class = if is_saturated { "At full load" } else { "At part load" };
            let who = if several { format!(", {subject} and {baseline}") } else { String::new() };
            sentences.push(format!("{class}{who}: {}.", found(&of_class, several)));
        }
    }
    if sentences.is_empty() {
        sentences.push("Nothing was compared.".to_owned());
    }
    let more = sentences.len().saturating_sub(SENTENCES_MAX);
    if more > 0 {
        sentences.truncate(SENTENCES_MAX - 1);
        sentences.push(format!("{} more sentences: see the tables.", more + 1));
    }
    sentences
}

/// What rows of one class of load say together; of several pairs of subjects without the reasons of what is not
/// decided.
fn found(rows: &[&Row<'_>], brief: bool) -> String {
    let with_net = rows.iter().any(|row| row.cell.cell.net != rows[0].cell.cell.net);
    let mut groups = BTreeMap::<(u8, String), Vec<&Row<'_>>>::new();
    for row in rows {
        let group = match &row.comparison.less {
            Some(less) if row.comparison.is_fragile => {
                (1, format!("perhaps {less}, but not over all runs"))
            }
            Some(less) => (0, less.clone()),
            None if brief && row.comparison.void.is_none() => (2, "not decided".to_owned()),
            None if brief => (2, "void".to_owned()),
            None => (2, reason(row)),
        };
        groups.entry(group).or_default().push(row);
    }
    // The rest would not be read.
    let more = groups.len().saturating_sub(PARTS_MAX);
    let mut parts: Vec<String> = Vec::new();
    for ((kind, text), group) in groups.iter().take(PARTS_MAX) {
        let saved: Vec<f64> = group.iter().filter_map(|row| saved(row, text)).collect();
        let less = if *kind == 0 { format!(", {} less CPU", range(&saved)) } else { String::new() };
        let which = match (&group[..], rows.len()) {
            (_, 1) => String::new(),
            ([row], _) => format!(" ({})", row.work(with_net)),
            (some, all) => format!(" ({} of {all})", some.len()),
        };
        parts.push(format!("{text}{less}{which}"));
    }
    parts.extend((more > 0).then(|| format!("{more} more")));
    parts.join("; ")
}

const PARTS_MAX: usize = 3;

/// Why there is no decision, without figures.
fn reason(row: &Row<'_>) -> String {
    let because = row.comparison.because.as_deref().unwrap_or_default();
    match &row.comparison.void {
        // The subject, and which check.
        Some(why) => {
            format!("void, {}", why.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": "))
        }
        None if because.ends_with(" needed") => "too few pairs to decide".to_owned(),
        None if because.starts_with("finer than") => "smaller than the clock can show".to_owned(),
        None => because.to_owned(),
    }
}

/// How much less the winner needs, in percent of the other.
fn saved(row: &Row<'_>, winner: &str) -> Option<f64> {
    let ratio = row.comparison.ratio?.ratio;
    Some(-percent(if row.comparison.subject == winner { ratio } else { 1.0 / ratio }))
}

fn range(percents: &[f64]) -> String {
    let low = percents.iter().copied().fold(f64::INFINITY, f64::min);
    let high = percents.iter().copied().fold(0.0, f64::max);
    match (low.round(), high.round()) {
        (low, high) if low == high => format!("{low:.0} %"),
        (low, high) => format!("{low:.0} to {high:.0} %"),
    }
}

/// What a reader must not conclude, in a few words each.
pub(super) fn limits(bundle: &Bundle) -> Vec<String> {
    let mut limits = Vec::new();
    match &bundle.state {
        State::Complete => {}
        State::Interrupted { signal } => limits.push(format!("interrupted by signal {signal}")),
        State::Failed { error } => {
            limits.push(format!("it ended early: {}", shortened(error, ERROR_CHARS_MAX)));
        }
        State::Running => limits.push("unfinished: its lab still runs, or was killed".to_owned()),
    }
    let Some(summary) = &bundle.summary else { return limits };
    let comparisons: Vec<_> = summary.cells.iter().flat_map(|cell| &cell.comparisons).collect();
    let falsely = comparisons.iter().filter(|it| it.aa && it.less.is_some()).count();
    if falsely > 0 {
        limits.push(format!("A/A comparisons with a difference, a false positive: {falsely}"));
    }
    if bundle.all_occasions().iter().any(|it| it.machine.virtualisation.is_some()) {
        limits.push("virtual machine".to_owned());
    }
    let mut scopes: Vec<String> = comparisons.iter().map(|it| it.scope.words()).collect();
    scopes.sort_unstable();
    scopes.dedup();
    match scopes.as_slice() {
        [] => {}
        [scope] if scope == "in this session" => limits.push("one session".to_owned()),
        scopes => limits.push(scopes.join(" or ")),
    }
    let apart = minutes_apart(bundle).filter(|minutes| *minutes < APART_LEAST);
    limits.extend(apart.map(|minutes| format!("sessions only {minutes} min apart")));
    limits.extend(left_out(bundle));
    if sections(bundle).iter().any(|(_, rows)| rows.iter().any(Row::is_noisy)) {
        limits.push("noisy: change over all runs, because too few pairs count".to_owned());
    }
    if summary.idle_clock == IdleClock::ProcStat {
        limits.push(
            "CPU time in ticks of 10 ms: finer as root, or with a longer --window".to_owned(),
        );
    }
    let is_bound = |it: &Bottleneck| matches!(it, Bottleneck::ClientCpu);
    let subjects = || summary.cells.iter().flat_map(|cell| &cell.subjects);
    let bound = subjects().filter(|it| it.bottleneck.as_ref().is_some_and(is_bound)).count();
    if bound > 0 {
        let times = if bound == 1 { "once".to_owned() } else { format!("{bound} times") };
        limits.push(format!("the load generator was the bottleneck {times}"));
    }
    if bundle.cpus.shared {
        limits.push("server and load generator share a CPU".to_owned());
    } else if bundle.cpus.siblings {
        limits.push("server and load generator share a core".to_owned());
    }
    if comparisons.iter().any(|it| it.primary == "both_cpus_ns") {
        limits.push("CPU of UDP is that of both sides, for each packet".to_owned());
    }
    if bundle.networks.iter().any(|it| it.kind == NetKind::Lo) {
        limits.push("on lo the sender's CPU does the receive work".to_owned());
    }
    limits
}

/// How many minutes lie between the starts of two sessions of one machine at least, if it has several.
fn minutes_apart(bundle: &Bundle) -> Option<i64> {
    let all = bundle.all_occasions();
    let pairs = all.iter().enumerate().flat_map(|(n, it)| all[..n].iter().map(move |a| (a, it)));
    let of_machine = pairs.filter(|(a, b)| a.machine.is_same_machine(&b.machine));
    let minutes = of_machine.filter_map(|(a, b)| {
        let [a, b] = [a, b].map(|it| it.started.parse::<jiff::Timestamp>());
        Some((a.ok()?.as_second() - b.ok()?.as_second()).abs() / 60)
    });
    minutes.min()
}

/// How many pairs were left out, why most of them, and on which side.
fn left_out(bundle: &Bundle) -> Option<String> {
    let comparisons =
        bundle.summary.iter().flat_map(|it| &it.cells).flat_map(|cell| &cell.comparisons);
    let (mut pairs, mut reasons) = (0, BTreeMap::<(&str, &str), usize>::new());
    for comparison in comparisons {
        pairs += comparison.pairs;
        for it in &comparison.left_out {
            *reasons.entry((&*it.why, &*it.side)).or_default() += it.pairs;
        }
    }
    let all: usize = reasons.values().sum();
    let ((why, side), most) = reasons.into_iter().max_by_key(|(_, count)| *count)?;
    let side = if side == "both" { "both sides".to_owned() } else { format!("during {side}") };
    Some(format!("{all} of {pairs} pairs left out, {most} for {why} ({side})"))
}
