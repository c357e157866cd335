//! The CPU quota of this process's control groups (cgroups(7)), which stops all of its threads for the rest of a
//! period once it is used up: containers have one by `--cpus` or `resources.limits.cpu`.

use std::path::{Path, PathBuf};

/// Text of a file below /proc or /sys/fs/cgroup, at most.
const BYTES_MAX: u64 = 64 << 10;

/// The quota, and what it did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuQuota {
    /// The smallest quota of the process's group and those above it, in CPUs; `None` without one.
    pub cpus: Option<f64>,
    /// Periods in which a quota was used up and the processes waited. Its growth tells whether they waited meanwhile.
    pub throttled_periods: u64,
}

impl CpuQuota {
    /// Reads it. What cannot be read counts as no quota.
    pub fn read() -> CpuQuota {
        CpuQuota::below(Path::new("/"))
    }

    fn below(root: &Path) -> CpuQuota {
        let mut found = CpuQuota::default();
        let groups = text(&root.join("proc/self/cgroup"));
        for directory in groups.lines().filter_map(|line| directory_of(root, line)) {
            // The group's path may not be there: in a container, the root of the hierarchy is the container's.
            for group in
                directory.ancestors().take_while(|it| it.starts_with(root.join("sys/fs/cgroup")))
            {
                if let Some(cpus) = quota(group) {
                    found.cpus = Some(found.cpus.map_or(cpus, |least| least.min(cpus)));
                }
                let stat = text(&group.join("cpu.stat"));
                let throttled = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
                found.throttled_periods +=
                    throttled.and_then(|it| it.trim().parse().ok()).unwrap_or(0);
            }
        }
        found
    }
}

fn text(path: &Path) -> String {
    crate::read_to_string(path, BYTES_MAX).unwrap_or_default()
}

/// The directory of a group in a line of /proc/self/cgroup: `0::/group` in version 2, `3:cpu,cpuacct:/group` in
/// version 1.
fn directory_of(root: &Path, line: &str) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let hierarchies: &[&str] = match controllers {
        "" => &["unified", ""],
        _ if controllers.split(',').any(|it| it == "cpu") => &["cpu", "cpu,cpuacct"],
        _ => return None,
    };
    let mounted = hierarchies.iter().map(|name| root.join("sys/fs/cgroup").join(name));
    let mounted = mounted.into_iter().find(|it| it.join("cgroup.procs").exists())?;
    Some(mounted.join(group.trim_start_matches('/')))
}

/// `cpu.max` of version 2: `QUOTA PERIOD` or `max PERIOD`; two files of version 1, where -1 is none.
fn quota(group: &Path) -> Option<f64> {
    let max = text(&group.join("cpu.max"));
    let (quota_us, period_us) = match max.split_once(' ') {
        Some((quota, period)) => (quota.to_owned(), period.to_owned()),
        None => (text(&group.join("cpu.cfs_quota_us")), text(&group.join("cpu.cfs_period_us"))),
    };
    let (quota_us, period_us): (f64, f64) =
        (quota_us.trim().parse().ok()?, period_us.trim().parse().ok()?);
    (quota_us > 0.0 && period_us > 0.0).then_some(quota_us / period_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn the_smallest_quota_of_all_groups_above_counts_in_both_versions() {
        let stat = "nr_periods 9\nnr_throttled 7\nthrottled_usec 1\n";
        let v2 = tempfile::tempdir().unwrap();
        write(
            v2.path(),
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/cgroup.procs", ""),
                ("sys/fs/cgroup/a/cpu.max", "20000 100000\n"),
                ("sys/fs/cgroup/a/cpu.stat", stat),
                ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ],
        );
        let found = CpuQuota::below(v2.path());
        assert_eq!(found, CpuQuota { cpus: Some(0.2), throttled_periods: 7 });
        let v1 = tempfile::tempdir().unwrap();
        write(
            v1.path(),
            &[
                ("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n0::/\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cgroup.procs", ""),
                ("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "150000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"),
            ],
        );
        assert_eq!(CpuQuota::below(v1.path()).cpus, Some(1.5));
        assert_eq!(CpuQuota::below(Path::new("/nonexistent")), CpuQuota::default());
    }
}
