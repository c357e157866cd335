//! Counters of the kernel: interrupts between CPUs, and idle time.

use crate::sys;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Interrupts that one CPU received from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interrupts {
    /// To call a function: row CAL on x86.
    pub(super) function_call: u64,
    /// For its run queue, or for signals of the running thread: row RES on x86.
    pub(super) reschedule: u64,
}

impl Interrupts {
    /// `None` if the kernel does not show them.
    pub(super) fn of(cpu: usize) -> Option<Interrupts> {
        Interrupts::find(&fs::read_to_string("/proc/interrupts").ok()?, cpu)
    }

    fn find(text: &str, cpu: usize) -> Option<Interrupts> {
        // Only CPUs that are online have a column.
        let name = format!("CPU{cpu}");
        let column = text.lines().next()?.split_ascii_whitespace().position(|it| it == name)?;
        // The first word differs by architecture, the description does not.
        let row = |description: &str| {
            let line = text.lines().find(|line| line.ends_with(description))?;
            line.split_ascii_whitespace().nth(column + 1)?.parse().ok()
        };
        Some(Interrupts {
            function_call: row("Function call interrupts")?,
            reschedule: row("Rescheduling interrupts")?,
        })
    }
}

/// The idle time of a CPU, from /proc/stat.
///
/// The kernel counts nanoseconds (get_idle_time of fs/proc/stat.c) and shows whole ticks of 10 ms.
/// The moment at which a tick is added gives the exact value.
pub(super) struct IdleClock {
    stat: File,
    line: String,
    text: Vec<u8>,
    tick_ns: u64,
}

/// How long an idle CPU is waited for until it has been idle for another tick of 10 ms.
const PATIENCE: Duration = Duration::from_millis(50);
/// For /proc/stat: more than 1,000 CPUs, whose lines come first.
const STAT_BYTES: usize = 128 * 1024;

impl IdleClock {
    pub(super) fn of(cpu: usize) -> Option<IdleClock> {
        let stat = File::open("/proc/stat").ok()?;
        let tick_ns = sys::prices::clock_tick_ns();
        Some(IdleClock { stat, line: format!("\ncpu{cpu} "), text: vec![0; STAT_BYTES], tick_ns })
    }

    /// Waits until a tick is added. Returns when that was and the idle time then.
    pub(super) fn edge(&mut self) -> Option<(Instant, Duration)> {
        let began = Instant::now();
        let before = self.ticks()?;
        while began.elapsed() < PATIENCE {
            let ticks = self.ticks()?;
            if ticks != before {
                return Some((Instant::now(), Duration::from_nanos(ticks * self.tick_ns)));
            }
        }
        None
    }

    fn ticks(&mut self) -> Option<u64> {
        let bytes = self.stat.read_at(&mut self.text, 0).ok()?;
        let text = std::str::from_utf8(&self.text[..bytes]).ok()?;
        let at = text.find(&self.line)? + self.line.len();
        let mut numbers =
            text[at..].split_ascii_whitespace().skip(3).map_while(|it| it.parse().ok());
        // Idle, and waiting for a disk, which is idle time as well.
        Some(numbers.next().unwrap_or(0u64) + numbers.next().unwrap_or(0u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_found_by_their_description() {
        let x86 = "           CPU0       CPU2       \n  1:  4  5  IO-APIC  1-edge  i8042\n\
                   RES:         10         20   Rescheduling interrupts\n\
                   CAL:        300        400   Function call interrupts\n";
        let found = Interrupts::find(x86, 2);
        assert_eq!(found, Some(Interrupts { function_call: 400, reschedule: 20 }));
        let arm = "       CPU0 CPU1\nIPI0:  1  2   Rescheduling interrupts\n\
                   IPI1:  3  4   Function call interrupts\n";
        assert_eq!(Interrupts::find(arm, 1).unwrap().function_call, 4);
        assert_eq!(Interrupts::find(x86, 1), None);
        assert_eq!(Interrupts::find("", 0), None);
    }
}
