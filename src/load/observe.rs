//! Output while a load runs: its marks as JSON, a progress line on a terminal.

use super::options::ahead_s;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;
use twinring::measure::monotonic_ns;
use twinring_load::observer::{Begin, Observer, Phase, Progress};
use twinring_wire::load::{Mark, WINDOW_END, WINDOW_START};

/// Writes `window_start` or `window_end` at its moment.
fn mark(event: &str, monotonic_ns: u64) {
    // A reader who has left is noticed when the result is printed.
    if let Ok(line) = serde_json::to_string(&Mark { event: event.to_owned(), monotonic_ns }) {
        crate::output::print_line(&line);
    }
}

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
    /// What was decided once all was connected.
    begin: Option<Begin>,
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
        Live { bar, noun, marks, start_at, before: (0, 0.0), begin: None }
    }

    /// Erases the line.
    pub(super) fn finish(&self) -> Result<(), String> {
        self.bar.finish_and_clear();
        match self.begin {
            Some(Begin::Never) => {
                Err("--start-at: the moment had passed when all connections were open".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl Observer for Live {
    fn connected(&mut self) -> Begin {
        let begin = match self.start_at.map(|it| Duration::try_from_secs_f64(ahead_s(it))) {
            None => Begin::Now,
            Some(Ok(ahead)) => Begin::At(monotonic_ns().saturating_add(ahead.as_nanos() as u64)),
            Some(Err(_)) => Begin::Never,
        };
        *self.begin.insert(begin)
    }

    fn window_started(&mut self, monotonic_ns: u64) {
        if self.marks {
            mark(WINDOW_START, monotonic_ns);
        }
    }

    fn window_ended(&mut self, monotonic_ns: u64) {
        if self.marks {
            mark(WINDOW_END, monotonic_ns);
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
