//! The service on all workers: accepting, limits, timeouts, and the drain at shutdown.

use super::conversation::converse;
use super::counters::{HttpCounters, WorkerCounters};
use super::options::{HttpLimits, HttpSettings};
use super::response::{Persistence, message};
use super::session::{Ending, Phase};
use super::status::Status;
use super::worker::Worker;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use twinring::{
    BoundListener, Either, Handle, ListenOptions, TcpListener, TcpStream, race, shutdown_requested,
    sleep, spawn,
};

/// The longest and the shortest time between two sweeps over the connections.
const SWEEP_MAX: Duration = Duration::from_secs(1);
const SWEEP_MIN: Duration = Duration::from_millis(5);

/// Sweeps in the shortest timeout.
const SWEEPS_PER_TIMEOUT: u32 = 4;

/// Time between two sweeps of a drain.
const DRAIN_SWEEP: Duration = Duration::from_millis(25);

/// A connection that was idle for this many sweeps of a drain is closed.
const DRAIN_QUIET_SWEEPS: u32 = 2;

/// How long a connection is read from after its last answer, until the peer ends it too.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// How long a shutdown goes on accepting what the kernel has connected already. Closing the
/// listener would reset those.
const ACCEPT_GRACE: Duration = Duration::from_millis(10);

/// The HTTP service, bound and ready to run on the workers of a runtime.
pub struct HttpService {
    settings: Arc<HttpSettings>,
    handle: Handle,
    addresses: Vec<SocketAddr>,
    /// The listening sockets of each worker, until it starts.
    listeners: Mutex<Vec<Vec<BoundListener>>>,
    counters: Vec<Arc<WorkerCounters>>,
    guests: Arc<Guests>,
    workers_starting: AtomicUsize,
    on_ready: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for HttpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService")
            .field("addresses", &self.addresses)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl HttpService {
    /// Binds `addresses` for `workers` workers of the runtime that `handle` controls.
    ///
    /// # Errors
    /// When an address cannot be bound; the message names it.
    pub fn bind(
        addresses: &[SocketAddr],
        options: &ListenOptions,
        settings: HttpSettings,
        workers: usize,
        handle: Handle,
    ) -> io::Result<HttpService> {
        let mut per_worker: Vec<Vec<BoundListener>> = (0..workers).map(|_| Vec::new()).collect();
        let mut bound_addresses = Vec::with_capacity(addresses.len());
        for address in addresses {
            let bound = options.bind(*address, workers)?;
            bound_addresses.extend(bound.first().map(BoundListener::local_addr));
            per_worker.iter_mut().zip(bound).for_each(|(worker, listener)| worker.push(listener));
        }
        Ok(HttpService {
            guests: Arc::new(Guests::new(&settings.limits)),
            settings: Arc::new(settings),
            handle,
            addresses: bound_addresses,
            listeners: Mutex::new(per_worker),
            counters: (0..workers).map(|_| Arc::default()).collect(),
            workers_starting: AtomicUsize::new(workers),
            on_ready: Box::new(|| {}),
        })
    }

    /// Called once, on a worker thread, when all workers accept.
    pub fn on_ready(mut self, handler: impl Fn() + Send + Sync + 'static) -> HttpService {
        self.on_ready = Box::new(handler);
        self
    }

    /// The addresses it listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A reader of the counters that outlives the service and works on any thread.
    pub fn counters(&self) -> impl Fn() -> HttpCounters + Send + Sync + 'static {
        let counters = self.counters.clone();
        move || HttpCounters::sum(counters.iter().map(|worker| &**worker))
    }

    /// Runs the part of worker number `worker` until the runtime is asked to shut down and the
    /// connections have ended or the drain timeout has.
    ///
    /// # Errors
    /// When a listening socket fails. The other workers are then asked to shut down.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn run(self: Arc<Self>, worker: usize) -> io::Result<()> {
        let outcome = self.run_worker(worker).await;
        if outcome.is_err() {
            self.handle.shutdown();
        }
        outcome
    }

    async fn run_worker(&self, number: usize) -> io::Result<()> {
        let bound = {
            let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut listeners[number])
        };
        let listeners: Vec<TcpListener> =
            bound.into_iter().map(TcpListener::from_bound).collect::<io::Result<_>>()?;
        let counters = Arc::clone(&self.counters[number]);
        let worker = Worker::new(Arc::clone(&self.settings), counters, self.counters.len());
        let acceptors: Vec<_> = listeners
            .into_iter()
            .map(|listener| {
                let (worker, guests) = (Rc::clone(&worker), Arc::clone(&self.guests));
                let handle = self.handle.clone();
                spawn(async move {
                    let outcome = accept(&listener, &worker, &guests).await;
                    if outcome.is_err() {
                        handle.shutdown();
                    }
                    outcome
                })
            })
            .collect();
        let watched = Rc::clone(&worker);
        let watch = spawn(async move { watch(&watched).await });
        if self.workers_starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            (self.on_ready)();
        }
        let mut outcome = Ok(());
        for acceptor in acceptors {
            outcome =
                outcome.and(acceptor.await.unwrap_or_else(|gone| Err(io::Error::other(gone))));
        }
        watch.abort();
        drain(&worker).await;
        outcome
    }
}

async fn accept(
    listener: &TcpListener,
    worker: &Rc<Worker>,
    guests: &Arc<Guests>,
) -> io::Result<()> {
    let mut shutdown = pin!(shutdown_requested());
    while let Either::Left(accepted) = race(listener.accept(), shutdown.as_mut()).await {
        start(accepted?, worker, guests);
    }
    worker.draining.set(true);
    let mut grace = pin!(sleep(ACCEPT_GRACE));
    while let Either::Left(accepted) = race(listener.accept(), grace.as_mut()).await {
        start(accepted?, worker, guests);
    }
    Ok(())
}

/// Serves a connection in a task of its own, if there is room for it.
fn start(stream: TcpStream, worker: &Rc<Worker>, guests: &Arc<Guests>) {
    let guest = match guests.admit(&stream) {
        Ok(guest) => guest,
        Err(Refused::Full) => return worker.counters.refused.add(1),
        Err(Refused::FullForAddress) => return worker.counters.refused_of_address.add(1),
    };
    let live = worker.sessions.admit(stream, &worker.counters);
    let worker = Rc::clone(worker);
    spawn(async move {
        let session = live.session();
        if converse(&worker, session).await.is_err() {
            // In a box, as what happens once at the end is larger than all before it.
            Box::pin(session.close(|| {
                let (status, closes) = (Status::REQUEST_TIMEOUT, Persistence::Closes);
                worker.clock.tick();
                worker.counters.count_answer(status);
                message(status, &[], &worker.clock, closes, false)
            }))
            .await;
        }
        drop(live);
        drop(guest);
    });
}

/// Ends connections that take too long.
async fn watch(worker: &Worker) {
    let timeouts = &worker.settings.timeouts;
    let all = [timeouts.header, timeouts.body, timeouts.idle, timeouts.send];
    let shortest = all.into_iter().min().unwrap_or(SWEEP_MAX);
    let period = (shortest / SWEEPS_PER_TIMEOUT).clamp(SWEEP_MIN, SWEEP_MAX);
    loop {
        sleep(period).await;
        worker.sessions.sweep(|phase| {
            let most = match phase {
                Phase::Idle => timeouts.idle,
                Phase::Head => timeouts.header,
                Phase::Body => timeouts.body,
                Phase::Sending => timeouts.send,
                Phase::Closing => CLOSING_MAX,
                // The disk takes the time it takes.
                Phase::Working => return None,
            };
            let sweeps = most.as_nanos().div_ceil(period.as_nanos()).try_into();
            Some((sweeps.unwrap_or(u32::MAX), Ending::TimedOut(phase)))
        });
    }
}

/// Closes connections without a request at once, lets the others finish theirs, and cuts those
/// that have not at the timeout.
async fn drain(worker: &Worker) {
    let (started, timeout) = (Instant::now(), worker.settings.timeouts.drain);
    while !worker.sessions.is_empty() && started.elapsed() < timeout {
        sleep(DRAIN_SWEEP.min(timeout.saturating_sub(started.elapsed()))).await;
        worker.sessions.sweep(|phase| match phase {
            Phase::Idle | Phase::Closing => Some((DRAIN_QUIET_SWEEPS, Ending::Drain)),
            _ => None,
        });
    }
    while !worker.sessions.is_empty() {
        // Again each time: a task that had not run yet was not waiting for anything.
        worker.sessions.cut();
        sleep(Duration::from_millis(1)).await;
    }
}

/// Who is connected, over all workers.
#[derive(Debug)]
struct Guests {
    open_max: usize,
    open: AtomicUsize,
    of_address_max: usize,
    /// Only kept when there is a maximum.
    of_address: Mutex<HashMap<IpAddr, usize>>,
}

/// Why somebody was not let in.
enum Refused {
    Full,
    FullForAddress,
}

impl Guests {
    fn new(limits: &HttpLimits) -> Guests {
        Guests {
            open_max: limits.connections,
            open: AtomicUsize::new(0),
            of_address_max: limits.connections_per_address,
            of_address: Mutex::default(),
        }
    }

    fn admit(self: &Arc<Guests>, stream: &TcpStream) -> Result<Guest, Refused> {
        let mut guest = Guest { guests: Arc::clone(self), address: None };
        // From here on dropping the guest takes it off the count again.
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.open_max {
            return Err(Refused::Full);
        }
        if self.of_address_max < usize::MAX
            && let Ok(peer) = stream.peer_addr()
        {
            let address = network_of(peer.ip());
            let mut of_address = self.of_address();
            let count = of_address.entry(address).or_default();
            if *count >= self.of_address_max {
                return Err(Refused::FullForAddress);
            }
            *count += 1;
            guest.address = Some(address);
        }
        Ok(guest)
    }

    fn of_address(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.of_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that is counted: of IPv6 the network, since whoever has one has 2^64 addresses.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64)),
        address => address,
    }
}

/// Somebody who was let in; dropping it makes room.
#[derive(Debug)]
struct Guest {
    guests: Arc<Guests>,
    address: Option<IpAddr>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = self.address {
            let mut of_address = self.guests.of_address();
            if let Some(count) = of_address.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    of_address.remove(&address);
                }
            }
        }
    }
}
