//! One side of a run at one moment: its host's clock, its CPU, its process tree.
//!
//! Each side is sampled on its own, because the two may be on different hosts. Nothing here, and
//! nothing that is computed from it, assumes that they share a clock.

use std::collections::BTreeMap;

use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{CpuBusy, ProcessUse, ThreadUse};
use crate::error::LabError;
use crate::procfs::{self, CpuTicks, TICK_S};
use crate::soaker;

/// One side, taken at a mark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SideSample {
    /// `CLOCK_MONOTONIC` of this side's host.
    pub(crate) at_ns: u64,
    /// Its CPU.
    pub(crate) cpu: usize,
    /// Time that CPU has been idle so far.
    pub(crate) idle_ns: u64,
    /// What `/proc/stat` says of that CPU.
    pub(crate) ticks: CpuTicks,
    /// The process and its children.
    pub(crate) process: ProcessSample,
}

impl SideSample {
    /// Takes a look at `cpu` and the process tree of `pid`, both of this host. A process that has
    /// ended counts as nothing; that it ended is noticed elsewhere.
    ///
    /// # Errors
    /// [`LabError::Machine`] without a clock.
    #[cfg_attr(not(test), expect(dead_code, reason = "for a side on a host of its own"))]
    pub(crate) fn take(cpu: usize, pid: i32) -> Result<SideSample, LabError> {
        let clocks = Clocks::read()?;
        let process = ProcessSample::take(pid);
        Ok(clocks.side(&Ticks::read(), cpu, process))
    }

    /// Takes both sides of a run on this host with one look at the clocks.
    ///
    /// # Errors
    /// See [`SideSample::take`].
    pub(crate) fn take_both(server: (usize, i32), client: (usize, i32)) -> Result<Sides, LabError> {
        let clocks = Clocks::read()?;
        let [server_process, client_process] = [server.1, client.1].map(ProcessSample::take);
        let ticks = Ticks::read();
        Ok(Sides {
            server: clocks.side(&ticks, server.0, server_process),
            client: clocks.side(&ticks, client.0, client_process),
        })
    }

    /// Time from this sample to a later one, by this side's own clock.
    pub(super) fn sampled_s(&self, end: &SideSample) -> f64 {
        end.at_ns.saturating_sub(self.at_ns) as f64 / 1e9
    }

    /// Share of the time between two samples in which the CPU was not idle.
    pub(super) fn busy_share(&self, end: &SideSample) -> f64 {
        let idle_s = end.idle_ns.saturating_sub(self.idle_ns) as f64 / 1e9;
        (1.0 - idle_s / self.sampled_s(end).max(1e-9)).clamp(0.0, 1.0)
    }

    /// How the CPU was used between two samples, `busy_s` of it.
    pub(super) fn busy(&self, end: &SideSample, busy_s: f64) -> CpuBusy {
        let ticks = |field: fn(&CpuTicks) -> u64| {
            field(&end.ticks).saturating_sub(field(&self.ticks)) as f64 * TICK_S
        };
        CpuBusy {
            cpu: self.cpu,
            busy_s,
            softirq_coarse_s: ticks(|ticks| ticks.softirq),
            irq_coarse_s: ticks(|ticks| ticks.irq),
            steal_coarse_s: ticks(|ticks| ticks.steal),
        }
    }
}

/// Both sides, taken at one mark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sides {
    pub(crate) server: SideSample,
    pub(crate) client: SideSample,
}

/// The clocks of a host, all of them read at once: they come first, because the rest takes a while.
struct Clocks {
    at_ns: u64,
    /// To the nanosecond, but for root only; else idle time is known in ticks of 10 ms.
    timer_list: String,
}

impl Clocks {
    fn read() -> Result<Clocks, LabError> {
        let why = |errno: nix::Error| LabError::Machine { why: format!("no clock: {errno}") };
        let before_ns = soaker::now_ns().map_err(why)?;
        let timer_list = procfs::text("/proc/timer_list").unwrap_or_default();
        let at_ns = before_ns.midpoint(soaker::now_ns().map_err(why)?);
        Ok(Clocks { at_ns, timer_list })
    }

    fn side(&self, ticks: &Ticks, cpu: usize, process: ProcessSample) -> SideSample {
        let ticks = procfs::cpu_ticks(&ticks.0, cpu).unwrap_or_default();
        let in_ticks = || (ticks.idle as f64 * TICK_S * 1e9) as u64;
        let idle_ns = procfs::idle_ns(&self.timer_list, cpu).unwrap_or_else(in_ticks);
        SideSample { at_ns: self.at_ns, cpu, idle_ns, ticks, process }
    }
}

/// The text of `/proc/stat`.
struct Ticks(String);

impl Ticks {
    fn read() -> Ticks {
        Ticks(procfs::text("/proc/stat").unwrap_or_default())
    }
}

/// A process, its threads and its children, so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessSample {
    pub(super) cpu_ns: u64,
    pub(super) user_ticks: u64,
    pub(super) system_ticks: u64,
    pub(super) threads: BTreeMap<i32, ThreadSample>,
}

/// A thread, so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ThreadSample {
    pub(super) name: String,
    pub(super) run_ns: u64,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
}

impl ProcessSample {
    pub(super) fn take(root: i32) -> ProcessSample {
        let mut sample = ProcessSample::default();
        let mut pids = vec![root];
        while let Some(pid) = pids.pop() {
            let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).and_then(ClockId::now);
            if let Ok(now) = clock {
                sample.cpu_ns += now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
            }
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
                let children = procfs::text(&format!("{path}/children")).unwrap_or_default();
                pids.extend(children.split_ascii_whitespace().flat_map(str::parse::<i32>));
                sample.threads.extend(ThreadSample::take(&path).map(|taken| (thread, taken)));
            }
        }
        sample
    }

    pub(super) fn until(&self, end: &ProcessSample) -> ProcessUse {
        let mut by_name: BTreeMap<&str, ThreadUse> = BTreeMap::new();
        let (mut voluntary_switches, mut involuntary_switches) = (0, 0);
        for (id, after) in &end.threads {
            let before = self.threads.get(id);
            let since = |field: fn(&ThreadSample) -> u64| {
                field(after).saturating_sub(before.map_or(0, field))
            };
            voluntary_switches += since(|thread| thread.voluntary);
            involuntary_switches += since(|thread| thread.involuntary);
            let name = after.name.as_str();
            let fresh = || ThreadUse { name: name.to_owned(), threads: 0, cpu_s: 0.0 };
            let entry = by_name.entry(name).or_insert_with(fresh);
            entry.threads += 1;
            entry.cpu_s += since(|thread| thread.run_ns) as f64 / 1e9;
        }
        let ticks = |start: u64, end: u64| end.saturating_sub(start) as f64 * TICK_S;
        ProcessUse {
            cpu_s: end.cpu_ns.saturating_sub(self.cpu_ns) as f64 / 1e9,
            user_s: ticks(self.user_ticks, end.user_ticks),
            system_s: ticks(self.system_ticks, end.system_ticks),
            threads: by_name.into_values().collect(),
            voluntary_switches,
            involuntary_switches,
        }
    }
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
        Some(ThreadSample {
            name,
            run_ns: schedstat.split(' ').next()?.parse().ok()?,
            voluntary: number("voluntary_ctxt_switches"),
            involuntary: number("nonvoluntary_ctxt_switches"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_name_are_added_up() {
        let thread = |name: &str, run_ns, voluntary| ThreadSample {
            name: name.to_owned(),
            run_ns,
            voluntary,
            involuntary: 0,
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
    fn a_process_sees_its_own_threads_and_children() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let sample = ProcessSample::take(std::process::id() as i32);
        assert!(sample.threads.contains_key(&(child.id() as i32)));
        assert!(sample.cpu_ns > 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_side_is_judged_by_its_own_clock_wherever_it_was_taken() {
        let side = |at_ns, idle_ns| {
            let ticks = CpuTicks::default();
            let side =
                SideSample { at_ns, cpu: 3, idle_ns, ticks, process: ProcessSample::default() };
            let text = serde_json::to_string(&side).unwrap();
            serde_json::from_str::<SideSample>(&text).unwrap()
        };
        // A host that has been up for long, and one that has just booted.
        let (old, young) = (1 << 60, 1_000);
        for boot in [old, young] {
            let start = side(boot, 500);
            assert_eq!(start.busy_share(&side(boot + 1000, 750)), 0.75);
            assert_eq!(start.busy_share(&side(boot + 1000, 500)), 1.0);
            assert_eq!(start.busy_share(&side(boot + 1000, 9000)), 0.0);
        }
        assert_eq!(side(1, 1).busy_share(&side(1, 1)), 1.0);
    }

    #[test]
    fn both_sides_of_this_host_are_taken_at_one_moment() {
        let pid = std::process::id() as i32;
        let sides = SideSample::take_both((0, pid), (0, pid)).unwrap();
        assert_eq!(sides.server.at_ns, sides.client.at_ns);
        assert_eq!(sides.server.idle_ns, sides.client.idle_ns);
        let alone = SideSample::take(0, pid).unwrap();
        assert!(alone.at_ns > sides.server.at_ns && alone.idle_ns >= sides.server.idle_ns);
    }
}
