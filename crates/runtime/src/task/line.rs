//! Tasks that wait for room in a bounded queue.

use std::task::Waker;

/// Those who found a queue full. All are called at once, when there is room for many again: a
/// single one that was called and then dropped would keep the others waiting.
#[derive(Debug, Default)]
pub(crate) struct Line {
    wakers: Vec<Waker>,
    /// How often all were called.
    round: u64,
}

/// The place of one future in a [`Line`], so that polling it again does not add it again.
#[derive(Debug, Default)]
pub(crate) struct Place(Option<(u64, Waker)>);

impl Line {
    pub(crate) fn join(&mut self, place: &mut Place, waker: &Waker) {
        let stands = place
            .0
            .as_ref()
            .is_some_and(|(round, own)| *round == self.round && own.will_wake(waker));
        if !stands {
            place.0 = Some((self.round, waker.clone()));
            self.wakers.push(waker.clone());
        }
    }

    /// True if nobody joined since all were called.
    pub(crate) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
    }

    pub(crate) fn call_all(&mut self) -> Vec<Waker> {
        self.round += 1;
        std::mem::take(&mut self.wakers)
    }
}
