//! Queues of tasks that wait for the same event.
//!
//! A waker may be foreign code: that of an executor within a task, whose clone, wake and drop may
//! call this runtime again. None of them runs while a driver or a lock is held. A [`Waiter`] clones
//! the waker before, and keeps the replaced one until afterwards.

use super::waker::{copy, task_of, waker};
use std::collections::BTreeMap;
use std::task::{Context, Waker};

/// The place of a future in a [`WaitQueue`]. The future stores it, and uses it to leave the queue
/// when it is dropped: another future of the same task may stay.
#[derive(Debug, Default)]
pub(crate) struct WaitToken(u32);

impl WaitToken {
    /// False if its future is in no queue. A woken future may be in none although this is true.
    pub(crate) fn may_wait(&self) -> bool {
        self.0 != 0
    }
}

/// A future that is being polled. It is created before anything is borrowed, and dropped
/// afterwards.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    waker: &'a Waker,
    token: &'a mut WaitToken,
    /// Of a foreign waker, in case it has to wait.
    clone: Option<Waker>,
    /// The waker that it replaced in its place.
    replaced: Option<Waker>,
}

impl<'a> Waiter<'a> {
    #[inline]
    pub(crate) fn new(cx: &'a Context<'_>, token: &'a mut WaitToken) -> Waiter<'a> {
        let waker = cx.waker();
        let clone = if task_of(waker).is_some() { None } else { Some(waker.clone()) };
        Waiter { waker, token, clone, replaced: None }
    }

    /// The waker, to be stored. Cloning one of our own runs no foreign code.
    #[inline]
    pub(crate) fn waker(&mut self) -> Waker {
        self.clone.take().unwrap_or_else(|| copy(self.waker))
    }

    /// Stores the waker in a separate place.
    pub(crate) fn store(&mut self, place: &mut Option<Waker>) {
        if !place.as_ref().is_some_and(|kept| kept.will_wake(self.waker)) {
            self.replaced = place.replace(self.waker());
        }
    }
}

/// Tasks that wait for the same event, in FIFO order: nearly always none or one, which needs no
/// memory of its own. A socket has two of these, and its size is cache footprint. Holds no more
/// entries than there are waiting futures.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// Present if there is a waiter.
    first: Option<Waker>,
    first_token: u32,
    last_token: u32,
    #[expect(clippy::box_collection, reason = "no more than a pointer where it is seldom there")]
    others: Option<Box<BTreeMap<u32, Waker>>>,
}

impl WaitQueue {
    /// Adds a future, or renews the waker of one that already waits.
    #[inline]
    pub(crate) fn add(&mut self, waiter: &mut Waiter<'_>) {
        if self.first.is_none() {
            // Without waiters every number is free.
            self.last_token = self.last_token.wrapping_add(1).max(1);
            (self.first, self.first_token) = (Some(waiter.waker()), self.last_token);
            waiter.token.0 = self.last_token;
        } else if let Some(replaced) = self.add_to_others(waiter.waker(), waiter.token) {
            waiter.replaced = Some(replaced);
        }
    }

    /// Adds a future to the empty queue, if its waker is one of ours: then no foreign code runs.
    #[inline]
    pub(crate) fn add_task(&mut self, cx: &Context<'_>, token: &mut WaitToken) -> bool {
        let Some(task) = task_of(cx.waker()) else { return false };
        debug_assert!(self.is_empty(), "there is no waiter");
        self.last_token = self.last_token.wrapping_add(1).max(1);
        (self.first, self.first_token) = (Some(waker(task)), self.last_token);
        token.0 = self.last_token;
        true
    }

    /// Returns the waker that was replaced. Does not take the whole waiter, so that most polls need not
    /// have it in memory.
    #[cold]
    fn add_to_others(&mut self, waker: Waker, token: &mut WaitToken) -> Option<Waker> {
        if let Some(place) = self.place(token.0) {
            return Some(std::mem::replace(place, waker));
        }
        token.0 = self.next_token();
        self.others.get_or_insert_default().insert(token.0, waker)
    }

    /// For a future that may not have to wait any more: dropping it then costs nothing.
    #[inline]
    pub(crate) fn leave(&mut self, waiter: &mut Waiter<'_>) {
        if self.first.is_none() {
            *waiter.token = WaitToken::default();
        } else if waiter.token.may_wait()
            && let Some(left) = self.remove(waiter.token)
        {
            waiter.replaced = Some(left);
        }
    }

    /// Removes a future. Drop the returned waker when nothing is borrowed.
    pub(crate) fn remove(&mut self, token: &mut WaitToken) -> Option<Waker> {
        let token = std::mem::take(token).0;
        if self.first.is_none() || token == 0 {
            return None;
        }
        if self.first_token != token {
            return self.others.as_mut()?.remove(&token);
        }
        let removed = self.first.take();
        match self.others.as_mut().and_then(|others| others.pop_first()) {
            Some((token, next)) => (self.first, self.first_token) = (Some(next), token),
            None => self.others = None,
        }
        removed
    }

    /// True without waiters.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Moves all to `wakes`. If only one were woken and then dropped, the others would wait for
    /// ever.
    #[inline(always)]
    pub(crate) fn wake(&mut self, wakes: &mut Vec<Waker>) {
        let Some(first) = self.first.take() else { return };
        wakes.push(first);
        if self.others.is_some() {
            self.wake_others(wakes);
        }
    }

    #[cold]
    fn wake_others(&mut self, wakes: &mut Vec<Waker>) {
        wakes.extend(self.others.take().into_iter().flat_map(|others| others.into_values()));
    }

    fn place(&mut self, token: u32) -> Option<&mut Waker> {
        match &mut self.first {
            Some(first) if token == self.first_token => Some(first),
            _ => self.others.as_mut()?.get_mut(&token),
        }
    }

    /// An unused number. It is not 0.
    fn next_token(&mut self) -> u32 {
        loop {
            self.last_token = self.last_token.wrapping_add(1).max(1);
            if self.place(self.last_token).is_none() {
                return self.last_token;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Futures with a task each, or all of the same.
    fn tasks(count: usize, own: bool) -> Vec<(Waker, WaitToken)> {
        let shared = Waker::from(Arc::new(Woken::default()));
        let waker = || if own { Arc::new(Woken::default()).into() } else { shared.clone() };
        (0..count).map(|_| (waker(), WaitToken::default())).collect()
    }

    fn add(queue: &mut WaitQueue, (waker, token): &mut (Waker, WaitToken)) {
        queue.add(&mut Waiter::new(&Context::from_waker(waker), token));
    }

    fn woken(queue: &mut WaitQueue) -> usize {
        let mut wakes = Vec::new();
        queue.wake(&mut wakes);
        assert!(queue.is_empty() && queue.others.is_none());
        wakes.len()
    }

    #[test]
    fn a_waker_added_twice_waits_once() {
        let (mut queue, mut tasks) = (WaitQueue::default(), tasks(3, true));
        (0..3).for_each(|_| tasks.iter_mut().for_each(|task| add(&mut queue, task)));
        assert_eq!(woken(&mut queue), 3);
        assert_eq!(woken(&mut queue), 0);
    }

    #[test]
    fn removing_a_waiter_affects_no_other() {
        for own in [true, false] {
            for leaves in 0..3 {
                let (mut queue, mut tasks) = (WaitQueue::default(), tasks(3, own));
                tasks.iter_mut().for_each(|task| add(&mut queue, task));
                assert!(queue.remove(&mut tasks[leaves].1).is_some());
                assert!(queue.remove(&mut tasks[leaves].1).is_none());
                assert_eq!(woken(&mut queue), 2, "own: {own}, leaves: {leaves}");
                // Tokens of woken futures match no entry.
                let mut newer = (Waker::noop().clone(), WaitToken::default());
                add(&mut queue, &mut newer);
                assert!(tasks.iter_mut().all(|(_, token)| queue.remove(token).is_none()));
                assert_eq!(woken(&mut queue), 1);
            }
        }
    }

    #[test]
    fn a_number_that_is_taken_is_passed_over() {
        let (mut queue, mut tasks) = (WaitQueue::default(), tasks(3, true));
        tasks.iter_mut().for_each(|task| add(&mut queue, task));
        queue.last_token = u32::MAX;
        let mut newer = (Waker::noop().clone(), WaitToken::default());
        add(&mut queue, &mut newer);
        assert_eq!((newer.1.0, woken(&mut queue)), (4, 4));
    }
}
