//! Making connections.

use super::Worker;
use super::connection::{Lost, Protocol};
use crate::recorder::Trouble;
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::{JoinHandle, TcpStream, spawn, timeout};

/// Concurrent attempts to connect of a thread.
const CONNECTS_AT_ONCE: u64 = 256;

/// The connections among `all` that belong to thread `index` of `threads`.
pub(super) fn share_of(all: Range<u64>, threads: usize, index: usize) -> impl Iterator<Item = u64> {
    all.filter(move |number| number % threads as u64 == index as u64)
}

/// Opens the connections among `all` that belong to thread `index` of `threads`, with bounded
/// concurrency. Returns those that `connect` opened, by number.
pub(super) async fn connect_share<T, F>(
    all: Range<u64>,
    threads: usize,
    index: usize,
    connect: impl Fn(u64) -> F + 'static,
) -> Vec<(u64, T)>
where
    T: 'static,
    F: Future<Output = Option<T>>,
{
    let mut mine: Vec<u64> = share_of(all, threads, index).collect();
    mine.reverse();
    let at_once = CONNECTS_AT_ONCE.min(mine.len() as u64);
    let shared = Rc::new((connect, RefCell::new(mine), RefCell::new(Vec::new())));
    let connectors: Vec<JoinHandle<()>> = (0..at_once)
        .map(|_| {
            let shared = Rc::clone(&shared);
            spawn(async move {
                let (connect, mine, made) = &*shared;
                loop {
                    let Some(number) = mine.borrow_mut().pop() else { return };
                    let connected = connect(number).await;
                    made.borrow_mut().extend(connected.map(|one| (number, one)));
                }
            })
        })
        .collect();
    for connector in connectors {
        // Ends by itself; only the end of the runtime can abort it, as can a panic.
        let _aborted = connector.await;
    }
    let mut made = shared.2.take();
    made.sort_by_key(|(number, _)| *number);
    made
}

impl<P: Protocol> Worker<P> {
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
        let common = self.common();
        let (limit, began) = (common.connect_timeout, Instant::now());
        let failed = |error: io::Error| Lost(Trouble::Connect, connect_failure(&error));
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

/// Why an attempt to connect failed, and how to fix it.
fn connect_failure(error: &io::Error) -> String {
    /// No descriptor is left; has no `ErrorKind`.
    const EMFILE: i32 = 24;
    let advice = match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "; no local port is free: give more source addresses with --local, or wait a minute"
        }
        _ if error.raw_os_error() == Some(EMFILE) => {
            "; raise the limit of descriptors with `ulimit -n`"
        }
        _ => "",
    };
    format!("connecting: {error}{advice}")
}
