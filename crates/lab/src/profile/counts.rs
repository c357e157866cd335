//! System calls and completions of a server, counted by the kernel. Unlike counters of the server
//! itself they are of any program, and of the window alone.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Every system call.
const ALL_CALLS: &str = "raw_syscalls:sys_enter";

/// Every completion of io_uring that is posted while one of the process's threads runs.
const COMPLETIONS: &str = "io_uring:io_uring_complete";

/// Ways into io_uring.
const ENTERS: &str = "syscalls:sys_enter_io_uring_enter";

/// What is counted, as far as the kernel has it: all calls, what io_uring completes, and the calls
/// by which network servers differ.
const EVENTS: &[&str] = &[
    ALL_CALLS,
    COMPLETIONS,
    ENTERS,
    "syscalls:sys_enter_epoll_wait",
    "syscalls:sys_enter_epoll_pwait",
    "syscalls:sys_enter_epoll_pwait2",
    "syscalls:sys_enter_epoll_ctl",
    "syscalls:sys_enter_poll",
    "syscalls:sys_enter_ppoll",
    "syscalls:sys_enter_read",
    "syscalls:sys_enter_write",
    "syscalls:sys_enter_readv",
    "syscalls:sys_enter_writev",
    "syscalls:sys_enter_recvfrom",
    "syscalls:sys_enter_sendto",
    "syscalls:sys_enter_recvmsg",
    "syscalls:sys_enter_sendmsg",
    "syscalls:sys_enter_recvmmsg",
    "syscalls:sys_enter_sendmmsg",
    "syscalls:sys_enter_sendfile64",
    "syscalls:sys_enter_splice",
    "syscalls:sys_enter_accept4",
    "syscalls:sys_enter_close",
    "syscalls:sys_enter_futex",
];

/// Where the kernel lists its tracepoints.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];

/// What the kernel counted of a server inside the window of a run of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests answered or packets that came back per second of the window of that run.
    pub units_per_s: f64,
    /// How long was counted. It begins and ends a moment behind the window.
    pub seconds: f64,
    /// How often each event happened, by its name without the part before the colon and without
    /// `sys_enter_`; those that did not happen are left out.
    pub events: BTreeMap<String, u64>,
    /// System calls per unit.
    pub syscalls_per_unit: f64,
    /// Completions per `io_uring_enter`, if there was one.
    pub completions_per_enter: Option<f64>,
    /// System calls per unit as the server counted them itself, over its whole life.
    pub own_syscalls_per_unit: Option<f64>,
    /// Completions per `io_uring_enter` as the server counted them itself, over its whole life.
    pub own_completions_per_enter: Option<f64>,
}

/// The events that this kernel has.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn events() -> Result<Vec<&'static str>, String> {
    let has =
        |directory: &Path, event: &str| directory.join(event.replace(':', "/")).join("id").exists();
    let directory = TRACEFS.iter().map(Path::new).find(|directory| has(directory, ALL_CALLS));
    let directory = directory.ok_or_else(|| {
        "system calls cannot be counted: no tracepoints are to be seen; mount tracefs on \
         /sys/kernel/tracing, as root, on a kernel with CONFIG_FTRACE_SYSCALLS"
            .to_owned()
    })?;
    Ok(EVENTS.iter().copied().filter(|event| has(directory, event)).collect())
}

/// Reads the text that `perf stat -x,` writes: how often each event happened.
pub(super) fn read(text: &str) -> BTreeMap<String, u64> {
    let event = |line: &str| {
        let mut fields = line.split(',');
        let count = fields.next()?.parse().ok()?;
        let name = fields.nth(1)?;
        name.contains(':').then(|| (name.to_owned(), count))
    };
    text.lines().filter_map(event).collect()
}

impl Counts {
    /// How often an event happened per unit.
    pub fn per_unit(&self, event: &str) -> f64 {
        let count = self.events.get(event).copied().unwrap_or(0);
        count as f64 / (self.seconds * self.units_per_s)
    }

    /// Counted for so many seconds, at so many requests or packets per second; nothing if calls
    /// were not counted.
    pub(super) fn of(
        counted: &BTreeMap<String, u64>,
        seconds: f64,
        units_per_s: f64,
        own: [Option<f64>; 2],
    ) -> Option<Counts> {
        let units = seconds * units_per_s;
        let calls = *counted.get(ALL_CALLS)?;
        let count = |name: &str| counted.get(name).copied().unwrap_or(0);
        let enters = count(ENTERS);
        let short = |name: &String| {
            let name = name.split_once(':').map_or(name.as_str(), |(_, name)| name);
            match name {
                "sys_enter" => "all_calls".to_owned(),
                name => name.strip_prefix("sys_enter_").unwrap_or(name).to_owned(),
            }
        };
        let events = counted.iter().filter(|(_, count)| **count > 0);
        let [own_syscalls_per_unit, own_completions_per_enter] = own;
        (units > 0.0).then(|| Counts {
            units_per_s,
            seconds,
            events: events.map(|(name, count)| (short(name), *count)).collect(),
            syscalls_per_unit: calls as f64 / units,
            completions_per_enter: (enters > 0).then(|| count(COMPLETIONS) as f64 / enters as f64),
            own_syscalls_per_unit,
            own_completions_per_enter,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As perf 6.1 writes it.
    const RECORDED: &str = "# started on Sun Nov 22 06:55:04 2026\n\n\
        902,,raw_syscalls:sys_enter,93477873,100.00,,\n\
        21260,,io_uring:io_uring_complete,93467843,100.00,,\n\
        902,,syscalls:sys_enter_io_uring_enter,93467843,100.00,,\n\
        <not counted>,,syscalls:sys_enter_epoll_wait,0,100.00,,\n\
        0,,syscalls:sys_enter_epoll_pwait2,93467843,100.00,,\n";

    #[test]
    fn what_perf_counted_is_read() {
        let counted = read(RECORDED);
        assert_eq!(counted.len(), 4);
        let counts = Counts::of(&counted, 0.5, 42_000.0, [Some(0.05), None]).unwrap();
        assert_eq!(counts.events["all_calls"], 902);
        assert_eq!(counts.events["io_uring_enter"], 902);
        assert_eq!(counts.events.len(), 3);
        assert_eq!(counts.syscalls_per_unit, 902.0 / 21_000.0);
        assert_eq!(counts.completions_per_enter, Some(21_260.0 / 902.0));
        assert_eq!(counts.per_unit("io_uring_enter"), 902.0 / 21_000.0);
        assert_eq!(Counts::of(&counted, 0.5, 0.0, [None; 2]), None);
        assert_eq!(
            Counts::of(&read("<not supported>,,raw_syscalls:sys_enter"), 0.5, 5.0, [None; 2]),
            None
        );
    }

    #[test]
    fn the_events_of_this_kernel_are_found_or_missed_with_advice() {
        match events() {
            Ok(events) => assert_eq!(events[0], ALL_CALLS),
            Err(why) => assert!(why.contains("mount tracefs")),
        }
    }
}
