//! The knee of an open loop: how much load per second a subject can be offered.

use super::stored::{CellSummary, Knee, SubjectSummary};
use crate::workload::{Axis, Cell, differ_only_in};

/// The axes along which the offered load grows.
const LOAD_AXES: [Axis; 4] = [Axis::RatePerS, Axis::LoadPercent, Axis::PacketsPerS, Axis::Streams];

/// The knees along every axis of offered load that has two points or more.
pub(super) fn knees(cells: &[CellSummary]) -> Vec<Knee> {
    let mut knees = Vec::new();
    for axis in LOAD_AXES {
        let mut done: Vec<Cell> = Vec::new();
        let loaded =
            |it: &&CellSummary| axis.of(&it.cell).is_some() && axis.is_offered_load(&it.cell);
        for cell in cells.iter().filter(loaded) {
            if done.iter().any(|first| differ_only_in(&[axis], first, &cell.cell)) {
                continue;
            }
            done.push(cell.cell);
            let same = |it: &&CellSummary| differ_only_in(&[axis], &it.cell, &cell.cell);
            let mut points: Vec<&CellSummary> = cells.iter().filter(loaded).filter(same).collect();
            points.sort_by_key(|it| axis.of(&it.cell));
            if points.len() > 1 {
                knees.extend(cell.subjects.iter().filter_map(|it| knee(axis, &points, &it.name)));
            }
        }
    }
    knees
}

/// Nothing, if no run of the subject counts.
fn knee(axis: Axis, points: &[&CellSummary], subject: &str) -> Option<Knee> {
    let kept = |cell: &&CellSummary| {
        let found = cell.subjects.iter().find(|it| it.name == subject)?;
        Some((axis.of(&cell.cell)?, keeps_up(found)?))
    };
    let known: Vec<(u32, bool)> = points.iter().filter_map(kept).collect();
    let falls_behind_at = known.iter().find(|(_, kept)| !kept).map(|(value, _)| *value);
    let before = |value: u32| falls_behind_at.is_none_or(|end| value < end);
    let keeps_up_to = known.iter().rev().map(|(value, _)| *value).find(|value| before(*value));
    let lowest = points.first()?.cell;
    let subject = subject.to_owned();
    (!known.is_empty()).then_some(Knee { axis, lowest, subject, keeps_up_to, falls_behind_at })
}

/// Whether it kept up at this point; nothing if no run counts.
fn keeps_up(subject: &SubjectSummary) -> Option<bool> {
    subject.kept_up.filter(|_| subject.counted > 0).map(|kept| 2 * kept >= subject.counted)
}
