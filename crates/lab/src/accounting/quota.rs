//! The CPU quota of this process's control groups, and how often it was throttled.

use serde::{Deserialize, Serialize};

use crate::procfs;

/// What a quota did to the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaUse {
    /// CPUs that all processes of the control group may use together.
    pub cpus: f64,
    /// Periods in which they had used them up, and waited.
    pub throttled_periods: u64,
}

/// The throttling so far, of the group of this process and those above it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Throttling {
    /// The smallest quota, in CPUs.
    cpus: Option<f64>,
    periods: u64,
}

/// A version of the interface: where its hierarchy is, and the files of its quota.
struct Hierarchy {
    root: &'static str,
    group: String,
    quota: fn(&str) -> Option<f64>,
}

impl Throttling {
    /// Reads it. What cannot be read counts as no quota.
    pub(crate) fn take() -> Throttling {
        let own = procfs::text("/proc/self/cgroup").unwrap_or_default();
        let mut found = Throttling::default();
        for hierarchy in hierarchies(&own) {
            for directory in groups(hierarchy.root, &hierarchy.group) {
                if let Some(cpus) = (hierarchy.quota)(&directory) {
                    found.cpus = Some(found.cpus.map_or(cpus, |least| least.min(cpus)));
                }
                let stat = procfs::text(&format!("{directory}/cpu.stat")).unwrap_or_default();
                found.periods += throttled(&stat);
            }
        }
        found
    }

    /// What the quota did since `self`; nothing without a quota.
    pub(crate) fn until(self, end: Throttling) -> Option<QuotaUse> {
        let throttled_periods = end.periods.saturating_sub(self.periods);
        let cpus = end.cpus.or(self.cpus)?;
        Some(QuotaUse { cpus, throttled_periods })
    }

    /// The quota, in CPUs.
    pub(crate) fn cpus(self) -> Option<f64> {
        self.cpus
    }
}

/// The hierarchies in the text of `/proc/PID/cgroup`: lines of number, controllers and group (cgroups(7)).
fn hierarchies(own: &str) -> Vec<Hierarchy> {
    let of_line = |line: &str| -> Option<Hierarchy> {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?.to_owned());
        if controllers.is_empty() {
            let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
            let has = |it: &&str| procfs::text(&format!("{it}/cgroup.controllers")).is_some();
            return Some(Hierarchy { root: root.into_iter().find(has)?, group, quota: quota_v2 });
        }
        let root = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];
        let has = |it: &&str| procfs::text(&format!("{it}/cpu.cfs_period_us")).is_some();
        let root = root.into_iter().find(has)?;
        controllers.split(',').any(|it| it == "cpu").then_some(Hierarchy {
            root,
            group,
            quota: quota_v1,
        })
    };
    own.lines().filter_map(of_line).collect()
}

/// The directories of a group and of all above it. In a container, the root of the hierarchy is its own group,
/// whatever the group is called outside.
fn groups(root: &str, group: &str) -> Vec<String> {
    let mut directories = vec![root.to_owned()];
    let mut path = root.to_owned();
    for part in group.split('/').filter(|part| !part.is_empty() && *part != "..") {
        path = format!("{path}/{part}");
        directories.push(path.clone());
    }
    directories
}

/// Version 2: `cpu.max` has quota and period in microseconds, or `max`.
fn quota_v2(directory: &str) -> Option<f64> {
    parse_max(&procfs::text(&format!("{directory}/cpu.max"))?)
}

fn parse_max(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    share(quota.parse().ok()?, period.parse().ok()?)
}

/// Version 1: a quota of -1 is none.
fn quota_v1(directory: &str) -> Option<f64> {
    let number = |name: &str| procfs::text(&format!("{directory}/cpu.{name}"))?.parse().ok();
    share(number("cfs_quota_us")?, number("cfs_period_us")?)
}

fn share(quota_us: f64, period_us: f64) -> Option<f64> {
    (quota_us > 0.0 && period_us > 0.0).then(|| quota_us / period_us)
}

/// `nr_throttled` in the text of `cpu.stat`, which both versions have.
fn throttled(stat: &str) -> u64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_both_versions_are_read() {
        assert_eq!((parse_max("20000 100000"), parse_max("max 100000")), (Some(0.2), None));
        assert_eq!((share(-1.0, 100_000.0), share(150_000.0, 100_000.0)), (None, Some(1.5)));
        assert_eq!(throttled("nr_periods 9\nnr_throttled 7\nthrottled_time 1\n"), 7);
        assert_eq!(throttled("usage_usec 5\n"), 0);
        assert_eq!(groups("/r", "/a/b"), ["/r", "/r/a", "/r/a/b"]);
        assert_eq!(groups("/r", "/../x"), ["/r", "/r/x"]);
    }

    #[test]
    fn what_was_throttled_in_between_is_counted() {
        let at = |periods| Throttling { cpus: Some(0.2), periods };
        let used = at(5).until(at(9)).unwrap();
        assert_eq!((used.cpus, used.throttled_periods), (0.2, 4));
        assert_eq!(Throttling::default().until(Throttling::default()), None);
        // This machine has a quota or none; it can be asked either way.
        assert!(Throttling::take().cpus().is_none_or(|cpus| cpus > 0.0));
    }
}
