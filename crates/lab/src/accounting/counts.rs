//! What the kernel counts of one side beside its time: who was interrupted, how often it received,
//! what was lost.

use serde::{Deserialize, Serialize};

use super::{CpuBusy, CpuUse, Snapshot};
use crate::experiment::NetKind;
use crate::procfs;

/// A network device whose losses and whose threads are counted.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// Threads of the kernel that poll it (threaded NAPI).
    pub(crate) napi_threads: Vec<i32>,
}

/// Counts of one side, so far or in a window. What this kernel does not count is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Counts {
    /// Function-call interrupts of the CPU, sent by others (row `CAL` of `/proc/interrupts`): packets
    /// were steered to it, or a task on it was woken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_call_interrupts: Option<u64>,
    /// Reschedule interrupts of the CPU (row `RES`): a task on it was woken. A CPU that polls while it
    /// is idle is woken without either, and that is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reschedule_interrupts: Option<u64>,
    /// How often another CPU told this one that it had steered packets to it (`received_rps` of
    /// `/proc/net/softnet_stat`); also where it polled while it was idle, and took no interrupt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steered: Option<u64>,
    /// TCP segments sent again (`RetransSegs` of `/proc/net/snmp`), in the network namespace of the
    /// process: on `lo` that is the namespace of both sides, and of everybody else in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_retransmits: Option<u64>,
    /// Packets that the device of the network dropped, either way (`/proc/net/dev`): a veth does so
    /// when 256 packets wait for its NAPI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_drops: Option<u64>,
    /// CPU time of the threads of the kernel that poll the device, in nanoseconds; only on `napi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub napi_threads_ns: Option<u64>,
}

impl Counts {
    /// The counts so far of these CPUs, of the network namespace of a process, and of the device of its network.
    pub(super) fn take(
        now: &Snapshot,
        cpus: &[usize],
        pid: i32,
        device: Option<&Device>,
    ) -> Counts {
        let of_process = |file: &str| procfs::text(&format!("/proc/{pid}/net/{file}"));
        let of_cpus =
            |count: &dyn Fn(usize) -> Option<u64>| cpus.iter().map(|cpu| count(*cpu)).sum();
        let interrupts = |row| of_cpus(&|cpu| procfs::count_of_cpu(&now.interrupts, row, cpu));
        Counts {
            function_call_interrupts: interrupts("CAL"),
            reschedule_interrupts: interrupts("RES"),
            steered: of_cpus(&|cpu| procfs::softnet(&now.softnet_stat, cpu, procfs::STEERED)),
            tcp_retransmits: of_process("snmp")
                .and_then(|it| procfs::snmp(&it, "Tcp", "RetransSegs")),
            device_drops: device
                .and_then(|device| procfs::device_drops(&of_process("dev")?, &device.name)),
            napi_threads_ns: device.and_then(napi_threads_ns),
        }
    }

    pub(super) fn until(&self, end: &Counts) -> Counts {
        let of = |field: fn(&Counts) -> Option<u64>| {
            field(self).zip(field(end)).map(|(start, end)| end.saturating_sub(start))
        };
        Counts {
            function_call_interrupts: of(|it| it.function_call_interrupts),
            reschedule_interrupts: of(|it| it.reschedule_interrupts),
            steered: of(|it| it.steered),
            tcp_retransmits: of(|it| it.tcp_retransmits),
            device_drops: of(|it| it.device_drops),
            napi_threads_ns: of(|it| it.napi_threads_ns),
        }
    }

    /// Interrupts by which another CPU told this one something.
    pub fn notifications(&self) -> Option<u64> {
        Some(self.function_call_interrupts?.saturating_add(self.reschedule_interrupts?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Counts::default()
    }
}

/// What both sides have together. A CPU that they share counts once, and so does the one network
/// namespace of `lo`. Load generators on other machines count nothing.
impl CpuUse {
    fn of_cpus(&self, field: fn(&CpuBusy) -> Option<u64>) -> Option<u64> {
        let client = self.client_cpu.as_ref().filter(|_| !self.shared);
        Some(field(&self.server_cpu)?.saturating_add(client.map_or(Some(0), field)?))
    }

    fn of_networks(&self, net: NetKind, field: fn(&Counts) -> Option<u64>) -> Option<u64> {
        let client = self.client_cpu.as_ref().filter(|_| net != NetKind::Lo);
        let client = client.map_or(Some(0), |cpu| field(&cpu.counts));
        Some(field(&self.server_cpu.counts)?.saturating_add(client?))
    }

    /// Interrupts by which another CPU told one of these something.
    pub(crate) fn notifications(&self) -> Option<u64> {
        self.of_cpus(|cpu| cpu.counts.notifications())
    }

    pub(crate) fn steered(&self) -> Option<u64> {
        self.of_cpus(|cpu| cpu.counts.steered)
    }

    pub(crate) fn retransmits(&self, net: NetKind) -> Option<u64> {
        self.of_networks(net, |counts| counts.tcp_retransmits)
    }

    /// Packets dropped by the devices and at the receive backlogs.
    pub(crate) fn drops(&self, net: NetKind) -> Option<u64> {
        let by_devices = self.of_networks(net, |counts| counts.device_drops)?;
        Some(by_devices.saturating_add(self.of_cpus(|cpu| cpu.backlog_drops).unwrap_or(0)))
    }
}

fn napi_threads_ns(device: &Device) -> Option<u64> {
    let threads = device.napi_threads.iter();
    let all: Option<Vec<u64>> = threads.map(|thread| procfs::run_ns_of(*thread)).collect();
    all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_end_does_not_count_nobody_counts() {
        let all = Counts { steered: Some(5), device_drops: Some(1), ..Counts::default() };
        let some = Counts { steered: Some(7), ..Counts::default() };
        assert_eq!(all.until(&some), Counts { steered: Some(2), ..Counts::default() });
        let calls = Counts { function_call_interrupts: Some(3), ..Counts::default() };
        assert_eq!((calls.notifications(), Counts::default().is_empty()), (None, true));
    }
}
