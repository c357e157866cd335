//! What a run cost in CPU.
//!
//! The primary metric is the busy time of a whole CPU: all of the window that it was not idle.
//! So nothing escapes: not softirq, not io-wq or SQPOLL threads, not interrupts. Beside it stand
//! the clocks of the processes, which tell where the time went but miss a part of it.

mod counts;
mod memory;
mod others;
mod sample;

use serde::{Deserialize, Serialize};
use twinring_input::cgroup::CpuQuota;

use crate::cpus::CpuList;

pub use counts::Counts;
pub(crate) use counts::Device;
pub use memory::{KernelMemory, MemoryUse, ProcessMemory};
pub(crate) use others::BackgroundLoad;
pub use others::OtherProcesses;
pub(crate) use sample::{SideSample, Snapshot};

/// CPU use of one run, inside the measured window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CpuUse {
    /// Length of the window, by the clock of the load generator.
    pub window_s: f64,
    /// The server's CPUs.
    pub server_cpu: CpuBusy,
    /// The load generator's CPUs; the same as the server's when there is only one. Missing when it ran on
    /// other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu: Option<CpuBusy>,
    /// The server's process and its children.
    pub server: ProcessUse,
    /// The load generator's process. Missing when it ran on other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ProcessUse>,
    /// How late the lab took its samples after the two marks, in microseconds. Of several load generators
    /// elsewhere: the time between the first and the last of their marks.
    pub sample_delay_us: [f64; 2],
    /// Server and load generator share one CPU.
    #[serde(default)]
    pub shared: bool,
    /// The clock that idle time was read from.
    #[serde(default)]
    pub idle_clock: IdleClock,
}

/// Where the kernel says how long a CPU has been idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IdleClock {
    /// `/proc/timer_list`, to the nanosecond. It takes root, and newer kernels no longer have it.
    #[default]
    TimerList,
    /// `/proc/stat`: the same sum, rounded down to ticks of 10 ms at either sample.
    ProcStat,
}

impl IdleClock {
    /// The file and its resolution, in words.
    pub fn describe(self) -> &'static str {
        match self {
            IdleClock::TimerList => "/proc/timer_list, exact to the nanosecond",
            IdleClock::ProcStat => "/proc/stat, in ticks of 10 ms",
        }
    }
}

impl CpuUse {
    /// Every CPU of the run that was looked at, the server's first.
    pub(crate) fn cpus(&self) -> Vec<&CpuBusy> {
        std::iter::once(&self.server_cpu).chain(&self.client_cpu).collect()
    }
}

/// How the CPU of one side was used, or its CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CpuBusy {
    /// Its number; a list if a side has several, which all else here is the sum of.
    #[serde(rename = "cpu")]
    pub cpus: CpuList,
    /// Time it was not idle: the primary metric.
    pub busy_s: f64,
    /// The part of `busy_s` of each, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy_each_s: Vec<f64>,
    /// How much more or less that may be: the idle clock is rounded to ticks of 10 ms without root,
    /// and leaves out a stretch of less than a tick that may be open at a sample. Not in older
    /// bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_unsure_s: Option<f64>,
    /// Taken by the hypervisor, by `/proc/stat`: in ticks, hence coarse.
    pub steal_coarse_s: f64,
    /// Time between the two samples, by the clock of its own host. What the kernel counts is of
    /// this time, and not quite of the window; not in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_s: Option<f64>,
    /// Packets that found its receive backlog full (`net.core.netdev_max_backlog`) and are lost, if
    /// it can be seen; not in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog_drops: Option<u64>,
    /// What the kernel counted of this side.
    #[serde(default, skip_serializing_if = "Counts::is_empty")]
    pub counts: Counts,
}

impl CpuBusy {
    pub(crate) fn count(&self) -> f64 {
        self.cpus.all().len() as f64
    }

    pub(crate) fn busy_share(&self, window_s: f64) -> f64 {
        self.busy_s / window_s / self.count()
    }
}

/// What a process, its threads and its children used.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessUse {
    /// CPU time by the processes' own clocks.
    pub cpu_s: f64,
    /// The part in user mode. The kernel divides the exact sum by sampling, so the division is
    /// good to a few ticks of 10 ms only.
    pub user_s: f64,
    /// The part in the kernel, see `user_s`.
    pub system_s: f64,
    /// CPU time by thread name from schedstat: the `iou-wrk` and `iou-sqp` threads of io_uring
    /// are among them.
    pub threads: Vec<ThreadUse>,
    /// Context switches because it waited.
    pub voluntary_switches: u64,
    /// Context switches because the scheduler ran another thread.
    pub involuntary_switches: u64,
}

impl ProcessUse {
    pub(crate) fn switches(&self) -> u64 {
        self.voluntary_switches.saturating_add(self.involuntary_switches)
    }
}

/// What a CPU quota did to the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaUse {
    /// CPUs that all processes of the control group may use together.
    pub cpus: f64,
    /// Periods in which they had used them up, and waited.
    pub throttled_periods: u64,
}

impl QuotaUse {
    /// What the quota did between two samples; nothing without a quota.
    pub(crate) fn between(start: CpuQuota, end: CpuQuota) -> Option<QuotaUse> {
        let throttled_periods = end.throttled_periods.saturating_sub(start.throttled_periods);
        Some(QuotaUse { cpus: end.cpus.or(start.cpus)?, throttled_periods })
    }
}

/// CPU time of the threads of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ThreadUse {
    /// Name, without the number that io_uring appends to its own.
    pub name: String,
    /// How many there were.
    pub threads: usize,
    /// CPU time of all of them.
    pub cpu_s: f64,
}
