//! What others have published about the same work, beside what was measured here.

use super::columns::{call_row, published_call_titles};
use super::numbers::{NOTHING, interval, percent, short, whole};
use crate::experiment::{Axis, Printed, Published, PublishedDatagrams};
use crate::reproduction::{self, Beside, Outcome};
use crate::result::Bundle;
use crate::summary::{CellSummary, Figures, Metric, Summary};

/// The title of this part of a report.
pub(super) const TITLE: &str = "Published figures beside ours";

/// The title over what could not be reproduced, as the experiment says it.
pub(super) const NOT_REPRODUCED_TITLE: &str = "What could not be reproduced";

/// Under which conditions it was published, each said once.
pub(super) fn conditions(bundle: &Bundle) -> Vec<String> {
    let mut told: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for published in &bundle.experiment.published {
        let (source, conditions) = (published.source(), published.conditions());
        let name = published.program();
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

/// What was published and ours: ratios of requests per second with what became of them, requests
/// per second, CPU of datagrams and their calls. Any may be empty.
pub(super) fn tables(bundle: &Bundle, summary: &Summary) -> [Vec<Vec<String>>; 4] {
    let published = &bundle.experiment.published;
    let datagrams = || {
        published.iter().filter_map(|published| match published {
            Published::Datagrams(published) => Some(published),
            Published::Requests(_) | Published::Echo(_) => None,
        })
    };
    let beside = reproduction::beside(&bundle.experiment, &summary.cells);
    let titled = |titles: &[&str], mut rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            rows.insert(0, titles.iter().map(|title| (*title).to_owned()).collect());
        }
        rows
    };
    let call_titles = published_call_titles();
    let call_titles: Vec<&str> = call_titles.iter().map(String::as_str).collect();
    [
        titled(&RATIO_TITLES, beside.iter().map(ratio_row).collect()),
        titled(&RATE_TITLES, published.iter().flat_map(|it| rate_rows(it, summary)).collect()),
        titled(&CPU_TITLES, datagrams().flat_map(|it| cpu_rows(it, summary)).collect()),
        titled(&call_titles, datagrams().flat_map(call_rows).collect()),
    ]
}

/// What follows from them: how many comparisons were reproduced, what the numbers printed beside
/// some figures are, and which figures contradict each other.
pub(super) fn remarks(bundle: &Bundle, summary: &Summary) -> Vec<String> {
    let published = &bundle.experiment.published;
    let beside = reproduction::beside(&bundle.experiment, &summary.cells);
    let mut remarks = outcomes(&beside);
    remarks.extend(published.iter().flat_map(notes));
    remarks.extend(published.iter().filter_map(impossible_means));
    remarks
}

/// How the published ratios of each pair of ours came out, and how that was judged.
fn outcomes(beside: &[Beside<'_>]) -> Vec<String> {
    let mut groups: Vec<(String, Vec<Outcome>)> = Vec::new();
    for one in beside {
        let Beside { published, against, here: [subject, baseline], .. } = one;
        let group = format!(
            "{}, {} : {}, beside {subject} : {baseline} here",
            published.source(),
            published.program(),
            against.program
        );
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, outcomes)) => outcomes.push(one.outcome()),
            None => groups.push((group, vec![one.outcome()])),
        }
    }
    let sentence = |(group, outcomes): &(String, Vec<Outcome>)| {
        let counted = Outcome::ALL.iter().filter_map(|outcome| {
            let times = outcomes.iter().filter(|it| *it == outcome).count();
            (times > 0).then(|| format!("{times} {outcome}"))
        });
        let counted: Vec<String> = counted.collect();
        format!("{group}: {}.", counted.join("; "))
    };
    let mut sentences: Vec<String> = groups.iter().map(sentence).collect();
    if !sentences.is_empty() {
        sentences.push(format!(
            "What was published is requests per second, so here the ratios of requests per second \
             are compared; our verdicts are about CPU per request. Reproduced: our interval comes \
             within {:.0} % of the published ratio and shows the same winner, or no winner where \
             none was published. Where the load generator was the bottleneck, a ratio of requests \
             per second says nothing about the servers, and nothing is judged.",
            (reproduction::MARGIN - 1.0) * 100.0
        ));
    }
    sentences
}

/// The notes beside printed figures.
fn notes(published: &Published) -> Vec<String> {
    let printed = published.printed().into_iter().filter(|printed| !printed.note.is_empty());
    let note = |printed: Printed<'_>| {
        let Printed { note, .. } = printed;
        let (source, program) = (published.source(), published.program());
        format!("{source}, {program}, {}: {note}.", work(published, &printed))
    };
    printed.map(note).collect()
}

/// Which printed means cannot be, by Little's law.
fn impossible_means(published: &Published) -> Option<String> {
    let found = reproduction::contradictions(published);
    let of_all = published.printed().len();
    let one = |(printed, longest_ms): &(Printed<'_>, f64)| {
        let (mean_ms, requests_per_s) = (printed.mean_ms?, printed.requests_per_s?);
        Some(format!(
            "{}: {} ms printed, {} / {} = {} ms at most, {} times less",
            work(published, printed),
            short(mean_ms),
            printed.connections,
            whole(requests_per_s),
            short(*longest_ms),
            short(mean_ms / longest_ms)
        ))
    };
    let cells: Vec<String> = found.iter().filter_map(one).collect();
    (!cells.is_empty()).then(|| {
        format!(
            "{}, {}: {} of {of_all} mean latencies contradict their own request rates by Little's \
             law, which leaves a closed loop no more than connections / rate. {}.",
            published.source(),
            published.program(),
            cells.len(),
            cells.join("; ")
        )
    })
}

const CPU_TITLES: [&str; 8] = [
    "published CPU",
    "subject",
    "packets/s",
    "published",
    "client process here",
    "client CPU busy here",
    "process here : published",
    "here on",
];

const RATE_TITLES: [&str; 9] = [
    "published rate",
    "connections x bytes",
    "published, requests/s",
    "mean, ms",
    "subject here",
    "here, requests/s",
    "mean, ms",
    "here : published",
    "here on",
];

const RATIO_TITLES: [&str; 8] = [
    "published ratio",
    "connections x bytes",
    "published",
    "subjects here",
    "here, requests/s",
    "outcome",
    "verdict here, by CPU",
    "here on",
];

/// One row for each measurement, subject of ours and network, or one that says that there is
/// nothing of ours.
fn rate_rows(published: &Published, summary: &Summary) -> Vec<Vec<String>> {
    let of_rate = |printed: &Printed<'_>| {
        let mean_ms = |mean_ms: Option<f64>| mean_ms.map_or(NOTHING.to_owned(), short);
        let row = |subject: &str, here: [String; 4]| {
            let head = [
                format!("{}, {}", published.source(), published.program()),
                work(published, printed),
                rate(printed),
                mean_ms(printed.mean_ms),
                subject.to_owned(),
            ];
            head.into_iter().chain(here).collect::<Vec<_>>()
        };
        let mut rows = Vec::new();
        for subject in published.subjects() {
            for cell in &summary.cells {
                let Some(figures) = same_requests(published, printed, subject, cell) else {
                    continue;
                };
                let times = |number: f64| short(figures[Metric::RequestsPerS] / number);
                let here = [
                    whole(figures[Metric::RequestsPerS]),
                    mean_ms(Some(figures[Metric::LatencyUsMean] / 1e3)),
                    printed.requests_per_s.map_or(NOTHING.to_owned(), times),
                    cell.cell.net.to_string(),
                ];
                rows.push(row(subject, here));
            }
        }
        if rows.is_empty() {
            let nothing = [NOTHING, NOTHING, NOTHING, "not measured"].map(str::to_owned);
            rows.push(row(published.subject(), nothing));
        }
        rows
    };
    published.printed().iter().flat_map(of_rate).collect()
}

/// Connections and bytes as they were printed.
fn work(published: &Published, printed: &Printed<'_>) -> String {
    let file = if matches!(published, Published::Requests(_)) { " file" } else { "" };
    format!("{} x {} B{file}", printed.connections, printed.bytes)
}

/// The number that was printed, or what stands there instead.
fn rate(printed: &Printed<'_>) -> String {
    printed.requests_per_s.map_or_else(|| printed.note.to_owned(), whole)
}

/// A subject's figures of the same work, if this cell has it.
fn same_requests<'a>(
    published: &Published,
    printed: &Printed<'_>,
    subject: &str,
    cell: &'a CellSummary,
) -> Option<&'a Figures> {
    if !reproduction::is_same_work(published, printed, cell) {
        return None;
    }
    cell.subjects.iter().find(|it| it.name == subject)?.figures.as_ref()
}

/// One row for each published ratio and each of ours that answers it.
fn ratio_row(beside: &Beside<'_>) -> Vec<String> {
    let Beside { published, against, printed, here: [subject, baseline], .. } = beside;
    let (ours, verdict, net) = match beside.ours {
        None => (NOTHING.to_owned(), NOTHING.to_owned(), "not measured".to_owned()),
        Some((cell, comparison)) => {
            let hidden = comparison.throughput_is_client_bound;
            let ratio = interval(comparison.ratio(Metric::RequestsPerS));
            let ratio = if hidden { "client-bound".to_owned() } else { ratio };
            (ratio, comparison.verdict.to_string(), cell.cell.net.to_string())
        }
    };
    vec![
        format!("{}, {} : {}", published.source(), published.program(), against.program),
        work(published, printed),
        beside.ratio.map_or(NOTHING.to_owned(), |ratio| format!("{ratio:.3}")),
        format!("{subject} : {baseline}"),
        ours,
        beside.outcome().to_string(),
        verdict,
        net,
    ]
}

/// One row for each cell in which the same work was measured, or one that says that there is none.
fn cpu_rows(published: &PublishedDatagrams, summary: &Summary) -> Vec<Vec<String>> {
    let row = |here: [String; 4]| {
        let total = u64::from(published.streams) * u64::from(published.packets_per_s);
        let [process, busy, times, place] = here;
        vec![
            published.source.clone(),
            published.subject.clone(),
            whole(total as f64),
            percent(published.cpu_percent / 100.0),
            process,
            busy,
            times,
            place,
        ]
    };
    let rows: Vec<_> = summary
        .cells
        .iter()
        .filter_map(|cell| {
            let figures = figures(published, cell)?;
            Some(row([
                percent(figures[Metric::ClientProcessShare]),
                percent(figures[Metric::ClientBusyShare]),
                short(figures[Metric::ClientProcessShare] / (published.cpu_percent / 100.0)),
                cell.cell.net.to_string(),
            ]))
        })
        .collect();
    if rows.is_empty() {
        let nothing = [NOTHING, NOTHING, NOTHING, "not measured"].map(str::to_owned);
        return vec![row(nothing)];
    }
    rows
}

/// Our figures of the same work, if this cell has it.
fn figures<'a>(published: &PublishedDatagrams, cell: &'a CellSummary) -> Option<&'a Figures> {
    let point = cell.cell.point;
    let (streams, packets_per_s) = (point.on(Axis::Streams)?, point.get(Axis::PacketsPerS));
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
