//! The tables behind the first page, as blocks that each rendering shows in its own way.

use super::chart::{Row, percent, sections, signed};
use super::page::figure;
use super::published::published;
use crate::analysis::{
    CellSummary, Comparison, Effect, FIGURES, Figure, Finding, LeftOut, SubjectSummary,
};
use crate::prices::PriceRecord;
use crate::result::Bundle;
use crate::statistics::Estimate;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Element {
    Heading(String),
    Text(String),
    Item(String),
    /// The first row is the head.
    Table(Vec<Vec<String>>),
    /// What a page with folds shows folded.
    Folded(String, Vec<Element>),
}

pub(crate) fn document(bundle: &Bundle) -> Vec<Element> {
    let mut blocks = vec![Element::Text(bundle.experiment.about.clone())];
    let Some(summary) = &bundle.summary else { return blocks };
    for ([baseline, subject], rows) in sections(bundle) {
        let unit = format!(
            "What {subject} needs more than {baseline}, in percent; less is negative. All runs and undisturbed pairs: \
             CPU per request, with the interval in brackets; system calls and notifications: per request."
        );
        blocks.push(Element::Heading(format!("{subject} against {baseline}")));
        blocks.push(Element::Text(unit));
        blocks.push(changes(&rows));
        blocks.extend(left_out(&rows));
        blocks.extend(explained(bundle.prices.as_ref(), &rows));
    }
    blocks.extend(published(bundle));
    let unit = "The end of a name is its unit; without one it is a count per request, or per packet of UDP.";
    let cells = summary.cells.iter().flat_map(of_cell);
    let cells = [Element::Text(unit.to_owned())].into_iter().chain(cells).collect();
    blocks.push(Element::Folded("Every figure of every cell".to_owned(), cells));
    blocks.extend(findings(&summary.cells));
    blocks.push(Element::Folded("Conditions".to_owned(), conditions(bundle)));
    blocks
}

/// The change that a ratio is, in percent, with its interval.
pub(crate) fn change_of(of: Option<&Estimate>) -> String {
    let Some(of) = of else { return "-".to_owned() };
    let percent = |ratio| signed(percent(ratio), 1);
    let ends = of.ends.map(|it| format!(" [{}, {}]", percent(it.low), percent(it.high)));
    format!("{} %{}", percent(of.ratio), ends.unwrap_or_default())
}

/// The first row of a table.
pub(super) fn head<const COLUMNS: usize>(titles: [&str; COLUMNS]) -> Vec<Vec<String>> {
    vec![titles.map(str::to_owned).to_vec()]
}

fn changes(rows: &[Row<'_>]) -> Element {
    let mut table = head([
        "cell",
        "all runs",
        "undisturbed",
        "pairs",
        "p99",
        "system calls",
        "notifications",
        "bottleneck",
        "decision",
    ]);
    for Row { cell, comparison: it } in rows {
        let figure = |name: &str| {
            let change = |of: &Estimate| signed(percent(of.ratio), 0) + " %";
            it.figures.get(name).map_or("-".to_owned(), change)
        };
        let decision = match (&it.less, &it.because) {
            (Some(less), _) => {
                let fragile = if it.is_fragile { ", but not over all runs" } else { "" };
                format!("{less} needs less, {}{fragile}", it.scope.words())
            }
            (None, because) => because.clone().unwrap_or_default(),
        };
        table.push(vec![
            cell.cell.to_string(),
            change_of(it.all_runs.as_ref()),
            change_of(it.ratio.as_ref()),
            format!("{} of {}", it.counted(), it.pairs),
            figure("p99_us"),
            figure("syscalls"),
            figure("notifications"),
            bottlenecks(cell, it),
            decision,
        ]);
    }
    Element::Table(table)
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

fn left_out(rows: &[Row<'_>]) -> Option<Element> {
    let mut table = head(["cell", "pairs", "why", "seen on"]);
    for Row { cell, comparison } in rows {
        let row = |it: &LeftOut| {
            vec![cell.cell.to_string(), it.pairs.to_string(), it.why.clone(), it.side.clone()]
        };
        table.extend(comparison.left_out.iter().map(row));
    }
    let any = table.len() > 1;
    any.then(|| Element::Folded("Pairs that were left out".to_owned(), vec![Element::Table(table)]))
}

/// What counts explain of the differences: the difference in counts, times what the machine charges for each.
fn explained(prices: Option<&PriceRecord>, rows: &[Row<'_>]) -> Option<Element> {
    let prices = prices.filter(|it| !it.list.is_empty())?;
    let titles = ["cell", "difference", "system calls", "notifications", "switches", "unexplained"];
    let mut table = head(titles);
    for Row { cell, comparison: it } in rows {
        let difference =
            |name: &str| Some(it.of_baseline.get(name)? * (it.figures.get(name)?.ratio - 1.0));
        let Some(whole) = difference("server_cpu_ns") else { continue };
        // Notifications are counted on both CPUs, and their price is for both: the server sends some and receives some.
        let parts = [
            ("syscalls", "syscall_ns", 1.0),
            ("notifications", "notification_busy_ns", 0.5),
            ("switches", "wakeup_ns", 1.0),
        ]
        .map(|(count, price, share)| Some(difference(count)? * prices.median(price)? * share));
        let rest = whole - parts.iter().flatten().sum::<f64>();
        let ns = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| signed(ns, 0) + " ns");
        let row = [Some(whole)].into_iter().chain(parts).chain([Some(rest)]).map(ns);
        table.push([cell.cell.to_string()].into_iter().chain(row).collect());
    }
    let about = "The difference in server CPU per request, and the part that counts times measured prices make up.";
    let title = "What the difference is made of".to_owned();
    (table.len() > 1).then(|| {
        Element::Folded(title, vec![Element::Text(about.to_owned()), Element::Table(table)])
    })
}

fn of_cell(cell: &CellSummary) -> Vec<Element> {
    let mut table: Vec<Vec<String>> = Vec::new();
    let mut row = |title: &str, value: &dyn Fn(&SubjectSummary) -> String| {
        table.push([title.to_owned()].into_iter().chain(cell.subjects.iter().map(value)).collect());
    };
    row("", &|it| it.name.clone());
    row("runs that count", &|it| format!("{} of {}", it.counted, it.runs));
    if cell.subjects.iter().any(|it| it.met_slo.is_some()) {
        row("met the SLO", &|it| it.met_slo.map_or("-".to_owned(), |met| met.to_string()));
    }
    for Figure { name, .. } in &FIGURES {
        let value = |it: &SubjectSummary| it.figures.as_ref()?.get(*name).copied();
        if cell.subjects.iter().any(|it| value(it).is_some()) {
            row(name, &|it| value(it).map_or("-".to_owned(), figure));
        }
    }
    vec![Element::Heading(cell.cell.to_string()), Element::Table(table)]
}

fn findings(cells: &[CellSummary]) -> Option<Element> {
    let mut items = Vec::new();
    for CellSummary { cell, findings, .. } in cells {
        let mut counts: Vec<(&Finding, usize)> = Vec::new();
        for it in findings {
            let is_it = |other: &Finding| (other.check, &other.subject) == (it.check, &it.subject);
            match counts.iter_mut().find(|(first, _)| is_it(first)) {
                Some((_, count)) => *count += 1,
                None => counts.push((it, 1)),
            }
        }
        for (Finding { check, effect, subject, what, .. }, runs) in counts {
            let effect = match effect {
                Effect::Note => "note",
                Effect::Excluded => "excluded",
                Effect::Void => "VOID",
            };
            let (title, advice) = (check.title(), check.advice());
            let plural = if runs == 1 { "" } else { "s" };
            let found = format!(
                "{effect}: {cell}, {subject}: {title}: {what} ({runs} run{plural}); {advice}"
            );
            items.push(Element::Item(found));
        }
    }
    (!items.is_empty()).then(|| Element::Folded("What the checks found".to_owned(), items))
}

fn conditions(bundle: &Bundle) -> Vec<Element> {
    let (machine, experiment) = (&bundle.machine, &bundle.experiment);
    let or = |text: &Option<String>, none: &str| text.clone().unwrap_or_else(|| none.to_owned());
    let active = machine.mitigations.iter().filter(|(_, state)| state.starts_with("Mitigation"));
    let mitigations: Vec<&str> = active.map(|(name, _)| name.as_str()).collect();
    let mut rows: Vec<(&str, String)> = vec![
        ("machine", format!("{} CPUs, {}", machine.cpus_online, machine.cpu_model)),
        ("caches", machine.caches.join(", ")),
        ("virtualisation", or(&machine.virtualisation, "none")),
        ("kernel", machine.kernel.clone()),
        ("governor", or(&machine.governor, "unknown")),
        ("boost", or(&machine.boost, "unknown")),
        ("active mitigations", mitigations.join(", ")),
        ("CPU of the server", bundle.cpus.server.to_string()),
        ("CPU of the load generator", bundle.cpus.client.to_string()),
        ("command", bundle.command.join(" ")),
        ("seed", bundle.seed.to_string()),
    ];
    for (number, it) in (1..).zip(&bundle.all_occasions()) {
        rows.push(("session", format!("{number}: {}, twinring {}", it.started, it.lab_version)));
    }
    for program in &bundle.programs {
        let hash = program.sha256.as_deref().unwrap_or("not read");
        rows.push((
            "program",
            format!("{} {}", program.path, hash.chars().take(16).collect::<String>()),
        ));
    }
    if let Some(prices) = &bundle.prices {
        let price =
            |name: &String| Some(("price", format!("{name} {}", figure(prices.median(name)?))));
        rows.extend(prices.list.keys().filter_map(price));
    }
    let clock = bundle.summary.as_ref().map(|it| it.idle_clock).unwrap_or_default();
    rows.push(("CPU time", format!("the window less the idle time of {}", clock.describe())));
    rows.extend(experiment.claims.iter().map(|it| ("claimed", it.clone())));
    rows.extend(experiment.not_reproduced.iter().map(|it| ("not reproduced", it.clone())));
    rows.extend(bundle.not_run.iter().map(|it| ("not run", format!("{}: {}", it.subject, it.why))));
    rows.extend(bundle.network_fallback.iter().map(|why| ("network", why.clone())));
    rows.into_iter().map(|(name, value)| Element::Item(format!("{name}: {value}"))).collect()
}
