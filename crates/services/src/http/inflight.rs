//! In-flight loads of files: concurrent loads of one file are coalesced.

use super::resource::{Missing, Resource};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// The outcome of reading a file.
pub(super) type Outcome = Result<Rc<Resource>, Missing>;

/// The files that one worker is reading: at most one for each connection.
#[derive(Debug, Default)]
pub(super) struct InflightLoads(RefCell<HashMap<Key, Rc<InflightLoad>>>);

/// Number of a site, and a path there.
type Key = (usize, Rc<[u8]>);

struct InflightLoad {
    began: Instant,
    /// The load has ended.
    is_over: Cell<bool>,
    /// Missing although the load has ended: its leader was dropped.
    outcome: RefCell<Option<Outcome>>,
    /// Of the joined futures; each removes its own when it is dropped.
    waiters: RefCell<Slab<Waker>>,
}

impl fmt::Debug for InflightLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InflightLoad").field("began", &self.began).finish_non_exhaustive()
    }
}

impl InflightLoads {
    /// The outcome of a load of this path of a site that began less than `valid` ago; `None` if
    /// there is none, or if it was abandoned.
    pub(super) async fn join(&self, site: usize, path: &[u8], valid: Duration) -> Option<Outcome> {
        let key: Key = (site, Rc::from(path));
        let load = self.0.borrow().get(&key).map(Rc::clone)?;
        if load.began.elapsed() >= valid {
            return None;
        }
        let mut joined = Joined { load: &load, place: None };
        poll_fn(|cx| match load.is_over.get() {
            true => Poll::Ready(load.outcome.borrow().clone()),
            false => {
                joined.wait(cx.waker());
                Poll::Pending
            }
        })
        .await
    }

    /// Reads with `read`, while others can [`join`](InflightLoads::join).
    pub(super) async fn lead(
        &self,
        site: usize,
        path: &[u8],
        began: Instant,
        read: impl Future<Output = Outcome>,
    ) -> Outcome {
        let load = Rc::new(InflightLoad {
            began,
            is_over: Cell::new(false),
            outcome: RefCell::default(),
            waiters: RefCell::default(),
        });
        let key: Key = (site, Rc::from(path));
        // An existing load is too old to join.
        self.0.borrow_mut().insert((site, Rc::clone(&key.1)), Rc::clone(&load));
        let lead = Lead { loads: self, key, load };
        let outcome = read.await;
        *lead.load.outcome.borrow_mut() = Some(outcome.clone());
        outcome
    }
}

/// Waits for a load. The file may be on a filesystem that does not answer, while connections come
/// and go.
struct Joined<'a> {
    load: &'a InflightLoad,
    place: Option<usize>,
}

impl Joined<'_> {
    fn wait(&mut self, waker: &Waker) {
        let mut waiters = self.load.waiters.borrow_mut();
        match self.place {
            Some(place) => waiters[place].clone_from(waker),
            None => self.place = Some(waiters.insert(waker.clone())),
        }
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // Already removed when the load has ended.
            let _waker = self.load.waiters.borrow_mut().try_remove(place);
        }
    }
}

/// Ends a load when dropped, for any reason.
struct Lead<'a> {
    loads: &'a InflightLoads,
    key: Key,
    load: Rc<InflightLoad>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut loads = self.loads.0.borrow_mut();
        if loads.get(&self.key).is_some_and(|current| Rc::ptr_eq(current, &self.load)) {
            loads.remove(&self.key);
        }
        drop(loads);
        self.load.is_over.set(true);
        self.load.waiters.take().into_iter().for_each(|(_, waker)| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    const PATH: &[u8] = b"/x";
    const VALID: Duration = Duration::from_secs(60);

    #[test]
    fn concurrent_requests_share_one_outcome() {
        let loads = InflightLoads::default();
        let mut cx = Context::from_waker(Waker::noop());
        let may_end = Cell::new(false);
        let read = poll_fn(|_| match may_end.get() {
            true => Poll::Ready(Err(Missing::Nothing)),
            false => Poll::Pending,
        });
        let mut lead = pin!(loads.lead(1, PATH, Instant::now(), read));
        assert!(lead.as_mut().poll(&mut cx).is_pending());
        let mut join = pin!(loads.join(1, PATH, VALID));
        assert!(join.as_mut().poll(&mut cx).is_pending());
        for (site, path, valid) in [(0, PATH, VALID), (1, b"/y", VALID), (1, PATH, Duration::ZERO)]
        {
            let join = pin!(loads.join(site, path, valid));
            assert!(matches!(join.poll(&mut cx), Poll::Ready(None)));
        }
        may_end.set(true);
        let is_missing = |outcome: &Outcome| matches!(outcome, Err(Missing::Nothing));
        assert!(matches!(lead.poll(&mut cx), Poll::Ready(outcome) if is_missing(&outcome)));
        assert!(matches!(join.poll(&mut cx), Poll::Ready(Some(outcome)) if is_missing(&outcome)));
        assert!(matches!(pin!(loads.join(1, PATH, VALID)).poll(&mut cx), Poll::Ready(None)));
    }

    /// Wakers of dropped futures stayed until the file was read, which may be never.
    #[test]
    fn dropped_waits_leave_no_waker() {
        let loads = InflightLoads::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut lead = pin!(loads.lead(0, PATH, Instant::now(), std::future::pending()));
        assert!(lead.as_mut().poll(&mut cx).is_pending());
        for _ in 0..3 {
            let mut join = Box::pin(loads.join(0, PATH, VALID));
            assert!(join.as_mut().poll(&mut cx).is_pending());
            assert!(join.as_mut().poll(&mut cx).is_pending());
            let waiting = || -> usize {
                loads.0.borrow().values().map(|load| load.waiters.borrow().len()).sum()
            };
            assert_eq!(waiting(), 1);
            drop(join);
            assert_eq!(waiting(), 0);
        }
    }

    #[test]
    fn a_dropped_load_wakes_all_waiters() {
        let loads = InflightLoads::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut lead = Box::pin(loads.lead(0, PATH, Instant::now(), std::future::pending()));
        assert!(lead.as_mut().poll(&mut cx).is_pending());
        let mut join = pin!(loads.join(0, PATH, VALID));
        assert!(join.as_mut().poll(&mut cx).is_pending());
        drop(lead);
        assert!(matches!(join.poll(&mut cx), Poll::Ready(None)));
        assert!(loads.0.borrow().is_empty());
    }
}
