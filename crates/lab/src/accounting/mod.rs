//! What a run cost in CPU.
//!
//! The primary metric is the busy time of a whole CPU: all of the window that it was not idle.
//! So nothing escapes: not softirq, not io-wq or SQPOLL threads, not interrupts. Beside it stand
//! the clocks of the processes, which tell where the time went but miss a part of it.
//!
//! The server's and the client's side are sampled each on its own (`SideSample`), and the busy
//! share of a CPU follows from its own side's clock alone: they may be on different hosts. Only how
//! late the samples were is measured by the client's clock, which also defines the window.

mod counts;
mod hosts;
mod memory;
mod others;
mod sample;

use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;

pub use counts::Counts;
pub(crate) use counts::Device;
pub use hosts::{BetweenHosts, PartUse};
pub(crate) use hosts::{ClientWindow, cpu_use_between_hosts};
pub use memory::{KernelMemory, MemoryUse, ProcessMemory};
pub(crate) use others::BackgroundLoad;
pub use others::OtherProcesses;
pub use sample::idle_ns;
pub(crate) use sample::{Detail, SideSample, Sides, Watched, prepare};

/// CPU use of one run, inside the measured window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// Length of the window, by the client's clock.
    pub window_s: f64,
    /// The server's CPU.
    pub server_cpu: CpuBusy,
    /// The client's CPU; the same as the server's when there is only one.
    pub client_cpu: CpuBusy,
    /// The server's process and its children.
    pub server: ProcessUse,
    /// The load generator's process.
    pub client: ProcessUse,
    /// How late the lab took its samples after the two marks, in microseconds.
    pub sample_delay_us: [f64; 2],
    /// Whether server and client share one CPU; not in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// What is known of a run between hosts only. With several servers, `server_cpu` and `server` are
    /// their sums; those of several load generators likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_hosts: Option<BetweenHosts>,
}

impl CpuUse {
    /// Whether server and client share one CPU. Older bundles are of one host, so that a CPU's
    /// number says it.
    pub fn is_shared(&self) -> bool {
        self.shared.unwrap_or(self.server_cpu.cpus == self.client_cpu.cpus)
    }

    fn clients(&self) -> &[PartUse] {
        self.between_hosts.as_ref().map_or(&[], |between| &between.clients)
    }

    fn servers(&self) -> &[PartUse] {
        self.between_hosts.as_ref().map_or(&[], |between| &between.servers)
    }

    /// Every CPU of the run, the servers' first.
    pub(crate) fn cpus(&self) -> Vec<&CpuBusy> {
        fn each<'a>(parts: &'a [PartUse], alone: &'a CpuBusy) -> Vec<&'a CpuBusy> {
            match parts {
                [] => vec![alone],
                several => several.iter().map(|it| &it.cpu).collect(),
            }
        }
        [each(self.servers(), &self.server_cpu), each(self.clients(), &self.client_cpu)].concat()
    }

    /// How exact the busy time of the CPUs is, as a share of the window.
    pub(crate) fn unsure_share(&self) -> Option<f64> {
        let unsure_s =
            self.cpus().into_iter().filter_map(|cpu| Some(cpu.busy_unsure_s? / cpu.count()));
        unsure_s.reduce(f64::max).map(|unsure_s| unsure_s / self.window_s)
    }

    /// Share of the window in which the busiest server was busy, of all of its CPUs.
    pub(crate) fn server_busy_share(&self) -> f64 {
        self.busiest(self.servers(), &self.server_cpu)
    }

    /// Share of the window in which the busiest load generator was busy, of all of its CPUs.
    pub(crate) fn client_busy_share(&self) -> f64 {
        self.busiest(self.clients(), &self.client_cpu)
    }

    fn busiest(&self, parts: &[PartUse], alone: &CpuBusy) -> f64 {
        match parts {
            [] => alone.busy_share(self.window_s),
            several => several.iter().map(|it| it.cpu.busy_share(it.window_s)).fold(0.0, f64::max),
        }
    }

    /// The same use with one load generator of several alone.
    pub(crate) fn of_client(&self, index: usize) -> CpuUse {
        let mut use_of_one = self.clone();
        if let Some(client) = self.clients().get(index) {
            use_of_one.window_s = client.window_s;
            use_of_one.client_cpu = client.cpu.clone();
            use_of_one.client = client.process.clone();
            if let Some(between) = &mut use_of_one.between_hosts {
                between.clients.clear();
            }
        }
        use_of_one
    }
}

/// How the CPU of one side was used, or its CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Softirq and hard interrupts by `/proc/stat`: sampled at ticks, hence coarse.
    pub softirq_coarse_s: f64,
    /// See `softirq_coarse_s`.
    pub irq_coarse_s: f64,
    /// Taken by the hypervisor, coarse as well.
    pub steal_coarse_s: f64,
    /// Time between the two samples, by the clock of its own host. What the kernel counts is of
    /// this time, and not quite of the window; not in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_s: Option<f64>,
    /// How long the lab's look at the start and at the end took, in microseconds. One look is at
    /// both sides if they are on one host. The second begins when the window has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look_us: Option<[f64; 2]>,
    /// CPU time of the CPU's softirq thread (ksoftirqd) by schedstat, if it can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softirq_thread_s: Option<f64>,
    /// Packets that found its receive backlog full (`net.core.netdev_max_backlog`) and are lost, if
    /// it can be seen; not in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog_drops: Option<u64>,
    /// What the kernel counted of this side.
    #[serde(default, skip_serializing_if = "Counts::is_empty")]
    pub counts: Counts,
}

impl CpuBusy {
    /// How many there are.
    pub(crate) fn count(&self) -> f64 {
        self.cpus.all().len() as f64
    }

    /// Share of a window in which they were busy.
    pub(crate) fn busy_share(&self, window_s: f64) -> f64 {
        self.busy_s / window_s / self.count()
    }
}

/// What a process, its threads and its children used.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
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
    /// Page faults that took no disk; not known with the idle clock alone, nor in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor_faults: Option<u64>,
}

impl ProcessUse {
    /// Share of its time that it was in user mode.
    pub(crate) fn user_share(&self) -> f64 {
        let sampled_s = self.user_s + self.system_s;
        if sampled_s > 0.0 { self.user_s / sampled_s } else { 0.0 }
    }
}

/// CPU time of the threads of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadUse {
    /// Name, without the number that io_uring appends to its own.
    pub name: String,
    /// How many there were.
    pub threads: usize,
    /// CPU time of all of them.
    pub cpu_s: f64,
}

/// The difference of two samples of both sides, with the busy time over the client's window, which
/// `window_ns` gives by the clock of the client's host.
pub(crate) fn cpu_use(samples: &[Sides; 2], shared: bool, window_ns: [u64; 2]) -> CpuUse {
    let [start, end] = samples;
    let window_s = window_ns[1].saturating_sub(window_ns[0]) as f64 / 1e9;
    // The samples lie a little behind the marks; the share is what carries over.
    let busy = |start: &SideSample, end| start.busy(end, window_s);
    let delay_us = |sides: &Sides, mark: u64| sides.client.at_ns.saturating_sub(mark) as f64 / 1e3;
    CpuUse {
        window_s,
        server_cpu: busy(&start.server, &end.server),
        client_cpu: busy(&start.client, &end.client),
        server: start.server.process.until(&end.server.process),
        client: start.client.process.until(&end.client.process),
        sample_delay_us: [delay_us(start, window_ns[0]), delay_us(end, window_ns[1])],
        shared: Some(shared),
        between_hosts: None,
    }
}
