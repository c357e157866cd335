//! Whether a run did the work that its schedule asked for.

use super::{Figures, Metric};
use crate::experiment::{Experiment, Protocol};

/// Nothing where there is no schedule.
pub(crate) fn did_its_work(
    experiment: &Experiment,
    protocol: Protocol,
    figures: &Figures,
) -> Option<bool> {
    let slo = experiment.grid(protocol)?.slo;
    let (missing, time, (most_missing, latest)) = match protocol {
        Protocol::Tcp | Protocol::Http => {
            (Metric::OpenLoopMissingRatio, Metric::LatencyUsP99, slo.of_requests())
        }
        Protocol::Udp => (Metric::MissingRatio, Metric::LatenessUsP99_9, slo.of_packets()),
    };
    Some(figures.get(missing)? <= most_missing && figures[time] <= latest)
}
