//! The price list of this machine, measured in seconds.
//!
//! The difference between two engines follows from how often each enters the kernel, notifies
//! another CPU, wakes a thread and copies a byte, and from the cost of each. These costs are a
//! property of the machine, and of its hypervisor if it has one.

mod calls;
mod kernel_counts;
mod list;
mod notification;
mod wakeup;

pub use self::list::{Price, PriceList};

use self::calls::Calls;
use self::list::Samples;
use super::{Layer, Refusal};
use crate::sys::{self, prices::allowed_cpus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Rounds, each of which measures every price once: some 100 ms.
const ROUNDS: u32 = 24;
/// No round begins later than this. On a busy machine a round takes half a second at most.
const ROUNDS_WITHIN: Duration = Duration::from_secs(4);

/// The price list of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// The CPU that sends, wakes and calls, and the one that is notified and woken.
    pub cpus: Vec<usize>,
    /// The number of rounds.
    pub rounds: u32,
    /// How long it took.
    pub seconds: f64,
    /// The prices.
    #[serde(flatten)]
    pub list: PriceList<Price>,
    /// Whether the notifications arrived.
    pub notifications: NotificationCounts,
}

/// Attempts to interrupt the other CPU, and the interrupts of that kind that it received meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NotificationCounts {
    /// Signals to a thread that runs there: rescheduling interrupts.
    pub signals: Counted,
    /// Barriers: function-call interrupts.
    pub barriers: Counted,
    /// Wake-ups of a thread that sleeps there, while it is idle: interrupts of either kind, or none
    /// if the CPU polls.
    pub wake_ups: Counted,
}

/// Two numbers that should be about equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Attempts of this process.
    pub sent: u64,
    /// Counted by the kernel; `None` if it does not show them, or there was no attempt.
    pub interrupts: Option<u64>,
}

impl Counted {
    fn count(&mut self, sent: u64, interrupts: Option<u64>) {
        let before = if self.sent == 0 { Some(0) } else { self.interrupts };
        self.interrupts = before.zip(interrupts).map(|(before, more)| before + more);
        self.sent += sent;
    }
}

impl Prices {
    /// Measures for some seconds on two CPUs: the given ones, or the first two of this process on
    /// different cores. `ring_refused` is the reason if there are no rings.
    ///
    /// Meanwhile the process has a handler for the last real-time signal; the process and the
    /// calling thread are otherwise unchanged.
    ///
    /// # Errors
    /// When a CPU may not be used. A price that cannot be measured has a reason instead.
    pub fn measure(
        cpus: Option<[usize; 2]>,
        ring_refused: Option<&Refusal>,
    ) -> Result<Prices, Refusal> {
        let allowed = allowed_cpus().map_err(|error| {
            let what = format!("the CPUs of this process cannot be listed: {error}");
            Refusal::new(Layer::Seccomp, what, "allow sched_getaffinity in the filter")
        })?;
        let cpus = choose(&allowed, cpus, core_of)?;
        let (here, there) = (cpus[0], cpus.get(1).copied());
        let measured = thread::scope(|scope| {
            // A thread of its own, so that the caller's CPU and policy stay as they are.
            let thread = scope.spawn(|| {
                sys::pin_current_thread(here)?;
                sys::prices::preempt_nobody()?;
                Ok(measure_here(here, there, ring_refused))
            });
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that measures ended")))
        });
        let (list, notifications, rounds, took) = measured.map_err(|error| {
            let what = format!("the measuring thread cannot be bound to CPU {here}: {error}");
            let fix = "allow sched_setaffinity and sched_setscheduler in the seccomp filter";
            Refusal::new(Layer::Seccomp, what, fix)
        })?;
        let list = list.map(Samples::price);
        Ok(Prices { cpus, rounds, seconds: took.as_secs_f64(), list, notifications })
    }
}

type Measured = (PriceList<Samples>, NotificationCounts, u32, Duration);

fn measure_here(here: usize, there: Option<usize>, ring_refused: Option<&Refusal>) -> Measured {
    let began = Instant::now();
    let mut samples = PriceList::<Samples>::default();
    let mut counts = NotificationCounts::default();
    let mut calls = Calls::new(ring_refused);
    let second = there.ok_or_else(|| {
        format!("this process may use CPU {here} only: give it a second one (taskset, cpuset)")
    });
    let mut rounds = 0;
    while rounds < ROUNDS && began.elapsed() < ROUNDS_WITHIN {
        calls.measure(&mut samples);
        match &second {
            Ok(there) => notification::measure(*there, &mut samples, &mut counts),
            Err(why) => {
                samples.notification_busy_ns.add(Err(why.clone()));
                samples.notification_busy_sender_ns.add(Err(why.clone()));
                samples.notification_busy_receiver_ns.add(Err(why.clone()));
            }
        }
        wakeup::measure(here, second.clone(), &mut samples, &mut counts);
        rounds += 1;
    }
    (samples, counts, rounds, began.elapsed())
}

/// Two different allowed CPUs: the requested ones, or the first and the next of another core. One
/// if there is only one.
fn choose(
    allowed: &[usize],
    wanted: Option<[usize; 2]>,
    core_of: impl Fn(usize) -> BTreeSet<usize>,
) -> Result<Vec<usize>, Refusal> {
    if let Some(wanted) = wanted {
        let refuse = |what: String| {
            let fix = format!("choose two of {allowed:?}, or allow others (taskset, cpuset)");
            Err(Refusal::new(Layer::Options, what, fix))
        };
        if let Some(cpu) = wanted.into_iter().find(|cpu| !allowed.contains(cpu)) {
            return refuse(format!("CPU {cpu} was requested, which this process may not use"));
        }
        if wanted[0] == wanted[1] {
            return refuse(format!(
                "CPU {} was requested twice: a CPU cannot notify itself",
                wanted[0]
            ));
        }
        return Ok(wanted.to_vec());
    }
    let Some((&first, others)) = allowed.split_first() else {
        let what = "this process may use no CPU below 8192";
        return Err(Refusal::new(Layer::Resources, what, "give it one (taskset, cpuset)"));
    };
    let siblings = core_of(first);
    let second = others.iter().find(|cpu| !siblings.contains(cpu)).or(others.first());
    Ok([first].into_iter().chain(second.copied()).collect())
}

/// The hardware threads of a CPU's core, if the kernel reports them.
fn core_of(cpu: usize) -> BTreeSet<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let text = fs::read_to_string(path).unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Spins until something is so, for a bounded time. False if that ended first.
fn wait_until(patience: Duration, condition: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > patience {
            return false;
        }
    }
    true
}

/// Why a price is unavailable.
fn said(what: &str, error: &io::Error, fix: &str) -> String {
    format!("{what}: {error}; to permit it: {fix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_of_different_cores_if_there_are() {
        let core_of = |cpu: usize| BTreeSet::from([cpu / 2 * 2, cpu / 2 * 2 + 1]);
        let choose = |allowed: &[usize], wanted| choose(allowed, wanted, core_of);
        assert_eq!(choose(&[0, 1, 2, 3], None).unwrap(), [0, 2]);
        assert_eq!(choose(&[4, 5], None).unwrap(), [4, 5]);
        assert_eq!(choose(&[7], None).unwrap(), [7]);
        assert_eq!(choose(&[0, 1, 2], Some([2, 0])).unwrap(), [2, 0]);
        for (wanted, told) in [([0, 9], "CPU 9"), ([1, 1], "twice")] {
            let refusal = choose(&[0, 1], Some(wanted)).unwrap_err();
            assert!(refusal.what.contains(told) && refusal.fix.contains("[0, 1]"), "{refusal}");
        }
    }

    #[test]
    fn missing_kernel_counters_are_not_counted() {
        let mut counted = Counted::default();
        counted.count(10, Some(11));
        counted.count(10, Some(10));
        assert_eq!(counted, Counted { sent: 20, interrupts: Some(21) });
        counted.count(10, None);
        assert_eq!(counted.interrupts, None);
    }
}
