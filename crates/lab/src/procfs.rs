//! The few fields of `/proc` that the lab reads, as pure functions on text where there is
//! anything to get wrong.

use std::fs;
use std::io;
use std::str::FromStr;

use nix::time::{ClockId, clock_gettime};

use crate::cpus::CpuList;
use crate::error::LabError;

/// Length of a tick of `/proc` in seconds: `USER_HZ` is 100 on every architecture Rust runs on.
pub(crate) const TICK_S: f64 = 0.01;

/// Ticks that a CPU was idle, waiting for input or not, and that the hypervisor took, from the text of `/proc/stat`
/// (proc(5)). With dynamic ticks idle time is kept exactly, unlike the others, and only rounded down to a tick here.
pub(crate) fn cpu_ticks(stat: &str, cpu: usize) -> Option<(u64, u64)> {
    let name = format!("cpu{cpu}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().skip(1).flat_map(u64::from_str).collect();
    Some((*ticks.get(3)? + *ticks.get(4)?, *ticks.get(7)?))
}

/// The column of `/proc/net/softnet_stat` with the packets that found the receive backlog of a CPU full
/// (`net.core.netdev_max_backlog`).
pub(crate) const BACKLOG_DROPS: usize = 1;

/// The one with how often another CPU told this one that it had steered packets to it.
pub(crate) const STEERED: usize = 9;

/// A column of `cpu` in the text of `/proc/net/softnet_stat`: hexadecimal, a line for each CPU that is online. Since
/// 5.10 the thirteenth says which (net/core/net-procfs.c, `softnet_seq_show`).
pub(crate) fn softnet(softnet_stat: &str, cpu: usize, column: usize) -> Option<u64> {
    let columns = softnet_stat.lines().map(|line| -> Vec<u64> {
        line.split_ascii_whitespace().flat_map(|hex| u64::from_str_radix(hex, 16)).collect()
    });
    let mut of_cpu = columns.filter(|line| line.get(12) == Some(&(cpu as u64)));
    of_cpu.next()?.get(column).copied()
}

/// What a row counts of `cpu`, from the text of `/proc/interrupts`. A head line
/// names the CPUs, which may have gaps where some are offline; rows without CPUs have one number.
pub(crate) fn count_of_cpu(table: &str, row: &str, cpu: usize) -> Option<u64> {
    let mut lines = table.lines();
    let name = format!("CPU{cpu}");
    let column = lines.next()?.split_ascii_whitespace().position(|head| head == name)?;
    let counts = lines.find_map(|line| line.trim_start().strip_prefix(row)?.strip_prefix(':'))?;
    counts.split_ascii_whitespace().nth(column)?.parse().ok()
}

/// A count from the text of `/proc/net/snmp`: of each protocol a line of names, then one of numbers.
pub(crate) fn snmp(text: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut of_it = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
    let (names, numbers) = (of_it.next()?, of_it.next()?);
    let column = names.split_ascii_whitespace().position(|known| known == name)?;
    numbers.split_ascii_whitespace().nth(column)?.parse().ok()
}

/// Packets that a device dropped on receiving and on sending, from the text of `/proc/net/dev`.
pub(crate) fn device_drops(text: &str, device: &str) -> Option<u64> {
    let counts =
        text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let counts: Vec<u64> = counts.split_ascii_whitespace().flat_map(u64::from_str).collect();
    // Received: bytes, packets, errs, drop and four more; then sent, the same.
    Some(counts.get(3)?.saturating_add(*counts.get(11)?))
}

/// Time that a CPU has spent idle so far, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) ns: u64,
    /// How much more it may be.
    pub(crate) unsure_ns: u64,
}

/// The longest tick of a kernel, in nanoseconds (`CONFIG_HZ_100`).
const LONGEST_TICK_NS: u64 = 10_000_000;

/// Time that `cpu` has spent idle, from the text of `/proc/timer_list`. The kernel stops this clock
/// while an idle CPU serves an interrupt or softirq, so what is left of the wall time is everything
/// the CPU did (kernel/time/tick-sched.c, `tick_nohz_start_idle`).
///
/// The two sums leave out a stretch that is still open. If the CPU has stopped its tick it is idle,
/// since `idle_entrytime`; unless it is one that also works without a tick (`nohz_full`). With a
/// tick, which ends a stretch and begins the next, an open one is shorter than a tick, and whether
/// it is open cannot be told: `idle_entrytime` is set at its end as well.
pub(crate) fn idle(timer_list: &str, cpu: usize, nohz_full: bool) -> Option<Idle> {
    let number = |text: &str| text.trim_start_matches([' ', ':']).split(' ').next()?.parse().ok();
    let now: u64 = timer_list.lines().find_map(|line| number(line.strip_prefix("now at")?))?;
    let head = format!("cpu: {cpu}");
    let of_cpu = timer_list.lines().skip_while(|line| line.trim_end() != head).skip(1);
    let of_cpu: Vec<&str> = of_cpu.take_while(|line| !line.starts_with("cpu:")).collect();
    let field = |name: &str| -> Option<u64> {
        of_cpu.iter().find_map(|line| number(line.trim_start().strip_prefix(name)?))
    };
    let ended = field(".idle_sleeptime")? + field(".iowait_sleeptime")?;
    let since = now.saturating_sub(field(".idle_entrytime")?);
    let (open, unsure_ns) = match (field(".tick_stopped")?, nohz_full) {
        (0, _) if since > LONGEST_TICK_NS => (0, 0),
        (0, _) | (_, true) => (0, since),
        (_, false) => (since, 0),
    };
    Some(Idle { ns: ended + open, unsure_ns })
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProcessStat<'a> {
    /// Name of the program, cut by the kernel to 15 bytes.
    pub(crate) name: &'a str,
    pub(crate) parent: i32,
    /// CPU time of all its threads, ended ones included.
    pub(crate) user_ticks: u64,
    pub(crate) system_ticks: u64,
    /// That of its children which have ended and that it has waited for, theirs included.
    pub(crate) children_ticks: u64,
}

/// Reads the text of `/proc/PID/stat`. The name in the second field may hold blanks and
/// parentheses, so counting starts behind its last parenthesis.
pub(crate) fn process_stat(text: &str) -> Option<ProcessStat<'_>> {
    let (head, rest) = text.rsplit_once(')')?;
    // `rest` begins with field 3 of proc(5).
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(ProcessStat {
        name: head.split_once('(')?.1,
        parent: field(4)?.parse().ok()?,
        user_ticks: field(14)?.parse().ok()?,
        system_ticks: field(15)?.parse().ok()?,
        children_ticks: field(16)?.parse::<u64>().ok()?.saturating_add(field(17)?.parse().ok()?),
    })
}

/// The number behind `key:` in a file like `/proc/PID/status`.
pub(crate) fn status_number(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

pub(crate) fn run_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

/// The threads of the kernel whose name begins so. Older kernels show 15 characters of a name.
pub(crate) fn kernel_threads(name: &str) -> Vec<i32> {
    let is_it = |pid: &i32| {
        let text = text(&format!("/proc/{pid}/stat")).unwrap_or_default();
        process_stat(&text)
            .is_some_and(|stat| stat.parent == KERNEL_THREADS && stat.name.starts_with(name))
    };
    numeric_entries("/proc").into_iter().flatten().filter(is_it).collect()
}

pub(crate) fn run_ns_of(thread: i32) -> Option<u64> {
    run_ns(&text(&format!("/proc/{thread}/schedstat"))?)
}

pub(crate) const KERNEL_THREADS: i32 = 2;

/// A process and all that came from it and still belong to it, the root first.
pub(crate) fn process_tree(root: i32) -> Vec<i32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(pid) = tree.get(next) {
        let threads = numeric_entries(&format!("/proc/{pid}/task")).into_iter().flatten();
        let children = threads
            .flat_map(|thread| children_of(*pid, thread))
            .filter(|child| !tree.contains(child))
            .collect::<Vec<_>>();
        tree.extend(children);
        next += 1;
    }
    tree
}

fn children_of(pid: i32, thread: i32) -> Vec<i32> {
    let children = text(&format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
    children.split_ascii_whitespace().flat_map(str::parse).collect()
}

/// Whether a UDP socket of the calling thread's network namespace has this local port.
pub(crate) fn is_udp_bound(port: u16) -> bool {
    // /proc/net is that of the process; its first thread may be in another namespace.
    ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"]
        .iter()
        .any(|path| text(path).is_some_and(|list| lists_udp_port(&list, port)))
}

/// Lines are `sl local_address …` with addresses and ports in hexadecimal (proc(5)).
fn lists_udp_port(list: &str, port: u16) -> bool {
    let local_port = |line: &str| {
        let local = line.split_ascii_whitespace().nth(1)?;
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    list.lines().skip(1).any(|line| local_port(line) == Some(port))
}

/// A list of CPUs in a file of sysfs; nothing if there is none.
pub(crate) fn cpu_list(path: &str) -> Vec<usize> {
    let list = text(path).and_then(|text| text.parse().ok());
    list.map_or(Vec::new(), |list: CpuList| list.all().to_vec())
}

/// A file's text without the line end, or nothing when it cannot be read.
pub(crate) fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// These settings of the kernel, as they are in the namespace of the calling thread.
pub(crate) fn settings(names: &[&str]) -> impl Iterator<Item = (String, String)> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), text(&setting_path(name))?)))
}

pub(crate) fn setting_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

pub(crate) fn numeric_entries(path: &str) -> io::Result<impl Iterator<Item = i32> + use<>> {
    let entries = fs::read_dir(path)?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// `CLOCK_MONOTONIC` in nanoseconds, the clock of every mark and record of a run.
pub(crate) fn now_ns() -> Result<u64, LabError> {
    let why = |errno| LabError::machine(format!("no clock: {errno}"));
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(why)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_hold_anything() {
        let head = "7 (a) (b c) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 3 4 20 0 1 0 5 6 7 8 0 0 0 0 \
                    0 0 0 0 0 0 0 0 17 1 0 5 0 0";
        let stat = process_stat(head).unwrap();
        assert_eq!((stat.name, stat.parent, stat.children_ticks), ("a) (b c", 1, 7));
        assert_eq!((stat.user_ticks, stat.system_ticks), (11, 22));
        assert_eq!(process_stat("7 (cut"), None);
        assert_eq!(process_stat("7 (cut) S 1"), None);
    }

    #[test]
    fn rows_of_cpus_are_read_by_their_head() {
        let table = "           CPU0       CPU2       \n 24:          1          0  IO-APIC  5-edge  CAL\n\
                     RES:    2840622    1815448   Rescheduling interrupts\n\
                     CAL:    2597322    2615028   Function call interrupts\nERR:          0\n";
        let count = |row, cpu| count_of_cpu(table, row, cpu);
        assert_eq!((count("CAL", 0), count("CAL", 2)), (Some(2_597_322), Some(2_615_028)));
        // No such row (aarch64 calls them IPI0 and so on), no such CPU, a row without CPUs.
        assert_eq!((count("TLB", 0), count("RES", 1), count("ERR", 2)), (None, None, None));
        assert_eq!(
            (count_of_cpu("", "CAL", 0), count_of_cpu("CPU0\nCAL: x\n", "CAL", 0)),
            (None, None)
        );
    }

    #[test]
    fn counts_of_a_network_are_read_by_their_names() {
        let text = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: MaxConn InSegs RetransSegs\n\
                    Tcp: -1 28 780986\nUdp: InDatagrams\nUdp: 5\n";
        assert_eq!(snmp(text, "Tcp", "RetransSegs"), Some(780_986));
        assert_eq!((snmp(text, "Tcp", "OutSegs"), snmp(text, "Tcp", "MaxConn")), (None, None));
        assert_eq!((snmp("Tcp: A\n", "Tcp", "A"), snmp("", "Tcp", "A")), (None, None));
        let devices = "Inter-|   Receive                  |  Transmit\n face |bytes packets errs drop\n    \
                       lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n   lo1:1 2 3 70 5 6 7 8 9 10 11 50 13\n";
        assert_eq!(
            (device_drops(devices, "lo"), device_drops(devices, "lo1")),
            (Some(16), Some(120))
        );
        assert_eq!((device_drops(devices, "eth0"), device_drops("lo: 1 2", "lo")), (None, None));
    }

    #[test]
    fn cpu_one_is_not_cpu_ten() {
        let stat =
            "cpu  1 1 1 1 1 1 1 1 0 0\ncpu10 0 0 0 0 0 9 9 9 0 0\ncpu1 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(cpu_ticks(stat, 1), Some((9, 8)));
        assert_eq!(cpu_ticks(stat, 2), None);
    }

    /// A CPU that slept when it was looked at seemed to have been busy all that time.
    #[test]
    fn a_stretch_that_is_still_open_is_idle_time_too() {
        let at = |now: u64, stopped: u32, nohz_full| {
            let list = format!(
                "now at {now} nsecs\n\ncpu: 0\n  .tick_stopped   : {stopped}\n  .idle_entrytime : \
                 1000 nsecs\n  .idle_sleeptime : 30 nsecs\n  .iowait_sleeptime: 40 nsecs\n"
            );
            idle(&list, 0, nohz_full).map(|Idle { ns, unsure_ns }| (ns, unsure_ns)).unwrap()
        };
        assert_eq!(at(501_000, 1, false), (500_070, 0));
        assert_eq!(idle("now at 5 nsecs\n\ncpu: 1\n  .tick_stopped   : 0\n", 0, false), None);
        // It may be idle or not, and a tick would have ended a longer stretch.
        assert_eq!(at(501_000, 0, false), (70, 500_000));
        assert_eq!(at(10_001_001, 0, false), (70, 0));
        // It may have worked without a tick all the time.
        assert_eq!(at(501_000, 1, true), (70, 500_000));
    }

    #[test]
    fn a_bound_udp_port_is_seen() {
        let list = "   sl  local_address rem_address   st tx_queue rx_queue\n\
                    2219: 0100007F:1F90 00000000:0000 07 00000000:00000000\n";
        assert!(lists_udp_port(list, 8080) && !lists_udp_port(list, 0) && !lists_udp_port("", 1));
    }

    #[test]
    fn times_and_lists_are_read() {
        assert_eq!((run_ns("108 762 12"), run_ns("")), (Some(108), None));
        assert!(["/proc/none", "/proc/version"].iter().all(|path| cpu_list(path).is_empty()));
    }
}
