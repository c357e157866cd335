//! CPU use of the worker threads.

use twinring::measure::{monotonic_ns, thread_cpu_clock_ns, thread_cpu_time_ns};
use twinring_input::cgroup::CpuQuota;
use twinring_wire::load::{Cpu, SATURATED_SHARE};

/// The clocks of one thread, or what passed between two readings of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuUse {
    user_ns: u64,
    system_ns: u64,
    /// By the exact clock of the thread.
    used_ns: u64,
    elapsed_ns: u64,
}

impl CpuUse {
    pub(crate) fn read() -> CpuUse {
        let (user_ns, system_ns) = thread_cpu_time_ns();
        let (used_ns, elapsed_ns) = (thread_cpu_clock_ns(), monotonic_ns());
        CpuUse { user_ns, system_ns, used_ns, elapsed_ns }
    }

    pub(crate) fn since(self, start: CpuUse) -> CpuUse {
        CpuUse {
            user_ns: self.user_ns.saturating_sub(start.user_ns),
            system_ns: self.system_ns.saturating_sub(start.system_ns),
            used_ns: self.used_ns - start.used_ns,
            elapsed_ns: self.elapsed_ns - start.elapsed_ns,
        }
    }
}

pub(crate) fn report(threads: &[CpuUse], quota: CpuQuota) -> Cpu {
    let sum = |of: fn(&CpuUse) -> u64| threads.iter().map(of).sum::<u64>() as f64 / 1e9;
    let shares = threads.iter().map(|cpu| match cpu.elapsed_ns {
        0 => 0.0,
        elapsed_ns => cpu.used_ns as f64 / elapsed_ns as f64,
    });
    let busiest_thread_share = shares.fold(0.0, f64::max);
    Cpu {
        user_s: sum(|cpu| cpu.user_ns),
        system_s: sum(|cpu| cpu.system_ns),
        busiest_thread_share,
        saturated: busiest_thread_share >= SATURATED_SHARE,
        quota_cpus: quota.cpus,
        throttled_periods: quota.throttled_periods,
    }
}
