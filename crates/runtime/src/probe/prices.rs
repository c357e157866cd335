//! The prices of this machine: a system call, a notification, a wake-up.
//!
//! The difference between two engines follows from how often each enters the kernel, notifies
//! another CPU and wakes a thread, and from the cost of each. These costs are a property of the
//! machine, and of its hypervisor if it has one.

mod notification;

use super::{Layer, Refusal};
use crate::sys;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Rounds, each of which measures every price once.
const ROUNDS: usize = 24;
/// No round begins later than this. On a busy machine a round takes half a second at most.
const ROUNDS_WITHIN: Duration = Duration::from_secs(4);
/// Fewest rounds for an interval of 95 %.
const ROUNDS_MIN: usize = 6;

/// The prices, and what each is for.
pub const PRICES: [(&str, &str); 3] = [
    ("syscall_ns", "a system call that does nothing"),
    ("notification_busy_ns", "notifying a busy CPU, both sides"),
    ("wakeup_ns", "waking a thread of the same CPU"),
];

/// The prices of a machine, in nanoseconds of CPU time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prices {
    /// The CPU that sends, wakes and calls, and the one that is notified.
    pub cpus: Vec<usize>,
    /// The number of rounds.
    pub rounds: usize,
    /// How long it took.
    pub seconds: f64,
    /// By their names in [`PRICES`].
    #[serde(flatten)]
    pub list: BTreeMap<&'static str, Price>,
}

/// A price with the 95 % interval of its median, or why it is unavailable.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Price {
    /// It was measured.
    Measured {
        /// Median of the rounds.
        median: f64,
        /// Lower end of the interval.
        low: f64,
        /// Upper end of the interval.
        high: f64,
    },
    /// It could not be.
    Unavailable {
        /// The reason, and the fix.
        #[serde(rename = "unavailable")]
        why: String,
    },
}

/// One price in one round, or why there is none.
type Sample = Result<f64, String>;

impl Prices {
    /// Measures for some seconds on two CPUs: the given ones, or the first two of this process on
    /// different cores.
    ///
    /// Meanwhile the process has a handler for the last real-time signal; the process and the
    /// calling thread are otherwise unchanged. Fails when a CPU may not be used. A price that
    /// cannot be measured has a reason instead.
    pub fn measure(cpus: Option<[usize; 2]>) -> Result<Prices, Refusal> {
        let refuse = |error| {
            let what = format!("no thread can be bound to a CPU: {error}");
            let fix = "allow the sched_* calls in the seccomp filter";
            Refusal::new(Layer::Seccomp, what, fix)
        };
        let allowed = sched_getaffinity(None).map_err(|error| refuse(error.into()))?;
        let cpus = choose(allowed, cpus)?;
        let (here, there) = (cpus[0], cpus.get(1).copied());
        let began = Instant::now();
        // A thread of its own, so that the caller's CPU and policy stay as they are. Threads that it
        // starts inherit both.
        let started = thread::Builder::new().spawn(move || {
            sys::pin_current_thread(here)?;
            sys::prices::preempt_nobody()?;
            Ok(measure_rounds(here, there, began))
        });
        let measured = started.map_err(refuse)?.join();
        let measured = measured.unwrap_or_else(|_| Err(io::Error::other("a thread has ended")));
        let samples = measured.map_err(refuse)?;
        let (rounds, seconds) = (samples[0].len(), began.elapsed().as_secs_f64());
        let names = PRICES.iter().map(|(name, _)| *name);
        let list = names.zip(samples.map(Price::of)).collect();
        Ok(Prices { cpus, rounds, seconds, list })
    }
}

impl Price {
    /// The median of the rounds and, as its interval, two of the ordered values such that the true
    /// median is outside with at most 5 % (the inverted sign test): no distribution is assumed. Differences
    /// may be negative in a round; without those, a price of zero would become positive.
    fn of(samples: Vec<Sample>) -> Price {
        let reason = samples.iter().find_map(|sample| sample.clone().err());
        let mut values: Vec<f64> = samples.into_iter().flatten().collect();
        if values.len() < ROUNDS_MIN {
            return Price::Unavailable { why: reason.unwrap_or("too little time".to_owned()) };
        }
        values.sort_by(f64::total_cmp);
        let outermost = outermost(values.len());
        let (low, high) = (values[outermost], values[values.len() - 1 - outermost]);
        let median = median(values).unwrap_or_default();
        if low > 0.0 && high.is_finite() {
            return Price::Measured { median, low, high };
        }
        let why = format!("below the detection limit: {median:.0} ns [{low:.0}, {high:.0}]");
        Price::Unavailable { why }
    }
}

/// How many values may be left out at either end.
fn outermost(count: usize) -> usize {
    // P(X <= k) of a binomial distribution with p = 1/2, term by term.
    let (mut term, mut below) = (0.5f64.powi(count as i32), 0.0);
    let may_be_left_out = |k: &usize| {
        below += term;
        term *= (count - k) as f64 / (k + 1) as f64;
        below <= 0.025
    };
    (0..count).take_while(may_be_left_out).count().saturating_sub(1)
}

/// The median of the values of one round; `None` if there are none.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    Some(f64::midpoint(*values.get(count.checked_sub(1)? / 2)?, *values.get(count / 2)?))
}

fn measure_rounds(here: usize, there: Option<usize>, began: Instant) -> [Vec<Sample>; 3] {
    let mut samples: [Vec<Sample>; 3] = Default::default();
    let second = there.ok_or_else(|| {
        format!("this process may use CPU {here} only: give it a second one (taskset, cpuset)")
    });
    while samples[0].len() < ROUNDS && began.elapsed() < ROUNDS_WITHIN {
        samples[0].push(Ok(syscall()));
        samples[1].push(second.clone().and_then(notification::measure));
        samples[2].push(wakeup());
    }
    samples
}

/// Calls of a batch, and batches of a round: some 100 us each.
const CALLS: u32 = 500;
const BATCHES: usize = 5;
/// Wake-ups of a round.
const WAKE_UPS: u32 = 200;

fn syscall() -> f64 {
    let batch = |_| {
        let started = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(rustix::process::getpid());
        }
        started.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    median((0..BATCHES).map(batch).collect()).unwrap_or_default()
}

/// Two threads of this CPU wake each other in turn and sleep in a read of an eventfd, like the
/// workers of the runtime: two wake-ups, two switches, two writes and two reads. The cost of write
/// and read without a sleeper is subtracted. Neither preempts the other; otherwise the number of
/// switches would be random.
fn wakeup() -> Sample {
    let make = || {
        let made = eventfd(0, EventfdFlags::CLOEXEC);
        made.map_err(|error| said("an eventfd", error.into(), "raise `ulimit -n`"))
    };
    let (bell, answer) = (make()?, make()?);
    let turn = |rung: &OwnedFd, awaited: &OwnedFd| {
        sys::eventfd_signal(rung.as_fd());
        sys::eventfd_clear(awaited.as_fd());
    };
    let time = |awaited: &OwnedFd| {
        let times = (0..WAKE_UPS).map(|_| {
            let began = Instant::now();
            turn(&bell, awaited);
            began.elapsed().as_nanos() as f64
        });
        median(times.collect()).unwrap_or_default()
    };
    let unslept_ns = time(&bell);
    thread::scope(|scope| {
        let sleeper = thread::Builder::new().spawn_scoped(scope, || {
            sys::eventfd_clear(bell.as_fd());
            (1..WAKE_UPS).for_each(|_| turn(&answer, &bell));
            sys::eventfd_signal(answer.as_fd());
        });
        sleeper.map_err(|error| said("a thread", error, "raise `ulimit -u`"))?;
        Ok(time(&answer) / 2.0 - unslept_ns)
    })
}

/// Two different ones of the allowed CPUs: the requested ones, or the first and the next of another
/// core. One if there is only one.
fn choose(allowed: CpuSet, wanted: Option<[usize; 2]>) -> Result<Vec<usize>, Refusal> {
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if let Some(wanted) = wanted {
        if wanted[0] != wanted[1] && wanted.iter().all(|cpu| allowed.contains(cpu)) {
            return Ok(wanted.to_vec());
        }
        let what = format!("CPUs {wanted:?} were requested, not two that this process may use");
        let fix = format!("choose two of {allowed:?}, or allow others (taskset, cpuset)");
        return Err(Refusal::new(Layer::Options, what, fix));
    }
    // Its hardware threads, if the kernel reports them.
    let core_of = |cpu: &usize| {
        let cpu = format!("/sys/devices/system/cpu/cpu{cpu}");
        fs::read_to_string(cpu + "/topology/thread_siblings_list").ok()
    };
    let others = &allowed[1..];
    let second = others.iter().find(|cpu| core_of(cpu) != core_of(&allowed[0]));
    Ok(allowed[..1].iter().chain(second.or(others.first())).copied().collect())
}

fn said(what: &str, error: io::Error, fix: &str) -> String {
    format!("{what}: {error}; to permit it: {fix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_that_of_the_sign_test() {
        // The critical values of the two-sided sign test at 5 %.
        for (count, left_out) in [(6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (17, 4), (20, 5)] {
            assert_eq!(outermost(count), left_out, "{count}");
        }
        let of = |values: &[f64]| Price::of(values.iter().copied().map(Ok).collect());
        let measured = of(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
        assert_eq!(measured, Price::Measured { median: 5.0, low: 2.0, high: 8.0 });
        let why = |why: &str| Price::Unavailable { why: why.to_owned() };
        assert_eq!(of(&[1.0; 5]), why("too little time"));
        let around = [-2.0, -1.0, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(of(&around), why("below the detection limit: 2 ns [-2, 4]"));
        assert_eq!(Price::of(vec![Err("no CPU".to_owned()); 9]), why("no CPU"));
    }
}
