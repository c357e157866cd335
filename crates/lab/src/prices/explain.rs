//! What the differences between two sides consist of: each count times its price, the rest is unexplained.

use super::{TERMS, Term};
use crate::experiment::Cell;
use crate::result::Bundle;
use crate::summary::{CellSummary, Comparison, Figures, Metric, Verdict};

/// A difference in CPU of the server per unit and its parts, in nanoseconds: subject less baseline.
pub(crate) struct Explained<'a> {
    pub(crate) cell: &'a CellSummary,
    pub(crate) comparison: &'a Comparison,
    pub(crate) difference_ns: f64,
    /// In user mode: not priced, as it is known by itself.
    pub(crate) user_ns: f64,
    /// By [`TERMS`]; nothing where either side does not count it, or its price was not measured.
    pub(crate) parts_ns: Vec<Option<f64>>,
    pub(crate) unexplained_ns: f64,
}

/// Explains every comparison of a bundle that has prices. It follows from the summary and the prices, so it is
/// stored nowhere.
pub(crate) fn explain(bundle: &Bundle) -> Vec<Explained<'_>> {
    let record = bundle.prices.as_ref().filter(|record| !record.list.is_empty());
    let (Some(record), Some(summary)) = (record, &bundle.summary) else { return Vec::new() };
    let prices: Vec<Option<f64>> =
        TERMS.iter().map(|term| Some(record.median(term.price)? * term.share)).collect();
    let of_cell = |cell| {
        let explained = |comparison| explained(cell, comparison, &prices);
        cell.comparisons.iter().filter_map(explained).collect::<Vec<_>>()
    };
    summary.cells.iter().flat_map(of_cell).collect()
}

fn explained<'a>(
    cell: &'a CellSummary,
    comparison: &'a Comparison,
    prices: &[Option<f64>],
) -> Option<Explained<'a>> {
    let figures = |name: &str| {
        let subject = cell.subjects.iter().find(|subject| subject.name == name)?;
        subject.figures.as_ref().filter(|it| it[Metric::ServerCpuNs] > 0.0)
    };
    if matches!(comparison.verdict, Verdict::Void { .. }) {
        return None;
    }
    let (baseline, subject) = (figures(&comparison.baseline)?, figures(&comparison.subject)?);
    let part = |(term, price): (&Term, &Option<f64>)| {
        Some((count(term, subject, &cell.cell)? - count(term, baseline, &cell.cell)?) * (*price)?)
    };
    let parts_ns: Vec<Option<f64>> = TERMS.iter().zip(prices).map(part).collect();
    let less = |metric: Metric| subject[metric] - baseline[metric];
    let (difference_ns, user_ns) = (less(Metric::ServerCpuNs), less(Metric::ServerSideUserNs));
    let priced: f64 = parts_ns.iter().flatten().sum();
    let unexplained_ns = difference_ns - user_ns - priced;
    Some(Explained { cell, comparison, difference_ns, user_ns, parts_ns, unexplained_ns })
}

fn count(term: &Term, figures: &Figures, cell: &Cell) -> Option<f64> {
    (term.count)(figures, cell).filter(|count| count.is_finite())
}
