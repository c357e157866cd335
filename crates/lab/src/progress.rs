//! How far the experiment is: one bar on a terminal, a line for each cell's turn otherwise.
//!
//! The bar is drawn between runs only. Nothing ticks while a window is open.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};

use crate::estimate::{duration, how_long};
use crate::experiment::{Cell, Experiment};
use crate::report::lines_of;

pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn start(experiment: &Experiment, runs: usize) -> Progress {
        let bar = ProgressBar::new(runs as u64);
        let shown = stderr().is_terminal();
        bar.set_draw_target(if shown {
            ProgressDrawTarget::stderr_with_hz(2)
        } else {
            ProgressDrawTarget::hidden()
        });
        let style = ProgressStyle::with_template("{wide_bar} run {pos}/{len}  {msg}");
        // The template is a constant; if it were wrong the default would do.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let progress = Progress { bar };
        progress.say(&format!("{}: {runs} runs, {}", experiment.name, how_long(experiment)));
        progress
    }

    pub(crate) fn next(&self, cell: &Cell, subject: &str) {
        let left = match self.bar.position() {
            0 => String::new(),
            _ => format!(", {} left", duration(self.bar.eta().as_secs_f64())),
        };
        self.bar.set_message(format!("{cell}, {subject}{left}"));
        self.bar.inc(1);
    }

    /// A run that only finds a rate.
    pub(crate) fn look(&self, cell: &Cell, subject: &str) {
        self.bar.set_message(format!("{cell}, {subject}: what it can serve"));
    }

    pub(crate) fn more(&self, runs: usize) {
        self.bar.inc_length(runs as u64);
    }

    pub(crate) fn say(&self, line: &str) {
        if self.bar.is_hidden() {
            say(line);
        } else {
            self.bar.println(lines_of(line));
        }
    }
}

/// A line on standard error. If that is full or closed, the line is lost; eprintln! would
/// panic.
pub(crate) fn say(line: &str) {
    let line = if stderr().is_terminal() { lines_of(line) } else { line.to_owned() };
    let _nobody_reads = writeln!(stderr().lock(), "{line}");
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
