//! The price of notifying a busy CPU.
//!
//! A network stack that leaves packets to another CPU (net_rps_send_ipi, net/core/dev.c) calls
//! smp_call_function_single_async: it queues a function, writes to the interrupt controller and
//! continues. No system call does exactly that, so sender and receiver are measured with two calls
//! that contain it:
//!
//! - **The sender** sends a signal to a thread that runs on the other CPU. The kernel marks the
//!   signal and kicks that CPU (kick_process, kernel/sched/core.c): a write to the interrupt
//!   controller as above, of another vector (row RES of /proc/interrupts), without waiting. The
//!   same signal, blocked, to the sender itself takes the same path without the kick.
//! - **The receiver** is interrupted by membarrier(2), PRIVATE_EXPEDITED: a function call (row CAL)
//!   to every CPU that runs this process, of a function that is one instruction (ipi_mb,
//!   kernel/sched/membarrier.c). The sender waits for the calls, so its time is not a price of
//!   sending. The receiver measures its own loss by reading the clock continuously.
//!
//! Verified with real packets: frames on a loopback device that RPS steers to the other CPU, which
//! is busy, and that no program receives. Their cost on both CPUs together, less that on one, was
//! 10.5 us where this method gives 10.2 (virtual machine, Linux 6.18).

use super::list::{PriceList, Samples, median};
use super::{Counted, NotificationCounts, kernel_counts::Interrupts, said, wait_until};
use crate::sys::{self, prices as call};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

/// Notifications of either kind in a round.
const NOTIFICATIONS: usize = 200;
/// Pause between two of them, so that the receiver has continued before the next. Signals take
/// longer: they run a handler of the thread.
const PAUSE_NS: u64 = 5_000;
const SIGNAL_PAUSE_NS: u64 = 20_000;
/// Longest wait for the receiver to start.
const PATIENCE: Duration = Duration::from_millis(50);
/// Clock readings that calibrate the receiver's undisturbed interval.
const CALIBRATION: usize = 2_000;
/// Most interruptions that are remembered.
const GAPS_MAX: usize = 8_192;

/// A time in which the receiver did not run.
#[derive(Clone, Copy)]
struct Gap {
    began_ns: u64,
    ended_ns: u64,
}

/// The observations of the receiver.
#[derive(Default)]
struct Seen {
    gaps: Vec<Gap>,
    /// The interval between two clock readings without a disturbance.
    usual_ns: f64,
}

impl Seen {
    /// The loss by the notification that was sent between two times, if the receiver was running.
    fn lost_ns(&self, sent_ns: u64, until_ns: u64) -> Option<f64> {
        let first = self.gaps.partition_point(|gap| gap.ended_ns <= sent_ns);
        // A gap begins with the last reading of the clock before it.
        let ran = |gap: &&Gap| gap.began_ns as f64 + 2.0 * self.usual_ns >= sent_ns as f64;
        let gap = self.gaps.get(first).filter(ran).filter(|gap| gap.began_ns < until_ns)?;
        Some((gap.ended_ns - gap.began_ns) as f64 - self.usual_ns)
    }
}

/// Reads the clock until `stop` and remembers when it could not.
fn watch(stop: &AtomicBool) -> Seen {
    let mut readings = Vec::with_capacity(CALIBRATION);
    let mut last = sys::monotonic_ns();
    let mut next = || {
        let now = sys::monotonic_ns();
        let gap = Gap { began_ns: last, ended_ns: now };
        last = now;
        gap
    };
    for _ in 0..CALIBRATION {
        let gap = next();
        readings.push((gap.ended_ns - gap.began_ns) as f64);
    }
    let usual_ns = median(readings).unwrap_or_default();
    // An interrupt costs several hundred nanoseconds even on bare metal, a reading some twenty.
    let unusual_ns = (usual_ns * 4.0) as u64;
    let mut gaps = Vec::with_capacity(GAPS_MAX);
    while !stop.load(Ordering::Relaxed) {
        let gap = next();
        if gap.ended_ns - gap.began_ns > unusual_ns && gaps.len() < GAPS_MAX {
            gaps.push(gap);
        }
    }
    Seen { gaps, usual_ns }
}

/// A call with the times before and after it.
struct Sent {
    began_ns: u64,
    ended_ns: u64,
}

impl Sent {
    fn took_ns(&self) -> f64 {
        (self.ended_ns - self.began_ns) as f64
    }
}

fn send(
    pause_ns: u64,
    mut call: impl FnMut() -> std::io::Result<()>,
    mut after: impl FnMut() -> std::io::Result<()>,
) -> std::io::Result<Vec<Sent>> {
    (0..NOTIFICATIONS)
        .map(|_| {
            let began_ns = sys::monotonic_ns();
            call()?;
            let ended_ns = sys::monotonic_ns();
            after()?;
            while sys::monotonic_ns() < ended_ns + pause_ns {}
            Ok(Sent { began_ns, ended_ns })
        })
        .collect()
}

/// Measures one round, in a thread that is bound to its CPU.
pub(super) fn measure(
    there: usize,
    samples: &mut PriceList<Samples>,
    counts: &mut NotificationCounts,
) {
    let (stop, thread) = (AtomicBool::new(false), AtomicI32::new(0));
    let round = call::Kick::new()
        .map_err(|error| said("the last real-time signal", &error, "leave it unused"))
        .and_then(|kick| {
            thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    kick.interrupts_me(true);
                    let bound = sys::pin_current_thread(there);
                    thread.store(call::thread_id(), Ordering::Release);
                    bound.map(|()| watch(&stop))
                });
                let sent = notify(there, &kick, &thread, counts);
                stop.store(true, Ordering::Relaxed);
                let seen = receiver.join().map_err(|_| "the receiver ended early".to_owned())?;
                let seen = seen.map_err(|error| error.to_string())?;
                sent.and_then(|sent| prices(&sent, &seen, there))
            })
        });
    let (sender, receiver) = match round {
        Ok((sender, receiver)) => (sender, receiver),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    let sum = sender.clone().and_then(|sender| Ok(sender + receiver.clone()?));
    samples.notification_busy_ns.add(sum);
    samples.notification_busy_sender_ns.add(sender);
    samples.notification_busy_receiver_ns.add(receiver);
}

/// The attempts of a round.
struct Round {
    /// Signals to the sender itself, which interrupt no CPU.
    unnoticed: Result<Vec<Sent>, String>,
    signals: Result<Vec<Sent>, String>,
    barriers: Result<Vec<Sent>, String>,
}

fn notify(
    there: usize,
    kick: &call::Kick,
    thread: &AtomicI32,
    counts: &mut NotificationCounts,
) -> Result<Round, String> {
    if !wait_until(PATIENCE, || thread.load(Ordering::Acquire) != 0) {
        return Err(busy(there));
    }
    // Until the receiver is calibrated.
    thread::sleep(Duration::from_millis(1));
    let target = thread.load(Ordering::Acquire);
    let tgkill = |error| said("tgkill(2)", &error, "allow it in the seccomp filter");
    kick.interrupts_me(false);
    let me = call::thread_id();
    let unnoticed = send(0, || kick.send(me), || kick.take()).map_err(tgkill);
    let before = Interrupts::of(there);
    let signals = send(SIGNAL_PAUSE_NS, || kick.send(target), || Ok(())).map_err(tgkill);
    let between = Interrupts::of(there);
    let barriers = call::register_barrier()
        .and_then(|()| send(PAUSE_NS, call::barrier, || Ok(())))
        .map_err(|error| {
            said(
                "membarrier(2)",
                &error,
                "allow it in the seccomp filter, or run Linux 4.14 or newer",
            )
        });
    let after = Interrupts::of(there);
    let rise = |from: Option<Interrupts>, to: Option<Interrupts>, of: fn(Interrupts) -> u64| {
        Some(of(to?).saturating_sub(of(from?)))
    };
    counts.signals.add(&signals, rise(before, between, |counts| counts.reschedule));
    counts.barriers.add(&barriers, rise(between, after, |counts| counts.function_call));
    Ok(Round { unnoticed, signals, barriers })
}

impl Counted {
    fn add(&mut self, sent: &Result<Vec<Sent>, String>, interrupts: Option<u64>) {
        let sent = sent.as_ref().map_or(0, Vec::len) as u64;
        self.count(sent, interrupts);
    }
}

type SenderAndReceiver = (Result<f64, String>, Result<f64, String>);

fn prices(round: &Round, seen: &Seen, there: usize) -> Result<SenderAndReceiver, String> {
    // Only those count at which the receiver was running: at least half of them, otherwise another
    // program has its CPU.
    let enough = |met: Vec<f64>| {
        let half = met.len() >= NOTIFICATIONS / 2;
        median(met).filter(|_| half).ok_or_else(|| busy(there))
    };
    let sender = round.signals.as_ref().map_err(Clone::clone).and_then(|signals| {
        let arrived =
            |sent: &&Sent| seen.lost_ns(sent.began_ns, sent.ended_ns + SIGNAL_PAUSE_NS).is_some();
        let with = enough(signals.iter().filter(arrived).map(Sent::took_ns).collect())?;
        let without = round.unnoticed.as_ref().map_err(Clone::clone)?;
        let without = median(without.iter().map(Sent::took_ns).collect());
        Ok(with - without.ok_or_else(|| busy(there))?)
    });
    let receiver = round.barriers.as_ref().map_err(Clone::clone).and_then(|barriers| {
        let lost = |sent: &Sent| seen.lost_ns(sent.began_ns, sent.ended_ns);
        enough(barriers.iter().filter_map(lost).collect())
    });
    Ok((sender, receiver))
}

fn busy(cpu: usize) -> String {
    format!("something else keeps CPU {cpu} busy; stop it, or choose another one with --cpus")
}
