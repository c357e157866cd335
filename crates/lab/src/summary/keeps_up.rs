//! Whether a run did the work that its schedule asked for.

use super::{Figures, Metric};
use crate::experiment::{AnswersInTime, Experiment, KeepsUp, Protocol};

/// Nothing where there is no schedule.
pub(crate) fn did_its_work(
    experiment: &Experiment,
    protocol: Protocol,
    figures: &Figures,
) -> Option<bool> {
    match protocol {
        Protocol::Tcp => in_time(&experiment.tcp.as_ref()?.keeps_up, figures),
        Protocol::Http => in_time(&experiment.http.as_ref()?.keeps_up, figures),
        Protocol::Udp => came_back(&experiment.udp.as_ref()?.keeps_up, figures),
    }
}

fn in_time(limits: &AnswersInTime, figures: &Figures) -> Option<bool> {
    let missing = figures.get(Metric::OpenLoopMissingRatio)?;
    let in_time = figures[Metric::LatencyUsP99] <= limits.latency_us_p99;
    Some(in_time && missing <= limits.missing_ratio)
}

fn came_back(limits: &KeepsUp, figures: &Figures) -> Option<bool> {
    let missing = figures.get(Metric::MissingRatio)?;
    let in_time = figures[Metric::LatenessUsP99_9] <= limits.lateness_us_p99_9;
    Some(in_time && missing <= limits.missing_ratio)
}
