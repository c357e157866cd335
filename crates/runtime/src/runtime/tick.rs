//! Tick mode: a worker that wakes once per tick, regardless of arrivals in between.
//!
//! With many small packets this halves the CPU on either engine, at the price of up to a tick of
//! latency: all arrivals between two ticks are handled together.
//!
//! On both engines, the sleep is ppoll(2) on the worker's eventfd and not the engine's own wait.
//! io_uring could wait with a large number of completions and the tick as timeout, but at its end
//! the kernel first runs the deferred receives and returns afterwards, so due sends would leave
//! behind the handling of arrivals, 0.3 ms late and more. While the worker sleeps elsewhere,
//! deferred work (IORING_SETUP_DEFER_TASKRUN) neither runs nor wakes it: at most one item per armed
//! receive accumulates, and the packets wait in their sockets.
//!
//! A worker without work does not tick. After [`REST_AFTER`] without an arrival or a timer it
//! rests: it waits in the engine like a worker without ticks, and handles the next arrival at once.
//! Then it ticks again, at the same times as before. (It used to tick always: 1,000 wake-ups per
//! second in a server without traffic.)

use super::Worker;
use crate::calls::Call;
use crate::sys;
use crate::task::task_of;
use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Shortest and longest allowed tick.
pub(super) const PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(50)..=Duration::from_secs(1);

/// How much later than requested the kernel may end a wait for a tick: its default is a twentieth
/// of a tick of 1 ms.
pub(super) const TIMER_SLACK: Duration = Duration::from_micros(1);

/// How long a worker must be idle before it rests, and for how many ticks at least: one may fall
/// between two arrivals that are further apart than a long tick.
const REST_AFTER: Duration = Duration::from_millis(100);
const REST_AFTER_TICKS_MIN: u32 = 2;

/// The ticks of one worker: at multiples of the period on CLOCK_MONOTONIC plus a phase. The
/// relative timing of the workers of a process, and of processes of one machine, is thus configured
/// and not random.
pub(super) struct Ticks {
    period: Duration,
    next: Cell<Instant>,
    /// How late the last wait ended, if there was one.
    overrun: Cell<Option<Duration>>,
    /// Consecutive ticks without an arrival or a timer.
    idle: Cell<u32>,
    /// The number of them that begin a rest.
    idle_max: u32,
}

impl Ticks {
    /// The first tick is at least half a period after `start`, when the clock stood at `start_ns`.
    pub(super) fn new(start: Instant, start_ns: u64, period: Duration, phase: Duration) -> Ticks {
        let (period_ns, phase_ns) = (period.as_nanos(), phase.as_nanos() % period.as_nanos());
        let earliest_ns = u128::from(start_ns) + period_ns / 2 + period_ns - phase_ns;
        let after_ns = period_ns / 2 + (period_ns - earliest_ns % period_ns) % period_ns;
        let next = start + Duration::from_nanos(after_ns as u64);
        let idle_max = REST_AFTER.as_nanos().div_ceil(period_ns) as u32;
        Ticks {
            period,
            next: Cell::new(next),
            overrun: Cell::new(None),
            idle: Cell::new(0),
            idle_max: idle_max.max(REST_AFTER_TICKS_MIN),
        }
    }

    /// True if the worker must not wake for a tick, because the last ones were idle.
    pub(super) fn rests(&self) -> bool {
        self.idle.get() >= self.idle_max
    }

    /// Records a tick.
    fn note(&self, worked: bool) {
        self.idle.set(if worked { 0 } else { self.idle.get().saturating_add(1) });
    }

    /// The first future tick in which a timer of this time fires.
    fn first_from(&self, moment: Instant) -> Instant {
        let next = self.next.get();
        let periods =
            moment.saturating_duration_since(next).as_nanos().div_ceil(self.period.as_nanos());
        // Beyond the clock's range it never comes; the time itself serves as well.
        let ahead =
            Duration::from_nanos((periods * self.period.as_nanos()).try_into().unwrap_or(u64::MAX));
        next.checked_add(ahead).unwrap_or(moment)
    }

    /// The moment from which a sequence of ticks counts that falls on the worker's own.
    pub(super) fn origin(&self) -> Instant {
        self.next.get() - self.period
    }

    /// How late the wait for the last tick ended; `None` if the worker was busy until then.
    pub(super) fn overrun(&self) -> Option<Duration> {
        self.overrun.get()
    }

    /// Advances from the due tick to the first after `now`, and returns how many between them were
    /// missed.
    fn advance(&self, now: Instant) -> u64 {
        let late = now.saturating_duration_since(self.next.get());
        let missed = (late.as_nanos() / self.period.as_nanos()) as u64;
        let period_ns = self.period.as_nanos() as u64;
        self.next.set(self.next.get() + Duration::from_nanos(period_ns * (missed + 1)));
        missed
    }
}

/// Why a wait for a tick ended.
enum Ended {
    Tick,
    /// Another thread wants something.
    Wake,
}

impl Worker {
    /// One tick: due tasks run and their sends are submitted, and only then arrivals are received
    /// and handled. A wake from another thread is handled in between.
    pub(super) fn turn_in_ticks(&self, ticks: &Ticks) -> io::Result<()> {
        self.run_and_submit(ticks)?;
        self.publish_in_use();
        let ended = if ticks.rests() { self.rest(ticks)? } else { self.wait_for_tick(ticks)? };
        match ended {
            Ended::Wake => self.take_inbox(),
            Ended::Tick => {
                self.counters.ticks.add(1);
                let mut wakes = self.wakes.take();
                self.fire_timers(&mut wakes);
                let fired = wakes.len();
                self.wake_all(wakes);
                self.run_and_submit(ticks)?;
                let mut wakes = self.wakes.take();
                self.begin_round();
                self.driver.borrow_mut().drain(&mut wakes)?;
                ticks.note(fired + wakes.len() > 0);
                self.wake_all(wakes);
                self.run_and_submit(ticks)?;
            }
        }
        Ok(())
    }

    /// Waits in the engine until an arrival, which counts as a tick, or until the tick of the next
    /// timer.
    fn rest(&self, ticks: &Ticks) -> io::Result<Ended> {
        let due = self.next_turn(ticks);
        let idle = self.executor.is_idle(self.registration.inbox())
            && !self.driver.borrow().has_arrivals();
        let timeout = match idle {
            true => due.map(|due| due.saturating_duration_since(sys::now())),
            false => Some(Duration::ZERO),
        };
        let mut wakes = self.wakes.take();
        self.begin_round();
        self.driver.borrow_mut().turn(timeout, &mut wakes)?;
        let arrived = !wakes.is_empty();
        self.wake_all(wakes);
        let now = sys::now();
        if ticks.next.get() <= now {
            // The ticks in between do not count as missed.
            ticks.advance(now);
        }
        let late = due.and_then(|due| now.checked_duration_since(due));
        ticks.overrun.set(late.filter(|_| !arrived));
        if arrived {
            ticks.note(true);
        } else if let Some(late) = late {
            self.counters.wait_overrun.record(late);
        }
        Ok(if arrived || late.is_some() { Ended::Tick } else { Ended::Wake })
    }

    /// The time by which a worker in tick mode must run even without events.
    pub(super) fn next_turn(&self, ticks: &Ticks) -> Option<Instant> {
        match ticks.rests() {
            true => self.next_deadline().map(|deadline| ticks.first_from(deadline)),
            false => Some(ticks.next.get()),
        }
    }

    /// Runs tasks until none is ready or the next tick is due, and submits what they start.
    pub(super) fn run_and_submit(&self, ticks: &Ticks) -> io::Result<()> {
        loop {
            self.executor.run_ready();
            self.submit()?;
            if !self.executor.has_ready() || sys::is_past(ticks.next.get()) {
                return Ok(());
            }
        }
    }

    fn wait_for_tick(&self, ticks: &Ticks) -> io::Result<Ended> {
        let deadline = ticks.next.get();
        let mut slept = false;
        loop {
            if self.registration.inbox().is_signalled() {
                return Ok(Ended::Wake);
            }
            let now = sys::now();
            if now >= deadline {
                let overrun = slept.then_some(now - deadline);
                ticks.overrun.set(overrun);
                overrun.into_iter().for_each(|late| self.counters.wait_overrun.record(late));
                self.counters.ticks_missed.add(ticks.advance(now));
                return Ok(Ended::Tick);
            }
            self.counters.waits.add(1);
            self.counters.syscalls.add(1);
            let wake = self.registration.inbox().eventfd().as_raw_fd();
            let wait = || sys::poll::wait_readable(wake, deadline - now);
            slept = true;
            // Even without a stored wake: a signal that arrived after its inbox was emptied (the
            // waker stores first and then signals) would end every wait until the next one.
            if self.counters.calls.timed(Call::Ppoll, wait)? {
                return Ok(Ended::Wake);
            }
        }
    }

    /// Hands queued operations to the kernel.
    pub(super) fn submit(&self) -> io::Result<()> {
        let mut wakes = self.wakes.take();
        self.driver.borrow_mut().submit(&mut wakes)?;
        self.wake_all(wakes);
        Ok(())
    }

    /// Wakes all in `wakes`, and keeps its memory.
    pub(super) fn wake_all(&self, mut wakes: Vec<Waker>) {
        for waker in wakes.drain(..) {
            // Nearly all wakers are of tasks of this worker: those need no lookup of the current
            // worker.
            match task_of(&waker) {
                Some(task) if task.worker == self.id() => {
                    self.executor.wake(task.key);
                    // Dropping it does nothing.
                    std::mem::forget(waker);
                }
                _ => waker.wake(),
            }
        }
        self.wakes.replace(wakes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_do_not_drift_and_missed_ones_are_counted() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let ticks = Ticks::new(start, 7_000_000, ms(1), ms(0));
        assert_eq!(ticks.advance(start + Duration::from_micros(1_300)), 0);
        assert_eq!(ticks.next.get(), start + ms(2));
        assert_eq!(ticks.origin(), start + ms(1));
        assert_eq!(ticks.advance(start + Duration::from_micros(5_999)), 3);
        assert_eq!(ticks.next.get(), start + ms(6));
        assert_eq!(ticks.advance(start + ms(7)), 1);
        assert_eq!(ticks.next.get(), start + ms(8));
    }

    #[test]
    fn timers_of_a_worker_that_rests_fire_on_its_ticks() {
        let start = Instant::now();
        let us = Duration::from_micros;
        let ticks = Ticks::new(start, 7_000_000, us(1_000), us(0));
        for (due_us, tick_us) in
            [(0, 1_000), (1_000, 1_000), (1_001, 2_000), (86_400_000_000, 86_400_000_000)]
        {
            assert_eq!(ticks.first_from(start + us(due_us)), start + us(tick_us), "{due_us}");
        }
    }

    /// The rest of a wake that was stored, seen and only then signalled. It used to end each
    /// following wait at once, at the expense of a whole CPU.
    #[test]
    fn a_signal_that_comes_late_ends_one_wait() {
        const TICKS: u64 = 20;
        let builder = crate::Runtime::builder().tick(Duration::from_millis(1));
        let runtime = builder.build().expect("an engine");
        let waits = runtime.block_on(async {
            let worker = crate::runtime::current();
            worker.registration.inbox().eventfd().signal();
            let waited = |worker: &Worker| worker.counters.waits.get();
            let before = waited(&worker);
            crate::sleep(Duration::from_millis(TICKS)).await;
            waited(&worker) - before
        });
        let waits = waits.expect("the engine works");
        assert!(waits <= 2 * TICKS, "{waits} waits in {TICKS} ticks");
    }

    #[test]
    fn ticks_lie_at_multiples_of_the_period_and_a_phase() {
        let start = Instant::now();
        let us = Duration::from_micros;
        for (clock_us, period_us, phase_us, first_us) in [
            (7_000, 1_000, 0, 1_000),
            (7_000, 1_000, 500, 500),
            (7_001, 1_000, 500, 1_499),
            (7_499, 1_000, 0, 501),
            (7_501, 1_000, 0, 1_499),
            (7_000, 1_000, 2_250, 1_250),
            (123, 50, 0, 27),
        ] {
            let ticks = Ticks::new(start, clock_us * 1_000, us(period_us), us(phase_us));
            assert_eq!(ticks.next.get() - start, us(first_us), "{clock_us} {period_us} {phase_us}");
        }
    }
}
