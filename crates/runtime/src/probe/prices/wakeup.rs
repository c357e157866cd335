//! The prices of sleeping and waking: on the same CPU, and on another, idle one.
//!
//! Threads sleep in a read of an eventfd and are woken by a write, like the workers of the runtime.
//! The cost of write and read without a sleeper is subtracted.
//!
//! A thread that is woken on another, idle CPU is put on a list of that CPU, which is notified by a
//! function-call interrupt (ttwu_queue_wakelist, kernel/sched/core.c), as by the network stack. So
//! the price of notifying an idle CPU is the cost of a wake-up there, on both CPUs together, less
//! that of a wake-up on one. A CPU that polls while it is idle is not interrupted: then this is the
//! cost of the other way to notify it.

use super::kernel_counts::{IdleClock, Interrupts};
use super::list::{PriceList, Samples, median};
use super::{NotificationCounts, said, wait_until};
use crate::sys::{self, prices as call};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Wake-ups on the same CPU in a round.
const WAKE_UPS: usize = 200;
/// How long the other CPU is woken in a round.
const WINDOW: Duration = Duration::from_millis(60);
/// Between two wake-ups there, so that it is idle before the next.
const PAUSE_NS: u64 = 30_000;
/// Longest wait for a thread that was woken.
const PATIENCE: Duration = Duration::from_millis(50);

/// The cost without a sleeper: a write, and write and read together.
struct Unslept {
    write_ns: f64,
    both_ns: f64,
}

fn timed(
    count: usize,
    mut write: impl FnMut(),
    mut read: impl FnMut(),
) -> Result<(f64, f64), String> {
    let times: Vec<_> = (0..count)
        .map(|_| {
            let began = sys::monotonic_ns();
            write();
            let written = sys::monotonic_ns();
            read();
            ((written - began) as f64, (sys::monotonic_ns() - began) as f64)
        })
        .collect();
    let (writes, both) = times.into_iter().unzip();
    let nothing = || "no call was made".to_owned();
    Ok((median(writes).ok_or_else(nothing)?, median(both).ok_or_else(nothing)?))
}

fn failed(error: &io::Error) -> String {
    said("an eventfd", error, "raise `ulimit -n`, or allow the call in the seccomp filter")
}

fn unslept() -> Result<Unslept, String> {
    let fd = call::sleeping_eventfd().map_err(|error| failed(&error))?;
    let (write_ns, both_ns) =
        timed(WAKE_UPS, || sys::eventfd_signal(fd.as_fd()), || call::eventfd_wait(fd.as_fd()))?;
    Ok(Unslept { write_ns, both_ns })
}

/// A thread that sleeps until it is woken, and records when it ran.
struct Sleeper {
    bell: OwnedFd,
    answer: OwnedFd,
    end: AtomicBool,
    /// When it last ran, CLOCK_MONOTONIC.
    ran_ns: AtomicU64,
}

impl Sleeper {
    fn new() -> io::Result<Sleeper> {
        let (bell, answer) = (call::sleeping_eventfd()?, call::sleeping_eventfd()?);
        Ok(Sleeper { bell, answer, end: AtomicBool::new(false), ran_ns: AtomicU64::new(0) })
    }

    fn wake(&self) {
        sys::eventfd_signal(self.bell.as_fd());
    }

    fn sleep(&self) {
        call::eventfd_wait(self.bell.as_fd());
    }

    /// Runs `measure` while a thread calls `each` whenever it is woken.
    fn with<R>(
        &self,
        prepare: impl FnOnce() -> io::Result<()> + Send,
        each: impl Fn() + Sync,
        measure: impl FnOnce() -> Result<R, String>,
    ) -> Result<R, String> {
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                prepare()?;
                self.ran_ns.store(sys::monotonic_ns(), Ordering::Release);
                loop {
                    self.sleep();
                    if self.end.load(Ordering::Acquire) {
                        return Ok(());
                    }
                    each();
                }
            });
            // Not by its clock alone: the preparation may have failed.
            let started = || self.ran_ns.load(Ordering::Acquire) != 0 || sleeper.is_finished();
            let ready = wait_asleep(started);
            let measured = match ready && !sleeper.is_finished() {
                true => measure(),
                false => Err("its thread did not start".to_owned()),
            };
            self.end.store(true, Ordering::Release);
            self.wake();
            let ended: Result<(), io::Error> =
                sleeper.join().map_err(|_| "its thread ended early".to_owned())?;
            ended.map_err(|error| error.to_string())?;
            measured
        })
    }
}

/// As [`wait_until`], for a condition that another thread of this CPU brings about.
fn wait_asleep(condition: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_micros(50));
    }
    // And is asleep.
    thread::sleep(Duration::from_micros(200));
    true
}

/// Measures one round, in a thread that is bound to `here` and does not preempt others.
pub(super) fn measure(
    here: usize,
    there: Result<usize, String>,
    samples: &mut PriceList<Samples>,
    counts: &mut NotificationCounts,
) {
    let base = unslept();
    let same = base.as_ref().map_err(Clone::clone).and_then(|base| same_cpu(here, base));
    samples.wakeup_ns.add(same.clone());
    let other = base.and_then(|base| Ok((other_cpu(there?, counts)?, base)));
    match other {
        Ok((other, base)) => {
            samples.wakeup_latency_ns.add(Ok(other.latency_ns));
            let sender = other.write_ns - base.write_ns;
            let reads = base.both_ns - base.write_ns;
            let receiver = same.map(|same| other.busy_ns - reads - same);
            let sum = receiver.clone().map(|receiver| sender + receiver);
            samples.notification_idle_ns.add(sum);
            samples.notification_idle_sender_ns.add(Ok(sender));
            samples.notification_idle_receiver_ns.add(receiver);
        }
        Err(why) => {
            for price in [
                &mut samples.wakeup_latency_ns,
                &mut samples.notification_idle_ns,
                &mut samples.notification_idle_sender_ns,
                &mut samples.notification_idle_receiver_ns,
            ] {
                price.add(Err(why.clone()));
            }
        }
    }
}

/// Two threads of one CPU wake each other in turn and sleep: two wake-ups, two switches, two writes
/// and two reads. Neither preempts the other; otherwise the number of switches would be random.
fn same_cpu(here: usize, base: &Unslept) -> Result<f64, String> {
    let pair = Sleeper::new().map_err(|error| failed(&error))?;
    let answer = pair.answer.as_fd();
    let (_, both_ns) = pair.with(
        || sys::pin_current_thread(here).and_then(|()| call::preempt_nobody()),
        || sys::eventfd_signal(answer),
        || timed(WAKE_UPS, || pair.wake(), || call::eventfd_wait(answer)),
    )?;
    Ok(both_ns / 2.0 - base.both_ns)
}

struct OtherCpu {
    /// The waker's call.
    write_ns: f64,
    /// From the begin of that call until the thread runs.
    latency_ns: f64,
    /// The busy time of the other CPU for one wake-up.
    busy_ns: f64,
}

fn other_cpu(there: usize, counts: &mut NotificationCounts) -> Result<OtherCpu, String> {
    let sleeper = Sleeper::new().map_err(|error| failed(&error))?;
    sleeper.with(
        || sys::pin_current_thread(there),
        || sleeper.ran_ns.store(sys::monotonic_ns(), Ordering::Release),
        || wake_other_cpu(there, &sleeper, counts),
    )
}

fn wake_other_cpu(
    there: usize,
    sleeper: &Sleeper,
    counts: &mut NotificationCounts,
) -> Result<OtherCpu, String> {
    let mut idle = IdleClock::of(there);
    let mut edge = || idle.as_mut().and_then(IdleClock::edge);
    let (mut writes, mut latencies) = (Vec::new(), Vec::new());
    let before = (edge(), Interrupts::of(there));
    let began = Instant::now();
    while began.elapsed() < WINDOW {
        let rung = sys::monotonic_ns();
        sleeper.wake();
        let written = sys::monotonic_ns();
        let ran = || sleeper.ran_ns.load(Ordering::Acquire) >= rung;
        if !wait_until(PATIENCE, ran) {
            return Err(format!("something else keeps CPU {there} busy; stop it"));
        }
        writes.push((written - rung) as f64);
        latencies.push((sleeper.ran_ns.load(Ordering::Acquire) - rung) as f64);
        let asleep = sys::monotonic_ns() + PAUSE_NS;
        while sys::monotonic_ns() < asleep {}
    }
    let after = (Interrupts::of(there), edge());
    let count = writes.len() as u64;
    let interrupts = before.1.zip(after.0).map(|(before, after)| {
        let rise = |of: fn(Interrupts) -> u64| of(after).saturating_sub(of(before));
        rise(|counts| counts.function_call) + rise(|counts| counts.reschedule)
    });
    counts.wake_ups.count(count, interrupts);
    let Some(((began, idle), (ended, idle_then))) = before.0.zip(after.1) else {
        return Err(format!(
            "CPU {there} has no idle time by /proc/stat; stop the program that uses it"
        ));
    };
    let busy = (ended - began).saturating_sub(idle_then.saturating_sub(idle));
    let busy_ns = busy.as_nanos() as f64 / count as f64;
    let of = |times| median(times).ok_or_else(|| "no thread was woken".to_owned());
    Ok(OtherCpu { write_ns: of(writes)?, latency_ns: of(latencies)?, busy_ns })
}
