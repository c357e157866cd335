//! The common part of the lines of all load generators.

use serde::{Deserialize, Serialize};

use crate::Fields;

/// A worker that used this share of its CPU was the bottleneck.
pub const SATURATED_SHARE: f64 = 0.95;

/// How every result begins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Head {
    /// Always `result`.
    #[serde(default)]
    pub event: String,
    /// Kind and version of the line; without it, it is a result of `load tcp`.
    #[serde(default)]
    pub schema: String,
    /// Address of the server; for HTTP with its scheme.
    #[serde(default)]
    pub target: String,
    /// The engine of the load generator.
    #[serde(default)]
    pub engine: String,
    /// The features of that engine that are in use.
    #[serde(default)]
    pub features: Fields,
    /// Why `--engine auto` did not choose io_uring; `null` if it did, or was not requested.
    #[serde(default, rename = "why_not")]
    pub fallback_reason: Option<String>,
    /// The run was ended by a signal.
    #[serde(default)]
    pub interrupted: bool,
}

/// The measured window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Window {
    /// Its start on CLOCK_MONOTONIC.
    pub start_monotonic_ns: u64,
    /// Its end on CLOCK_MONOTONIC.
    pub end_monotonic_ns: u64,
    /// Its length.
    pub seconds: f64,
}

impl Window {
    /// Seconds between the two marks.
    pub fn between_marks_s(&self) -> f64 {
        self.end_monotonic_ns.saturating_sub(self.start_monotonic_ns) as f64 / 1e9
    }

    /// A window as long as these on average, beginning with the first; by the clock of its host.
    pub(crate) fn mean(windows: &[Window]) -> Window {
        let of = |field: fn(&Window) -> f64| {
            windows.iter().map(field).sum::<f64>() / windows.len().max(1) as f64
        };
        let start_monotonic_ns = windows.first().map_or(0, |window| window.start_monotonic_ns);
        let length_ns = (of(Window::between_marks_s) * 1e9).round() as u64;
        Window {
            start_monotonic_ns,
            end_monotonic_ns: start_monotonic_ns.saturating_add(length_ns),
            seconds: of(|window| window.seconds),
        }
    }
}

/// CPU use of the load generator's worker threads inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cpu {
    /// In the program itself, all threads together.
    #[serde(default)]
    pub user_s: f64,
    /// In the kernel on its behalf, all threads together.
    #[serde(default)]
    pub system_s: f64,
    /// Share of one CPU that the busiest thread used.
    pub busiest_thread_share: f64,
    /// The busiest thread used at least 95 % of its CPU: the load generator was the limit.
    pub saturated: bool,
}

impl Cpu {
    /// Of the busiest thread, that which is nearer to its limit: if any of them is there, the load
    /// is limited by it.
    pub(crate) fn add(&mut self, other: &Cpu) {
        self.user_s += other.user_s;
        self.system_s += other.system_s;
        self.busiest_thread_share = self.busiest_thread_share.max(other.busiest_thread_share);
        self.saturated |= other.saturated;
    }
}

/// The sum of two rates or limits that may not have been set.
pub(crate) fn add_some(sum: &mut Option<u64>, other: Option<u64>) {
    *sum = sum.zip(other).map(|(mine, theirs)| mine.saturating_add(theirs));
}

/// Counters of different programs are not added: some of them are ratios.
pub(crate) fn forget(counters: &mut Fields) {
    counters.0.clear();
}
