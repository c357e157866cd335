//! CPU use of the worker threads.

use twinring::measure::{monotonic_ns, thread_cpu_clock_ns, thread_cpu_time_ns};
use twinring_input::cgroup::CpuQuota;
use twinring_wire::load::{Cpu, SATURATED_SHARE};

/// CPU time of one thread inside the window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuUse {
    user_ns: u64,
    system_ns: u64,
    /// By the exact clock of the thread.
    used_ns: u64,
    /// Between the two readings.
    elapsed_ns: u64,
}

/// The first of two readings of the calling thread's clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuStart {
    user_ns: u64,
    system_ns: u64,
    used_ns: u64,
    now_ns: u64,
}

impl CpuStart {
    pub(crate) fn read() -> CpuStart {
        let (user_ns, system_ns) = thread_cpu_time_ns();
        CpuStart { user_ns, system_ns, used_ns: thread_cpu_clock_ns(), now_ns: monotonic_ns() }
    }

    /// The CPU time of the thread since the start.
    pub(crate) fn used(&self) -> CpuUse {
        let end = CpuStart::read();
        CpuUse {
            user_ns: end.user_ns.saturating_sub(self.user_ns),
            system_ns: end.system_ns.saturating_sub(self.system_ns),
            used_ns: end.used_ns - self.used_ns,
            elapsed_ns: end.now_ns - self.now_ns,
        }
    }
}

/// What a CPU quota did inside the window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Throttling {
    quota_cpus: Option<f64>,
    periods: u64,
}

impl Throttling {
    /// Reads the counters at the start of the window.
    pub(crate) fn begin() -> Throttling {
        let CpuQuota { cpus, throttled_periods } = CpuQuota::read();
        Throttling { quota_cpus: cpus, periods: throttled_periods }
    }

    /// Reads them at its end.
    pub(crate) fn end(&mut self) {
        self.periods = CpuQuota::read().throttled_periods.saturating_sub(self.periods);
    }
}

/// All threads together.
pub(crate) fn report(threads: &[CpuUse], throttling: Throttling) -> Cpu {
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
        quota_cpus: throttling.quota_cpus,
        throttled_periods: throttling.periods,
    }
}
