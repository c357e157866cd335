//! What the differences between two sides consist of, and how well that predicts other cells.

use std::collections::BTreeSet;

use oorandom::Rand64;

use super::fit::{Fit, fit};
use super::{PriceRecord, TERMS};
use crate::experiment::Cell;
use crate::plan::shuffled;
use crate::result::Bundle;
use crate::statistics::{Interval, median};
use crate::summary::{CellSummary, Comparison, Figures, Metric, Summary, Verdict};

/// Fewer cells are not divided into those that are fitted and those that are predicted.
const CELLS_MIN: usize = 4;

/// The differences in CPU of the server per unit between the sides of every comparison, explained by what
/// each side pays for by the piece.
///
/// It follows from the summary, the prices and the seed, so that it is stored nowhere.
pub(crate) struct Explanation<'a> {
    /// The positions in [`TERMS`] of what was counted here.
    pub(crate) terms: Vec<usize>,
    /// What the server's CPU pays for each of [`TERMS`] by the machine's price list.
    pub(crate) measured: Vec<Option<f64>>,
    /// By the fit, if there are cells enough.
    fitted: Option<Fit>,
    /// One for each comparison, in the order of the cells.
    pub(crate) differences: Vec<Explained<'a>>,
    /// How well the cells that were not fitted are predicted: without prices, at the measured ones and at the
    /// fitted ones.
    pub(crate) errors: Option<[Error; 3]>,
    /// Comparisons of a side that does not count what the others count.
    pub(crate) left_out: usize,
}

/// A difference and its parts, in nanoseconds of CPU of the server per unit: subject less baseline.
pub(crate) struct Explained<'a> {
    pub(crate) cell: &'a CellSummary,
    pub(crate) comparison: &'a Comparison,
    sides: [&'a Figures; 2],
    pub(crate) difference_ns: f64,
    /// In user mode: not priced, as it is known by itself.
    pub(crate) user_ns: f64,
    /// Counts of subject less baseline, by [`TERMS`].
    counts: Vec<f64>,
    /// By [`TERMS`].
    pub(crate) parts_ns: Vec<f64>,
    pub(crate) unexplained_ns: f64,
    /// Whether the prices were fitted to this cell.
    pub(crate) was_fitted: bool,
}

/// How far predictions of differences were off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Error {
    pub(crate) median_ns: f64,
    pub(crate) largest_ns: f64,
    /// In percent of the baseline's CPU per unit.
    pub(crate) median_percent: f64,
    pub(crate) largest_percent: f64,
}

impl<'a> Explanation<'a> {
    /// Nothing where there is nothing to explain, or neither prices nor cells enough to find them.
    pub(crate) fn of(bundle: &'a Bundle) -> Option<Explanation<'a>> {
        Explanation::from(bundle.summary.as_ref()?, bundle.prices.as_ref(), bundle.seed)
    }

    fn from(
        summary: &'a Summary,
        prices: Option<&PriceRecord>,
        seed: u64,
    ) -> Option<Explanation<'a>> {
        let measured: Vec<Option<f64>> =
            TERMS.iter().map(|term| Some(prices?.median(term.price?)? * term.share)).collect();
        let all: Vec<_> = summary.cells.iter().flat_map(comparisons).collect();
        let counted = |term: &usize| {
            all.iter().any(|(cell, _, sides)| {
                sides.iter().all(|it| count(*term, it, &cell.cell).is_some())
            })
        };
        let terms: Vec<usize> = (0..TERMS.len()).filter(counted).collect();
        let fitted_cells = half(summary, seed);
        let explained = |&(cell, comparison, sides): &_| explained(cell, comparison, sides, &terms);
        let mut differences: Vec<Explained<'_>> = all.iter().filter_map(explained).collect();
        let left_out = all.len() - differences.len();
        for it in &mut differences {
            it.was_fitted = fitted_cells.contains(&it.cell.cell);
        }
        let fitted = fit_of(&differences, &measured);
        let mut explanation =
            Explanation { terms, measured, fitted, differences, errors: None, left_out };
        if explanation.fitted.is_none() {
            explanation.differences.iter_mut().for_each(|it| it.was_fitted = false);
        }
        if explanation.prices().iter().all(|price| *price == 0.0) {
            return None;
        }
        let prices = explanation.prices();
        explanation.differences.iter_mut().for_each(|it| it.explain(&prices));
        explanation.errors = explanation.errors();
        (!explanation.differences.is_empty()).then_some(explanation)
    }

    /// What the server's CPU pays for each of [`TERMS`]: fitted if that could be, else measured.
    pub(crate) fn prices(&self) -> Vec<f64> {
        match &self.fitted {
            Some(fit) => fit.prices.clone(),
            None => self.measured.iter().map(|price| price.unwrap_or(0.0)).collect(),
        }
    }

    /// The fitted price of one of [`TERMS`], unless it just kept what it had.
    pub(crate) fn fitted(&self, term: usize) -> Option<f64> {
        let fit = self.fitted.as_ref()?;
        (!fit.constant.contains(&term)).then(|| fit.prices[term])
    }

    /// Those of its terms that make up anything of a difference.
    pub(crate) fn parts(&self) -> Vec<usize> {
        let is_part =
            |term: &usize| self.differences.iter().any(|it| it.parts_ns[*term].abs() >= 0.5);
        self.terms.iter().copied().filter(is_part).collect()
    }

    /// Sets of titles of [`TERMS`] that these cells cannot tell apart.
    pub(crate) fn alike(&self) -> Vec<Vec<&'static str>> {
        let titles = |terms: &Vec<usize>| terms.iter().map(|term| TERMS[*term].title).collect();
        self.fitted.iter().flat_map(|fit| fit.alike.iter().map(titles)).collect()
    }

    /// Those that hardly differ between any two sides.
    pub(crate) fn constant(&self) -> Vec<&'static str> {
        let constant = self.fitted.iter().flat_map(|fit| &fit.constant);
        constant.filter(|it| self.terms.contains(it)).map(|it| TERMS[*it].title).collect()
    }

    fn errors(&self) -> Option<[Error; 3]> {
        let fitted = &self.fitted.as_ref()?.prices;
        let measured: Vec<f64> = self.measured.iter().map(|it| it.unwrap_or(0.0)).collect();
        let held_out = || self.differences.iter().filter(|it| !it.was_fitted);
        let of = |prices: Option<&Vec<f64>>| {
            let off = |it: &Explained<'_>| {
                let predicted = prices.map_or(0.0, |prices| it.user_ns + it.priced(prices));
                let off_ns = (it.difference_ns - predicted).abs();
                (off_ns, 100.0 * off_ns / it.sides[0][Metric::ServerCpuNs])
            };
            let (ns, percent): (Vec<f64>, Vec<f64>) = held_out().map(off).unzip();
            let largest = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
            Some(Error {
                largest_ns: largest(&ns),
                largest_percent: largest(&percent),
                median_ns: median(ns)?,
                median_percent: median(percent)?,
            })
        };
        Some([of(None)?, of(Some(&measured))?, of(Some(fitted))?])
    }
}

impl Explained<'_> {
    fn priced(&self, prices: &[f64]) -> f64 {
        self.counts.iter().zip(prices).map(|(count, price)| count * price).sum()
    }

    fn explain(&mut self, prices: &[f64]) {
        self.parts_ns =
            self.counts.iter().zip(prices).map(|(count, price)| count * price).collect();
        self.unexplained_ns = self.difference_ns - self.user_ns - self.priced(prices);
    }

    /// CPU per unit of baseline and subject, and what they pay for of one of [`TERMS`].
    pub(super) fn sides(&self, term: usize) -> [f64; 2] {
        self.sides.map(|it| count(term, it, &self.cell.cell).unwrap_or(0.0))
    }

    pub(super) fn cpu_ns(&self) -> [f64; 2] {
        self.sides.map(|it| it[Metric::ServerCpuNs])
    }

    /// What the model says of the difference.
    pub(crate) fn predicted_ns(&self) -> f64 {
        self.difference_ns - self.unexplained_ns
    }

    /// How many times better, as it was measured in pairs.
    pub(crate) fn ratio(&self) -> Option<&Interval> {
        self.comparison.ratio(Metric::ServerCpuNs)
    }
}

type Sides<'a> = (&'a CellSummary, &'a Comparison, [&'a Figures; 2]);

/// The comparisons of a cell that have figures of both sides, baseline first.
fn comparisons(cell: &CellSummary) -> impl Iterator<Item = Sides<'_>> {
    let figures = |name: &str| {
        let subject = cell.subjects.iter().find(|subject| subject.name == name)?;
        subject.figures.as_ref().filter(|it| it[Metric::ServerCpuNs] > 0.0)
    };
    cell.comparisons.iter().filter_map(move |it| {
        let is_void = matches!(it.verdict, Verdict::Void { .. });
        let (baseline, subject) = (figures(&it.baseline)?, figures(&it.subject)?);
        (!is_void).then_some((cell, it, [baseline, subject]))
    })
}

fn count(term: usize, figures: &Figures, cell: &Cell) -> Option<f64> {
    (TERMS[term].count)(figures, cell).filter(|count| count.is_finite())
}

fn explained<'a>(
    cell: &'a CellSummary,
    comparison: &'a Comparison,
    sides: [&'a Figures; 2],
    terms: &[usize],
) -> Option<Explained<'a>> {
    let [baseline, subject] = sides;
    let mut counts = vec![0.0; TERMS.len()];
    for term in terms {
        let of = |figures| count(*term, figures, &cell.cell);
        counts[*term] = of(subject)? - of(baseline)?;
    }
    let less = |metric: Metric| subject[metric] - baseline[metric];
    Some(Explained {
        cell,
        comparison,
        sides,
        difference_ns: less(Metric::ServerCpuNs),
        user_ns: less(Metric::ServerSideUserNs),
        counts,
        parts_ns: Vec::new(),
        unexplained_ns: 0.0,
        was_fitted: false,
    })
}

/// Half of the cells, drawn by the seed of the experiment; none if they are few.
fn half(summary: &Summary, seed: u64) -> BTreeSet<Cell> {
    let cells = &summary.cells;
    if cells.len() < CELLS_MIN {
        return BTreeSet::new();
    }
    let order = shuffled(&mut Rand64::new(u128::from(seed)), cells.len());
    order.into_iter().take(cells.len().div_ceil(2)).map(|index| cells[index].cell).collect()
}

fn fit_of(differences: &[Explained<'_>], measured: &[Option<f64>]) -> Option<Fit> {
    let known = differences.iter().filter(|it| it.was_fitted);
    // What takes ten times the CPU scatters ten times as much: relative errors count.
    let weight = |it: &Explained<'_>| 1000.0 / it.sides[0][Metric::ServerCpuNs];
    let weighted = |it: &Explained<'_>| it.counts.iter().map(|count| count * weight(it)).collect();
    let rows: Vec<Vec<f64>> = known.clone().map(weighted).collect();
    let targets: Vec<f64> = known.map(|it| (it.difference_ns - it.user_ns) * weight(it)).collect();
    let others = differences.len() - rows.len();
    if rows.is_empty() || others == 0 {
        return None;
    }
    fit(&rows, &targets, measured)
}
