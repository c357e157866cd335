//! A report as a document: what it says, part by part. The terminal, Markdown and HTML lay the
//! parts out; what is drawn stands in HTML only.

use super::model::{Detail, Document, Item, Part, Rows, Section, Tone, apart, item};
use super::outcome::{self, MARKS, Outcome, judged, overall};
use super::shape::Shape;
use super::{
    accounting, columns, conditions, findings, networks, prices, published, scaling, text,
    verdicts, words,
};
use crate::result::Bundle;
use crate::summary::{CellSummary, Summary};
use crate::workload::Table;

/// From this many cells, or comparisons, on the terminal shows verdicts only; figures of each cell
/// are in the other reports.
const COMPACT_FROM: usize = 48;

/// The whole bundle.
pub(super) fn document(bundle: &Bundle, detail: Detail) -> Document {
    let experiment = &bundle.experiment;
    let mut sections = vec![head(bundle)];
    if let Some(summary) = &bundle.summary {
        let full = detail == Detail::Full;
        let shape = Shape::of(bundle, summary);
        let told = overall(bundle, summary).into_iter().map(|it| Part::Text(Tone::Strong, it));
        sections.push(Section::new(None, told.collect()));
        let mut networks = apart("Networks", networks::tables(summary));
        if !networks.is_empty() && shape.maps.is_empty() && shape.ablations.is_empty() {
            networks.push(Part::Text(Tone::Soft, format!("{MARKS}.")));
        }
        sections.push(Section::new(None, networks));
        sections.push(of_workers(summary));
        sections.extend(pictures(&shape));
        if full {
            sections.push(warnings(bundle, summary));
        }
        if !full && summary.cells.len().max(judged(summary).count()) >= COMPACT_FROM {
            sections.extend(compact(summary, &shape));
        } else {
            sections.extend(summary.cells.iter().map(|cell| of_cell(cell, detail)));
        }
        sections.extend(prices::section(bundle).filter(|_| full));
        sections.extend(of_published(bundle, summary));
        if !full {
            sections.push(warnings(bundle, summary));
        }
        if full || !summary.cells.is_empty() {
            sections.push(Section::new(None, vec![Part::plain(words::legend(bundle))]));
        }
        if full {
            sections.push(of_conditions(bundle));
            sections.push(to_repeat(bundle));
        }
    }
    sections.retain(|section| !section.is_empty());
    let (title, about) = (experiment.name.clone(), experiment.about.clone());
    Document { title, about, sections }
}

fn head(bundle: &Bundle) -> Section {
    let mut parts = vec![Part::plain(words::setting(bundle))];
    match &conditions::machines(bundle)[..] {
        [one] => parts.push(Part::plain(one)),
        several => parts.push(Part::items(several.iter().map(|it| item(Tone::Plain, it.clone())))),
    }
    parts.extend(words::notes(bundle).into_iter().map(|note| Part::Text(Tone::Note, note)));
    Section::new(None, parts)
}

/// What more workers bring, if cells differ in them.
pub(super) fn of_workers(summary: &Summary) -> Section {
    let mut parts = apart("Workers", scaling::tables(summary));
    if !parts.is_empty() {
        parts.push(Part::Text(Tone::Soft, scaling::EXPLANATION.to_owned()));
    }
    Section::new(Some((2, "Workers")), parts)
}

/// Maps, changes and knees.
fn pictures(shape: &Shape<'_>) -> Vec<Section> {
    let picture = |title: String, rows| {
        let parts = vec![Part::table(&title, rows)];
        Section::new(Some((3, &title)), parts)
    };
    let maps = shape.maps.iter().map(|it| picture(text::map_title(it), text::map(it)));
    let changes =
        shape.ablations.iter().map(|it| picture(text::ablation_title(it), text::ablation(it)));
    let mut sections: Vec<Section> = maps.chain(changes).collect();
    if let Some(last) = sections.last_mut() {
        last.parts.push(Part::Text(Tone::Soft, format!("{MARKS}.")));
    }
    for curves in &shape.curves {
        let knee = |it| format!("{}: {}", curves.common, outcome::knee(it));
        let knees = curves.knees.iter().map(|it| item(Tone::Plain, knee(it)));
        sections.push(Section::new(None, vec![Part::items(knees)]));
    }
    sections
}

/// What a reader of the verdicts has to know, with advice.
pub(super) fn warnings(bundle: &Bundle, summary: &Summary) -> Section {
    let told = findings::gathered(bundle, summary).into_iter();
    Section::new(Some((2, "Warnings")), vec![Part::items(told)])
}

/// The verdicts that no map shows.
fn compact(summary: &Summary, shape: &Shape<'_>) -> [Section; 2] {
    let unseen = judged(summary).filter(|(_, it)| !shape.shows(it)).map(|(cell, comparison)| {
        let verdict = format!("{}: {}", cell.cell, verdicts::headline(cell, comparison));
        item(Tone::Verdict(Outcome::of(comparison)), verdict)
    });
    let cells = summary.cells.len();
    let rest = format!("The figures of the {cells} cells are in report.md and report.html.");
    let unseen = Section::new(None, vec![Part::items(unseen)]);
    [unseen, Section::new(None, vec![Part::plain(rest)])]
}

fn of_cell(cell: &CellSummary, detail: Detail) -> Section {
    let headline = |it| Part::Text(Tone::Verdict(Outcome::of(it)), verdicts::headline(cell, it));
    let mut parts: Vec<Part> = cell.comparisons.iter().map(headline).collect();
    parts.extend(figures(cell, detail));
    Section::new(Some((2, &cell.cell.to_string())), parts)
}

/// The tables of a cell, and what was found in it.
pub(super) fn figures(cell: &CellSummary, detail: Detail) -> Vec<Part> {
    let full = detail == Detail::Full;
    let with_units =
        |label: &str, rows| Part::Rows(Rows { label: label.to_owned(), head: 2, rows });
    let mut parts = vec![
        with_units("Figures", columns::figures(cell)),
        Part::table("Ratios", columns::ratio_rows(cell)),
        with_units("Counts", columns::counts(cell)),
    ];
    if full {
        parts.push(Part::table("Times", columns::simple(cell, Table::Times, "times")));
        parts.push(Part::table("Datagrams", columns::simple(cell, Table::Datagrams, "datagrams")));
    }
    parts.push(Part::table("System calls of the load generator", columns::calls(cell)));
    if full {
        for (rows, note) in accounting::tables(cell) {
            let label = rows[0][0].clone();
            parts.push(Part::table(&label, rows));
            parts.push(Part::Text(Tone::Soft, note.to_owned()));
        }
    }
    parts.extend(words::placements(cell).into_iter().map(Part::plain));
    let notes = cell.comparisons.iter().filter_map(verdicts::throughput_note);
    parts.extend(notes.map(|note| Part::Text(Tone::Note, note)));
    if full {
        let findings = words::finding_groups(cell).into_iter().map(|group| Item {
            tone: Tone::Finding(group.first.severity),
            mark: words::severity(group.first.severity).to_owned(),
            text: group.sentence(),
        });
        parts.push(Part::items(findings));
    }
    Section::new(None, parts).parts
}


/// What was published beside ours, and what could not be reproduced.
pub(super) fn of_published(bundle: &Bundle, summary: &Summary) -> [Section; 2] {
    let mut parts = apart(published::TITLE, published::tables(bundle, summary));
    parts.extend(published::remarks(bundle, summary).into_iter().map(Part::plain));
    let conditions = published::conditions(bundle).into_iter();
    parts.extend(conditions.map(|it| Part::Text(Tone::Soft, it)));
    let missing = bundle.experiment.not_reproduced.iter().cloned();
    let missing = Part::items(missing.map(|it| item(Tone::Plain, it)));
    [
        Section::new(Some((2, published::TITLE)), parts),
        Section::new(Some((3, published::NOT_REPRODUCED_TITLE)), vec![missing]),
    ]
}

pub(super) fn of_conditions(bundle: &Bundle) -> Section {
    let rows = conditions::conditions(bundle).into_iter().map(|(name, value)| vec![name, value]);
    let rows = Rows { label: "Conditions".to_owned(), head: 0, rows: rows.collect() };
    Section::new(Some((2, "Conditions")), vec![Part::Rows(rows)])
}

fn to_repeat(bundle: &Bundle) -> Section {
    let mut parts = vec![Part::Code(words::repeat(bundle))];
    parts.extend(programs(bundle));
    Section::new(Some((2, "To repeat it")), parts)
}

/// The hashes of the programs.
pub(super) fn programs(bundle: &Bundle) -> Option<Part> {
    let line = |it: &crate::machine::Program| {
        let hash = it.sha256.as_deref().unwrap_or("could not be read");
        format!("{hash}  {}", it.path)
    };
    let lines: Vec<String> = bundle.programs.iter().map(line).collect();
    (!lines.is_empty()).then(|| Part::Code(lines.join("\n")))
}
