//! The thread that conducts the workers: it decides when the window begins and ends, informs the
//! observer, and ends the run early if requested.

use super::control::{Control, Note, ThreadProgress};
use crate::beside::hear;
use crate::cpu::Throttling;
use crate::observer::{BEGIN_TICK, Observer, Phase, Progress};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use twinring::{Handle, monotonic_ns};

/// From the decision to begin until the traffic begins: time for all threads to hear of it.
const MARGIN_NS: u64 = 10_000_000;

/// How often an observer is informed of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The course of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) threads: usize,
    pub(crate) warmup: Duration,
    /// Length of the window; with `requests`, its longest.
    pub(crate) duration: Duration,
    /// The window ends when this many requests are answered.
    pub(crate) requests: Option<u64>,
}

pub(super) struct Conductor<'a> {
    plan: Plan,
    control: &'a Control,
    heard: Receiver<Note>,
    handle: &'a Handle,
    observer: &'a mut dyn Observer,
    ready: usize,
    established: u64,
    deserted: usize,
    interrupted: bool,
    throttling: Throttling,
}

impl<'a> Conductor<'a> {
    pub(super) fn new(
        plan: Plan,
        control: &'a Control,
        heard: Receiver<Note>,
        handle: &'a Handle,
        observer: &'a mut dyn Observer,
    ) -> Conductor<'a> {
        Conductor {
            plan,
            control,
            heard,
            handle,
            observer,
            ready: 0,
            established: 0,
            deserted: 0,
            interrupted: false,
            throttling: Throttling::default(),
        }
    }

    /// The run was interrupted.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted
    }

    pub(super) fn throttling(&self) -> Throttling {
        self.throttling
    }

    /// Accompanies the workers through the run.
    pub(super) fn conduct(&mut self) {
        let connected = self.all_connected();
        if let Some(first_ns) = connected.then(|| self.first_ns()).flatten() {
            let start_ns = first_ns + self.plan.warmup.as_nanos() as u64;
            let end_ns = start_ns + self.plan.duration.as_nanos() as u64;
            self.control.announce(start_ns..end_ns);
            let reached = self.wait_until(start_ns, Phase::WarmingUp);
            // A short run may end before this thread gets a CPU and sees it begin.
            if reached || self.control.window().end > start_ns {
                self.observer.window_started(start_ns);
                self.throttling = Throttling::begin();
                if reached {
                    self.wait_until(end_ns, Phase::Measuring);
                }
                self.throttling.end();
                self.observer.window_ended(self.control.window().end);
            }
        }
        self.handle.shutdown();
    }

    /// Waits until every thread has connected. False if there is nothing to measure.
    fn all_connected(&mut self) -> bool {
        while self.ready < self.plan.threads {
            match hear(&self.heard, PROGRESS_INTERVAL) {
                Ok(Note::Ready { established }) => {
                    self.ready += 1;
                    self.established += established;
                    // A thread without connections cannot lose them later.
                    self.deserted += usize::from(established == 0);
                }
                Ok(Note::Stop) => {
                    self.interrupted = true;
                    return false;
                }
                Ok(Note::Ended) => return false,
                Ok(Note::Deserted | Note::Exhausted) => {}
                Err(_) => self.show(Phase::Connecting),
            }
        }
        self.established > 0
    }

    /// When the traffic begins. None if the run must end before.
    fn first_ns(&mut self) -> Option<u64> {
        loop {
            if let Some(moment) = self.observer.connected().moment(monotonic_ns() + MARGIN_NS) {
                return moment;
            }
            match hear(&self.heard, BEGIN_TICK) {
                Ok(Note::Deserted) => self.deserted += 1,
                Ok(Note::Stop) => {
                    self.interrupted = true;
                    return None;
                }
                Ok(Note::Ended) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(Note::Ready { .. } | Note::Exhausted) | Err(RecvTimeoutError::Timeout) => {}
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
            match hear(&self.heard, left.min(PROGRESS_INTERVAL)) {
                Ok(Note::Ready { .. }) => {}
                Ok(Note::Deserted) => {
                    self.deserted += 1;
                    if self.deserted == self.plan.threads {
                        break;
                    }
                }
                Ok(Note::Stop) => {
                    self.interrupted = true;
                    break;
                }
                Ok(Note::Exhausted | Note::Ended) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => self.show(phase),
            }
        }
        self.control.end_window(monotonic_ns());
        false
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
