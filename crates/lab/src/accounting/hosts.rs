//! CPU use of a run whose servers and load generators are on different hosts, each with a clock of
//! its own.
//!
//! A load generator's window is by the clock of its host. Translated to the server's clock, with
//! the offset that was measured around the run, it says when the server's CPU counts: while the
//! windows of all of its load generators are open. The samples lie a little behind the marks, by the way
//! of the mark to the lab and of the question to the host; as on one host, the busy *share* of the
//! time between two samples is what is taken, and the delay is recorded and audited.

use serde::{Deserialize, Serialize};

use super::sample::Sides;
use super::{Counts, CpuBusy, CpuUse, ProcessUse, SideSample};
use crate::clock::Offset;
use crate::cpus::CpuList;

/// What is known of the CPU use of a run between hosts only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BetweenHosts {
    /// How far off the translation from a load generator's clock to the server's may be, in
    /// microseconds.
    pub clock_uncertainty_us: f64,
    /// Time between the first and the last of the windows to open, and to close, in microseconds.
    pub windows_apart_us: [f64; 2],
    /// Each server, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<PartUse>,
    /// Each load generator, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<PartUse>,
}

/// CPU use of one of several servers or load generators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartUse {
    /// Length of its window; a server's is the mean of those of its load generators.
    pub window_s: f64,
    /// Its CPU.
    pub cpu: CpuBusy,
    /// Its process.
    pub process: ProcessUse,
}

/// The window of one load generator, and the samples at its ends.
pub(crate) struct ClientWindow {
    pub(crate) samples: [Sides; 2],
    /// Start and end by the clock of its host.
    pub(crate) window_ns: [u64; 2],
    /// That clock.
    pub(crate) clock: Offset,
}

impl ClientWindow {
    fn window_s(&self) -> f64 {
        self.window_ns[1].saturating_sub(self.window_ns[0]) as f64 / 1e9
    }

    /// Its client's part.
    fn client_use(&self) -> PartUse {
        let [start, end] = self.samples.each_ref().map(|sides| &sides.client);
        PartUse {
            window_s: self.window_s(),
            cpu: start.busy(end, self.window_s()),
            process: start.process.until(&end.process),
        }
    }

    /// How late the client's own side was sampled at both ends, in nanoseconds.
    fn delay_ns(&self) -> [u64; 2] {
        [0, 1].map(|end| self.samples[end].client.at_ns.saturating_sub(self.window_ns[end]))
    }
}

/// The CPU use of a run with these load generators, of which the first belongs to the first server, and so on around.
/// `servers` are the clocks of the servers' hosts.
///
/// # Errors
/// When the windows of all load generators of a server were never open at once, or no sample was taken meanwhile.
pub(crate) fn cpu_use_between_hosts(
    clients: &[ClientWindow],
    servers: &[Offset],
) -> Result<CpuUse, String> {
    let first = servers.first().ok_or("there is no server")?;
    let apart_us = |end: usize| {
        let at = || clients.iter().map(|it| it.clock.translate(it.window_ns[end], *first));
        at().max().unwrap_or(0).saturating_sub(at().min().unwrap_or(0)) as f64 / 1e3
    };
    let of_server = |(number, clock): (usize, &Offset)| {
        let own: Vec<&ClientWindow> = clients.iter().skip(number).step_by(servers.len()).collect();
        server_use(&own, *clock)
    };
    let found: Vec<(PartUse, [f64; 2])> =
        servers.iter().enumerate().map(of_server).collect::<Result<_, _>>()?;
    let sample_delay_us = [0, 1].map(|end| found.iter().map(|it| it.1[end]).fold(0.0, f64::max));
    let of_servers: Vec<PartUse> = found.into_iter().map(|it| it.0).collect();
    let of_clients: Vec<PartUse> = clients.iter().map(ClientWindow::client_use).collect();
    let least_known = |clocks: &mut dyn Iterator<Item = Offset>| {
        clocks.map(|clock| clock.uncertainty_us).fold(0.0, f64::max)
    };
    let (server_cpu, server) = sum(&of_servers);
    let (client_cpu, client) = sum(&of_clients);
    let several = |parts: Vec<PartUse>| if parts.len() > 1 { parts } else { Vec::new() };
    Ok(CpuUse {
        window_s: clients.iter().map(ClientWindow::window_s).sum::<f64>() / clients.len() as f64,
        server_cpu,
        client_cpu,
        server,
        client,
        sample_delay_us,
        shared: Some(false),
        between_hosts: Some(BetweenHosts {
            clock_uncertainty_us: least_known(&mut servers.iter().copied())
                + least_known(&mut clients.iter().map(|it| it.clock)),
            windows_apart_us: [apart_us(0), apart_us(1)],
            servers: several(of_servers),
            clients: several(of_clients),
        }),
    })
}

/// What a server used while all of its load generators loaded, and how late the samples at both ends were, in
/// microseconds.
fn server_use(clients: &[&ClientWindow], clock: Offset) -> Result<(PartUse, [f64; 2]), String> {
    let at_server =
        |end: usize| clients.iter().map(move |it| it.clock.translate(it.window_ns[end], clock));
    // The last to open and the first to close.
    let opened = at_server(0).max().ok_or("there is no load generator")?;
    let closed = at_server(1).min().ok_or("there is no load generator")?;
    let samples_at = |end: usize| clients.iter().map(move |it| &it.samples[end].server);
    let start = samples_at(0).max_by_key(|sample| sample.at_ns);
    let end = samples_at(1).min_by_key(|sample| sample.at_ns);
    let (Some(start), Some(end)) = (start, end) else {
        return Err("there is no sample of the server".to_owned());
    };
    if opened >= closed || start.at_ns >= end.at_ns {
        return Err("the windows of the load generators were not open at the same time".to_owned());
    }
    let delay_us = |sample: &SideSample, mark: u64, end: usize| {
        let at_clients = clients.iter().map(|client| client.delay_ns()[end]);
        at_clients.fold(sample.at_ns.abs_diff(mark), u64::max) as f64 / 1e3
    };
    let window_s = clients.iter().map(|it| it.window_s()).sum::<f64>() / clients.len() as f64;
    let used = PartUse {
        window_s,
        cpu: start.busy(end, window_s),
        process: start.process.until(&end.process),
    };
    Ok((used, [delay_us(start, opened, 0), delay_us(end, closed, 1)]))
}

/// All servers or load generators together, under the numbers of the first one's CPUs. What was used is added;
/// how long they were sampled and looked at is the mean.
fn sum(uses: &[PartUse]) -> (CpuBusy, ProcessUse) {
    if let [alone] = uses {
        return (alone.cpu.clone(), alone.process.clone());
    }
    let of = |field: fn(&CpuBusy) -> f64| uses.iter().map(|it| field(&it.cpu)).sum();
    let mean = |field: fn(&CpuBusy) -> Option<f64>| {
        let all: Option<Vec<f64>> = uses.iter().map(|it| field(&it.cpu)).collect();
        all.map(|all| all.iter().sum::<f64>() / all.len().max(1) as f64)
    };
    let look_us = mean(|cpu| Some(cpu.look_us?[0])).zip(mean(|cpu| Some(cpu.look_us?[1])));
    let drops: Option<Vec<u64>> = uses.iter().map(|it| it.cpu.backlog_drops).collect();
    let threads_s: Option<Vec<f64>> = uses.iter().map(|it| it.cpu.softirq_thread_s).collect();
    let cpu = CpuBusy {
        cpus: uses.first().map_or_else(|| CpuList::one(0), |it| it.cpu.cpus.clone()),
        busy_s: of(|cpu| cpu.busy_s),
        busy_each_s: Vec::new(),
        busy_unsure_s: uses.iter().filter_map(|it| it.cpu.busy_unsure_s).reduce(|a, b| a + b),
        sampled_s: mean(|cpu| cpu.sampled_s),
        look_us: look_us.map(|(start, end)| [start, end]),
        softirq_thread_s: threads_s.map(|all| all.iter().sum()),
        softirq_coarse_s: of(|cpu| cpu.softirq_coarse_s),
        irq_coarse_s: of(|cpu| cpu.irq_coarse_s),
        steal_coarse_s: of(|cpu| cpu.steal_coarse_s),
        backlog_drops: drops.map(|all| all.iter().sum()),
        counts: Counts::sum(uses.iter().map(|it| it.cpu.counts)),
    };
    let faults: Option<Vec<u64>> = uses.iter().map(|it| it.process.minor_faults).collect();
    let minor_faults = faults.map(|all| all.into_iter().fold(0, u64::saturating_add));
    let mut process = ProcessUse { minor_faults, ..ProcessUse::default() };
    for other in uses.iter().map(|it| &it.process) {
        process.cpu_s += other.cpu_s;
        process.user_s += other.user_s;
        process.system_s += other.system_s;
        process.voluntary_switches += other.voluntary_switches;
        process.involuntary_switches += other.involuntary_switches;
        for thread in &other.threads {
            match process.threads.iter_mut().find(|known| known.name == thread.name) {
                Some(known) => {
                    known.threads += thread.threads;
                    known.cpu_s += thread.cpu_s;
                }
                None => process.threads.push(thread.clone()),
            }
        }
    }
    (cpu, process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::sample::ProcessSample;
    use crate::procfs::CpuTicks;

    const MS: u64 = 1_000_000;

    fn side(at_ns: u64, idle_ns: u64) -> SideSample {
        let (ticks, process) = (CpuTicks::default(), ProcessSample::default());
        let (softirq_thread_ns, backlog_drops, took_ns) = (Some(0), Some(0), 0);
        SideSample {
            at_ns,
            cpus: CpuList::one(0),
            idle_ns: vec![idle_ns],
            idle_unsure_ns: 0,
            ticks,
            softirq_thread_ns,
            backlog_drops,
            counts: Counts::default(),
            process,
            took_ns,
        }
    }

    /// A load generator whose window opens at `start` of the server's clock for a second. The
    /// server is sampled 2 ms behind each mark and idle for a quarter, the client 1 ms behind and
    /// idle for a half.
    fn client(start: u64, clock: Offset, server: Offset) -> ClientWindow {
        let own = |at: u64| server.translate(at, clock);
        let sides = |at: u64| Sides {
            server: side(at + 2 * MS, (at + 2 * MS) / 4),
            client: side(own(at + MS), own(at + MS) / 2),
        };
        let (samples, end) = ([sides(start), sides(start + 1000 * MS)], start + 1000 * MS);
        ClientWindow { samples, window_ns: [own(start), own(end)], clock }
    }

    fn clock(offset_ns: i64, uncertainty_us: f64) -> Offset {
        Offset { offset_ns, uncertainty_us }
    }

    #[test]
    fn the_servers_cpu_counts_by_its_own_clock() {
        let server = clock(-7_000_000_000, 20.0);
        let one = client(50_000 * MS, clock(3_000_000_000, 30.0), server);
        let used = cpu_use_between_hosts(&[one], &[server]).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(used.window_s, 1.0) && close(used.server_cpu.busy_s, 0.75), "{used:?}");
        assert!(close(used.client_cpu.busy_s, 0.5), "{used:?}");
        assert_eq!(used.sample_delay_us, [2000.0, 2000.0]);
        let between = used.between_hosts.unwrap();
        assert_eq!((between.clock_uncertainty_us, between.windows_apart_us), (50.0, [0.0, 0.0]));
        assert!(between.clients.is_empty());
    }

    #[test]
    fn several_clients_are_added_and_the_server_counts_while_all_load() {
        let server = clock(1_000, 20.0);
        let first = client(50_000 * MS, clock(0, 5.0), server);
        let second = client(50_004 * MS, clock(9_999_000, 40.0), server);
        let used = cpu_use_between_hosts(&[first, second], &[server]).unwrap();
        let between = used.between_hosts.unwrap();
        assert_eq!(between.windows_apart_us, [4000.0, 4000.0]);
        assert_eq!(between.clock_uncertainty_us, 60.0);
        assert_eq!(between.clients.len(), 2);
        assert!((used.client_cpu.busy_s - 1.0).abs() < 1e-6, "{:?}", used.client_cpu);
        // From the last mark to open, at 50,004 ms, to the first to close, at 51,000 ms.
        assert_eq!(used.sample_delay_us, [2000.0, 2000.0]);
        assert!((used.server_cpu.busy_s - 0.75).abs() < 1e-6);
    }

    #[test]
    fn windows_that_do_not_meet_are_an_error() {
        let none = Offset::NONE;
        let apart = [client(50_000 * MS, none, none), client(51_500 * MS, none, none)];
        assert!(cpu_use_between_hosts(&apart, &[none]).unwrap_err().contains("same time"));
        assert!(cpu_use_between_hosts(&[], &[none]).is_err());
        assert!(cpu_use_between_hosts(&apart, &[]).is_err());
        // A server for each: they need not meet. The third has no load generator.
        let used = cpu_use_between_hosts(&apart, &[none, none]).unwrap();
        assert_eq!(used.between_hosts.unwrap().windows_apart_us, [1_500_000.0, 1_500_000.0]);
        assert!(cpu_use_between_hosts(&apart, &[none; 3]).is_err());
    }

    #[test]
    fn several_servers_are_added_and_each_counts_by_its_own_clock() {
        let servers = [clock(-7_000_000_000, 20.0), clock(1_000, 10.0)];
        let of = |start, uncertainty, server| {
            client(start * MS, clock(3_000_000_000, uncertainty), servers[server])
        };
        // Their windows open 6 ms apart by one clock.
        let by_second = 50_006 + 7_000;
        let clients = [of(50_000, 5.0, 0), of(by_second, 30.0, 1), of(50_004, 5.0, 0)];
        let used = cpu_use_between_hosts(&clients, &servers).unwrap();
        let between = used.between_hosts.clone().unwrap();
        assert!((between.windows_apart_us[0] - 6000.0).abs() < 10.0, "{between:?}");
        assert_eq!(between.clock_uncertainty_us, 50.0);
        assert_eq!((between.servers.len(), between.clients.len()), (2, 3));
        assert!((used.window_s - 1.0).abs() < 1e-6);
        assert!((used.server_cpu.busy_s - 1.5).abs() < 1e-6, "{:?}", used.server_cpu);
        assert!((used.server_busy_share() - 0.75).abs() < 1e-6);
        // Each is looked at 2 ms behind the marks of its own load generators.
        assert_eq!(used.sample_delay_us, [2000.0, 2000.0]);
    }
}
