//! Loads of files under way: concurrent requests for one file share one load.

use super::resource::{Missing, Resource};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// The outcome of reading a file.
pub(super) type Outcome = Result<Rc<Resource>, Missing>;

/// The files that one worker is reading: at most one for each request.
#[derive(Debug, Default)]
pub(super) struct Loads(RefCell<HashMap<Key, Rc<Load>>>);

/// Number of a site, and a path there.
type Key = (usize, Rc<[u8]>);

#[derive(Debug)]
struct Load {
    began: Instant,
    outcome: OnceCell<Outcome>,
}

impl Loads {
    /// The outcome of `read`, or of another load of this path of a site that began less than `valid` ago. If the
    /// one who reads is dropped, one of those who wait reads in its place.
    pub(super) async fn share(
        &self,
        site: usize,
        path: &[u8],
        valid: Duration,
        read: impl Future<Output = Outcome>,
    ) -> Outcome {
        let key: Key = (site, Rc::from(path));
        let known = self.0.borrow().get(&key).filter(|load| load.began.elapsed() < valid).cloned();
        let load = known.unwrap_or_else(|| {
            let load = Rc::new(Load { began: Instant::now(), outcome: OnceCell::new() });
            self.0.borrow_mut().insert(key.clone(), Rc::clone(&load));
            load
        });
        let leaves = Leaves { loads: self, key, load };
        leaves.load.outcome.get_or_init(|| read).await.clone()
    }
}

/// Forgets a load that is over, or that nobody waits for any more, when dropped.
struct Leaves<'a> {
    loads: &'a Loads,
    key: Key,
    load: Rc<Load>,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let mut loads = self.loads.0.borrow_mut();
        let is_current = |current: &Rc<Load>| Rc::ptr_eq(current, &self.load);
        // The map and this one hold it.
        let is_last = self.load.outcome.initialized() || Rc::strong_count(&self.load) <= 2;
        if is_last && loads.get(&self.key).is_some_and(is_current) {
            loads.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const VALID: Duration = Duration::from_secs(60);

    #[test]
    fn concurrent_requests_share_one_load_and_others_do_not() {
        let loads = Loads::default();
        let mut cx = Context::from_waker(Waker::noop());
        let may_end = std::cell::Cell::new(false);
        let nothing = || Poll::Ready(Err(Missing::Nothing));
        let read = poll_fn(|_| if may_end.get() { nothing() } else { Poll::Pending });
        let mut leads = pin!(loads.share(1, b"/x", VALID, read));
        assert!(leads.as_mut().poll(&mut cx).is_pending());
        let mut joins = pin!(loads.share(1, b"/x", VALID, async { unreachable!("it joins") }));
        assert!(joins.as_mut().poll(&mut cx).is_pending());
        for (site, path, valid) in
            [(0, &b"/x"[..], VALID), (1, b"/y", VALID), (1, b"/x", Duration::ZERO)]
        {
            let own = pin!(loads.share(site, path, valid, async { Err(Missing::Index) }));
            assert!(matches!(own.poll(&mut cx), Poll::Ready(Err(Missing::Index))));
        }
        may_end.set(true);
        assert!(matches!(leads.poll(&mut cx), Poll::Ready(Err(Missing::Nothing))));
        assert!(matches!(joins.poll(&mut cx), Poll::Ready(Err(Missing::Nothing))));
        assert!(loads.0.borrow().is_empty());
    }

    #[test]
    fn one_who_waits_takes_the_place_of_a_reader_that_is_dropped() {
        let loads = Loads::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut leads = Box::pin(loads.share(0, b"/x", VALID, pending()));
        assert!(leads.as_mut().poll(&mut cx).is_pending());
        let mut joins = Box::pin(loads.share(0, b"/x", VALID, async { Err(Missing::Index) }));
        assert!(joins.as_mut().poll(&mut cx).is_pending());
        drop(leads);
        assert!(matches!(joins.as_mut().poll(&mut cx), Poll::Ready(Err(Missing::Index))));
        let mut leads = Box::pin(loads.share(0, b"/x", VALID, pending()));
        assert!(leads.as_mut().poll(&mut cx).is_pending());
        drop((leads, joins));
        assert!(loads.0.borrow().is_empty());
    }
}
