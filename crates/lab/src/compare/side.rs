//! One of the two bundles, read for comparison.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::audit::{Finding, Severity};
use crate::bundle::Stored;
use crate::error::LabError;
use crate::experiment::{Cell, NetKind};
use crate::placement::Placement;
use crate::record::RunRecord;
use crate::result::Bundle;
use crate::summary::{CellSummary, Figures, Record, Summary, did_its_work, figures_of};
use crate::verify;

/// A bundle with everything computed from its raw data.
pub(super) struct Side {
    pub(super) directory: PathBuf,
    pub(super) bundle: Bundle,
    /// The cells of its experiment, measured or not.
    pub(super) cells: Vec<Cell>,
    pub(super) runs: Vec<RunRecord>,
    summary: Summary,
    figures: Vec<Option<Figures>>,
}

/// A run that counts.
pub(super) struct Observation<'a> {
    pub(super) block: usize,
    pub(super) placement: Option<Placement>,
    pub(super) figures: &'a Figures,
}

impl Side {
    /// Reads a bundle and recomputes it.
    ///
    /// # Errors
    /// When it cannot be read; [`LabError::DoesNotHold`] when it does not hold and has to.
    pub(super) fn read(directory: &Path, unverified: bool) -> Result<Side, LabError> {
        let (verification, stored, summary) = verify::recompute(directory)?;
        if !verification.holds() && !unverified {
            let more = match verification.problems.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            let why = format!("{}{more}", verification.problems[0]);
            return Err(LabError::DoesNotHold { path: directory.to_owned(), why });
        }
        let Stored { bundle, runs, .. } = stored;
        let nets: Vec<NetKind> = bundle.networks.iter().map(|network| network.kind).collect();
        Ok(Side {
            directory: directory.to_owned(),
            cells: bundle.experiment.cells(&nets),
            figures: runs.iter().map(figures_of).collect(),
            bundle,
            runs,
            summary,
        })
    }

    /// Names of the subjects that speak the protocol of a cell.
    pub(super) fn subjects(&self, cell: Cell) -> impl Iterator<Item = &str> + use<'_> {
        let speakers = self.bundle.experiment.subjects_of(cell.protocol()).into_iter();
        speakers.map(|position| self.bundle.experiment.subjects[position].name.as_str())
    }

    /// The subjects compared in a cell: baseline, subject.
    pub(super) fn contests(&self, cell: Cell) -> Vec<(String, String)> {
        let experiment = &self.bundle.experiment;
        let name = |position: usize| experiment.subjects[position].name.clone();
        let contests = experiment.contests(cell.protocol()).into_iter();
        contests.map(|(baseline, subject)| (name(baseline), name(subject))).collect()
    }

    /// Whether a subject belongs into a cell of its experiment.
    pub(super) fn has(&self, cell: Cell, subject: &str) -> bool {
        self.cells.contains(&cell) && self.subjects(cell).any(|it| it == subject)
    }

    /// What was found in a cell, if it was begun.
    pub(super) fn summary_of(&self, cell: Cell) -> Option<&CellSummary> {
        self.summary.cells.iter().find(|it| it.cell == cell)
    }

    /// The figure that verdicts of a cell are about.
    pub(super) fn record(&self, cell: Cell) -> Record {
        Record::of(self.bundle.experiment.under_test(cell.protocol()))
    }

    /// The runs of a subject that count; where there is a schedule, those that kept up with it.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn observations(
        &self,
        cell: Cell,
        subject: &str,
    ) -> Result<Vec<Observation<'_>>, String> {
        let summary = self.summary_of(cell).ok_or("not measured")?;
        let of = |severity| summary.findings.iter().filter(move |it| it.severity == severity);
        if let Some(void) = of(Severity::Void).find(|finding| finding.subject == subject) {
            return Err(format!("{subject} is void ({})", void.kind.title()));
        }
        let block_of = |finding: &Finding| {
            let number = finding.run?;
            Some(self.runs.iter().find(|run| run.index == number)?.block)
        };
        let excluded: BTreeSet<usize> = of(Severity::Noise).filter_map(block_of).collect();
        let experiment = &self.bundle.experiment;
        let keeps_up =
            |figures: &Figures| did_its_work(experiment, cell.protocol(), figures).unwrap_or(true);
        let counts = |run: &RunRecord, figures: &Figures| {
            run.cell == cell
                && run.subject == subject
                && !excluded.contains(&run.block)
                && keeps_up(figures)
        };
        let observations = self.runs.iter().zip(&self.figures).filter_map(|(run, figures)| {
            let figures = figures.as_ref()?;
            let placement = run.distance.and_then(|distance| distance.placement());
            let observation = Observation { block: run.block, placement, figures };
            counts(run, figures).then_some(observation)
        });
        Ok(observations.collect())
    }
}
