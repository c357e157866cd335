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

use super::{Sample, median, said};
use crate::sys::{self, prices::Kick};
use rustix::thread::{MembarrierCommand, gettid, membarrier};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

const BUSY: &str = "something else keeps the second CPU busy; stop it, or choose others (--cpus)";
const FILTERED: &str = "allow it in the seccomp filter";

/// From and until when something lasted, in nanoseconds.
type Span = Range<u64>;

fn length(span: &Span) -> f64 {
    (span.end - span.start) as f64
}

/// The observations of the receiver.
struct Seen {
    /// When it did not run.
    gaps: Vec<Span>,
    /// The interval between two clock readings without a disturbance.
    usual_ns: f64,
}

impl Seen {
    /// Reads the clock until `stop` and remembers when it could not.
    fn watch(stop: &AtomicBool) -> Seen {
        let mut last = sys::monotonic_ns();
        let mut next = || {
            let now = sys::monotonic_ns();
            std::mem::replace(&mut last, now)..now
        };
        let readings = (0..CALIBRATION).map(|_| length(&next())).collect();
        let usual_ns = median(readings).unwrap_or_default();
        let mut gaps = Vec::with_capacity(GAPS_MAX);
        while !stop.load(Ordering::Relaxed) {
            let gap = next();
            // An interrupt costs several hundred nanoseconds even on bare metal, a reading some
            // twenty.
            if length(&gap) > usual_ns * 4.0 && gaps.len() < GAPS_MAX {
                gaps.push(gap);
            }
        }
        Seen { gaps, usual_ns }
    }

    /// The loss by the notification that was sent between two times, if the receiver was running.
    fn lost_ns(&self, sent_ns: u64, until_ns: u64) -> Option<f64> {
        let first = self.gaps.partition_point(|gap| gap.end <= sent_ns);
        // A gap begins with the last reading of the clock before it.
        let ran = |gap: &&Span| gap.start as f64 + 2.0 * self.usual_ns >= sent_ns as f64;
        let gap = self.gaps.get(first).filter(ran).filter(|gap| gap.start < until_ns)?;
        Some(length(gap) - self.usual_ns)
    }
}

/// Measures one round, in a thread that is bound to its CPU.
pub(super) fn measure(there: usize) -> Sample {
    let kick = Kick::new();
    let kick = kick.map_err(|error| said("the last real-time signal", error, "do not use it"))?;
    let (stop, thread) = (AtomicBool::new(false), AtomicI32::new(0));
    thread::scope(|scope| {
        let receiver = thread::Builder::new().spawn_scoped(scope, || {
            kick.interrupts_me(true);
            sys::pin_current_thread(there)?;
            thread.store(gettid().as_raw_pid(), Ordering::Release);
            io::Result::Ok(Seen::watch(&stop))
        });
        let receiver = receiver.map_err(|error| said("a thread", error, "raise `ulimit -u`"))?;
        let notified = notify(&kick, &thread);
        stop.store(true, Ordering::Relaxed);
        let seen = receiver.join().map_err(|_| "the receiver ended early".to_owned())?;
        let seen = seen.map_err(|error| format!("CPU {there}: {error}"))?;
        price(&notified?, &seen).ok_or(BUSY.to_owned())
    })
}

/// Notifies the thread: by signals to the sender itself, which interrupt no CPU, by signals, and by
/// barriers.
fn notify(kick: &Kick, thread: &AtomicI32) -> Result<[Vec<Span>; 3], String> {
    let began = Instant::now();
    while thread.load(Ordering::Acquire) == 0 {
        if began.elapsed() > PATIENCE {
            return Err(BUSY.to_owned());
        }
    }
    // Until the receiver is calibrated.
    thread::sleep(Duration::from_millis(1));
    let (me, target) = (gettid().as_raw_pid(), thread.load(Ordering::Acquire));
    kick.interrupts_me(false);
    let unnoticed = repeat(0, || kick.send(me), || kick.take());
    let signals = repeat(SIGNAL_PAUSE_NS, || kick.send(target), || Ok(()));
    let signalled = |error| said("tgkill(2)", error, FILTERED);
    let barrier = |command| move || Ok(membarrier(command)?);
    let registered = barrier(MembarrierCommand::RegisterPrivateExpedited)();
    let barriers = registered
        .and_then(|()| repeat(PAUSE_NS, barrier(MembarrierCommand::PrivateExpedited), || Ok(())));
    Ok([
        unnoticed.map_err(signalled)?,
        signals.map_err(signalled)?,
        barriers.map_err(|error| said("membarrier(2)", error, FILTERED))?,
    ])
}

fn repeat(
    pause_ns: u64,
    mut call: impl FnMut() -> io::Result<()>,
    mut after: impl FnMut() -> io::Result<()>,
) -> io::Result<Vec<Span>> {
    (0..NOTIFICATIONS)
        .map(|_| {
            let began_ns = sys::monotonic_ns();
            call()?;
            let ended_ns = sys::monotonic_ns();
            after()?;
            while sys::monotonic_ns() < ended_ns + pause_ns {}
            Ok(began_ns..ended_ns)
        })
        .collect()
}

/// The cost on both sides. Only those notifications count at which the receiver was running: at least
/// half of them, otherwise another program has its CPU and there is no price.
fn price([unnoticed, signals, barriers]: &[Vec<Span>; 3], seen: &Seen) -> Option<f64> {
    let enough = |met: Vec<f64>| if met.len() < NOTIFICATIONS / 2 { None } else { median(met) };
    let arrived = |sent: &&Span| seen.lost_ns(sent.start, sent.end + SIGNAL_PAUSE_NS).is_some();
    let with = enough(signals.iter().filter(arrived).map(length).collect())?;
    let without = median(unnoticed.iter().map(length).collect())?;
    let lost = |sent: &Span| seen.lost_ns(sent.start, sent.end);
    Some(with - without + enough(barriers.iter().filter_map(lost).collect())?)
}
