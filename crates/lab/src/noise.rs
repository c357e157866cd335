//! What disturbed a run. A block with a disturbed run is excluded, and replaced if there are spare pairs. None of
//! this is a judgement on a subject.

use crate::record::RunRecord;

/// The share of the window that the hypervisor may take from a CPU.
pub const STEAL_LIMIT: f64 = 0.02;

/// The share of all CPUs that other processes may use: 6 % of one on a machine with two.
pub const OTHERS_LIMIT: f64 = 0.03;

/// How late the lab may sample after a mark, as a share of the window.
pub const SAMPLE_DELAY_LIMIT: f64 = 0.02;

/// A kind of disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Noise {
    /// The hypervisor gave a CPU to another guest.
    Steal,
    /// Other processes used the CPUs.
    OtherProcesses,
    /// A CPU quota was used up, and the processes waited.
    Throttled,
    /// The hypervisor moved a CPU during the block.
    Moved,
    /// The lab was late to sample.
    LateSample,
}

impl Noise {
    /// Whether whoever runs the experiment can end it: other programs, or a quota.
    pub(crate) fn can_be_ended(self) -> bool {
        matches!(self, Noise::OtherProcesses | Noise::Throttled)
    }
}

pub(crate) fn is_too_busy(cpu_s: f64, cpus: usize, span_s: f64) -> bool {
    cpu_s > (OTHERS_LIMIT * cpus as f64 * span_s).max(0.03)
}

/// What disturbed a run of a block whose first run is `first`, each with figures.
pub fn noise(first: &RunRecord, run: &RunRecord) -> Vec<(Noise, String)> {
    let mut found = Vec::new();
    if let Some(cpu) = &run.cpu {
        for busy in cpu.cpus() {
            // One tick is the smallest time that can be distinguished from none.
            let limit = (STEAL_LIMIT * cpu.window_s * busy.count()).max(0.011);
            if busy.steal_coarse_s > limit {
                let taken = busy.steal_coarse_s * 1e3;
                let what = format!("{taken:.0} ms of CPU {} went to other guests", busy.cpus);
                found.push((Noise::Steal, what));
            }
        }
        let delay_us = cpu.sample_delay_us.into_iter().fold(0.0, f64::max);
        if delay_us > SAMPLE_DELAY_LIMIT * cpu.window_s * 1e6 {
            let what = match run.generators {
                1 => format!("sampled {delay_us:.0} us after the mark"),
                several => {
                    format!("the windows of {several} load generators were {delay_us:.0} us apart")
                }
            };
            found.push((Noise::LateSample, what));
        }
    }
    if let Some(others) = &run.others
        && is_too_busy(others.cpu_s, others.cpus, others.span_s)
    {
        let share = others.cpu_s / others.span_s * 100.0;
        let most = others.largest.as_deref().unwrap_or("one that has ended");
        let what = format!("{share:.0} % of a CPU went to other processes, most to {most}");
        found.push((Noise::OtherProcesses, what));
    }
    if let Some(quota) = run.quota.filter(|quota| quota.throttled_periods > 0) {
        let (cpus, times) = (quota.cpus, quota.throttled_periods);
        let what = format!("the CPU quota of {cpus:.2} CPUs was used up {times} times");
        found.push((Noise::Throttled, what));
    }
    found.extend(moved(first, run).map(|what| (Noise::Moved, what)));
    found
}

/// How the placement of the CPUs changed, within the run or since the first of the block.
fn moved(first: &RunRecord, run: &RunRecord) -> Option<String> {
    let distance = run.distance.as_ref()?;
    let (before_ns, after_ns) = (distance.before_ns?, distance.after_ns?);
    let Some(placement) = distance.placement() else {
        return Some(format!(
            "a cache line between the CPUs took {before_ns:.0} ns before it and {after_ns:.0} ns \
             after it"
        ));
    };
    let at_first = first.distance.and_then(|distance| distance.placement());
    let at_first = at_first.filter(|at_first| *at_first != placement)?;
    Some(format!("the CPUs were {at_first} for {} and {placement} for it", first.subject))
}
