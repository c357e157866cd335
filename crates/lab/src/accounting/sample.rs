//! One side of a run at one moment: the clock, its CPUs, its process tree.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use nix::time::ClockId;
use nix::unistd::Pid;

use super::{Counts, CpuBusy, Device, IdleClock, ProcessUse, ThreadUse};
use crate::cpus::CpuList;
use crate::error::LabError;
use crate::procfs::{self, Idle, TICK_S};

#[derive(Debug, Clone)]
pub(crate) struct SideSample {
    pub(crate) at_ns: u64,
    /// Its CPUs; what follows of a CPU is their sum.
    pub(crate) cpus: CpuList,
    pub(crate) idle_ns: Vec<u64>,
    /// Where that was read.
    pub(crate) idle_clock: IdleClock,
    /// How much more it may be of all together.
    pub(crate) idle_unsure_ns: u64,
    /// What `/proc/stat` says that the hypervisor took.
    pub(crate) steal_ticks: u64,
    /// Packets so far that found that CPU's receive backlog full, if it can be seen.
    pub(crate) backlog_drops: Option<u64>,
    pub(crate) counts: Counts,
    pub(crate) process: ProcessSample,
}

impl SideSample {
    /// How the CPUs were used between two samples, with their busy time scaled to a window of this length.
    pub(crate) fn busy(&self, end: &SideSample, window_s: f64) -> CpuBusy {
        let sampled_ns = end.at_ns.saturating_sub(self.at_ns);
        let idle = self.idle_ns.iter().zip(&end.idle_ns);
        let each_s: Vec<f64> = idle
            .map(|(start, end)| window_s * busy_share(end.saturating_sub(*start), sampled_ns))
            .collect();
        let drops = self.backlog_drops.zip(end.backlog_drops);
        CpuBusy {
            cpus: self.cpus.clone(),
            busy_s: each_s.iter().sum(),
            busy_each_s: if each_s.len() > 1 { each_s } else { Vec::new() },
            busy_unsure_s: Some(self.idle_unsure_ns.max(end.idle_unsure_ns) as f64 / 1e9),
            sampled_s: Some(sampled_ns as f64 / 1e9),
            steal_coarse_s: end.steal_ticks.saturating_sub(self.steal_ticks) as f64 * TICK_S,
            backlog_drops: drops.map(|(start, end)| end.saturating_sub(start)),
            counts: self.counts.until(&end.counts),
        }
    }
}

fn busy_share(idle_ns: u64, sampled_ns: u64) -> f64 {
    (1.0 - idle_ns as f64 / sampled_ns.max(1) as f64).clamp(0.0, 1.0)
}

/// The files of the whole machine at one moment, the clocks first, because the rest takes a while.
pub(crate) struct Snapshot {
    at_ns: u64,
    timer_list: String,
    pub(super) softnet_stat: String,
    pub(super) interrupts: String,
    stat: String,
}

impl Snapshot {
    pub(crate) fn take() -> Result<Snapshot, LabError> {
        let text = |path: &str| procfs::text(path).unwrap_or_default();
        let before_ns = procfs::now_ns()?;
        let timer_list = text("/proc/timer_list");
        let at_ns = before_ns.midpoint(procfs::now_ns()?);
        let stat = text("/proc/stat");
        let softnet_stat = text("/proc/net/softnet_stat");
        let interrupts = text("/proc/interrupts");
        Ok(Snapshot { at_ns, timer_list, softnet_stat, interrupts, stat })
    }

    /// One side: its CPUs, the process tree of `pid`, and the device of its network. A process that has ended counts as
    /// nothing; that it ended is noticed elsewhere.
    pub(crate) fn of(&self, cpus: &CpuList, pid: i32, device: Option<&Device>) -> SideSample {
        let Snapshot { timer_list, stat, softnet_stat, .. } = self;
        let all = || cpus.all().iter().copied();
        let idle: Vec<(IdleClock, Idle)> = all().map(|cpu| idle(timer_list, stat, cpu)).collect();
        let drops = |cpu| procfs::softnet(softnet_stat, cpu, procfs::BACKLOG_DROPS);
        SideSample {
            at_ns: self.at_ns,
            cpus: cpus.clone(),
            idle_ns: idle.iter().map(|(_, it)| it.ns).collect(),
            // The coarsest decides.
            idle_clock: idle.iter().map(|(clock, _)| *clock).max().unwrap_or_default(),
            idle_unsure_ns: idle.iter().map(|(_, it)| it.unsure_ns).sum(),
            steal_ticks: all().filter_map(|cpu| procfs::cpu_ticks(stat, cpu)).map(|it| it.1).sum(),
            backlog_drops: all().map(drops).sum(),
            counts: Counts::take(self, cpus.all(), pid, device),
            process: ProcessSample::take(pid),
        }
    }
}

/// How long a CPU has been idle, by the best clock that this kernel has. Both texts may lack it.
fn idle(timer_list: &str, stat: &str, cpu: usize) -> (IdleClock, Idle) {
    if let Some(idle) = procfs::idle(timer_list, cpu, nohz_full().contains(&cpu)) {
        return (IdleClock::TimerList, idle);
    }
    // Two counters, either rounded down to a tick.
    let ns = procfs::cpu_ticks(stat, cpu).map_or(0, |it| (it.0 as f64 * TICK_S * 1e9) as u64);
    (IdleClock::ProcStat, Idle { ns, unsure_ns: (2.0 * TICK_S * 1e9) as u64 })
}

fn nohz_full() -> &'static [usize] {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    CPUS.get_or_init(|| procfs::cpu_list("/sys/devices/system/cpu/nohz_full"))
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessSample {
    cpu_ns: u64,
    user_ticks: u64,
    system_ticks: u64,
    threads: BTreeMap<i32, ThreadSample>,
}

#[derive(Debug, Clone)]
pub(crate) struct ThreadSample {
    name: String,
    /// Nanoseconds of CPU time, voluntary and involuntary context switches.
    counts: [u64; 3],
}

impl ProcessSample {
    fn take(root: i32) -> ProcessSample {
        let mut sample = ProcessSample::default();
        for pid in procfs::process_tree(root) {
            sample.cpu_ns += process_ns(pid);
            let stat = procfs::text(&format!("/proc/{pid}/stat"));
            if let Some(stat) = stat.as_deref().and_then(procfs::process_stat) {
                sample.user_ticks += stat.user_ticks;
                sample.system_ticks += stat.system_ticks;
            }
            let Ok(threads) = procfs::numeric_entries(&format!("/proc/{pid}/task")) else {
                continue;
            };
            for thread in threads {
                let path = format!("/proc/{pid}/task/{thread}");
                sample.threads.extend(ThreadSample::take(&path).map(|taken| (thread, taken)));
            }
        }
        sample
    }

    pub(crate) fn until(&self, end: &ProcessSample) -> ProcessUse {
        let mut by_name: BTreeMap<&str, ThreadUse> = BTreeMap::new();
        let mut switches = [0_u64; 2];
        for (id, after) in &end.threads {
            let before = self.threads.get(id).map_or([0; 3], |it| it.counts);
            let since = |at: usize| after.counts[at].saturating_sub(before[at]);
            switches = [0, 1].map(|at| switches[at].saturating_add(since(at + 1)));
            let name = after.name.as_str();
            let fresh = || ThreadUse { name: name.to_owned(), threads: 0, cpu_s: 0.0 };
            let entry = by_name.entry(name).or_insert_with(fresh);
            entry.threads += 1;
            entry.cpu_s += since(0) as f64 / 1e9;
        }
        let ticks = |start: u64, end: u64| end.saturating_sub(start) as f64 * TICK_S;
        ProcessUse {
            cpu_s: end.cpu_ns.saturating_sub(self.cpu_ns) as f64 / 1e9,
            user_s: ticks(self.user_ticks, end.user_ticks),
            system_s: ticks(self.system_ticks, end.system_ticks),
            threads: by_name.into_values().collect(),
            voluntary_switches: switches[0],
            involuntary_switches: switches[1],
        }
    }
}

/// CPU time of a process by its own clock, without its children; nothing of one that has ended.
fn process_ns(pid: i32) -> u64 {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).and_then(ClockId::now);
    clock.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

impl ThreadSample {
    fn take(path: &str) -> Option<ThreadSample> {
        let schedstat = procfs::text(&format!("{path}/schedstat"))?;
        let status = procfs::text(&format!("{path}/status"))?;
        let name = procfs::text(&format!("{path}/comm"))?;
        // io_uring names its threads iou-wrk-PID and iou-sqp-PID.
        let name = match name.rsplit_once('-') {
            Some((kind @ ("iou-wrk" | "iou-sqp"), _)) => kind.to_owned(),
            _ => name,
        };
        let number = |key| procfs::status_number(&status, key).unwrap_or(0);
        let switches = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"].map(number);
        Some(ThreadSample { name, counts: [procfs::run_ns(&schedstat)?, switches[0], switches[1]] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_name_are_added_up() {
        let thread = |name: &str, run_ns, voluntary| ThreadSample {
            name: name.to_owned(),
            counts: [run_ns, voluntary, 0],
        };
        let start = ProcessSample {
            cpu_ns: 5,
            threads: [(1, thread("main", 1_000, 3))].into(),
            ..ProcessSample::default()
        };
        let end = ProcessSample {
            cpu_ns: 3_000_000_005,
            user_ticks: 100,
            threads: [
                (1, thread("main", 1_000_001_000, 5)),
                (2, thread("iou-wrk", 500_000_000, 1)),
                (3, thread("iou-wrk", 500_000_000, 1)),
            ]
            .into(),
            ..ProcessSample::default()
        };
        let used = start.until(&end);
        assert_eq!((used.cpu_s, used.user_s, used.voluntary_switches), (3.0, 1.0, 4));
        let iou = ThreadUse { name: "iou-wrk".to_owned(), threads: 2, cpu_s: 1.0 };
        assert_eq!(used.threads[0], iou);
        assert_eq!(used.threads[1].cpu_s, 1.0);
    }

    #[test]
    fn a_process_is_seen_with_its_children() {
        use std::os::unix::process::CommandExt;
        let mut shell = std::process::Command::new("sh");
        let mut shell =
            shell.args(["-c", "sleep 60 & exec sleep 60"]).process_group(0).spawn().unwrap();
        // A process that has just begun may not have been charged for anything yet.
        let is_seen = |_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let sample = ProcessSample::take(shell.id() as i32);
            sample.cpu_ns > 0 && sample.threads.len() == 2
        };
        let seen = (0..10_000).any(is_seen);
        let group = Pid::from_raw(shell.id() as i32);
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert!(seen);
    }

    #[test]
    fn the_busy_share_follows_from_the_clock_of_the_sample() {
        let shares = [(250, 1000), (0, 1000), (9000, 1000), (0, 0)];
        assert_eq!(shares.map(|(idle, sampled)| busy_share(idle, sampled)), [0.75, 1.0, 0.0, 1.0]);
    }

    /// A kernel without idle times in `/proc/timer_list` was said to have been read there, and root was
    /// advised to be root.
    #[test]
    fn the_clock_that_was_read_is_named() {
        let stat = "cpu  0 0 0 0 0 0 0 0\ncpu0 1 2 3 400 50 6 7 8 0 0\n";
        let with = "now at 5 nsecs\ncpu: 0\n  .idle_sleeptime : 1 nsecs\n  .iowait_sleeptime: 2 nsecs\n  \
                    .idle_entrytime : 4 nsecs\n  .tick_stopped   : 0\n";
        let without = "now at 5 nsecs\ncpu: 0\n  .tick_stopped   : 0\n";
        let (clock, found) = idle(with, stat, 0);
        assert_eq!((clock, found.ns), (IdleClock::TimerList, 3));
        let (clock, found) = idle(without, stat, 0);
        assert_eq!(
            (clock, found.ns, found.unsure_ns),
            (IdleClock::ProcStat, 4_500_000_000, 20_000_000)
        );
        assert!(clock > IdleClock::TimerList && clock.describe().contains("10 ms"));
    }
}
