//! Making connections.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use twinring::{JoinHandle, TcpStream, spawn, timeout};

/// Concurrent attempts to connect of a thread.
const CONNECTS_AT_ONCE: u64 = 256;

/// The connections among `all` that belong to thread `index` of `threads`.
pub(super) fn share_of(all: Range<u64>, threads: usize, index: usize) -> impl Iterator<Item = u64> {
    all.filter(move |number| number % threads as u64 == index as u64)
}

/// Opens the connections among `all` that belong to thread `index` of `threads`, with bounded
/// concurrency. Returns those that `connect` opened, by number.
pub(crate) async fn connect_share<T, F>(
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

/// One attempt to connect. `turn` selects the source address: each life of a connection uses the
/// next one, so that ports in TIME_WAIT are spread as well.
pub(crate) async fn dial(
    target: SocketAddr,
    local: &[IpAddr],
    turn: u64,
    limit: Duration,
) -> io::Result<TcpStream> {
    let local = match local.len() as u64 {
        0 => None,
        count => local.get((turn % count) as usize),
    };
    let local = local.map(|address| SocketAddr::new(*address, 0));
    match timeout(limit, TcpStream::connect_from(local, target)).await {
        Ok(connected) => connected,
        Err(_) => Err(not_within(limit)),
    }
}

pub(crate) fn not_within(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("not done within {limit:?}"))
}

/// Why an attempt to connect failed, and how to fix it.
pub(crate) fn connect_failure(error: &io::Error) -> String {
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
