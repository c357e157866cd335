//! What a run cost in CPU.
//!
//! The figure of record is the busy time of a whole CPU: all of the window that it was not idle.
//! So nothing escapes: not softirq, not io-wq or SQPOLL threads, not interrupts. Beside it stand
//! the clocks of the processes, which tell where the time went but miss a part of it.

use std::collections::BTreeMap;

use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::experiment::Accounting;
use crate::machine::Cpus;
use crate::procfs::{self, CpuTicks, TICK_S};
use crate::soaker::{self, Curve, Soaker};

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
}

/// How one CPU was used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuBusy {
    /// Its number.
    pub cpu: usize,
    /// Time it was not idle, or with soakers, that its soaker did not get: the figure of record.
    pub busy_s: f64,
    /// Softirq and hard interrupts by `/proc/stat`: sampled at ticks, hence coarse.
    pub softirq_coarse_s: f64,
    /// See `softirq_coarse_s`.
    pub irq_coarse_s: f64,
    /// Taken by the hypervisor, coarse as well.
    pub steal_coarse_s: f64,
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
    /// Context switches because somebody else was let in.
    pub involuntary_switches: u64,
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

/// One look at everything, taken at a mark.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    at_ns: u64,
    idle_ns: [u64; 2],
    ticks: [CpuTicks; 2],
    server: ProcessSample,
    client: ProcessSample,
}

#[derive(Debug, Clone, Default)]
struct ProcessSample {
    cpu_ns: u64,
    user_ticks: u64,
    system_ticks: u64,
    threads: BTreeMap<i32, ThreadSample>,
}

#[derive(Debug, Clone)]
struct ThreadSample {
    name: String,
    run_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

/// How the busy time of the two CPUs is found.
pub(crate) enum Meter {
    /// From the kernel's idle clocks.
    IdleClock,
    /// By soakers.
    Soakers(Soakers),
}

impl Meter {
    pub(crate) fn start(
        accounting: Accounting,
        helper: &[std::ffi::OsString],
        cpus: &Cpus,
    ) -> Result<Meter, LabError> {
        match accounting {
            Accounting::IdleClock => Ok(Meter::IdleClock),
            Accounting::Soaker => Soakers::start(helper, cpus).map(Meter::Soakers),
        }
    }

    /// Busy time of server and client CPU inside the client's window, in seconds.
    ///
    /// # Errors
    /// What is missing, when the window is not covered.
    fn busy_s(
        &self,
        samples: &[Sample; 2],
        cpus: &Cpus,
        window_ns: [u64; 2],
    ) -> Result<[f64; 2], String> {
        let [start, end] = samples;
        match self {
            Meter::IdleClock => {
                let sampled_ns = end.at_ns.saturating_sub(start.at_ns) as f64;
                let window_s = window_ns[1].saturating_sub(window_ns[0]) as f64 / 1e9;
                // The samples lie a little behind the marks; the share is what carries over.
                Ok([0, 1].map(|side| {
                    let idle_ns = end.idle_ns[side].saturating_sub(start.idle_ns[side]) as f64;
                    (1.0 - idle_ns / sampled_ns).clamp(0.0, 1.0) * window_s
                }))
            }
            Meter::Soakers(soakers) => {
                let curves = soakers.curves(window_ns[1]).map_err(|error| error.to_string())?;
                let busy = |side: usize, cpu: usize| {
                    let busy_ns = curves[side].busy_ns(window_ns[0], window_ns[1]);
                    busy_ns.map(|busy_ns| busy_ns / 1e9).ok_or_else(|| {
                        format!(
                            "the soaker on CPU {cpu} published nothing around the window's ends"
                        )
                    })
                };
                Ok([busy(0, cpus.server)?, busy(1, cpus.client)?])
            }
        }
    }
}

/// The soakers of the two CPUs; with a single CPU there is one.
pub(crate) struct Soakers {
    server: Soaker,
    client: Option<Soaker>,
}

impl Soakers {
    fn start(helper: &[std::ffi::OsString], cpus: &Cpus) -> Result<Soakers, LabError> {
        let client = if cpus.shared { None } else { Some(Soaker::start(helper, cpus.client)?) };
        Ok(Soakers { server: Soaker::start(helper, cpus.server)?, client })
    }

    /// What both saw, up to at least `until_ns` unless they get no turn for too long.
    fn curves(&self, until_ns: u64) -> Result<[Curve; 2], LabError> {
        let (server, client) = (&self.server, self.client.as_ref().unwrap_or(&self.server));
        Ok([server.curve_until(until_ns)?, client.curve_until(until_ns)?])
    }
}

impl Sample {
    /// Takes a look: the idle clocks first, because the rest takes a while. A process that has
    /// ended counts as nothing; that it ended is noticed elsewhere.
    pub(crate) fn take(cpus: &Cpus, server: i32, client: i32) -> Result<Sample, LabError> {
        let why = |errno: nix::Error| LabError::Machine { why: format!("no clock: {errno}") };
        let before_ns = soaker::now_ns().map_err(why)?;
        // To the nanosecond, but for root only; else in ticks of 10 ms.
        let timer_list = procfs::text("/proc/timer_list").unwrap_or_default();
        let at_ns = before_ns.midpoint(soaker::now_ns().map_err(why)?);
        let server = ProcessSample::take(server);
        let client = ProcessSample::take(client);
        let stat = procfs::text("/proc/stat").unwrap_or_default();
        let ticks =
            [cpus.server, cpus.client].map(|cpu| procfs::cpu_ticks(&stat, cpu).unwrap_or_default());
        let idle_ns = [0, 1].map(|side| {
            let cpu = [cpus.server, cpus.client][side];
            let in_ticks = || (ticks[side].idle as f64 * TICK_S * 1e9) as u64;
            procfs::idle_ns(&timer_list, cpu).unwrap_or_else(in_ticks)
        });
        Ok(Sample { at_ns, idle_ns, ticks, server, client })
    }
}

impl ProcessSample {
    fn take(root: i32) -> ProcessSample {
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

    fn until(&self, end: &ProcessSample) -> ProcessUse {
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

/// The difference of two samples, with the busy time over the client's window.
///
/// # Errors
/// What is missing, when the meter does not cover the window.
pub(crate) fn cpu_use(
    meter: &Meter,
    samples: &[Sample; 2],
    cpus: &Cpus,
    window_ns: [u64; 2],
) -> Result<CpuUse, String> {
    let [start, end] = samples;
    let window_s = window_ns[1].saturating_sub(window_ns[0]) as f64 / 1e9;
    let busy_s = meter.busy_s(samples, cpus, window_ns)?;
    let busy = |side: usize, cpu: usize| {
        let ticks = |field: fn(&CpuTicks) -> u64| {
            field(&end.ticks[side]).saturating_sub(field(&start.ticks[side])) as f64 * TICK_S
        };
        CpuBusy {
            cpu,
            busy_s: busy_s[side],
            softirq_coarse_s: ticks(|ticks| ticks.softirq),
            irq_coarse_s: ticks(|ticks| ticks.irq),
            steal_coarse_s: ticks(|ticks| ticks.steal),
        }
    };
    let delay_us = |sample: &Sample, mark: u64| sample.at_ns.saturating_sub(mark) as f64 / 1e3;
    Ok(CpuUse {
        window_s,
        server_cpu: busy(0, cpus.server),
        client_cpu: busy(1, cpus.client),
        server: start.server.until(&end.server),
        client: start.client.until(&end.client),
        sample_delay_us: [delay_us(start, window_ns[0]), delay_us(end, window_ns[1])],
    })
}

/// CPU time that went to processes which have nothing to do with the run. It is sampled before
/// the client starts and after it has ended, so that looking at every process costs nothing
/// inside the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// CPU ticks so far of every process that is not the run's.
#[derive(Debug, Clone)]
pub(crate) struct Bystanders {
    at_ns: u64,
    ticks: BTreeMap<i32, u64>,
}

/// The parent of all kernel threads, kthreadd.
const KERNEL_THREADS: i32 = 2;

impl Bystanders {
    /// Looks at every process but this one and its children.
    pub(crate) fn take() -> Result<Bystanders, LabError> {
        let why = |why: String| LabError::Machine { why };
        let lab = std::process::id() as i32;
        let at_ns = soaker::now_ns().map_err(|errno| why(format!("no clock: {errno}")))?;
        let pids = procfs::pids().map_err(|error| why(format!("/proc: {error}")))?;
        let mut parents = BTreeMap::new();
        let mut ticks = BTreeMap::new();
        for pid in pids {
            let text = procfs::text(&format!("/proc/{pid}/stat"));
            if let Some(stat) = text.as_deref().and_then(procfs::process_stat) {
                parents.insert(pid, stat.parent);
                ticks.insert(pid, stat.user_ticks + stat.system_ticks);
            }
        }
        ticks.retain(|pid, _| {
            *pid != KERNEL_THREADS
                && parents.get(pid) != Some(&KERNEL_THREADS)
                && !descends_from(*pid, lab, &parents)
        });
        Ok(Bystanders { at_ns, ticks })
    }

    pub(crate) fn until(&self, end: &Bystanders) -> OtherProcesses {
        let used = |(pid, after): (&i32, &u64)| {
            (*pid, after.saturating_sub(self.ticks.get(pid).copied().unwrap_or(0)))
        };
        let by_pid: Vec<(i32, u64)> = end.ticks.iter().map(used).collect();
        let largest = by_pid.iter().max_by_key(|(_, ticks)| *ticks).filter(|(_, ticks)| *ticks > 0);
        OtherProcesses {
            span_s: end.at_ns.saturating_sub(self.at_ns) as f64 / 1e9,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_s: by_pid.iter().map(|(_, ticks)| *ticks as f64 * TICK_S).sum(),
            largest: largest.and_then(|(pid, _)| procfs::text(&format!("/proc/{pid}/comm"))),
        }
    }
}

/// Whether `pid` is `ancestor` or came from it.
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
        let bystanders = Bystanders::take().unwrap();
        assert!(!bystanders.ticks.contains_key(&(child.id() as i32)));
        assert!(bystanders.ticks.contains_key(&1) || std::process::id() == 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
