//! What others have published about the same work, beside what was measured here.

use super::columns::{call_row, published_call_titles};
use super::words::{NOTHING, percent, short, whole};
use crate::experiment::{Point, Published, PublishedDatagrams, PublishedRate, PublishedRequests};
use crate::result::Bundle;
use crate::summary::{CellSummary, Figures, Summary};

/// The title of this part of a report.
pub(super) const TITLE: &str = "Published figures beside ours";

/// Under which conditions it was published, each said once.
pub(super) fn conditions(bundle: &Bundle) -> Vec<String> {
    let mut told: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for published in &bundle.experiment.published {
        let (source, conditions) = (published.source(), published.conditions());
        let name = match published {
            Published::Datagrams(published) => &published.subject,
            Published::Requests(published) => &published.program,
        };
        match told.iter_mut().find(|known| known.0 == source && known.1 == conditions) {
            Some(known) => known.2.push(name),
            None => told.push((source, conditions, vec![name])),
        }
    }
    let sentence = |(source, conditions, subjects): (&str, &str, Vec<&str>)| {
        format!("{source}, {}: {conditions}.", subjects.join(", "))
    };
    told.into_iter().map(sentence).collect()
}

/// What was published and ours: CPU of datagrams, their calls, requests per second. Any may be
/// empty.
pub(super) fn tables(bundle: &Bundle, summary: &Summary) -> [Vec<Vec<String>>; 3] {
    let published = &bundle.experiment.published;
    let datagrams = || {
        published.iter().filter_map(|published| match published {
            Published::Datagrams(published) => Some(published),
            Published::Requests(_) => None,
        })
    };
    let requests = published.iter().filter_map(|published| match published {
        Published::Requests(published) => Some(published),
        Published::Datagrams(_) => None,
    });
    let mut cpu: Vec<Vec<String>> =
        datagrams().flat_map(|published| cpu_rows(published, summary)).collect();
    let mut calls: Vec<Vec<String>> = datagrams().flat_map(call_rows).collect();
    let mut rates: Vec<Vec<String>> =
        requests.flat_map(|published| rate_rows(published, summary)).collect();
    if !cpu.is_empty() {
        cpu.insert(0, CPU_TITLES.map(str::to_owned).to_vec());
    }
    if !calls.is_empty() {
        calls.insert(0, published_call_titles());
    }
    if !rates.is_empty() {
        rates.insert(0, RATE_TITLES.map(str::to_owned).to_vec());
    }
    [cpu, calls, rates]
}

const CPU_TITLES: [&str; 7] = [
    "published CPU",
    "subject",
    "packets/s",
    "published",
    "client process here",
    "client CPU busy here",
    "here on",
];

const RATE_TITLES: [&str; 8] = [
    "published rate",
    "connections x file",
    "published, requests/s",
    "mean, ms",
    "closest here",
    "here, requests/s",
    "mean, ms",
    "here on",
];

/// One row for each measurement and network, or one that says that there is nothing of ours.
fn rate_rows(published: &PublishedRequests, summary: &Summary) -> Vec<Vec<String>> {
    let of_rate = |rate: &PublishedRate| {
        let row = |here: [String; 3]| {
            let head = [
                format!("{}, {}", published.source, published.program),
                format!("{} x {} B", rate.connections, rate.file_bytes),
                whole(rate.requests_per_s),
                short(rate.mean_ms),
                published.subject.clone(),
            ];
            head.into_iter().chain(here).collect::<Vec<_>>()
        };
        let mut rows: Vec<Vec<String>> = summary
            .cells
            .iter()
            .filter_map(|cell| {
                let figures = same_requests(published, rate, cell)?;
                Some(row([
                    whole(figures.requests_per_s),
                    short(figures.latency_us_mean / 1e3),
                    cell.cell.net.to_string(),
                ]))
            })
            .collect();
        if rows.is_empty() {
            rows.push(row([NOTHING, NOTHING, "not measured"].map(str::to_owned)));
        }
        rows
    };
    published.measured.iter().flat_map(of_rate).collect()
}

/// Our figures of the same work, if this cell has it.
fn same_requests<'a>(
    published: &PublishedRequests,
    rate: &PublishedRate,
    cell: &'a CellSummary,
) -> Option<&'a Figures> {
    let Point::Http(point) = cell.cell.point else { return None };
    let is_same = (point.connections, point.file_bytes) == (rate.connections, rate.file_bytes)
        && (point.files, point.depth, point.keepalive, point.tls) == (1, 1, true, false);
    let same = |subject: &&crate::summary::SubjectSummary| subject.name == published.subject;
    cell.subjects.iter().filter(|_| is_same).find(same)?.figures.as_ref()
}

/// One row for each cell in which the same work was measured, or one that says that there is none.
fn cpu_rows(published: &PublishedDatagrams, summary: &Summary) -> Vec<Vec<String>> {
    let row = |here: [String; 3]| {
        let total = u64::from(published.streams) * u64::from(published.packets_per_s);
        let [process, busy, place] = here;
        vec![
            published.source.clone(),
            published.subject.clone(),
            whole(total as f64),
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
fn figures<'a>(published: &PublishedDatagrams, cell: &'a CellSummary) -> Option<&'a Figures> {
    let Point::Udp { streams, packets_per_s, .. } = cell.cell.point else { return None };
    if (streams, packets_per_s) != (published.streams, published.packets_per_s) {
        return None;
    }
    cell.subjects.iter().find(|subject| subject.name == published.subject)?.figures.as_ref()
}

fn call_rows(published: &PublishedDatagrams) -> Vec<Vec<String>> {
    let who = format!("{}, {}", published.source, published.subject);
    let row = |call: &crate::experiment::PublishedCall| {
        let figures = [call.per_second(), call.run_percent, call.mean_us(), call.max_ms];
        call_row(&who, &call.call, figures)
    };
    published.calls.iter().map(row).collect()
}
