//! Which pictures an experiment has. Its cells and comparisons decide that, not its name: a grid
//! with two axes is a map, an axis with three points a curve, changes of a subject are bars.

use std::collections::BTreeSet;

use super::outcome::{Judged, grouped, is_change, judged};
use crate::experiment::{Cell, Experiment, NetKind, Protocol};
use crate::result::Bundle;
use crate::statistics::Ends;
use crate::summary::{CellSummary, Comparison, Knee, Summary};
use crate::workload::{Axis, differ_only_in};

/// Axes that make good columns of a map, the best first.
const COLUMNS: [Axis; 6] = [
    Axis::Workers,
    Axis::Connections,
    Axis::Streams,
    Axis::RatePerS,
    Axis::LoadPercent,
    Axis::Depth,
];

/// Axes that make good rows, the best first.
const ROWS: [Axis; 8] = [
    Axis::Bytes,
    Axis::PacketsPerS,
    Axis::RatePerS,
    Axis::Depth,
    Axis::Churn,
    Axis::Connections,
    Axis::Files,
    Axis::LoadPercent,
];

/// Points that make a curve of an axis.
const CURVE_POINTS: usize = 3;

/// All pictures of an experiment.
pub(super) struct Shape<'a> {
    pub(super) maps: Vec<Map<'a>>,
    pub(super) curves: Vec<Curves<'a>>,
    pub(super) ablations: Vec<Ablation<'a>>,
}

/// The verdicts on two subjects over two axes.
pub(super) struct Map<'a> {
    pub(super) subject: &'a str,
    pub(super) baseline: &'a str,
    /// What all of its cells have in common.
    pub(super) common: String,
    pub(super) rows: (Axis, Vec<u32>),
    pub(super) columns: (Axis, Vec<u32>),
    /// Row by row; a cell that was not begun is missing.
    pub(super) entries: Vec<Vec<Option<Judged<'a>>>>,
}

/// Cells that differ in one axis only, in its order.
pub(super) struct Curves<'a> {
    pub(super) axis: Axis,
    pub(super) common: String,
    pub(super) points: Vec<(u32, &'a CellSummary)>,
    /// More along the axis is more work per second that is due.
    pub(super) is_load: bool,
    pub(super) knees: Vec<&'a Knee>,
    /// Everything that was compared and is no change, by its two names.
    pub(super) contests: Vec<Vec<Judged<'a>>>,
}

/// What each change of a subject costs in one cell.
pub(super) struct Ablation<'a> {
    pub(super) cell: &'a CellSummary,
    pub(super) origin: &'a str,
    /// The costliest first.
    pub(super) changes: Vec<Change<'a>>,
}

/// One change of a subject.
pub(super) struct Change<'a> {
    pub(super) comparison: &'a Comparison,
    /// The features that were changed, as the experiment has them.
    pub(super) what: Option<&'a str>,
    /// How many times the CPU of its origin it needs.
    pub(super) times: Option<f64>,
    /// The interval of that, if there is one.
    pub(super) ends: Option<Ends>,
}

impl<'a> Shape<'a> {
    pub(super) fn of(bundle: &'a Bundle, summary: &'a Summary) -> Shape<'a> {
        let experiment = &bundle.experiment;
        let mut shape = Shape {
            maps: Vec::new(),
            curves: Vec::new(),
            ablations: ablations(experiment, summary),
        };
        for protocol in Protocol::ALL.iter().copied() {
            let cells: Vec<&CellSummary> =
                summary.cells.iter().filter(|it| it.cell.protocol() == protocol).collect();
            let varied = Varied::among(&cells);
            let map_axes = varied.map_axes();
            if let Some([rows, columns]) = map_axes {
                shape.maps.extend(maps(experiment, summary, protocol, rows, columns));
            }
            if let Some(axis) = varied.curve_axis(map_axes) {
                shape.curves.extend(curves(experiment, summary, &cells, axis));
            }
        }
        shape
    }

    /// Whether a map or bars show this comparison.
    pub(super) fn shows(&self, comparison: &Comparison) -> bool {
        let in_map = |map: &Map<'_>| {
            map.entries.iter().flatten().flatten().any(|(_, it)| std::ptr::eq(*it, comparison))
        };
        let in_bars = |ablation: &Ablation<'_>| {
            ablation.changes.iter().any(|it| std::ptr::eq(it.comparison, comparison))
        };
        self.maps.iter().any(in_map) || self.ablations.iter().any(in_bars)
    }
}

/// The values that the cells of a protocol have on each axis.
struct Varied(Vec<(Axis, BTreeSet<u32>)>);

impl Varied {
    fn among(cells: &[&CellSummary]) -> Varied {
        let mut varied: Vec<(Axis, BTreeSet<u32>)> = Vec::new();
        let axes = cells.iter().flat_map(|it| it.cell.point.axes());
        for (axis, value) in axes.map(|(spec, value)| (spec.axis, value)) {
            match varied.iter_mut().find(|(known, _)| *known == axis) {
                Some((_, values)) => drop(values.insert(value)),
                None => varied.push((axis, BTreeSet::from([value]))),
            }
        }
        Varied(varied)
    }

    fn points(&self, axis: Axis) -> usize {
        self.0.iter().find(|(known, _)| *known == axis).map_or(0, |(_, values)| values.len())
    }

    /// Rows and columns, if two axes vary.
    fn map_axes(&self) -> Option<[Axis; 2]> {
        let columns = COLUMNS.into_iter().find(|axis| self.points(*axis) > 1)?;
        let rows = ROWS.into_iter().find(|axis| *axis != columns && self.points(*axis) > 1)?;
        Some([rows, columns])
    }

    /// What curves are drawn along: a schedule before all else.
    fn curve_axis(&self, map: Option<[Axis; 2]>) -> Option<Axis> {
        let [rows, columns] =
            map.map_or([None, None], |[rows, columns]| [Some(rows), Some(columns)]);
        let candidates =
            [Some(Axis::RatePerS), Some(Axis::LoadPercent), columns, rows].into_iter().flatten();
        let others = COLUMNS.into_iter().chain(ROWS);
        candidates.chain(others).find(|axis| self.points(*axis) >= CURVE_POINTS)
    }
}

/// What a cell is besides some of its axes; its network where there are several.
pub(super) fn common(cell: &Cell, free: &[Axis], summary: &Summary) -> String {
    let nets: BTreeSet<NetKind> = summary.cells.iter().map(|it| it.cell.net).collect();
    let fixed = cell.point.axes().filter(|(spec, _)| !free.contains(&spec.axis));
    let mut words: Vec<String> = fixed.filter_map(|(spec, value)| spec.axis.phrase(value)).collect();
    words.insert(0, cell.protocol().to_string().to_uppercase());
    if nets.len() > 1 {
        words.push(format!("on {}", cell.net));
    }
    words.join(", ")
}

/// The cells that differ in nothing but the free axes, together.
pub(super) fn families<'a>(free: &[Axis], cells: &[&'a CellSummary]) -> Vec<Vec<&'a CellSummary>> {
    let mut families: Vec<Vec<&CellSummary>> = Vec::new();
    for cell in cells {
        match families.iter_mut().find(|it| differ_only_in(free, &it[0].cell, &cell.cell)) {
            Some(family) => family.push(cell),
            None => families.push(vec![cell]),
        }
    }
    families
}

fn contests<'a>(
    experiment: &Experiment,
    summary: &'a Summary,
    of: impl Fn(&CellSummary) -> bool,
) -> Vec<Vec<Judged<'a>>> {
    let all: Vec<Judged<'a>> = judged(summary)
        .filter(|(cell, comparison)| of(cell) && !is_change(experiment, comparison))
        .collect();
    grouped(&all, |it| [&*it.subject, &*it.baseline])
}

fn values(axis: Axis, cells: &[&CellSummary]) -> Vec<u32> {
    let values: BTreeSet<u32> = cells.iter().filter_map(|it| axis.of(&it.cell)).collect();
    values.into_iter().collect()
}

fn maps<'a>(
    experiment: &Experiment,
    summary: &'a Summary,
    protocol: Protocol,
    rows: Axis,
    columns: Axis,
) -> Vec<Map<'a>> {
    let mut maps = Vec::new();
    for contest in contests(experiment, summary, |it| it.cell.protocol() == protocol) {
        let cells: Vec<&CellSummary> = contest.iter().map(|(cell, _)| *cell).collect();
        for family in families(&[rows, columns], &cells) {
            let Some((first, comparison)) = contest.first().copied() else { continue };
            let [row_values, column_values] = [rows, columns].map(|axis| values(axis, &family));
            if row_values.len() < 2 || column_values.len() < 2 {
                continue;
            }
            let entry = |row: u32, column: u32| {
                let here = |it: &&Judged<'_>| {
                    let is = |axis: Axis, value| axis.of(&it.0.cell) == Some(value);
                    let of_family = family.iter().any(|cell| std::ptr::eq(*cell, it.0));
                    of_family && is(rows, row) && is(columns, column)
                };
                contest.iter().find(here).copied()
            };
            let row_of =
                |row: &u32| column_values.iter().map(|column| entry(*row, *column)).collect();
            let entries = row_values.iter().map(row_of).collect();
            let cell = family.first().map_or(&first.cell, |it| &it.cell);
            maps.push(Map {
                subject: &comparison.subject,
                baseline: &comparison.baseline,
                common: common(cell, &[rows, columns], summary),
                rows: (rows, row_values),
                columns: (columns, column_values),
                entries,
            });
        }
    }
    maps
}

fn curves<'a>(
    experiment: &Experiment,
    summary: &'a Summary,
    cells: &[&'a CellSummary],
    axis: Axis,
) -> Vec<Curves<'a>> {
    let paced = matches!(axis, Axis::RatePerS | Axis::LoadPercent);
    let on_axis = |it: &&&CellSummary| !paced || axis.is_offered_load(&it.cell);
    let cells: Vec<&CellSummary> = cells.iter().filter(on_axis).copied().collect();
    let curve = |mut family: Vec<&'a CellSummary>| {
        family.sort_by_key(|it| axis.of(&it.cell));
        let first = family.first()?.cell;
        let of_family = |it: &CellSummary| family.iter().any(|cell| std::ptr::eq(*cell, it));
        let of_curve = |it: &&Knee| it.axis == axis && differ_only_in(&[axis], &it.lowest, &first);
        let points: Vec<(u32, &CellSummary)> =
            family.iter().filter_map(|it| Some((axis.of(&it.cell)?, *it))).collect();
        (points.len() >= CURVE_POINTS).then(|| Curves {
            axis,
            common: common(&first, &[axis], summary),
            is_load: axis.is_offered_load(&first),
            knees: summary.knees.iter().filter(of_curve).collect(),
            contests: contests(experiment, summary, of_family),
            points,
        })
    };
    families(&[axis], &cells).into_iter().filter_map(curve).collect()
}

fn ablations<'a>(experiment: &'a Experiment, summary: &'a Summary) -> Vec<Ablation<'a>> {
    let mut ablations = Vec::new();
    for cell in &summary.cells {
        let of_cell = cell.comparisons.iter().map(|it| (cell, it));
        let changes: Vec<Judged<'a>> = of_cell.filter(|it| is_change(experiment, it.1)).collect();
        for group in grouped(&changes, |it| &*it.baseline) {
            let Some((cell, first)) = group.first().copied() else { continue };
            let mut changes: Vec<Change<'a>> =
                group.iter().map(|(_, comparison)| change(experiment, comparison)).collect();
            let cost = |it: &Change<'_>| it.times.unwrap_or(0.0);
            changes.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
            ablations.push(Ablation { cell, origin: &first.baseline, changes });
        }
    }
    ablations
}

fn change<'a>(experiment: &'a Experiment, comparison: &'a Comparison) -> Change<'a> {
    let subject = experiment.subjects.iter().find(|it| it.name == comparison.subject);
    let ratio = comparison.of_record();
    Change {
        comparison,
        what: subject.and_then(|it| it.features.as_deref()),
        times: ratio.map(|it| 1.0 / it.ratio),
        ends: ratio.and_then(|it| it.ends).map(Ends::inverse),
    }
}

impl Curves<'_> {
    /// Whether a cell is one of its points.
    pub(super) fn has(&self, cell: &CellSummary) -> bool {
        self.points.iter().any(|(_, it)| std::ptr::eq(*it, cell))
    }
}
