//! The thread that conducts the workers: it decides when the window begins and ends, informs the
//! observer, and ends the run early if requested.

use super::control::{Control, Note, ThreadProgress};
use super::settings::Settings;
use crate::beside::hear;
use crate::cpu::Throttling;
use crate::observer::{BEGIN_TICK, Observer, Phase, Progress};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use twinring::monotonic_ns;

/// From the decision to begin until the traffic begins: time for all threads to hear of it, which
/// they do with their next tick.
const MARGIN: Duration = Duration::from_millis(10);

/// How often a reason to end is checked. Every fifth time the observer is informed.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const LOOKS_PER_PROGRESS: u32 = 5;

pub(super) struct Conductor<'a> {
    settings: &'a Settings,
    control: &'a Control,
    heard: Receiver<Note>,
    observer: &'a mut dyn Observer,
    looks: u32,
    ended: bool,
    throttling: Throttling,
}

impl<'a> Conductor<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        control: &'a Control,
        heard: Receiver<Note>,
        observer: &'a mut dyn Observer,
    ) -> Conductor<'a> {
        Conductor {
            settings,
            control,
            heard,
            observer,
            looks: 0,
            ended: false,
            throttling: Throttling::default(),
        }
    }

    pub(super) fn throttling(&self) -> Throttling {
        self.throttling
    }

    /// Accompanies the workers through the run; they end by themselves.
    pub(super) fn conduct(&mut self) {
        let open = self.all_open();
        let Some(first_ns) = open.then(|| self.first_ns()).flatten() else {
            self.control.cancel();
            return;
        };
        let start_ns = first_ns + self.settings.warmup.as_nanos() as u64;
        let end_ns = start_ns + self.settings.duration.as_nanos() as u64;
        self.control.announce(start_ns..end_ns);
        let reached = self.wait_until(start_ns, Phase::WarmingUp);
        // A short run may end before this thread gets a CPU and sees it begin.
        if reached || self.control.window().is_some_and(|window| window.end > start_ns) {
            self.observer.window_started(start_ns);
            self.throttling = Throttling::begin();
            if reached {
                self.wait_until(end_ns, Phase::Measuring);
            }
            self.throttling.end();
            let end_ns = self.control.window().map_or(end_ns, |window| window.end);
            self.observer.window_ended(end_ns);
        }
    }

    /// Waits until every thread has opened its sockets. False if there is nothing to measure.
    fn all_open(&mut self) -> bool {
        let (mut ready, mut opened) = (0, 0);
        while ready < self.settings.workers.threads {
            match hear(&self.heard, LOOK_INTERVAL) {
                Ok(Note::Ready { opened: more }) => {
                    ready += 1;
                    opened += more;
                }
                Ok(Note::Ended) | Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => self.show(Phase::Connecting, 0),
            }
            if self.control.is_stopped() {
                return false;
            }
        }
        opened > 0
    }

    /// When the traffic begins. None if the run must end before.
    fn first_ns(&mut self) -> Option<u64> {
        let margin_ns = MARGIN.max(2 * self.settings.tick).as_nanos() as u64;
        loop {
            if let Some(moment) = self.observer.connected().moment(monotonic_ns() + margin_ns) {
                return moment;
            }
            let heard = hear(&self.heard, BEGIN_TICK);
            let ended = matches!(heard, Ok(Note::Ended) | Err(RecvTimeoutError::Disconnected));
            if ended || self.control.is_stopped() {
                return None;
            }
        }
    }

    /// Waits until `until_ns`; false if the run must end before.
    fn wait_until(&mut self, until_ns: u64, phase: Phase) -> bool {
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
            if left.is_zero() {
                return true;
            }
            let heard = hear(&self.heard, left.min(LOOK_INTERVAL));
            self.ended |= matches!(heard, Ok(Note::Ended) | Err(RecvTimeoutError::Disconnected));
            if self.ended || self.control.is_stopped() {
                self.control.end_window(monotonic_ns());
                return false;
            }
            let start_ns = self.control.window().map_or(u64::MAX, |window| window.start);
            self.show(phase, start_ns);
        }
    }

    fn show(&mut self, phase: Phase, start_ns: u64) {
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS_PER_PROGRESS) {
            return;
        }
        let sum = |of: fn(&ThreadProgress) -> &AtomicU64| {
            self.control.progress.iter().map(|thread| of(thread).load(Relaxed)).sum::<u64>()
        };
        self.observer.progress(&Progress {
            phase,
            answered: sum(|thread| &thread.received),
            latency_s: sum(|thread| &thread.round_trip_ns) as f64 / 1e9,
            errors: sum(|thread| &thread.errors),
            window_s: monotonic_ns().saturating_sub(start_ns) as f64 / 1e9,
        });
    }
}
