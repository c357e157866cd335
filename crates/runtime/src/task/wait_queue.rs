//! Queues of tasks that wait for the same event.
//!
//! A waker may be foreign code: that of an executor within a task, whose clone, wake and drop may
//! call this runtime again. None of them runs while a driver or a lock is held. A [`Waiter`] clones
//! the waker before, and keeps the replaced one until afterwards.

use crate::sys::waker::{task_of, waker};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

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
        self.clone
            .take()
            .unwrap_or_else(|| task_of(self.waker).map_or_else(|| self.waker.clone(), waker))
    }

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
        let waker = waiter.waker();
        if self.first.is_none() {
            self.add_first(waker, waiter.token);
        } else if let Some(replaced) = self.add_to_others(waker, waiter.token) {
            waiter.replaced = Some(replaced);
        }
    }

    /// Adds a future to the queue if that is empty and its waker is one of ours: then no foreign code runs.
    #[inline]
    pub(crate) fn add_task(&mut self, cx: &Context<'_>, token: &mut WaitToken) -> bool {
        let Some(task) = task_of(cx.waker()).filter(|_| self.is_empty()) else { return false };
        self.add_first(waker(task), token);
        true
    }

    #[inline]
    fn add_first(&mut self, waker: Waker, token: &mut WaitToken) {
        // Without waiters every number is free.
        self.last_token = self.last_token.wrapping_add(1).max(1);
        (self.first, self.first_token) = (Some(waker), self.last_token);
        token.0 = self.last_token;
    }

    /// Returns the waker that was replaced. Does not take the whole waiter, so that most polls need not
    /// have it in memory.
    #[cold]
    fn add_to_others(&mut self, waker: Waker, token: &mut WaitToken) -> Option<Waker> {
        if token.0 == self.first_token {
            return self.first.replace(waker);
        }
        let others = self.others.get_or_insert_default();
        if !others.contains_key(&token.0) {
            token.0 = loop {
                self.last_token = self.last_token.wrapping_add(1).max(1);
                let taken = self.last_token == self.first_token;
                if !taken && !others.contains_key(&self.last_token) {
                    break self.last_token;
                }
            };
        }
        others.insert(token.0, waker)
    }

    /// For a future that may not have to wait any more: dropping it then costs nothing.
    #[inline]
    pub(crate) fn leave(&mut self, waiter: &mut Waiter<'_>) {
        if let Some(left) = self.remove(waiter.token) {
            waiter.replaced = Some(left);
        }
    }

    /// Removes a future. Drop the returned waker when nothing is borrowed.
    #[inline]
    pub(crate) fn remove(&mut self, token: &mut WaitToken) -> Option<Waker> {
        let token = std::mem::take(token).0;
        if self.first.is_none() || token == 0 { None } else { self.remove_present(token) }
    }

    #[cold]
    fn remove_present(&mut self, token: u32) -> Option<Waker> {
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
}

/// Wakes all who wait in a queue that belongs to no socket.
pub(crate) fn wake_all(queue: &RefCell<WaitQueue>) {
    let mut wakes = Vec::new();
    queue.borrow_mut().wake(&mut wakes);
    wakes.into_iter().for_each(Waker::wake);
}

/// Waits until a queue that belongs to no socket is woken, or a little less long.
pub(crate) async fn wait(queue: &RefCell<WaitQueue>) {
    struct QueuePlace<'a>(&'a RefCell<WaitQueue>, WaitToken);
    impl Drop for QueuePlace<'_> {
        fn drop(&mut self) {
            let waker = self.0.borrow_mut().remove(&mut self.1);
            drop(waker);
        }
    }
    let mut place = QueuePlace(queue, WaitToken::default());
    poll_fn(|cx| {
        if place.1.may_wait() {
            return Poll::Ready(());
        }
        let mut waiter = Waiter::new(cx, &mut place.1);
        queue.borrow_mut().add(&mut waiter);
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(queue: &mut WaitQueue, token: &mut WaitToken) {
        queue.add(&mut Waiter::new(&Context::from_waker(Waker::noop()), token));
    }

    fn woken(queue: &mut WaitQueue) -> usize {
        let mut wakes = Vec::new();
        queue.wake(&mut wakes);
        assert!(queue.is_empty() && queue.others.is_none());
        wakes.len()
    }

    /// Those that are added twice wait once, one that leaves affects no other, and a number that is taken is
    /// passed over.
    #[test]
    fn each_future_has_one_place() {
        for leaves in 0..3 {
            let (mut queue, mut tokens) = (WaitQueue::default(), [0; 3].map(WaitToken));
            (0..3).for_each(|_| tokens.iter_mut().for_each(|token| add(&mut queue, token)));
            queue.last_token = u32::MAX;
            let mut newer = WaitToken::default();
            add(&mut queue, &mut newer);
            assert_eq!(newer.0, 4);
            let mut left = WaitToken(tokens[leaves].0);
            assert!(queue.remove(&mut left).is_some() && queue.remove(&mut left).is_none());
            assert_eq!((woken(&mut queue), woken(&mut queue)), (3, 0), "{leaves} leaves");
            // Tokens of woken futures match no entry.
            add(&mut queue, &mut newer);
            assert!(tokens.iter_mut().all(|token| queue.remove(token).is_none()));
            assert_eq!(woken(&mut queue), 1);
        }
    }
}
