//! Where the CPU time of a side went, what it took of memory, and who disturbed it.

use serde::{Deserialize, Serialize};

use crate::accounting::{CpuBusy, CpuUse, ProcessUse};
use crate::experiment::Point;
use crate::result::RunRecord;
use crate::statistics::median;

/// CPU time of one side per unit, in nanoseconds. The parts from `user_ns` to `outside_ns` do not
/// overlap, and their sum is `busy_ns`. Of several runs, `busy_ns` is the median and the parts are
/// their mean shares of it, so that they still add up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SideFigures {
    /// All that the CPU did. Of a client that shares the server's CPU, what its process used: the
    /// rest cannot be told apart and is the server's.
    pub busy_ns: f64,
    /// The process in user mode. Its time is exact, its division into user mode and kernel is
    /// sampled at ticks.
    pub user_ns: f64,
    /// The process's own threads in the kernel. A kernel that does not account for interrupts
    /// charges them, with the packets that they receive, to whom they interrupt; then they are in
    /// here and in `user_ns`.
    pub system_ns: f64,
    /// Its workers of io_uring (`iou-wrk`), exact.
    pub io_wq_ns: f64,
    /// Its polling threads of io_uring (`iou-sqp`), exact.
    pub sqpoll_ns: f64,
    /// The CPU's softirq thread, exact.
    pub softirq_thread_ns: f64,
    /// The remainder: interrupts and softirq while the CPU had nothing else to do, everybody else,
    /// and the lab's look.
    pub outside_ns: f64,
    /// Softirq and interrupts of the whole CPU by `/proc/stat`, wherever they were charged above.
    /// Sampled at ticks, and not while the CPU is idle, unless the kernel accounts for interrupts.
    pub softirq_counted_ns: f64,
    /// Context switches per unit because the process waited.
    pub voluntary_switches: f64,
    /// Context switches per unit because somebody else was let in.
    pub involuntary_switches: f64,
    /// Share of the window that the hypervisor took of the CPU, in ticks of 10 ms.
    pub steal_share: f64,
    /// Share of the window that the lab's own look inside it took, if it was on this CPU at all.
    pub look_share: f64,
}

/// The parts of [`SideFigures`] that add up to its busy time: name and value.
pub type Part = (&'static str, fn(&SideFigures) -> f64);

impl SideFigures {
    /// The parts, in the order in which to show them.
    pub const PARTS: [Part; 6] = [
        ("user", |side| side.user_ns),
        ("system", |side| side.system_ns),
        ("io-wq", |side| side.io_wq_ns),
        ("SQPOLL", |side| side.sqpoll_ns),
        ("softirq thread", |side| side.softirq_thread_ns),
        ("outside", |side| side.outside_ns),
    ];

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
        SideFigures {
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
            steal_share: busy.steal_coarse_s * to_window / cpu.window_s,
            look_share: busy.look_us.map_or(0.0, |[first, _]| first / 1e6 / cpu.window_s),
        }
    }
}

/// The server's side and the client's, of one run with `done` units.
pub(super) fn sides(cpu: &CpuUse, server_busy_s: f64, done: f64) -> [SideFigures; 2] {
    let client_busy_s =
        if cpu.is_shared() { cpu.client.cpu_s.min(cpu.window_s) } else { cpu.client_cpu.busy_s };
    [
        SideFigures::of(cpu, &cpu.server_cpu, server_busy_s, &cpu.server, done),
        SideFigures::of(cpu, &cpu.client_cpu, client_busy_s, &cpu.client, done),
    ]
}

/// One side of several runs.
pub(super) fn side_medians(sides: &[SideFigures]) -> Option<SideFigures> {
    let of = |field: fn(&SideFigures) -> f64| median(sides.iter().map(field));
    let busy_ns = of(|side| side.busy_ns)?;
    let part = |field: fn(&SideFigures) -> f64| {
        let shares = sides.iter().filter(|side| side.busy_ns > 0.0);
        let (count, sum) = shares.fold((0.0_f64, 0.0), |(count, sum), side| {
            (count + 1.0, sum + field(side) / side.busy_ns)
        });
        busy_ns * sum / count.max(1.0)
    };
    Some(SideFigures {
        busy_ns,
        user_ns: part(|side| side.user_ns),
        system_ns: part(|side| side.system_ns),
        io_wq_ns: part(|side| side.io_wq_ns),
        sqpoll_ns: part(|side| side.sqpoll_ns),
        softirq_thread_ns: part(|side| side.softirq_thread_ns),
        outside_ns: part(|side| side.outside_ns),
        softirq_counted_ns: part(|side| side.softirq_counted_ns),
        voluntary_switches: of(|side| side.voluntary_switches)?,
        involuntary_switches: of(|side| side.involuntary_switches)?,
        steal_share: of(|side| side.steal_share)?,
        look_share: of(|side| side.look_share)?,
    })
}

/// The server's memory, and what a connection took of it and of the kernel's. Growth is from the
/// moment that the server was ready to the end of the window; it can be negative.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Resident memory of the server when it was ready.
    pub server_rss_bytes_at_ready: f64,
    /// The most that was resident until the end of the window.
    pub server_rss_bytes: f64,
    /// Pages of no file behind the window, when connections may have been closed already.
    pub server_anonymous_bytes: f64,
    /// Memory of the server that may not be swapped out, or is pinned.
    pub server_locked_bytes: f64,
    /// Growth of the server's resident memory, up to its peak, by connection or stream.
    pub rss_bytes_per_connection: f64,
    /// Growth of the kernel's own memory by connection or stream until the window opened: slab,
    /// stacks and page tables of the whole machine, so that both ends of each connection are in it,
    /// and everybody else.
    pub kernel_bytes_per_connection: f64,
    /// Growth of the buffers that sockets hold, by connection or stream, both ends included. Most
    /// of it is slab, and so in the figure above as well.
    pub socket_bytes_per_connection: f64,
}

impl MemoryFigures {
    pub(super) fn of(run: &RunRecord) -> Option<MemoryFigures> {
        let memory = run.memory?;
        let (at_ready, at_end) = (memory.server_at_ready, memory.server_at_end);
        let (kernel_at_ready, kernel) = (memory.kernel_at_ready, memory.kernel_under_load);
        let connections = f64::from(match run.cell.point {
            Point::Tcp(point) => point.connections,
            Point::Udp { streams, .. } => streams,
            Point::Http(point) => point.connections,
        });
        let grown = |from: u64, to: u64| (to as f64 - from as f64) / connections;
        Some(MemoryFigures {
            server_rss_bytes_at_ready: at_ready.rss_bytes as f64,
            server_rss_bytes: at_end.peak_rss_bytes as f64,
            server_anonymous_bytes: at_end.anonymous_bytes as f64,
            server_locked_bytes: at_end.locked_bytes.max(at_end.pinned_bytes) as f64,
            rss_bytes_per_connection: grown(at_ready.rss_bytes, at_end.peak_rss_bytes),
            kernel_bytes_per_connection: grown(kernel_at_ready.total_bytes(), kernel.total_bytes()),
            socket_bytes_per_connection: grown(kernel_at_ready.socket_bytes, kernel.socket_bytes),
        })
    }

    pub(super) fn medians(all: &[MemoryFigures]) -> Option<MemoryFigures> {
        let of = |field: fn(&MemoryFigures) -> f64| median(all.iter().map(field));
        Some(MemoryFigures {
            server_rss_bytes_at_ready: of(|it| it.server_rss_bytes_at_ready)?,
            server_rss_bytes: of(|it| it.server_rss_bytes)?,
            server_anonymous_bytes: of(|it| it.server_anonymous_bytes)?,
            server_locked_bytes: of(|it| it.server_locked_bytes)?,
            rss_bytes_per_connection: of(|it| it.rss_bytes_per_connection)?,
            kernel_bytes_per_connection: of(|it| it.kernel_bytes_per_connection)?,
            socket_bytes_per_connection: of(|it| it.socket_bytes_per_connection)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::{Counts, ThreadUse};

    fn parts(side: &SideFigures) -> f64 {
        SideFigures::PARTS.iter().map(|(_, part)| part(side)).sum()
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
            cpu,
            busy_s,
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
            client_cpu: busy(1, 0.5),
            server,
            client: process(0.6, 0.5, &[]),
            sample_delay_us: [0.0, 0.0],
            shared: Some(false),
            between_hosts: None,
        }
    }

    #[test]
    fn the_parts_are_the_busy_time_whatever_was_counted() {
        let threads = [("server", 0.9), ("iou-wrk", 0.3), ("iou-sqp", 0.1), ("iou-wrk", 0.1)];
        let used = cpu(0.9, process(1.4, 0.5, &threads));
        let [server, client] = sides(&used, 0.9, 1e9);
        // Counted in two seconds, told of one.
        let expected = [0.35, 0.1, 0.2, 0.05, 0.05, 0.15];
        for ((name, part), expected) in SideFigures::PARTS.iter().zip(expected) {
            assert!((part(&server) - expected).abs() < 1e-9, "{name}: {}", part(&server));
        }
        assert_eq!((server.softirq_counted_ns, server.look_share), (0.1, 0.0005));
        assert!((parts(&server) - 0.9).abs() < 1e-9 && (parts(&client) - 0.5).abs() < 1e-9);
        // A process that used more than its CPU is a matter of when each was read.
        let [over, _] = sides(&cpu(0.5, process(1.4, 0.5, &threads)), 0.5, 1e9);
        assert!((parts(&over) - 0.5).abs() < 1e-9 && over.outside_ns.abs() < 1e-9);
        assert!((over.io_wq_ns - 0.2 * 0.5 / 0.7).abs() < 1e-9);
        // Nothing but workers of io_uring.
        let [workers, _] = sides(&cpu(0.9, process(0.4, 0.0, &[("iou-wrk", 0.4)])), 0.9, 1e9);
        assert!((parts(&workers) - 0.9).abs() < 1e-9 && workers.system_ns.abs() < 1e-9);
    }

    #[test]
    fn the_parts_of_medians_add_up_too() {
        let one = |busy_s, user_s| sides(&cpu(busy_s, process(0.8, user_s, &[])), busy_s, 1e9)[0];
        let several = [one(0.9, 0.2), one(0.5, 0.9), one(0.7, 0.4), one(0.8, 0.1)];
        let medians = side_medians(&several).unwrap();
        assert_eq!(medians.busy_ns, 0.75);
        assert!((parts(&medians) - 0.75).abs() < 1e-9);
        assert_eq!(side_medians(&[]), None);
    }

    #[test]
    fn of_one_cpu_for_both_the_client_has_what_its_process_used() {
        let mut used = cpu(0.9, process(0.5, 0.5, &[]));
        used.shared = Some(true);
        let [server, client] = sides(&used, 0.9, 1e9);
        assert!((client.busy_ns - 0.6).abs() < 1e-9 && (server.busy_ns - 0.9).abs() < 1e-9);
        assert!((parts(&client) - 0.6).abs() < 1e-9);
        // Two CPUs of one number on two hosts are not one.
        used.client_cpu.cpu = 0;
        used.shared = Some(false);
        assert!(!used.is_shared());
        used.shared = None;
        assert!(used.is_shared());
    }
}
