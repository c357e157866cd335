//! The thread that conducts the workers: it decides when the window begins and ends, informs the
//! observer, and ends the run early if requested.

use super::control::{Control, Note, ThreadProgress};
use super::{Observer, Phase, Progress, Stopper};
use crate::settings::Common;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use twinring::measure::monotonic_ns;
use twinring_input::cgroup::CpuQuota;
use twinring_wire::load::{WINDOW_END, WINDOW_START};

/// From the decision to begin until the traffic begins: time for all threads to hear of it.
const MARGIN_NS: u64 = 10_000_000;

/// How often a reason to end is looked for, and the observer informed.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

struct Conductor<'a> {
    common: &'a Common,
    control: &'a Control,
    heard: Receiver<Note>,
    stopper: &'a Stopper,
    observer: &'a mut dyn Observer,
    ready: u32,
    opened: u64,
    /// Threads without a connection.
    deserted: u32,
    /// All requests were answered, or all threads have ended.
    over: bool,
}

/// Accompanies the workers through the run, up to the end of the window. Returns what a quota did inside it.
pub(super) fn conduct(
    common: &Common,
    control: &Control,
    heard: Receiver<Note>,
    stopper: &Stopper,
    observer: &mut dyn Observer,
) -> CpuQuota {
    let (ready, opened, deserted, over) = (0, 0, 0, false);
    Conductor { common, control, heard, stopper, observer, ready, opened, deserted, over }.conduct()
}

impl Conductor<'_> {
    fn conduct(&mut self) -> CpuQuota {
        let mut quota = CpuQuota::default();
        while self.ready < self.common.workers.threads {
            if !self.hear(LOOK_INTERVAL) {
                return quota;
            }
            self.show(Phase::Connecting);
        }
        if self.opened == 0 {
            return quota;
        }
        let soonest_ns = monotonic_ns() + MARGIN_NS;
        let Some(begin_ns) = self.observer.connected() else { return quota };
        let first_ns = begin_ns.max(soonest_ns);
        let start_ns = first_ns + self.common.warmup.as_nanos() as u64;
        let end_ns = start_ns + self.common.duration.as_nanos() as u64;
        self.control.announce(start_ns..end_ns);
        let reached = self.wait_until(start_ns, Phase::WarmingUp);
        // A short run may end before this thread gets a CPU and sees it begin.
        if reached || self.control.window().end > start_ns {
            self.observer.mark(WINDOW_START, start_ns);
            quota = CpuQuota::read();
            if reached {
                self.wait_until(end_ns, Phase::Measuring);
            }
            let periods = CpuQuota::read().throttled_periods;
            quota.throttled_periods = periods.saturating_sub(quota.throttled_periods);
            self.observer.mark(WINDOW_END, self.control.window().end);
        }
        quota
    }

    /// Waits for a note, at most this long. False if the run must end.
    fn hear(&mut self, limit: Duration) -> bool {
        match self.heard.recv_timeout(limit) {
            Ok(Note::Ready { opened }) => {
                self.ready += 1;
                self.opened += opened;
                // A thread without connections cannot lose them later.
                self.deserted += u32::from(opened == 0);
            }
            Ok(Note::Deserted) => self.deserted += 1,
            Ok(Note::Exhausted | Note::Ended) | Err(RecvTimeoutError::Disconnected) => {
                self.over = true
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        !self.over && !self.stopper.0.load(Relaxed)
    }

    /// Waits until `until_ns`; false if the run must end before.
    fn wait_until(&mut self, until_ns: u64, phase: Phase) -> bool {
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
            if left.is_zero() {
                return true;
            }
            if !self.hear(left.min(LOOK_INTERVAL)) || self.deserted == self.common.workers.threads {
                self.control.end_window(monotonic_ns());
                return false;
            }
            self.show(phase);
        }
    }

    fn show(&mut self, phase: Phase) {
        let sum =
            |of: fn(&ThreadProgress) -> u64| self.control.progress.iter().map(of).sum::<u64>();
        let start_ns = self.control.window().start;
        self.observer.progress(&Progress {
            phase,
            answered: sum(|thread| thread.answered.load(Relaxed)),
            latency_s: sum(|thread| thread.latency_ns.load(Relaxed)) as f64 / 1e9,
            errors: sum(|thread| thread.errors.load(Relaxed)),
            window_s: monotonic_ns().saturating_sub(start_ns) as f64 / 1e9,
        });
    }
}
