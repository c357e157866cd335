//! Turns of the calling thread: how a program in a world waits, gives way, and lets time pass.

use super::{STEP_NS_MAX, here, machine, machine_of};
use crate::sys::faults::Fault;
use std::cell::Cell;
use std::os::fd::RawFd;
use std::time::Duration;

/// How much longer than its timeout a wait may take (the hazard `wait_overrun`).
const OVERRUN_NS_MAX: u64 = 1_000_000_000;

/// Makes the calling thread wait until `ready` returns true, while others run; false if it did not
/// by `until_ns`. Outside a world it has no effect.
pub(crate) fn wait(until_ns: Option<u64>, ready: &mut dyn FnMut() -> bool) -> bool {
    here().is_none_or(|inner| inner.wait(until_ns, ready))
}

/// Lets others run, or not, as the seed decides: for a program that could continue at once.
pub(crate) fn give_way() {
    if let Some(inner) = here() {
        inner.give_way();
    }
}

/// Lets time pass for a worker that continues at once, up to `most_ns` if events occur meanwhile.
pub(crate) fn spend(most_ns: u64) {
    let Some(inner) = here() else { return };
    // During a check, programs do nothing, and it takes no time.
    let Ok(courses) = inner.courses.try_borrow() else { return };
    let ns = inner.step_ns(most_ns, &courses);
    drop(courses);
    inner.spend(ns);
    inner.machine.kernel.borrow_mut().run_due();
}

thread_local! {
    /// The worker that has the turn is led by its world step by step, and must not wait.
    static LED: Cell<bool> = const { Cell::new(false) };
    /// The epoll set or ring on which it would have blocked.
    static WAITS_FOR: Cell<Option<RawFd>> = const { Cell::new(None) };
}

/// Lets a worker take a step without blocking; returns the epoll set or ring on which it would
/// have. `None` is a step after which it continues: its results may make it submit more.
pub(crate) fn lead(step: impl FnOnce()) -> Option<RawFd> {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            LED.set(self.0);
        }
    }
    let _before = Before(LED.replace(true));
    // The step may run the world itself, and others take their steps within it.
    let before = WAITS_FOR.replace(None);
    step();
    WAITS_FOR.replace(before)
}

/// The wait of an epoll set or a ring: others run until there is something to report.
pub(crate) fn rest(set: RawFd, timeout: Option<Duration>) {
    let Some(inner) = here() else { return };
    if LED.get() {
        let waits = timeout.is_none_or(|timeout| !timeout.is_zero()) && !has_reports(set);
        return WAITS_FOR.set(waits.then_some(set));
    }
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        spend(STEP_NS_MAX);
        return inner.give_way();
    }
    let overrun_ns = {
        let mut kernel = inner.machine.kernel.borrow_mut();
        let overruns = timeout.is_some() && kernel.dice.strikes(Fault::WaitOverrun);
        if overruns { kernel.dice.between(0..OVERRUN_NS_MAX) } else { 0 }
    };
    let deadline_ns = inner.deadline_ns(timeout).map(|ns| ns.saturating_add(overrun_ns));
    inner.wait(deadline_ns, &mut || has_reports(set));
}

/// True if a wait for this epoll set or ring need not wait.
pub(crate) fn has_reports(set: RawFd) -> bool {
    machine().is_some_and(|machine| machine.kernel.borrow_mut().has_reports(set))
}

/// ppoll(2) for one descriptor to become readable; `None` if it does not belong to a simulated
/// machine.
pub(crate) fn wait_readable(fd: RawFd, timeout: Duration) -> Option<bool> {
    let machine = machine_of(fd)?;
    let (Some(inner), Some(machine)) = (here(), machine) else { return Some(false) };
    let readable = || machine.kernel.borrow_mut().is_readable(fd);
    Some(inner.wait(inner.deadline_ns(Some(timeout)), &mut { readable }))
}
