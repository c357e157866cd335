//! Where the load generator's time went, call by call.

use serde::{Deserialize, Serialize};

use crate::contract::udp::Call;
use crate::record::RunRecord;
use crate::statistics::median;

/// One kind of system call of the load generator: medians over the runs of a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallFigures {
    /// Its name.
    pub call: String,
    /// Calls per second.
    pub per_second: f64,
    /// Its part of the run, waiting included.
    pub run_share: f64,
    /// Mean time of a call in microseconds.
    pub mean_us: f64,
    /// The longest call of all runs, in microseconds.
    pub max_us: f64,
}

/// The calls of these runs, in the order in which the first run names them.
pub(super) fn medians<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Vec<CallFigures> {
    let of_run = |run: &RunRecord| {
        let load = run.load_result()?.ok()?;
        let udp = load.udp()?;
        Some((udp.window.seconds, udp.calls.clone()?))
    };
    let runs: Vec<(f64, Vec<Call>)> = runs.filter_map(of_run).collect();
    let mut names: Vec<&str> = Vec::new();
    for call in runs.iter().flat_map(|(_, calls)| calls) {
        if !names.contains(&call.call.as_str()) {
            names.push(&call.call);
        }
    }
    let figures = |name: &str| {
        let calls: Vec<(f64, &Call)> = runs
            .iter()
            .flat_map(|(seconds, calls)| calls.iter().map(move |call| (*seconds, call)))
            .filter(|(_, call)| call.call == name)
            .collect();
        Some(CallFigures {
            call: name.to_owned(),
            per_second: median(calls.iter().map(|(seconds, call)| call.count as f64 / seconds))?,
            run_share: median(calls.iter().map(|(_, call)| call.run_share))?,
            mean_us: median(calls.iter().map(|(_, call)| call.mean_us))?,
            max_us: calls.iter().map(|(_, call)| call.max_us).fold(0.0, f64::max),
        })
    };
    names.into_iter().filter_map(figures).collect()
}
