//! The comparison for people: a table for the terminal, Markdown for a pull request. Both say the
//! same with the same words.

use std::fmt::Write;

use super::changes::{Finding, SubjectChange, VerdictChange, sentence};
use super::judge::{GateOutcome, GateResult};
use super::{BundleComparison, Compared};
use crate::experiment::Cell;
use crate::report::{Style, align, escape, short, write_table};

const BOLD: &str = "1";
const GREEN: &str = "1;32";
const YELLOW: &str = "33";
const RED: &str = "1;31";

/// How to read it.
const LEGEND: &str = "Changes are of B against A, with intervals at 95 %, between runs of the \
                      same placement. `worse` and `better` need an interval without 0 and a \
                      permutation test that stays under 5 % after correction for all figures \
                      compared. Counts are shown where they changed, and are corrected by \
                      themselves. Runs of A and B are not paired: what changed between the two \
                      times, on the machine or beside it, is in these changes too.";

impl BundleComparison {
    /// The comparison as a table for the terminal, the outcome first.
    pub fn table(&self, style: Style) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_table(&mut text, style);
        text
    }

    /// The comparison as Markdown, to be put under a pull request.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_table(&self, out: &mut String, style: Style) -> std::fmt::Result {
        for gate in &self.gates {
            let code = match gate.outcome {
                GateOutcome::Held => GREEN,
                GateOutcome::Unjudged => YELLOW,
                GateOutcome::Breached => RED,
            };
            writeln!(out, "{}", style.paint(code, &headline(gate)))?;
            for judged in &gate.judged {
                writeln!(out, "  {}, {}: {}", judged.cell, judged.subject, judged.why)?;
            }
        }
        for line in self.outcomes() {
            writeln!(out, "{}", style.paint(BOLD, &line))?;
        }
        for (name, side) in self.sides() {
            writeln!(out, "{name}: {side}")?;
        }
        for note in self.all_notes() {
            writeln!(out, "{}", style.paint(YELLOW, &note))?;
        }
        for cell in self.cells() {
            writeln!(out, "\n{}", style.paint(BOLD, &cell.to_string()))?;
            let rows = self.rows(cell);
            if rows.len() > 1 {
                for line in align(&rows) {
                    writeln!(out, "  {line}")?;
                }
            }
            for line in self.lines(cell) {
                writeln!(out, "  {line}")?;
            }
        }
        writeln!(out, "\n{LEGEND}")
    }

    fn write_markdown(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "### B against A\n")?;
        for gate in &self.gates {
            writeln!(out, "- **{}**", escape(&headline(gate)))?;
            for judged in &gate.judged {
                let line = format!("{}, {}: {}", judged.cell, judged.subject, judged.why);
                writeln!(out, "  - {}", escape(&line))?;
            }
        }
        for line in self.outcomes() {
            writeln!(out, "- {}", escape(&line))?;
        }
        for (name, side) in self.sides() {
            writeln!(out, "- {name}: {}", escape(&side))?;
        }
        for note in self.all_notes() {
            writeln!(out, "- **note**: {}", escape(&note))?;
        }
        for cell in self.cells() {
            writeln!(out, "\n<details><summary>{}</summary>\n", escape(&cell.to_string()))?;
            let rows = self.rows(cell);
            if rows.len() > 1 {
                write_table(out, &rows)?;
            }
            for line in self.lines(cell) {
                writeln!(out, "\n- {}", escape(&line))?;
            }
            writeln!(out, "\n</details>")?;
        }
        writeln!(out, "\n{}", escape(LEGEND))
    }

    /// What came out of either question, in a line each.
    fn outcomes(&self) -> Vec<String> {
        let absolute = match &self.machine_differs[..] {
            _ if self.absolute.is_empty() => "nothing is in both bundles".to_owned(),
            [] => counts("each subject against itself", &self.absolute),
            differences => {
                format!("each subject against itself: not comparable, {}", sentence(differences))
            }
        };
        let relative = counts("subjects against each other", &self.relative);
        let changed = self.verdicts.iter().filter(|it| it.changed == Some(true)).count();
        let known = self.verdicts.iter().filter(|it| it.changed.is_some()).count();
        let mut lines = vec![absolute];
        if !self.relative.is_empty() {
            let caveat = match &self.machine_differs[..] {
                [] => "",
                _ => {
                    " (ratios of different machines: the same only as far as the same thing \
                      limits the subjects on both)"
                }
            };
            lines.push(format!("{relative}{caveat}"));
            lines.push(format!("verdicts: {changed} of {known} that both came to changed"));
        }
        lines
    }

    fn sides(&self) -> [(&'static str, String); 2] {
        let say = |it: &Compared| {
            let Compared { bundle, experiment, started, runs } = it;
            format!("{}: {experiment}, {runs} runs, {started}", bundle.display())
        };
        [("A", say(&self.a)), ("B", say(&self.b))]
    }

    fn all_notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        for (cells, name) in [(&self.only_in_a, "A"), (&self.only_in_b, "B")] {
            if !cells.is_empty() {
                notes.push(format!("only in {name}: {}", cells.join("; ")));
            }
        }
        notes
    }

    /// The cells that were compared, in the order of the experiment.
    fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self.absolute.iter().map(|it| it.cell).collect();
        cells.dedup();
        cells
    }

    fn of(&self, cell: Cell) -> impl Iterator<Item = &SubjectChange> {
        self.absolute.iter().chain(&self.relative).filter(move |it| it.cell == cell)
    }

    /// A title row, then a row for each figure of each subject or ratio that could be compared.
    fn rows(&self, cell: Cell) -> Vec<Vec<String>> {
        let titles = ["", "A", "B", "change", "95 %", "found"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        for subject in self.of(cell) {
            for figure in &subject.figures {
                let Some(change) = &figure.change else { continue };
                if change.finding == Finding::NoDifference && !figure.figure.is_headline() {
                    continue;
                }
                let found = match change.finding {
                    Finding::Changed => "changed".to_owned(),
                    Finding::Better => "better".to_owned(),
                    Finding::Worse => "worse".to_owned(),
                    Finding::NoDifference => {
                        format!(
                            "no difference (would have seen {:.1} %)",
                            change.detectable_percent
                        )
                    }
                };
                let mean = |value: Option<f64>| match value {
                    None => String::new(),
                    Some(ratio) if subject.baseline.is_some() => format!("{ratio:.3}"),
                    Some(value) => short(value),
                };
                let name = format!("{} {} {}", who(subject), figure.figure, figure.unit);
                rows.push(vec![
                    name.trim_end().to_owned(),
                    mean(figure.a),
                    mean(figure.b),
                    format!("{:+.1} %", change.percent),
                    format!("[{:+.1}, {:+.1}]", change.low_percent, change.high_percent),
                    found,
                ]);
            }
        }
        rows
    }

    /// What could not be compared and why, and the verdicts.
    fn lines(&self, cell: Cell) -> Vec<String> {
        let mut lines = Vec::new();
        for subject in self.of(cell) {
            let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
            let headlines = subject.figures.iter().filter(|it| it.figure.is_headline());
            for figure in headlines.clone() {
                let Some(why) = figure.why_not.as_deref() else { continue };
                match reasons.iter_mut().find(|(known, _)| *known == why) {
                    Some((_, figures)) => figures.push(figure.figure.name()),
                    None => reasons.push((why, vec![figure.figure.name()])),
                }
            }
            for (why, figures) in reasons {
                let is_all = figures.len() == headlines.clone().count();
                let which = if is_all { "nothing".to_owned() } else { figures.join(", ") };
                let not = if is_all { "can be compared" } else { "cannot be compared" };
                lines.push(format!("{}: {which} {not}: {why}", who(subject)));
            }
        }
        lines.extend(self.verdicts.iter().filter(|it| it.cell == cell).map(verdict));
        lines
    }
}

fn headline(gate: &GateResult) -> String {
    let outcome = match gate.outcome {
        GateOutcome::Held => "gate held",
        GateOutcome::Unjudged => "gate FAILED, it cannot be judged",
        GateOutcome::Breached => "gate BREACHED",
    };
    format!("{outcome}: {}", gate.gate)
}

fn who(change: &SubjectChange) -> String {
    match &change.baseline {
        Some(baseline) => format!("{} / {baseline}", change.subject),
        None => change.subject.clone(),
    }
}

fn counts(what: &str, changes: &[SubjectChange]) -> String {
    let all = || changes.iter().flat_map(|it| &it.figures);
    let figures = || all().filter(|it| it.figure.is_headline());
    let of =
        |finding| figures().filter(move |it| it.change.is_some_and(|it| it.finding == finding));
    format!(
        "{what}: {} figures worse, {} better, {} without a difference, {} not comparable",
        of(Finding::Worse).count(),
        of(Finding::Better).count(),
        of(Finding::NoDifference).count(),
        figures().filter(|it| it.change.is_none()).count()
    )
}

fn verdict(change: &VerdictChange) -> String {
    let VerdictChange { subject, baseline, a, b, changed, .. } = change;
    let say = |verdict: &Option<crate::summary::Verdict>| {
        verdict.as_ref().map_or("not compared".to_owned(), ToString::to_string)
    };
    let (a, b) = (say(a), say(b));
    match changed {
        Some(false) => format!("{subject} / {baseline}: `{b}` as in A"),
        _ => format!("{subject} / {baseline}: `{a}` in A, `{b}` in B"),
    }
}
