//! Waiting for the first of two futures.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Which of two futures was ready first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<L, R> {
    /// The first one.
    Left(L),
    /// The second one.
    Right(R),
}

/// Runs both futures until one is ready and drops the other. The first has precedence: it is always
/// polled first, so a receive raced against a deadline never loses available data.
pub async fn race<L: Future, R: Future>(left: L, right: R) -> Either<L::Output, R::Output> {
    let mut left = pin!(left);
    let mut right = pin!(right);
    poll_fn(|cx| {
        if let Poll::Ready(output) = left.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(output));
        }
        right.as_mut().poll(cx).map(Either::Right)
    })
    .await
}
