//! A future on the stack of `Runtime::block_on`, lent to the executor, whose tasks are `'static`; and one that
//! is polled where it is.

use std::cell::Cell;
use std::mem::transmute;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

type Erased = NonNull<dyn Future<Output = ()>>;

/// A lent future. It is pending for ever when the loan is over, or while it is being polled.
pub(crate) struct Lent {
    /// Empty when the loan is over, and while the future is being polled.
    future: Rc<Cell<Option<Erased>>>,
}

/// Ends the loan, also in a panic.
struct Loan(Rc<Cell<Option<Erased>>>);

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Calls `during` with the future as one that borrows nothing; the loan ends when it returns.
pub(crate) fn lend<'a, R>(
    future: Pin<&mut (dyn Future<Output = ()> + 'a)>,
    during: impl FnOnce(Lent) -> R,
) -> R {
    // SAFETY: the future is not moved through the pointer, only polled as pinned.
    let future = NonNull::from(unsafe { future.get_unchecked_mut() });
    // SAFETY: only the lifetime changes. `Loan` removes the pointer before this function returns or
    // unwinds, so before 'a ends, and `Lent` cannot leave this thread.
    let future = unsafe { transmute::<NonNull<dyn Future<Output = ()> + 'a>, Erased>(future) };
    let loan = Loan(Rc::new(Cell::new(Some(future))));
    during(Lent { future: Rc::clone(&loan.0) })
}

impl Future for Lent {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut lent) = self.future.take() else { return Poll::Pending };
        // SAFETY: the loan has not ended, and cannot end during this call, which `during` has made.
        // The future was pinned by the lender, who has no access meanwhile; that it was taken out of
        // the cell makes this access the only one.
        let polled = unsafe { Pin::new_unchecked(lent.as_mut()) }.poll(cx);
        if polled.is_pending() {
            self.future.set(Some(lent));
        }
        polled
    }
}

/// A future in a box, to be polled while the place of the box is not borrowed.
pub(crate) struct InPlace(Erased);

impl InPlace {
    #[inline]
    pub(crate) fn of(future: &mut Pin<Box<dyn Future<Output = ()>>>) -> InPlace {
        // SAFETY: the future is not moved through the pointer, only polled as pinned.
        InPlace(NonNull::from(unsafe { future.as_mut().get_unchecked_mut() }))
    }

    /// Polls it.
    ///
    /// # Safety
    /// The box still exists, and is neither dropped nor polled during this call.
    #[inline]
    pub(crate) unsafe fn poll(mut self, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the caller's obligation; the box pins what it owns, wherever it is moved itself.
        unsafe { Pin::new_unchecked(self.0.as_mut()) }.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::Waker;

    #[test]
    fn a_loan_ends_with_its_scope_and_with_a_panic() {
        for panics in [false, true] {
            let (mut polls, mut kept) = (0, None);
            let cx = &mut Context::from_waker(Waker::noop());
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let borrowed = pin!(poll_fn(|_| {
                    polls += 1;
                    assert!(!panics, "on purpose");
                    Poll::<()>::Pending
                }));
                lend(borrowed, |lent| {
                    let lent = kept.insert(lent);
                    assert!(Pin::new(&mut *lent).poll(cx).is_pending());
                    assert!(Pin::new(lent).poll(cx).is_pending());
                });
            }));
            assert_eq!(ended.is_err(), panics);
            assert!(Pin::new(&mut kept.expect("kept")).poll(cx).is_pending());
            assert_eq!(polls, if panics { 1 } else { 2 });
        }
    }
}
