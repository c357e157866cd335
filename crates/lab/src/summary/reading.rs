//! What the figures of a run are read from.

use hdrhistogram::Histogram;

use crate::accounting::{CpuBusy, CpuUse, MemoryUse, OtherProcesses, ProcessUse};
use crate::contract::{HttpResult, LoadResult, UdpResult};
use crate::record::RunRecord;

/// A run that has everything which figures need.
pub(super) struct Reading<'a> {
    pub(super) run: &'a RunRecord,
    pub(super) cpu: &'a CpuUse,
    pub(super) load: LoadResult,
    /// Units of work: requests answered, or packets that came back. More than none.
    pub(super) done: f64,
    pub(super) server_busy_s: f64,
    /// 0 if both sides share one CPU: its time is the server's.
    pub(super) client_busy_s: f64,
    pub(super) server: Side,
    pub(super) client: Side,
    /// Latencies or round trips, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// How late packets left, in nanoseconds.
    pub(super) lateness: Option<Histogram<u64>>,
    /// How much longer than asked the load generator of datagrams waited, in nanoseconds.
    pub(super) overrun: Option<Histogram<u64>>,
}

impl Reading<'_> {
    pub(super) fn of(run: &RunRecord) -> Option<Reading<'_>> {
        let load = run.load_result()?.ok()?;
        let cpu = run.cpu.as_ref()?;
        let latencies = load.latencies().ok()?;
        // Of a CPU that did next to nothing the idle clock may say that it did nothing at all; it
        // did at least what the server's process says of itself.
        let server_busy_s = match cpu.server_cpu.busy_s {
            busy_s if busy_s > 0.0 => busy_s,
            _ => cpu.server.cpu_s,
        };
        // A ratio needs something on both sides of it.
        if load.done() == 0 || cpu.window_s <= 0.0 || server_busy_s <= 0.0 {
            return None;
        }
        let (lateness, overrun) = match load.udp() {
            None => (None, None),
            Some(udp) => {
                let histograms = &udp.histograms;
                let [lateness, overrun] = [&histograms.send_lateness, &histograms.wait_overrun];
                (Some(lateness.decode().ok()?), Some(overrun.decode().ok()?))
            }
        };
        let done = load.done() as f64;
        let [server, client] = sides(cpu, server_busy_s, done);
        let client_busy_s = if cpu.is_shared() { 0.0 } else { cpu.client_cpu.as_ref().map_or(0.0, |it| it.busy_s) };
        Some(Reading {
            run,
            cpu,
            load,
            done,
            server_busy_s,
            client_busy_s,
            server,
            client,
            latencies,
            lateness,
            overrun,
        })
    }

    pub(super) fn per_unit(&self, count: u64) -> f64 {
        count as f64 / self.done
    }

    pub(super) fn per_unit_ns(&self, seconds: f64) -> f64 {
        seconds * 1e9 / self.done
    }

    pub(super) fn latency_us(&self, share: f64) -> f64 {
        self.latencies.value_at_quantile(share) as f64 / 1e3
    }

    pub(super) fn late_us(&self, share: f64) -> Option<f64> {
        Some(self.lateness.as_ref()?.value_at_quantile(share) as f64 / 1e3)
    }

    pub(super) fn http(&self) -> Option<&HttpResult> {
        self.load.http()
    }

    pub(super) fn udp(&self) -> Option<&UdpResult> {
        self.load.udp()
    }

    /// CPU time of the server's threads in the kernel: io-wq and SQPOLL.
    pub(super) fn kernel_threads_s(&self) -> f64 {
        let threads = self.cpu.server.threads.iter().filter(|it| it.name.starts_with("iou-"));
        threads.fold(0.0, |sum, thread| sum + thread.cpu_s)
    }

    pub(super) fn client_thread_share(&self) -> f64 {
        let client_cpu = self.load.cpu();
        client_cpu.busiest_thread_share.max(f64::from(u8::from(client_cpu.saturated)))
    }

    pub(super) fn runtime_counter(&self, name: &str) -> Option<f64> {
        self.run.runtime_counter(name)
    }

    /// System calls of the server over its whole life, per unit over its whole life.
    pub(super) fn syscalls_per_unit(&self) -> Option<f64> {
        let units = match self.load.requests() {
            Some(requests) => requests.whole_run.answered as f64,
            // The load generator's counts are of the window, the server's are of its life.
            None => self.run.service_counter("received")?,
        };
        (units > 0.0).then_some(self.runtime_counter("syscalls")? / units)
    }

    /// Of requests on a schedule.
    pub(super) fn requests_missing_ratio(&self) -> Option<f64> {
        let load = self.load.requests()?;
        load.schedule_lag_us.as_ref()?;
        let due = load.due(self.run.rate_per_s());
        // Requests of before the window that are answered in it may be more than those that are
        // answered after it.
        (due > 0.0).then(|| (1.0 - self.done / due).max(0.0))
    }

    pub(super) fn other_processes_share(&self) -> Option<f64> {
        let share = |others: &OtherProcesses| {
            let available_s = others.span_s * others.cpus as f64;
            (available_s > 0.0).then(|| others.cpu_s / available_s)
        };
        self.run.others.as_ref().and_then(share)
    }

    /// Growth of memory by connection or stream, from the first to the second; it can be negative.
    pub(super) fn grown(&self, bytes: fn(&MemoryUse) -> [u64; 2]) -> Option<f64> {
        let [before, after] = bytes(self.run.memory.as_ref()?);
        let (_, connections) = self.run.cell.point.clients();
        Some((after as f64 - before as f64) / f64::from(connections))
    }
}

/// CPU time of one side per unit, in nanoseconds, and who disturbed it. The parts from `user_ns` to
/// `outside_ns` do not overlap, and their sum is `busy_ns`. The table of metrics explains each.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Side {
    pub(super) busy_ns: f64,
    pub(super) user_ns: f64,
    pub(super) system_ns: f64,
    pub(super) io_wq_ns: f64,
    pub(super) sqpoll_ns: f64,
    pub(super) softirq_thread_ns: f64,
    pub(super) outside_ns: f64,
    pub(super) softirq_counted_ns: f64,
    pub(super) voluntary_switches: f64,
    pub(super) involuntary_switches: f64,
    pub(super) steal_share: f64,
    pub(super) look_share: f64,
}

impl Side {
    fn of(cpu: &CpuUse, busy: &CpuBusy, busy_s: f64, process: &ProcessUse, done: f64) -> Self {
        // The two looks lie a little behind the ends of the window, so what was counted between
        // them is scaled to it; and no process used more of a CPU than that CPU did.
        let to_window = busy.sampled_s.filter(|s| *s > 0.0).map_or(1.0, |s| cpu.window_s / s);
        let counted_s = process.cpu_s * to_window;
        let process_s = counted_s.min(busy_s);
        let scale = if counted_s > 0.0 { to_window * process_s / counted_s } else { to_window };
        let threads_s = |name: &str| {
            let of_name = process.threads.iter().filter(|thread| thread.name == name);
            of_name.fold(0.0, |sum, thread| sum + thread.cpu_s) * scale
        };
        let io_wq_s = threads_s("iou-wrk").min(process_s);
        let sqpoll_s = threads_s("iou-sqp").min(process_s - io_wq_s);
        let own_s = process_s - io_wq_s - sqpoll_s;
        let user_s = (process_s * process.user_share()).min(own_s);
        let rest_s = busy_s - process_s;
        let softirq_thread_s = (busy.softirq_thread_s.unwrap_or(0.0) * to_window).min(rest_s);
        let ns = |seconds: f64| seconds * 1e9 / done;
        Side {
            busy_ns: ns(busy_s),
            user_ns: ns(user_s),
            system_ns: ns(own_s - user_s),
            io_wq_ns: ns(io_wq_s),
            sqpoll_ns: ns(sqpoll_s),
            softirq_thread_ns: ns(softirq_thread_s),
            outside_ns: ns(rest_s - softirq_thread_s),
            softirq_counted_ns: ns((busy.softirq_coarse_s + busy.irq_coarse_s) * to_window),
            voluntary_switches: process.voluntary_switches as f64 / done,
            involuntary_switches: process.involuntary_switches as f64 / done,
            steal_share: busy.steal_coarse_s * to_window / cpu.window_s / busy.count(),
            look_share: busy.look_us.map_or(0.0, |[first, _]| first / 1e6 / cpu.window_s),
        }
    }
}

/// The server's side and the client's, of one run with `done` units.
fn sides(cpu: &CpuUse, server_busy_s: f64, done: f64) -> [Side; 2] {
    let server = Side::of(cpu, &cpu.server_cpu, server_busy_s, &cpu.server, done);
    let (Some(client_cpu), Some(client)) = (&cpu.client_cpu, &cpu.client) else {
        return [server, Side::default()];
    };
    let client_busy_s = match cpu.is_shared() {
        true => client.cpu_s.min(cpu.window_s * client_cpu.count()),
        false => client_cpu.busy_s,
    };
    [server, Side::of(cpu, client_cpu, client_busy_s, client, done)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::{Counts, ThreadUse};
    use crate::cpus::CpuList;

    fn parts(side: &Side) -> [f64; 6] {
        [
            side.user_ns,
            side.system_ns,
            side.io_wq_ns,
            side.sqpoll_ns,
            side.softirq_thread_ns,
            side.outside_ns,
        ]
    }

    fn sum(side: &Side) -> f64 {
        parts(side).iter().sum()
    }

    fn process(cpu_s: f64, user_s: f64, threads: &[(&str, f64)]) -> ProcessUse {
        let thread = |(name, cpu_s): &(&str, f64)| ThreadUse {
            name: (*name).to_owned(),
            threads: 1,
            cpu_s: *cpu_s,
        };
        let threads = threads.iter().map(thread).collect();
        ProcessUse { cpu_s, user_s, system_s: 1.0 - user_s, threads, ..ProcessUse::default() }
    }

    fn cpu(busy_s: f64, server: ProcessUse) -> CpuUse {
        let busy = |cpu, busy_s| CpuBusy {
            cpus: CpuList::one(cpu),
            busy_s,
            busy_each_s: Vec::new(),
            busy_unsure_s: None,
            softirq_coarse_s: 0.2,
            irq_coarse_s: 0.0,
            steal_coarse_s: 0.0,
            sampled_s: Some(2.0),
            look_us: Some([500.0, 900.0]),
            softirq_thread_s: Some(0.1),
            backlog_drops: None,
            counts: Counts::default(),
        };
        CpuUse {
            window_s: 1.0,
            server_cpu: busy(0, busy_s),
            client_cpu: Some(busy(1, 0.5)),
            server,
            client: Some(process(0.6, 0.5, &[])),
            sample_delay_us: [0.0, 0.0],
            shared: false,
            idle_clock: IdleClock::TimerList,
        }
    }

    #[test]
    fn the_parts_are_the_busy_time_whatever_was_counted() {
        let threads = [("server", 0.9), ("iou-wrk", 0.3), ("iou-sqp", 0.1), ("iou-wrk", 0.1)];
        let used = cpu(0.9, process(1.4, 0.5, &threads));
        let [server, client] = sides(&used, 0.9, 1e9);
        // Counted in two seconds, reported per second.
        let expected = [0.35, 0.1, 0.2, 0.05, 0.05, 0.15];
        for (part, expected) in parts(&server).into_iter().zip(expected) {
            assert!((part - expected).abs() < 1e-9, "{server:?}");
        }
        assert_eq!((server.softirq_counted_ns, server.look_share), (0.1, 0.0005));
        assert!((sum(&server) - 0.9).abs() < 1e-9 && (sum(&client) - 0.5).abs() < 1e-9);
        // A process that used more than its CPU is a matter of when each was read.
        let [over, _] = sides(&cpu(0.5, process(1.4, 0.5, &threads)), 0.5, 1e9);
        assert!((sum(&over) - 0.5).abs() < 1e-9 && over.outside_ns.abs() < 1e-9);
        assert!((over.io_wq_ns - 0.2 * 0.5 / 0.7).abs() < 1e-9);
        // Nothing but workers of io_uring.
        let [workers, _] = sides(&cpu(0.9, process(0.4, 0.0, &[("iou-wrk", 0.4)])), 0.9, 1e9);
        assert!((sum(&workers) - 0.9).abs() < 1e-9 && workers.system_ns.abs() < 1e-9);
    }

    #[test]
    fn of_one_cpu_for_both_the_client_has_what_its_process_used() {
        let mut used = cpu(0.9, process(0.5, 0.5, &[]));
        used.shared = true;
        let [server, client] = sides(&used, 0.9, 1e9);
        assert!((client.busy_ns - 0.6).abs() < 1e-9 && (server.busy_ns - 0.9).abs() < 1e-9);
        assert!((sum(&client) - 0.6).abs() < 1e-9);
    }
}
