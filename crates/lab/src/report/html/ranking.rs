//! Several subjects beside the same baseline, in order, over all cells of a network.

use maud::{Markup, html};

use crate::experiment::{NetKind, Protocol};
use crate::report::outcome::{Judged, Outcome, grouped, is_change};
use crate::report::plots::{self, IntervalRow};
use crate::report::verdicts;
use crate::result::Bundle;
use crate::statistics::Interval;
use crate::summary::{Comparison, Record};

/// Fewer subjects beside a baseline need no ranking.
const SUBJECTS_MIN: usize = 3;

/// What one baseline and its subjects did on one network.
struct Ranking<'a> {
    baseline: &'a str,
    record: Record,
    protocol: Protocol,
    net: NetKind,
    cells: usize,
    /// The best first: a name, the mean of its ratios, and the ratio of each cell.
    ranked: Vec<(&'a str, f64, Vec<f64>)>,
}

/// A figure for each baseline and network, if any has subjects enough.
pub(super) fn section(bundle: &Bundle, all: &[Judged<'_>]) -> Markup {
    let contests: Vec<Judged<'_>> = all
        .iter()
        .copied()
        .filter(|(_, it)| it.aa.is_none() && !is_change(&bundle.experiment, it))
        .collect();
    let mut rankings = Vec::new();
    for of_baseline in grouped(&contests, |it| &*it.baseline) {
        let mut places: Vec<(Protocol, NetKind)> = Vec::new();
        for (cell, _) in &of_baseline {
            let place = (cell.cell.protocol(), cell.cell.net);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        rankings.extend(places.into_iter().filter_map(|it| rank(&of_baseline, it)));
    }
    html! {
        @if !rankings.is_empty() {
            section #ranking {
                h2 { "Ranking" }
                p.soft.small {
                    "Geometric means over the cells in which every subject has a ratio. They have "
                    "no interval: the cells are no random sample."
                }
                div.plots { @for it in &rankings { (figure(it)) } }
            }
        }
    }
}

fn rank<'a>(contests: &[Judged<'a>], (protocol, net): (Protocol, NetKind)) -> Option<Ranking<'a>> {
    let here: Vec<Judged<'a>> = contests
        .iter()
        .copied()
        .filter(|(cell, _)| cell.cell.protocol() == protocol && cell.cell.net == net)
        .collect();
    let subjects = grouped(&here, |it| &*it.subject);
    let ratio = |(_, it): &Judged<'a>| match Outcome::of(it) {
        Outcome::Void | Outcome::Behind | Outcome::Impossible => None,
        _ => Some(it.of_record()?.ratio),
    };
    let has_ratio = |subject: &[Judged<'a>], cell| {
        subject.iter().any(|it| it.0.cell == cell && ratio(it).is_some())
    };
    let first = subjects.first()?;
    let cells: Vec<_> = first.iter().map(|it| it.0.cell).collect();
    let shared: Vec<_> =
        cells.into_iter().filter(|cell| subjects.iter().all(|it| has_ratio(it, *cell))).collect();
    if subjects.len() < SUBJECTS_MIN || shared.len() < 2 {
        return None;
    }
    let mut ranked = Vec::new();
    for subject in &subjects {
        let kept = subject.iter().filter(|it| shared.contains(&it.0.cell));
        let ratios: Vec<f64> = kept.filter_map(ratio).collect();
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
        ranked.push((&*subject[0].1.subject, mean.exp(), ratios));
    }
    let Comparison { baseline, record, .. } = first[0].1;
    ranked.push((&**baseline, 1.0, Vec::new()));
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    Some(Ranking { baseline, record: *record, protocol, net, cells: shared.len(), ranked })
}

fn figure(ranking: &Ranking<'_>) -> Markup {
    let Ranking { baseline, record, protocol, net, cells, ranked } = ranking;
    let interval = |ratio: f64| Interval {
        ratio,
        ends: None,
        pairs: *cells,
        p_value: 1.0,
        detectable_percent: f64::INFINITY,
    };
    let intervals: Vec<Interval> = ranked.iter().map(|it| interval(it.1)).collect();
    let rows: Vec<IntervalRow<'_>> = ranked
        .iter()
        .zip(&intervals)
        .map(|((name, _, ratios), interval)| IntervalRow {
            name: (*name).to_owned(),
            interval,
            pairs: ratios,
            colour: plots::colour(usize::from(name != baseline)),
            of_record: name == baseline,
        })
        .collect();
    let record = verdicts::of_record(*record, *protocol);
    html! {
        figure {
            figcaption { (record) " beside " (baseline) ", " (net.phrase()) " "
                span { "how many times better, mean of " (cells) " cells; a small dot is a cell" } }
            (plots::intervals(&rows, baseline, "the other"))
        }
    }
}
