//! The rows of the interval chart: one for each comparison.

use crate::analysis::{CellSummary, Comparison};
use crate::experiment::Cell;
use crate::result::Bundle;
use crate::statistics::{Ends, Estimate};

pub(super) struct Row<'a> {
    pub(super) cell: &'a CellSummary,
    pub(super) comparison: &'a Comparison,
}

impl Row<'_> {
    pub(super) fn load(&self) -> String {
        self.cell.cell.point.load().unwrap_or_else(|| "full".to_owned())
    }

    pub(super) fn work(&self, with_net: bool) -> String {
        let Cell { net, point } = &self.cell.cell;
        let work = point.work();
        if with_net { format!("{work} {net}") } else { work }
    }

    /// CPU per request of both, over the pairs of the change if those count.
    pub(super) fn cpu_us(&self) -> [Option<f64>; 2] {
        let Comparison { primary, of_baseline, ratio, .. } = self.comparison;
        let baseline = of_baseline.get(primary).filter(|_| !self.is_noisy()).map(|ns| ns / 1e3);
        [baseline, baseline.zip(*ratio).map(|(us, of)| us * of.ratio)]
    }

    /// Too few pairs count for an interval, and all runs have one: that is shown.
    pub(super) fn is_noisy(&self) -> bool {
        let Comparison { ratio, all_runs, because, void, .. } = self.comparison;
        let [ratio, all_runs] = [ratio, all_runs].map(|it| it.and_then(|it| it.ends));
        let too_few = because.as_ref().is_some_and(|it| it.ends_with(" needed"));
        too_few && void.is_none() && ratio.is_none() && all_runs.is_some()
    }

    fn shown(&self) -> Option<Estimate> {
        if self.is_noisy() { self.comparison.all_runs } else { self.comparison.ratio }
    }

    pub(super) fn busy_share(&self) -> Option<f64> {
        self.comparison.of_baseline.get("server_busy_share").copied()
    }

    /// What the subject needs more, in percent of the baseline; less is negative.
    pub(super) fn percent(&self) -> Option<f64> {
        self.shown().map(|it| percent(it.ratio))
    }

    pub(super) fn ends(&self) -> Option<Ends> {
        self.shown().and_then(|it| it.ends)
    }

    pub(super) fn decision(&self) -> String {
        let comparison = self.comparison;
        match (&comparison.less, &comparison.void) {
            (_, Some(_)) => "void".to_owned(),
            (Some(_), _) if comparison.aa => "false".to_owned(),
            (Some(_), _) if comparison.is_fragile => "fragile".to_owned(),
            (Some(less), _) => less.clone(),
            (None, None) if self.is_noisy() => "noisy".to_owned(),
            // An interval that excludes 0 without a decision is finer than the clock.
            (None, None) if self.ends().is_none_or(Ends::excludes_one) => "unclear".to_owned(),
            (None, None) if comparison.aa => "passed".to_owned(),
            (None, None) => "either?".to_owned(),
        }
    }
}

pub(super) fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

/// A change with its sign; one that rounds to 0 has none.
pub(super) fn signed(change: f64, digits: usize) -> String {
    let text = format!("{change:+.digits$}");
    if text.contains(|c: char| matches!(c, '1'..='9')) {
        text
    } else {
        text.replace(['+', '-'], "")
    }
}

/// The rows of each pair of subjects, part loads before saturated ones.
pub(super) fn sections(bundle: &Bundle) -> Vec<([&str; 2], Vec<Row<'_>>)> {
    let mut sections: Vec<([&str; 2], Vec<Row<'_>>)> = Vec::new();
    let cells = bundle.summary.iter().flat_map(|summary| &summary.cells);
    for cell in cells {
        for comparison in &cell.comparisons {
            let both = [&*comparison.baseline, &*comparison.subject];
            let row = Row { cell, comparison };
            match sections.iter_mut().find(|(known, _)| *known == both) {
                Some((_, rows)) => rows.push(row),
                None => sections.push((both, vec![row])),
            }
        }
    }
    for (_, rows) in &mut sections {
        rows.sort_by_key(|row| row.cell.is_saturated());
    }
    sections
}

/// The end of the scale, in percent: room for every estimate, and for most intervals.
pub(super) fn scale<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> f64 {
    let most = rows.filter_map(Row::percent).map(f64::abs).fold(0.0, f64::max);
    [10.0, 20.0, 30.0, 50.0].into_iter().find(|end| 1.8 * most <= *end).unwrap_or(100.0)
}

/// An interval as text of an odd number of columns: `|--o--|`, with a dot at 0.
pub(super) fn interval(row: &Row<'_>, width: usize, end: f64) -> String {
    let place = |percent: f64| {
        let share = (percent.clamp(-end, end) + end) / (2.0 * end);
        (share * (width - 1) as f64).round() as usize
    };
    let mut line = vec![' '; width];
    line[width / 2] = '.';
    let Some(middle) = row.percent() else { return line.into_iter().collect() };
    if let Some(ends) = row.ends() {
        let (low, high) = (place(percent(ends.low)), place(percent(ends.high)));
        line[low..=high].fill('-');
        (line[low], line[high]) = ('|', '|');
    }
    line[place(middle)] = 'o';
    line.into_iter().collect()
}
