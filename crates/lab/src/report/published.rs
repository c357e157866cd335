//! What others have published about the same work, beside what was measured here.

use super::columns::{call_row, published_call_titles};
use super::words::{NOTHING, percent};
use crate::experiment::{Point, Published};
use crate::result::Bundle;
use crate::summary::{CellSummary, Figures, Summary};

/// The title of this part of a report.
pub(super) const TITLE: &str = "Published figures beside ours";

/// Under which conditions it was published, each said once.
pub(super) fn conditions(bundle: &Bundle) -> Vec<String> {
    let mut told: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for Published { source, subject, conditions, .. } in &bundle.experiment.published {
        match told.iter_mut().find(|known| known.0 == source && known.1 == conditions) {
            Some(known) => known.2.push(subject),
            None => told.push((source, conditions, vec![subject])),
        }
    }
    let sentence = |(source, conditions, subjects): (&str, &str, Vec<&str>)| {
        format!("{source}, {}: {conditions}.", subjects.join(", "))
    };
    told.into_iter().map(sentence).collect()
}

/// The CPU that was published and ours, and the calls that were published. Either may be empty.
pub(super) fn tables(bundle: &Bundle, summary: &Summary) -> [Vec<Vec<String>>; 2] {
    let published = &bundle.experiment.published;
    let mut cpu: Vec<Vec<String>> =
        published.iter().flat_map(|published| cpu_rows(published, summary)).collect();
    let mut calls: Vec<Vec<String>> = published.iter().flat_map(call_rows).collect();
    if !cpu.is_empty() {
        let titles = [
            "published CPU",
            "subject",
            "packets/s",
            "published",
            "client process here",
            "client CPU busy here",
            "here on",
        ];
        cpu.insert(0, titles.map(str::to_owned).to_vec());
    }
    if !calls.is_empty() {
        calls.insert(0, published_call_titles());
    }
    [cpu, calls]
}

/// One row for each cell in which the same work was measured, or one that says that there is none.
fn cpu_rows(published: &Published, summary: &Summary) -> Vec<Vec<String>> {
    let row = |here: [String; 3]| {
        let total = u64::from(published.streams) * u64::from(published.packets_per_s);
        let [process, busy, place] = here;
        vec![
            published.source.clone(),
            published.subject.clone(),
            super::words::whole(total as f64),
            percent(published.cpu_percent / 100.0),
            process,
            busy,
            place,
        ]
    };
    let rows: Vec<_> = summary
        .cells
        .iter()
        .filter_map(|cell| {
            let figures = figures(published, cell)?;
            Some(row([
                percent(figures.client_process_share),
                percent(figures.client_busy_share),
                cell.cell.net.to_string(),
            ]))
        })
        .collect();
    if rows.is_empty() {
        let nothing = [NOTHING, NOTHING, "not measured"].map(str::to_owned);
        return vec![row(nothing)];
    }
    rows
}

/// Our figures of the same work, if this cell has it.
fn figures<'a>(published: &Published, cell: &'a CellSummary) -> Option<&'a Figures> {
    let Point::Udp { streams, packets_per_s, .. } = cell.cell.point else { return None };
    if (streams, packets_per_s) != (published.streams, published.packets_per_s) {
        return None;
    }
    cell.subjects.iter().find(|subject| subject.name == published.subject)?.figures.as_ref()
}

fn call_rows(published: &Published) -> Vec<Vec<String>> {
    let who = format!("{}, {}", published.source, published.subject);
    let row = |call: &crate::experiment::PublishedCall| {
        let figures = [call.per_second(), call.run_percent, call.mean_us(), call.max_ms];
        call_row(&who, &call.call, figures)
    };
    published.calls.iter().map(row).collect()
}
