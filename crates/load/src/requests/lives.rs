//! The streams that serve a connection one after the other, each a life of it.

use super::Worker;
use super::connection::{Connection, Ending, Protocol};
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;
use twinring::{measure::monotonic_ns, sleep};

/// Consecutive failed attempts to connect before a connection is abandoned.
const CONNECT_FAILURES_MAX: u32 = 10;

/// Pause after the second failure in a row; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The fate of a connection between two lives.
enum Renewal<L> {
    Link(L),
    /// The window is over.
    Over,
    /// It could not be opened.
    GivenUp,
}

impl<P: Protocol> Worker<P> {
    /// Runs a connection through its lives.
    pub(super) async fn serve(
        self: Rc<Self>,
        connection: Rc<RefCell<Connection<P>>>,
        first: P::Link,
    ) {
        let number = connection.borrow().number();
        let mut link = first;
        // In a row: lives without an answer, and attempts to connect.
        let mut failures = 0;
        let lost = loop {
            let ending = poll_fn(|cx| connection.borrow_mut().poll(&mut link, cx)).await;
            let served = connection.borrow_mut().end_life();
            P::close(link).await;
            match ending {
                Ending::Finished => break false,
                Ending::Lost(lost) => {
                    self.trouble(number, lost);
                    if !P::REPLACES_LOST {
                        break true;
                    }
                }
                Ending::Renewed => {}
            }
            failures = if served { 0 } else { failures + 1 };
            link = match self.renew(&connection, failures).await {
                Renewal::Link(link) => link,
                Renewal::Over => break false,
                Renewal::GivenUp => break true,
            };
        };
        self.ended(lost);
    }

    /// Opens the stream for the next life of a connection.
    async fn renew(
        self: &Rc<Self>,
        connection: &RefCell<Connection<P>>,
        mut failures: u32,
    ) -> Renewal<P::Link> {
        for _attempt in 0..CONNECT_FAILURES_MAX {
            if failures > 1 {
                let pause = PAUSE_MIN.saturating_mul(1 << (failures - 2).min(10));
                sleep(pause.min(PAUSE_MAX)).await;
            }
            if monotonic_ns() >= self.control.window().end {
                return Renewal::Over;
            }
            if P::connects_for_each(&self.shared)
                && !poll_fn(|cx| connection.borrow_mut().poll_begin(cx)).await
            {
                return Renewal::Over;
            }
            let (number, life) = (connection.borrow().number(), connection.borrow().life());
            if let Some(link) = self.connect(number, life + 1).await {
                self.reconnects.set(self.reconnects.get() + 1);
                connection.borrow_mut().begin_life();
                return Renewal::Link(link);
            }
            connection.borrow_mut().end_life();
            failures += 1;
        }
        Renewal::GivenUp
    }
}
