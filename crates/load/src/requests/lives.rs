//! Making connections, and the streams that serve one after the other, each a life of it.

use super::Worker;
use super::connection::{Connection, Ending, Lost, Protocol};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::{TcpStream, measure::monotonic_ns, sleep, timeout};

/// Consecutive failed attempts to connect before a connection is abandoned.
const CONNECT_FAILURES_MAX: u32 = 10;

/// Pause after the second failure in a row; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl<P: Protocol> Worker<P> {
    pub(super) async fn serve(
        self: Rc<Self>,
        connection: Rc<RefCell<Connection<P>>>,
        first: P::Link,
    ) {
        let number = connection.borrow().tally.number;
        let mut link = first;
        // In a row: lives without an answer, and attempts to connect.
        let mut failures = 0;
        let lost = loop {
            let ending = poll_fn(|cx| connection.borrow_mut().poll(&mut link, cx)).await;
            let served = connection.borrow_mut().end_life();
            P::close(link).await;
            match ending {
                Ok(Ending::Finished) => break false,
                Err(lost) => {
                    self.trouble(number, lost);
                    if !P::REPLACES_LOST {
                        break true;
                    }
                }
                Ok(Ending::Renewed) => {}
            }
            failures = if served { 0 } else { failures + 1 };
            link = match self.renew(&connection, failures).await {
                Ok(link) => link,
                Err(lost) => break lost,
            };
        };
        self.ended(lost);
    }

    /// Opens the stream for the next life of a connection. The error: whether it was given up, or the window is over.
    async fn renew(
        self: &Rc<Self>,
        connection: &RefCell<Connection<P>>,
        mut failures: u32,
    ) -> Result<P::Link, bool> {
        for _attempt in 0..CONNECT_FAILURES_MAX {
            if failures > 1 {
                let pause = PAUSE_MIN.saturating_mul(1 << (failures - 2).min(10));
                sleep(pause.min(PAUSE_MAX)).await;
            }
            if monotonic_ns() >= self.control.window().end {
                return Err(false);
            }
            if self.plan.connects_for_each
                && !poll_fn(|cx| connection.borrow_mut().poll_begin(cx)).await
            {
                return Err(false);
            }
            let (number, life) = {
                let tally = &connection.borrow().tally;
                (tally.number, tally.life + 1)
            };
            if let Some(link) = self.connect(number, life).await {
                self.recorder.borrow_mut().connections.reconnects += 1;
                connection.borrow_mut().begin_life();
                return Ok(link);
            }
            connection.borrow_mut().end_life();
            failures += 1;
        }
        Err(true)
    }

    /// One attempt to connect, counted.
    pub(super) async fn connect(self: &Rc<Self>, number: u64, life: u64) -> Option<P::Link> {
        let began = Instant::now();
        match self.try_connect(number + life).await {
            Ok(link) => {
                let took_ns = (began.elapsed().as_nanos() as u64).max(1);
                self.recorder.borrow_mut().connect_ns.saturating_record(took_ns);
                Some(link)
            }
            Err(lost) => {
                self.trouble(number, lost);
                None
            }
        }
    }

    /// `turn` selects the addresses of both ends: each life of a connection uses the next ones, so that ports in
    /// TIME_WAIT are spread as well.
    async fn try_connect(self: &Rc<Self>, turn: u64) -> Result<P::Link, Lost> {
        let (limit, began) = (self.plan.requests.connect_timeout, Instant::now());
        let common = &self.plan.requests.common;
        let failed = |error: io::Error| {
            Lost(|it| &mut it.connect, format!("connecting: {error}{}", advice(&error)))
        };
        let target = in_turn(&common.addresses, turn, |_| true);
        let target = target.ok_or_else(|| failed(io::Error::other("no address")))?;
        let local = in_turn(&common.local, turn, |ip: &IpAddr| ip.is_ipv4() == target.is_ipv4());
        let local = local.map(|ip| SocketAddr::new(*ip, 0));
        let dialled = timeout(limit, TcpStream::connect_from(local, *target)).await;
        let stream = dialled.unwrap_or_else(|_| Err(not_within(limit))).map_err(failed)?;
        let left = limit.saturating_sub(began.elapsed());
        match timeout(left, P::agree(self, stream)).await {
            Ok(agreed) => agreed,
            Err(_) => Err(failed(not_within(limit))),
        }
    }
}

/// The one of those that fit whose turn it is.
fn in_turn<T>(all: &[T], turn: u64, fits: impl Fn(&T) -> bool) -> Option<&T> {
    let count = all.iter().filter(|one| fits(one)).count() as u64;
    all.iter().filter(|one| fits(one)).nth(turn.checked_rem(count)? as usize)
}

fn not_within(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("not done within {limit:?}"))
}

/// How to mend the failure to open a connection or a socket, after a semicolon.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => {
            "; no local port is free: give more source addresses with --local, or wait a minute"
        }
        // EMFILE has no kind, and the errors of setting up a socket are text around the kernel's own.
        _ if error.to_string().contains("os error 24") => {
            "; raise the limit of descriptors with `ulimit -n`"
        }
        _ => "",
    }
}
