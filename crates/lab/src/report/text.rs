//! Tables of letters, for the terminal and for Markdown.

use super::outcome::{Outcome, entry};
use super::shape::{Ablation, Change, Map};
use crate::statistics::Ends;

/// Columns of a terminal that text is made for.
pub(super) const WIDTH: usize = 100;

/// Between two columns of a table.
const GAP: usize = 2;

/// A title row with the columns, then a row of ratios for each value of the other axis.
pub(super) fn map(map: &Map<'_>) -> Vec<Vec<String>> {
    let (rows, row_values) = &map.rows;
    let (columns, column_values) = &map.columns;
    let mut head = vec![rows.title().to_owned()];
    head.extend(column_values.iter().map(|value| columns.label(*value)));
    let mut table = vec![head];
    for (value, entries) in row_values.iter().zip(&map.entries) {
        let times = |it: &crate::summary::Comparison| it.of_record().map(|interval| interval.ratio);
        let text = |found: &Option<super::outcome::Judged<'_>>| match found {
            Some((_, comparison)) => entry(comparison, times(comparison)),
            None => super::numbers::NOTHING.to_owned(),
        };
        table.push([rows.label(*value)].into_iter().chain(entries.iter().map(text)).collect());
    }
    table
}

/// What a map is of.
pub(super) fn map_title(map: &Map<'_>) -> String {
    let Map { subject, baseline, common, .. } = map;
    let [rows, columns] = [map.rows.0.title(), map.columns.0.title()];
    format!("{subject} against {baseline}, {common}: {rows} by {columns}")
}

/// A title row, then a row for each change: how many times the CPU of its origin it needs.
pub(super) fn ablation(ablation: &Ablation<'_>) -> Vec<Vec<String>> {
    let titles = ["change", "times the CPU", "interval", "features"];
    let row = |change: &Change<'_>| {
        let times = change.times.filter(|_| Outcome::of(change.comparison) != Outcome::Void);
        let ends = change.ends.filter(|_| times.is_some());
        vec![
            change.comparison.subject.clone(),
            entry(change.comparison, times),
            ends.map_or(super::numbers::NOTHING.to_owned(), |Ends { low, high }| {
                format!("[{low:.3}, {high:.3}]")
            }),
            change.what.unwrap_or_default().to_owned(),
        ]
    };
    [titles.map(str::to_owned).to_vec()]
        .into_iter()
        .chain(ablation.changes.iter().map(row))
        .collect()
}

/// What the bars of a cell are of.
pub(super) fn ablation_title(ablation: &Ablation<'_>) -> String {
    format!("Changes to {}, {}: times its CPU", ablation.origin, ablation.cell.cell)
}

/// The rows as lines of at most `width` columns where one column beside the first has room. What
/// does not fit follows below, with the first column again.
pub(super) fn lines(rows: &[Vec<String>], width: usize) -> Vec<String> {
    let widths = column_widths(rows);
    let Some(first) = widths.first() else { return Vec::new() };
    let mut blocks: Vec<Vec<usize>> = Vec::new();
    let mut used = 0;
    for (column, wide) in widths.iter().enumerate().skip(1) {
        match blocks.last_mut() {
            Some(block) if used + GAP + wide <= width => block.push(column),
            _ => {
                blocks.push(vec![column]);
                used = *first;
            }
        }
        used += GAP + wide;
    }
    if blocks.is_empty() {
        blocks.push(Vec::new());
    }
    let part = |block: &Vec<usize>| -> Vec<Vec<String>> {
        let pick = |row: &Vec<String>| {
            let columns = [0].iter().chain(block);
            columns.map(|column| row.get(*column).cloned().unwrap_or_default()).collect()
        };
        rows.iter().map(pick).collect()
    };
    blocks.iter().flat_map(|block| align(&part(block))).collect()
}

fn column_widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| length(text)).max().unwrap_or(0)
    };
    (0..columns).map(width).collect()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Pads the columns: the first to the left, the others to the right.
pub(crate) fn align(rows: &[Vec<String>]) -> Vec<String> {
    let widths = column_widths(rows);
    let pad = |(column, text): (usize, &String)| {
        let blanks = " ".repeat(widths[column] - length(text));
        if column == 0 { format!("{text}{blanks}") } else { format!("  {blanks}{text}") }
    };
    let line = |row: &Vec<String>| row.iter().enumerate().map(pad).collect::<String>();
    rows.iter().map(|row| line(row).trim_end().to_owned()).collect()
}

/// Text in lines of at most [`WIDTH`] columns where words allow, indented by `indent`.
pub(super) fn wrapped(text: &str, indent: usize) -> Vec<String> {
    let indent = " ".repeat(indent);
    let options = textwrap::Options::new(WIDTH)
        .initial_indent(&indent)
        .subsequent_indent(&indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(std::borrow::Cow::into_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<const N: usize>(rows: &[[&str; N]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = rows(&[["", "µs"], ["a", "1,000"], ["bcd", "–"]]);
        assert_eq!(lines(&rows, 100), ["        µs", "a    1,000", "bcd      –"]);
    }

    #[test]
    fn columns_that_do_not_fit_follow_below() {
        let rows = rows(&[["name", "one", "two", "three"], ["x", "1", "2", "3"]]);
        let folded = ["name  one  two", "x       1    2", "name  three", "x         3"];
        assert_eq!(lines(&rows, 14), folded);
        assert_eq!(lines(&rows, 5).len(), 6, "a column wider than the line is not lost");
    }
}
