//! The soaker: what a CPU could *not* give to it is what everybody else used.
//!
//! A soaker is a process pinned to one CPU under `SCHED_IDLE`, so that it runs exactly when nobody
//! else wants to. It reads the clock in a tight loop. Two successive reads are a few tens of
//! nanoseconds apart while it runs; a longer step means that the CPU was taken away: by a process,
//! by a hard interrupt, by softirq, or by the hypervisor. The sum of those steps is the **busy**
//! time of the CPU.
//!
//! The sum of steps is used rather than the soaker's own CPU time, because many kernels are built
//! without `CONFIG_IRQ_TIME_ACCOUNTING` and then charge an interrupt, with all the network
//! receive work that runs at its end, to the process it happened to interrupt. Here that is the
//! soaker, whose CPU time would hide the very work that has to be counted. Both figures are
//! recorded; where the kernel accounts for interrupts they agree.
//!
//! Every [`PUBLISH_EVERY`] the running total is appended to a memory file that the lab reads after
//! the run, so that the total at the ends of the measured window is found by interpolation and
//! nobody has to be woken while the window is open.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getppid};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use crate::error::LabError;
use crate::net::Place;
use crate::{process, procfs};

/// Two clock reads further apart than this were interrupted. An undisturbed step takes 20-60 ns
/// through the vDSO; the shortest interrupt costs about a microsecond.
const STEP_LIMIT_NS: u64 = 300;

/// The same for a step with two system calls in it, which are the soaker's own work. On a busy CPU
/// it is often they where somebody else gets his turn.
const PUBLISH_LIMIT_NS: u64 = 5_000;

/// How often a soaker that is running publishes its total.
const PUBLISH_EVERY: Duration = Duration::from_millis(2);

/// A soaker stops by itself after this long, whatever happens to the lab.
const LIFETIME: Duration = Duration::from_secs(600);

/// How long a soaker may take to get its first turn.
const START_PATIENCE: Duration = Duration::from_secs(3);

/// How long a soaker may take to get a turn after the run.
const TURN_PATIENCE: Duration = Duration::from_secs(2);

/// The number of the policy in `/proc/PID/stat` (sched(7)).
const SCHED_IDLE: u64 = 5;

/// Bytes of one published record: time and total, both little-endian `u64` nanoseconds.
const RECORD_BYTES: usize = 16;

/// Runs a soaker on `cpu` until the process `parent` is no longer its parent. This is the body of
/// the hidden subcommand; records go to standard output.
///
/// # Errors
/// When the CPU cannot be pinned to, or `SCHED_IDLE` is refused, or standard output fails.
pub(crate) fn soak(cpu: usize, parent: Pid) -> io::Result<ExitCode> {
    let mut only = CpuSet::new();
    only.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &only)?;
    set_thread_priority_and_policy(
        thread_native_id(),
        ThreadPriority::Min,
        ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle),
    )
    .map_err(|error| io::Error::other(format!("SCHED_IDLE refused: {error}")))?;

    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let begin = now_ns()?;
    let deadline = begin + LIFETIME.as_nanos() as u64;
    let mut taken = 0;
    let mut last = begin;
    let mut publish_at = begin;
    let mut limit = STEP_LIMIT_NS;
    loop {
        let now = now_ns()?;
        let step = now - last;
        if step > limit {
            taken += step;
        }
        last = now;
        limit = STEP_LIMIT_NS;
        if now >= publish_at {
            let mut record = [0; RECORD_BYTES];
            record[..8].copy_from_slice(&now.to_le_bytes());
            record[8..].copy_from_slice(&taken.to_le_bytes());
            out.write_all(&record)?;
            if getppid() != parent || now >= deadline {
                return Ok(ExitCode::SUCCESS);
            }
            publish_at = now + PUBLISH_EVERY.as_nanos() as u64;
            limit = PUBLISH_LIMIT_NS;
        }
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds, the clock of every mark and record of a run.
pub(crate) fn now_ns() -> nix::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// A soaker the lab has started. It ends when this is dropped.
pub(crate) struct Soaker {
    cpu: usize,
    child: Child,
    records: File,
}

/// What a soaker saw: its total over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Curve {
    /// Time and total, in nanoseconds, both rising.
    points: Vec<(u64, u64)>,
}

impl Soaker {
    /// Starts a soaker on `cpu` and waits until it runs there under `SCHED_IDLE`.
    ///
    /// # Errors
    /// [`LabError::Soaker`] when it could not be started or does not get going.
    pub(crate) fn start(helper: &[OsString], cpu: usize) -> Result<Soaker, LabError> {
        let failed = |why: String| LabError::Soaker { cpu, why };
        let records = memfd_create(c"soaker", MFdFlags::MFD_CLOEXEC)
            .map(File::from)
            .map_err(|errno| failed(format!("memfd_create: {errno}")))?;
        let out = records.try_clone().map_err(|error| failed(error.to_string()))?;
        let mut words = helper.to_vec();
        words.extend([
            "soak".into(),
            cpu.to_string().into(),
            std::process::id().to_string().into(),
        ]);
        let child = process::spawn(&Place::Here, words, Stdio::from(out))
            .map_err(|error| failed(error.to_string()))?;
        let mut soaker = Soaker { cpu, child, records };
        soaker.wait_until_it_runs()?;
        Ok(soaker)
    }

    fn wait_until_it_runs(&mut self) -> Result<(), LabError> {
        let deadline = Instant::now() + START_PATIENCE;
        while self.curve()?.points.is_empty() {
            if !matches!(self.child.try_wait(), Ok(None)) {
                let mut why = String::new();
                if let Some(stderr) = &mut self.child.stderr {
                    let _ = stderr.take(1024).read_to_string(&mut why);
                }
                return Err(self.failed(why.trim()));
            }
            if Instant::now() >= deadline {
                return Err(self.failed("it does not get a turn: the CPU is never idle"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let stat = procfs::text(&format!("/proc/{}/stat", self.child.id()));
        match stat.as_deref().and_then(procfs::process_stat) {
            Some(stat) if stat.policy == SCHED_IDLE => Ok(()),
            other => Err(self.failed(&format!("it is not under SCHED_IDLE: {other:?}"))),
        }
    }

    /// Everything published so far.
    fn curve(&self) -> Result<Curve, LabError> {
        let mut bytes = Vec::new();
        let mut offset = 0;
        let mut chunk = vec![0; 1 << 16];
        // Not `read_to_end`: the file's position is shared with the soaker that is writing.
        loop {
            let read = self.records.read_at(&mut chunk, offset);
            match read.map_err(|error| self.failed(&error.to_string()))? {
                0 => return Ok(Curve::from_records(&bytes)),
                read => {
                    bytes.extend_from_slice(&chunk[..read]);
                    offset += read as u64;
                }
            }
        }
    }

    /// The curve up to at least `until_ns`. A soaker on a saturated CPU gets its next turn only
    /// when the load has ended; one that gets none at all is not waited for.
    pub(crate) fn curve_until(&self, until_ns: u64) -> Result<Curve, LabError> {
        let deadline = Instant::now() + TURN_PATIENCE;
        loop {
            let curve = self.curve()?;
            let covers = curve.points.last().is_some_and(|(time, _)| *time >= until_ns);
            if covers || Instant::now() >= deadline {
                return Ok(curve);
            }
            thread::sleep(PUBLISH_EVERY);
        }
    }

    fn failed(&self, why: &str) -> LabError {
        LabError::Soaker { cpu: self.cpu, why: why.to_owned() }
    }
}

impl Drop for Soaker {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Curve {
    fn from_records(bytes: &[u8]) -> Curve {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
        let records = bytes.chunks_exact(RECORD_BYTES);
        Curve {
            points: records.map(|record| (number(&record[..8]), number(&record[8..]))).collect(),
        }
    }

    /// Busy nanoseconds between two times of `CLOCK_MONOTONIC`, or nothing when the curve does not
    /// cover them. Between two records the total is taken to rise evenly; while the CPU is busy
    /// throughout, when records are far apart, it does.
    pub(crate) fn busy_ns(&self, start_ns: u64, end_ns: u64) -> Option<f64> {
        Some(self.total_at(end_ns)? - self.total_at(start_ns)?)
    }

    fn total_at(&self, at_ns: u64) -> Option<f64> {
        let after = self.points.partition_point(|(time, _)| *time < at_ns);
        let (time_1, total_1) = *self.points.get(after)?;
        if time_1 == at_ns {
            return Some(total_1 as f64);
        }
        let (time_0, total_0) = *self.points.get(after.checked_sub(1)?)?;
        let share = (at_ns - time_0) as f64 / (time_1 - time_0) as f64;
        Some(total_0 as f64 + share * (total_1 - total_0) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_read_between_its_points() {
        let record = |time: u64, total: u64| [time.to_le_bytes(), total.to_le_bytes()].concat();
        let mut bytes = [record(1000, 0), record(2000, 500), record(4000, 600)].concat();
        // A record that was being written while it was read.
        bytes.extend_from_slice(&[1, 2, 3]);
        let curve = Curve::from_records(&bytes);
        assert_eq!(curve.busy_ns(1000, 2000), Some(500.0));
        assert_eq!(curve.busy_ns(1500, 3000), Some(300.0));
        assert_eq!(curve.busy_ns(4000, 4000), Some(0.0));
        assert_eq!(curve.busy_ns(999, 2000), None);
        assert_eq!(curve.busy_ns(1000, 4001), None);
        assert_eq!(Curve::default().busy_ns(0, 0), None);
    }
}
