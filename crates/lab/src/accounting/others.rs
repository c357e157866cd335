//! CPU time of processes that have nothing to do with a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::procfs::{self, KERNEL_THREADS, TICK_S};

/// CPU time that went to processes which have nothing to do with the run. It is sampled before
/// the client starts and after it has ended, so that looking at every process costs nothing
/// inside the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OtherProcesses {
    /// Seconds between the two looks.
    pub span_s: f64,
    /// CPUs that they could use.
    pub cpus: usize,
    /// CPU seconds of other processes; kernel threads are not among them, because their work may
    /// well be the subject's.
    pub cpu_s: f64,
    /// The largest of them, by name.
    pub largest: Option<String>,
}

/// CPU ticks so far of every process of a host that is not the run's.
#[derive(Debug)]
pub(crate) struct BackgroundLoad {
    at_ns: u64,
    cpus: usize,
    /// Name and ticks of each.
    processes: BTreeMap<i32, (String, u64)>,
    /// Of all, with children that have ended.
    ticks: u64,
}

impl BackgroundLoad {
    /// Looks at every process but this one and its children.
    pub(crate) fn take() -> Result<BackgroundLoad, LabError> {
        let own = std::process::id() as i32;
        let at_ns = procfs::now_ns()?;
        let pids = procfs::numeric_entries("/proc")
            .map_err(|error| LabError::machine(format!("/proc: {error}")))?;
        let mut parents = BTreeMap::new();
        let mut processes = BTreeMap::new();
        for pid in pids {
            let text = procfs::text(&format!("/proc/{pid}/stat"));
            if let Some(stat) = text.as_deref().and_then(procfs::process_stat) {
                parents.insert(pid, stat.parent);
                let ticks = stat.user_ticks + stat.system_ticks;
                processes.insert(pid, (stat.name.to_owned(), ticks, stat.children_ticks));
            }
        }
        processes.retain(|pid, _| {
            *pid != KERNEL_THREADS
                && parents.get(pid) != Some(&KERNEL_THREADS)
                && !descends_from(*pid, own, &parents)
        });
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let ticks = processes.values().map(|(_, own, children)| own + children).sum();
        let processes = processes.into_iter().map(|(pid, (name, own, _))| (pid, (name, own)));
        Ok(BackgroundLoad { at_ns, cpus, processes: processes.collect(), ticks })
    }

    pub(crate) fn until<'end>(&self, end: &'end BackgroundLoad) -> OtherProcesses {
        let used = |(pid, (name, ticks)): (&i32, &'end (String, u64))| {
            let before = self.processes.get(pid).map_or(0, |before| before.1);
            (name.as_str(), ticks.saturating_sub(before))
        };
        let each: Vec<(&str, u64)> = end.processes.iter().map(used).collect();
        let living: u64 = each.iter().map(|(_, ticks)| *ticks).sum();
        // Of one that began and ended meanwhile its parent has the time. Not every parent waits.
        let all = living.max(end.ticks.saturating_sub(self.ticks));
        let largest = each.iter().max_by_key(|(_, ticks)| *ticks);
        let largest = largest.filter(|(_, ticks)| *ticks > 0 && *ticks >= all - living);
        OtherProcesses {
            span_s: end.at_ns.saturating_sub(self.at_ns) as f64 / 1e9,
            cpus: end.cpus,
            cpu_s: all as f64 * TICK_S,
            largest: largest.map(|(name, _)| (*name).to_owned()),
        }
    }
}

fn descends_from(pid: i32, ancestor: i32, parents: &BTreeMap<i32, i32>) -> bool {
    let up = |pid: &i32| parents.get(pid).copied().filter(|parent| *parent > 0);
    std::iter::successors(Some(pid), up).take(parents.len() + 1).any(|pid| pid == ancestor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descent_is_followed_and_a_loop_ends() {
        let parents = BTreeMap::from([(10, 1), (11, 10), (12, 11), (20, 1), (30, 31), (31, 30)]);
        assert!(descends_from(12, 10, &parents) && descends_from(10, 10, &parents));
        assert!(!descends_from(20, 10, &parents) && !descends_from(30, 10, &parents));
    }

    #[test]
    fn the_largest_is_named() {
        let look = |at_ns, ticks| {
            let processes = [(7, ("cc1 (x)".to_owned(), ticks))].into();
            BackgroundLoad { at_ns, cpus: 64, processes, ticks }
        };
        let used = look(5, 100).until(&look(1_000_000_005, 150));
        assert_eq!((used.span_s, used.cpus, used.cpu_s), (1.0, 64, 0.5));
        assert_eq!(used.largest.as_deref(), Some("cc1 (x)"));
        assert_eq!(look(5, 100).until(&look(6, 100)).largest, None);
        // A loop of short processes took a whole CPU and was seen by nobody.
        let ended = BackgroundLoad { ticks: 190, ..look(1_000_000_005, 110) };
        let used = look(5, 100).until(&ended);
        assert_eq!((used.cpu_s, used.largest), (0.9, None));
    }
}
