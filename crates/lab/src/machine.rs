//! The machine: everything about it that a reader of the numbers would ask for.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use twinring_input::cgroup::CpuQuota;

use crate::cpus::Cpus;
use crate::procfs;

/// A program file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Program {
    /// Where it is, or its name in PATH.
    pub path: String,
    /// SHA-256 of the file, if it could be read.
    pub sha256: Option<String>,
    /// The peer that it is, by the name that it has wherever its file is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

impl Fingerprint {
    /// Whether two fingerprints are of one machine as far as they tell: its kernel and settings may
    /// have changed in between.
    pub fn is_same_machine(&self, other: &Fingerprint) -> bool {
        let of = |it: &Fingerprint| {
            (it.cpu_model.clone(), it.cpus_online, it.caches.clone(), it.virtualisation.clone())
        };
        of(self) == of(other)
    }
}

/// What the numbers were measured on. Facts that the machine does not tell are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fingerprint {
    /// Model name of the processor.
    pub cpu_model: String,
    /// CPUs online.
    pub cpus_online: usize,
    /// Caches of the server's CPU, as `L2 Unified: 1024K`.
    pub caches: Vec<String>,
    /// Kernel release and build.
    pub kernel: String,
    /// Those parameters of the kernel's command line that decide about speed.
    pub kernel_command_line: String,
    /// Hypervisor or product that says it is virtual, if any.
    pub virtualisation: Option<String>,
    /// Source of the clock.
    pub clocksource: String,
    /// Frequency governor of the server's CPU, if it has one.
    pub governor: Option<String>,
    /// Boost or turbo, if the machine reports it.
    pub boost: Option<String>,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// Load average when the experiment began.
    pub load_average: String,
    /// Mitigations by vulnerability.
    pub mitigations: BTreeMap<String, String>,
    /// Settings of the kernel.
    pub sysctls: BTreeMap<String, String>,
    /// Limits of this process: name, soft, hard.
    pub limits: BTreeMap<String, String>,
    /// CPUs that a quota leaves this process, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
}

/// Settings that move the numbers of a network service. Those of the network itself are recorded
/// with each network.
const SYSCTLS: &[&str] = &[
    "kernel.io_uring_disabled",
    "kernel.sched_autogroup_enabled",
    "kernel.randomize_va_space",
    "kernel.numa_balancing",
    "kernel.nmi_watchdog",
    "kernel.timer_migration",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.rps_sock_flow_entries",
    "vm.swappiness",
];

const LIMITS: &[&str] = &["Max open files", "Max locked memory", "Max processes"];

impl Fingerprint {
    /// Reads what the machine says about itself.
    pub fn read(cpus: &Cpus) -> Fingerprint {
        let cpu = cpus.server.first();
        let text = |path: &str| procfs::text(path).unwrap_or_default();
        let cpuinfo = text("/proc/cpuinfo");
        let cpu = format!("/sys/devices/system/cpu/cpu{cpu}");
        let meminfo = text("/proc/meminfo");
        Fingerprint {
            cpu_model: cpuinfo_field(&cpuinfo, "model name").unwrap_or_default(),
            cpus_online: procfs::cpu_list("/sys/devices/system/cpu/online").len(),
            caches: caches(&cpu),
            kernel: kernel(),
            kernel_command_line: parameters_of_speed(&text("/proc/cmdline")),
            virtualisation: virtualisation(&cpuinfo),
            clocksource: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            governor: procfs::text(&format!("{cpu}/cpufreq/scaling_governor")),
            boost: boost(),
            memory_kib: procfs::status_number(&meminfo, "MemTotal").unwrap_or(0),
            load_average: text("/proc/loadavg"),
            mitigations: files_in("/sys/devices/system/cpu/vulnerabilities"),
            sysctls: procfs::settings(SYSCTLS).collect(),
            limits: limits(&text("/proc/self/limits")),
            cpu_quota: CpuQuota::read().cpus,
        }
    }
}

fn kernel() -> String {
    let part = |name: &str| procfs::text(&format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {} {}", part("osrelease"), part("version"), std::env::consts::ARCH)
}

/// Parameters of the kernel that decide about speed, by how their names begin (the kernel's
/// Documentation/admin-guide/kernel-parameters.txt).
const SPEED_PARAMETERS: &str = "\
    acpi amd_iommu amd_pstate apparmor audit cgroup clocksource cpufreq cpuidle \
    debug_pagealloc default_hugepagesz gather_data_sampling hpet hugepage idle init_on_ \
    intel_idle intel_iommu intel_pstate iommu irqaffinity isolcpus kasan kfence kvm l1tf lsm \
    maxcpus mds mitigations mmio_stale_data nested_ nmi_watchdog no_timer_check nohz nokaslr \
    nopti nosmt nosoftlockup nospec nowatchdog nr_cpus numa page_poison pcie_aspm preempt \
    processor. psi pti rcu_nocb rcutree reg_file_data_sampling retbleed sched security \
    selinux skew_tick slab slub spec srbds swiotlb threadirqs transparent_hugepage tsa tsc \
    tsx watchdog";

/// What is left of a kernel's command line for somebody else to read. The rest names disks, consoles
/// and networks, and may hold keys; what follows `--` is not the kernel's but for init.
fn parameters_of_speed(command_line: &str) -> String {
    let of_speed = |parameter: &&str| {
        SPEED_PARAMETERS.split(' ').any(|beginning| parameter.starts_with(beginning))
    };
    let parameters = command_line.split_whitespace().take_while(|it| *it != "--");
    parameters.filter(of_speed).collect::<Vec<_>>().join(" ")
}

fn cpuinfo_field(cpuinfo: &str, name: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn virtualisation(cpuinfo: &str) -> Option<String> {
    let flags = cpuinfo_field(cpuinfo, "flags").unwrap_or_default();
    let product = procfs::text("/sys/class/dmi/id/product_name");
    let hypervisor = procfs::text("/sys/hypervisor/type").or(product);
    let virtual_cpu = flags.split(' ').any(|flag| flag == "hypervisor");
    virtual_cpu.then(|| hypervisor.unwrap_or_else(|| "a hypervisor".to_owned()))
}

fn boost() -> Option<String> {
    let cpu = "/sys/devices/system/cpu";
    let no_turbo = procfs::text(&format!("{cpu}/intel_pstate/no_turbo"));
    no_turbo
        .map(|value| if value == "0" { "on" } else { "off" }.to_owned())
        .or_else(|| procfs::text(&format!("{cpu}/cpufreq/boost")))
}

fn caches(cpu: &str) -> Vec<String> {
    let cache = |index: usize| {
        let part = |name: &str| procfs::text(&format!("{cpu}/cache/index{index}/{name}"));
        Some(format!("L{} {}: {}", part("level")?, part("type")?, part("size")?))
    };
    (0..8).map_while(cache).collect()
}

fn files_in(directory: &str) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let read = |entry: std::fs::DirEntry| {
        let text = procfs::text(entry.path().to_str()?)?;
        Some((entry.file_name().to_string_lossy().into_owned(), text))
    };
    entries.filter_map(read).collect()
}

fn limits(text: &str) -> BTreeMap<String, String> {
    let value = |name: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix(*name))?;
        let mut words = line.split_ascii_whitespace();
        Some(((*name).to_owned(), format!("soft {}, hard {}", words.next()?, words.next()?)))
    };
    LIMITS.iter().filter_map(value).collect()
}

/// The largest program of which a hash is made: sixteen times the largest of our own builds.
pub(crate) const PROGRAM_BYTES_MAX: u64 = 1 << 30;

pub(crate) fn hash(path: &str, peer: Option<&str>) -> Program {
    let file = find_program(Path::new(path));
    let sha256 = file.and_then(|file| sha256_of(&file, PROGRAM_BYTES_MAX).ok());
    Program { path: path.to_owned(), sha256, peer: peer.map(str::to_owned) }
}

fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// SHA-256, in hexadecimal, of a regular file of at most `bytes_max` bytes.
pub(crate) fn sha256_of(path: &Path, bytes_max: u64) -> io::Result<String> {
    hash_of(twinring_input::open(path)?, bytes_max)
}

/// SHA-256, in hexadecimal, of what is read, at most `bytes_max` bytes.
pub(crate) fn hash_of(mut content: impl Read, bytes_max: u64) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    let mut left = bytes_max;
    loop {
        let read = content.read(&mut chunk)?;
        if read == 0 {
            return Ok(hexadecimal(hash));
        }
        left = left.checked_sub(read as u64).ok_or_else(|| {
            let message = format!("is larger than {bytes_max} bytes, the most that is hashed");
            io::Error::new(io::ErrorKind::FileTooLarge, message)
        })?;
        hash.update(&chunk[..read]);
    }
}

pub(crate) fn sha256(text: &[u8]) -> String {
    hexadecimal(Sha256::new_with_prefix(text))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bundle that was to be published told how the machine's init was started.
    #[test]
    fn a_command_line_tells_of_speed_only() {
        let line = "root=UUID=1234 mitigations=off isolcpus=2,3 console=ttyS0 nosmt -- mds=secret";
        assert_eq!(parameters_of_speed(line), "mitigations=off isolcpus=2,3 nosmt");
    }
}
