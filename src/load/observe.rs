//! Output while a load runs: its marks as JSON, a progress line on a terminal.

use super::ahead_s;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;
use twinring::measure::monotonic_ns;
use twinring_load::{Observer, Phase, Progress};
use twinring_wire::load::Mark;

/// A line that is redrawn up to four times a second, if standard error is a terminal.
pub(super) struct Live {
    bar: ProgressBar,
    /// The unit of the counts.
    noun: &'static str,
    /// Marks are written as JSON.
    marks: bool,
    start_at: Option<f64>,
    /// Answers and their latencies at the last update.
    before: (u64, f64),
    /// The moment had passed when all was connected.
    too_late: bool,
}

impl Live {
    /// `expected` is the maximum length of the window, `noun` the unit of the counts. Traffic begins at
    /// `start_at`, or at once.
    pub(super) fn new(
        expected: Duration,
        noun: &'static str,
        marks: bool,
        start_at: Option<f64>,
    ) -> Live {
        // Hidden by itself when standard error is no terminal.
        let target = ProgressDrawTarget::stderr_with_hz(4);
        let bar = ProgressBar::with_draw_target(Some(expected.as_millis() as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg}") {
            bar.set_style(style);
        }
        Live { bar, noun, marks, start_at, before: (0, 0.0), too_late: false }
    }

    pub(super) fn finish(&self) -> Result<(), String> {
        self.bar.finish_and_clear();
        match self.too_late {
            true => {
                Err("--start-at: the moment had passed when all connections were open".to_owned())
            }
            false => Ok(()),
        }
    }
}

impl Observer for Live {
    fn connected(&mut self) -> Option<u64> {
        let Some(start_at) = self.start_at else { return Some(0) };
        let ahead = Duration::try_from_secs_f64(ahead_s(start_at)).ok();
        self.too_late = ahead.is_none();
        Some(monotonic_ns().saturating_add(ahead?.as_nanos() as u64))
    }

    fn mark(&mut self, event: &str, monotonic_ns: u64) {
        let mark = Mark { event: event.to_owned(), monotonic_ns };
        if self.marks
            && let Ok(line) = serde_json::to_string(&mark)
        {
            // A reader who has left is noticed when the result is printed.
            crate::output::print_line(&line);
        }
    }

    fn progress(&mut self, progress: &Progress) {
        let errors = progress.errors;
        self.bar.set_message(match progress.phase {
            Phase::Connecting => format!("connecting, {errors} errors"),
            Phase::WarmingUp => format!("warming up, {errors} errors"),
            Phase::Measuring => {
                self.bar.set_position((progress.window_s * 1e3) as u64);
                let rate = progress.answered as f64 / progress.window_s.max(1e-9);
                let (answered, latency_s) = self.before;
                self.before = (progress.answered, progress.latency_s);
                let latency = match progress.answered.saturating_sub(answered) {
                    0 => "no answer".to_owned(),
                    more => {
                        format!("{:.2} ms", (progress.latency_s - latency_s) * 1e3 / more as f64)
                    }
                };
                let (noun, window_s) = (self.noun, progress.window_s);
                format!("{window_s:.1} s, {rate:.0} {noun}/s, {latency}, {errors} errors")
            }
        });
    }
}
