//! The tables behind the first page, as blocks that each rendering shows in its own way.

use super::answer::clock;
use super::chart::{percent, sections};
use super::page::figure;
use super::published::published;
use crate::analysis::{CellSummary, Comparison, Effect, FIGURES};
use crate::prices::PriceRecord;
use crate::result::Bundle;
use crate::statistics::Estimate;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    Heading(String),
    Text(String),
    Item(String),
    /// The first row is the head.
    Table(Vec<Vec<String>>),
    /// What a page with folds shows folded.
    Folded(String, Vec<Block>),
}

pub(crate) fn document(bundle: &Bundle) -> Vec<Block> {
    let mut blocks = vec![Block::Text(bundle.experiment.about.clone())];
    let Some(summary) = &bundle.summary else { return blocks };
    for ([baseline, subject], rows) in sections(bundle) {
        let cells = rows.into_iter().map(|row| (row.cell, row.comparison)).collect::<Vec<_>>();
        let unit = "Ratios are those of the first to the second, less than 1 is less CPU; in brackets the interval.";
        blocks.push(Block::Heading(format!("{subject} against {baseline}")));
        blocks.push(Block::Text(unit.to_owned()));
        blocks.push(Block::Table(ratios(&cells)));
        blocks.extend(left_out(&cells));
        blocks.extend(explained(bundle.prices.as_ref(), &cells));
    }
    blocks.extend(published(bundle));
    let cells = summary.cells.iter().flat_map(of_cell).collect();
    blocks.push(Block::Folded("Every figure of every cell".to_owned(), cells));
    blocks.extend(findings(&summary.cells));
    blocks.push(Block::Folded("Conditions".to_owned(), conditions(bundle)));
    blocks
}

pub(super) fn estimate(of: Option<&Estimate>) -> String {
    match of {
        None => "-".to_owned(),
        Some(Estimate { ratio, ends: None, .. }) => format!("{ratio:.3}"),
        Some(Estimate { ratio, ends: Some(ends), .. }) => {
            format!("{ratio:.3} [{:.3}, {:.3}]", ends.low, ends.high)
        }
    }
}

fn ratios(rows: &[(&CellSummary, &Comparison)]) -> Vec<Vec<String>> {
    let head = [
        "cell",
        "all runs",
        "undisturbed",
        "pairs",
        "p99",
        "system calls",
        "notifications",
        "bottleneck",
        "decision",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for (cell, it) in rows {
        let figure = |name: &str| {
            it.figures.get(name).map_or("-".to_owned(), |of| format!("{:.2}", of.ratio))
        };
        let decision = match (&it.less, &it.because) {
            (Some(less), _) => {
                let fragile = if it.is_fragile() { ", but not over all runs" } else { "" };
                format!("{less} needs less, {}{fragile}", it.scope.words())
            }
            (None, because) => because.clone().unwrap_or_default(),
        };
        table.push(vec![
            cell.cell.to_string(),
            estimate(it.all_runs.as_ref()),
            estimate(it.ratio.as_ref()),
            format!("{} of {}", it.counted(), it.pairs),
            figure("p99_us"),
            figure("syscalls"),
            figure("notifications"),
            bottlenecks(cell, it),
            decision,
        ]);
    }
    table
}

/// What limited the two, each by its name where that differs.
fn bottlenecks(cell: &CellSummary, of: &Comparison) -> String {
    let title = |name: &String| {
        cell.subject(name).and_then(|it| it.bottleneck).map_or("-", |bottleneck| bottleneck.title())
    };
    match [&of.baseline, &of.subject].map(title) {
        [one, other] if one == other => one.to_owned(),
        [one, other] => format!("{one} ({}), {other} ({})", of.baseline, of.subject),
    }
}

fn left_out(rows: &[(&CellSummary, &Comparison)]) -> Vec<Block> {
    let mut table = vec![["cell", "left out", "why", "seen on"].map(str::to_owned).to_vec()];
    for (cell, comparison) in rows {
        for it in &comparison.left_out {
            table.push(vec![
                cell.cell.to_string(),
                it.pairs.to_string(),
                it.why.clone(),
                it.side.clone(),
            ]);
        }
    }
    if table.len() > 1 {
        vec![Block::Folded("Pairs that were left out".to_owned(), vec![Block::Table(table)])]
    } else {
        Vec::new()
    }
}

/// What counts explain of the differences: the difference in counts, times what the machine charges for each.
fn explained(prices: Option<&PriceRecord>, rows: &[(&CellSummary, &Comparison)]) -> Vec<Block> {
    let Some(prices) = prices.filter(|it| !it.list.is_empty()) else { return Vec::new() };
    let mut table = vec![
        ["cell", "difference", "system calls", "notifications", "switches", "unexplained"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (cell, it) in rows {
        let figures = |name: &str| cell.subject(name)?.figures.as_ref();
        let (Some(baseline), Some(subject)) = (figures(&it.baseline), figures(&it.subject)) else {
            continue;
        };
        let difference = |name: &str| Some(subject.get(name)? - baseline.get(name)?);
        let Some(whole) = difference("server_cpu_ns") else { continue };
        // Notifications are counted on both CPUs, and their price is for both: the server sends some and receives some.
        let terms = [
            ("syscalls", "syscall_ns", 1.0),
            ("notifications", "notification_busy_ns", 0.5),
            ("switches", "wakeup_ns", 1.0),
        ];
        let parts: Vec<Option<f64>> = terms
            .iter()
            .map(|(count, price, share)| Some(difference(count)? * prices.median(price)? * share))
            .collect();
        let rest = whole - parts.iter().flatten().sum::<f64>();
        let ns = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:+.0} ns"));
        let mut row = vec![cell.cell.to_string(), ns(Some(whole))];
        row.extend(parts.into_iter().map(ns));
        row.push(ns(Some(rest)));
        table.push(row);
    }
    let about = "The difference in server CPU per request, and the part that counts times measured prices make up.";
    vec![Block::Folded(
        "What the difference is made of".to_owned(),
        vec![Block::Text(about.to_owned()), Block::Table(table)],
    )]
}

fn of_cell(cell: &CellSummary) -> Vec<Block> {
    let mut table = vec![vec![String::new()]];
    let named: Vec<_> =
        cell.subjects.iter().map(|it| it.figures.clone().unwrap_or_default()).collect();
    table[0].extend(cell.subjects.iter().map(|it| it.name.clone()));
    let mut row =
        |title: &str, values: Vec<String>| table.push([vec![title.to_owned()], values].concat());
    row(
        "runs that count",
        cell.subjects.iter().map(|it| format!("{} of {}", it.counted, it.runs)).collect(),
    );
    if cell.subjects.iter().any(|it| it.met_slo.is_some()) {
        let met = |it: &crate::analysis::SubjectSummary| {
            it.met_slo.map_or("-".to_owned(), |met| met.to_string())
        };
        row("met the SLO", cell.subjects.iter().map(met).collect());
    }
    for (name, _) in FIGURES {
        let values: Vec<Option<&f64>> = named.iter().map(|figures| figures.get(name)).collect();
        if values.iter().any(Option::is_some) {
            let text = |value: &Option<&f64>| value.map_or("-".to_owned(), |it| figure(*it));
            row(name, values.iter().map(text).collect());
        }
    }
    vec![Block::Heading(cell.cell.to_string()), Block::Table(table)]
}

fn findings(cells: &[CellSummary]) -> Vec<Block> {
    let mut items = Vec::new();
    for cell in cells {
        let mut seen = Vec::new();
        for it in &cell.findings {
            if seen.contains(&(it.check, &it.subject)) {
                continue;
            }
            seen.push((it.check, &it.subject));
            let same = cell
                .findings
                .iter()
                .filter(|other| (other.check, &other.subject) == (it.check, &it.subject));
            let effect = match it.effect {
                Effect::Note => "note",
                Effect::Excluded => "excluded",
                Effect::Void => "VOID",
            };
            items.push(Block::Item(format!(
                "{effect}: {}, {}: {}: {} ({} runs). {}.",
                cell.cell,
                it.subject,
                it.check.title(),
                it.what,
                same.count(),
                it.check.advice()
            )));
        }
    }
    if items.is_empty() {
        Vec::new()
    } else {
        vec![Block::Folded("What the checks found".to_owned(), items)]
    }
}

fn conditions(bundle: &Bundle) -> Vec<Block> {
    let machine = &bundle.machine;
    let mut rows: Vec<(&str, String)> = vec![
        ("machine", format!("{} CPUs, {}", machine.cpus_online, machine.cpu_model)),
        ("caches", machine.caches.join(", ")),
        ("virtualisation", machine.virtualisation.clone().unwrap_or_else(|| "none".to_owned())),
        ("kernel", machine.kernel.clone()),
        (
            "governor, boost",
            format!(
                "{}, {}",
                machine.governor.as_deref().unwrap_or("unknown"),
                machine.boost.as_deref().unwrap_or("unknown")
            ),
        ),
        ("CPU of the server", bundle.cpus.server.to_string()),
        ("CPU of the load generator", bundle.cpus.client.to_string()),
        ("command", bundle.command.join(" ")),
        ("seed", bundle.seed.to_string()),
    ];
    let active = machine.mitigations.iter().filter(|(_, state)| state.starts_with("Mitigation"));
    let mitigations: Vec<&str> = active.map(|(name, _)| name.as_str()).collect();
    rows.push((
        "mitigations",
        if mitigations.is_empty() { "none".to_owned() } else { mitigations.join(", ") },
    ));
    for (number, session) in bundle.all_occasions().iter().enumerate() {
        rows.push((
            "session",
            format!("{}: {}, twinring {}", number + 1, session.started, session.lab_version),
        ));
    }
    for program in &bundle.programs {
        let hash = program
            .sha256
            .as_deref()
            .map_or("not read".to_owned(), |hash| hash.chars().take(16).collect());
        rows.push(("program", format!("{} {hash}", program.path)));
    }
    if let Some(prices) = &bundle.prices {
        rows.extend(prices.list.keys().filter_map(|name| {
            Some(("price", format!("{name} {}", figure(prices.median(name)?))))
        }));
    }
    let mut blocks: Vec<Block> =
        rows.into_iter().map(|(name, value)| Block::Item(format!("{name}: {value}"))).collect();
    blocks.push(Block::Text(clock(
        bundle.summary.as_ref().map(|it| it.idle_clock).unwrap_or_default(),
    )));
    let experiment = &bundle.experiment;
    let said = experiment.claims.iter().map(|claim| format!("claimed: {claim}"));
    let said = said
        .chain(experiment.not_reproduced.iter().map(|it| format!("not reproduced: {it}")))
        .chain(bundle.not_run.iter().map(|it| format!("{} was not run: {}", it.subject, it.why)))
        .chain(bundle.network_fallback.iter().map(|why| format!("network: {why}")));
    blocks.extend(said.map(Block::Item));
    blocks
}

pub(crate) fn change(of: &Estimate) -> String {
    match of.ends {
        None => format!("{:+.1} %", percent(of.ratio)),
        Some(ends) => format!(
            "{:+.1} % [{:+.1}, {:+.1}]",
            percent(of.ratio),
            percent(ends.low),
            percent(ends.high)
        ),
    }
}
