//! A TCP service on all workers: accepting, limits, and the drain at shutdown.

use crate::accepting::{Acceptors, accept, drain, end_vital, spawn_vital};
use crate::audience::Audience;
use crate::connections::{Connection, Connections, Ending};
use crate::counters::{ServiceCounters, WorkerCounters};
use crate::guests::Guests;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use twinring::{BoundListener, Handle, ListenOptions, TcpListener, TcpStream, sleep, spawn};

/// A connection that stood still for this many sweeps of a drain has nothing to finish.
const DRAIN_QUIET_SWEEPS: u32 = 4;

/// Sweeps per idle timeout: a connection is closed after the timeout and at most a quarter more.
const IDLE_SWEEPS: u32 = 4;

/// The shortest time between two idle sweeps.
const IDLE_SWEEP_MIN: Duration = Duration::from_millis(5);

/// The bounds of a TCP service.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections open at once, over all workers; what comes beyond is closed at once.
    pub max_connections: usize,
    /// Those of one IPv4 address, or one IPv6 network of 64 bits; `usize::MAX` is no maximum.
    pub max_connections_per_address: usize,
    /// Whose connections are served; others are closed at once.
    pub audience: Audience,
    /// Close connections on which nothing was received, and nothing handed over to the kernel,
    /// for this long.
    pub idle_timeout: Option<Duration>,
    /// How long a shutdown waits for peers to take what was received from them.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    /// Anybody, as many connections as descriptors, no idle timeout, 10 seconds for the drain.
    fn default() -> Limits {
        Limits {
            max_connections: usize::MAX,
            max_connections_per_address: usize::MAX,
            audience: Audience::anybody(),
            idle_timeout: None,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// A TCP service, bound and ready to run on the workers of a runtime.
pub struct TcpService<S> {
    serve: S,
    limits: Limits,
    handle: Handle,
    addresses: Vec<SocketAddr>,
    /// The listening sockets of each worker, until it starts.
    listeners: Mutex<Vec<Vec<BoundListener>>>,
    counters: Vec<Arc<WorkerCounters>>,
    guests: Arc<Guests>,
    workers_starting: AtomicUsize,
    on_ready: Box<dyn Fn() + Send + Sync>,
}

impl<S> fmt::Debug for TcpService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpService")
            .field("addresses", &self.addresses)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl<S> TcpService<S>
where
    S: AsyncFn(&Connection) -> io::Result<()> + Clone + 'static,
{
    /// Binds `addresses` for `workers` workers of the runtime that `handle` controls. `serve`
    /// serves one connection.
    ///
    /// # Errors
    /// When an address cannot be bound; the message names it.
    pub fn bind(
        serve: S,
        addresses: &[SocketAddr],
        options: &ListenOptions,
        limits: Limits,
        workers: usize,
        handle: Handle,
    ) -> io::Result<TcpService<S>> {
        let mut per_worker: Vec<Vec<BoundListener>> = (0..workers).map(|_| Vec::new()).collect();
        let mut bound_addresses = Vec::with_capacity(addresses.len());
        for address in addresses {
            let bound = options.bind(*address, workers)?;
            bound_addresses.extend(bound.first().map(BoundListener::local_addr));
            per_worker.iter_mut().zip(bound).for_each(|(worker, listener)| worker.push(listener));
        }
        let guests = Guests::new(
            limits.audience.clone(),
            limits.max_connections,
            limits.max_connections_per_address,
        );
        Ok(TcpService {
            serve,
            limits,
            handle,
            addresses: bound_addresses,
            listeners: Mutex::new(per_worker),
            counters: (0..workers).map(|_| Arc::default()).collect(),
            guests,
            workers_starting: AtomicUsize::new(workers),
            on_ready: Box::new(|| {}),
        })
    }

    /// Called once, on a worker thread, when all workers accept.
    pub fn on_ready(mut self, handler: impl Fn() + Send + Sync + 'static) -> TcpService<S> {
        self.on_ready = Box::new(handler);
        self
    }

    /// The addresses it listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A reader of the counters that outlives the service and works on any thread.
    pub fn counters(&self) -> impl Fn() -> ServiceCounters + Send + Sync + 'static {
        let counters = self.counters.clone();
        move || ServiceCounters::sum(counters.iter().map(|worker| &**worker))
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

    async fn run_worker(&self, worker: usize) -> io::Result<()> {
        let bound = {
            let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut listeners[worker])
        };
        let listeners: Vec<TcpListener> =
            bound.into_iter().map(TcpListener::from_bound).collect::<io::Result<_>>()?;
        let counters = Arc::clone(&self.counters[worker]);
        let connections = Connections::new(counters, Arc::clone(&self.guests));
        let acceptors = listeners.into_iter().map(|listener| {
            let (connections, serve) = (Rc::clone(&connections), self.serve.clone());
            async move {
                let start = |stream| start(stream, &connections, &serve);
                accept(&listener, start, || {}).await
            }
        });
        let acceptors = Acceptors::spawn(&self.handle, acceptors);
        let sweeper = self.limits.idle_timeout.map(|idle_timeout| {
            let connections = Rc::clone(&connections);
            spawn_vital(&self.handle, async move { sweep_idle(&connections, idle_timeout).await })
        });
        if self.workers_starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            (self.on_ready)();
        }
        let mut outcome = acceptors.ended().await;
        if let Some(sweeper) = sweeper {
            outcome = outcome.and(end_vital(sweeper).await);
        }
        // Connections finish what they received, and are closed; those that have not ended at the
        // timeout are cut.
        let sweep = || connections.sweep(Ending::Drain, DRAIN_QUIET_SWEEPS);
        let timeout = self.limits.drain_timeout;
        drain(timeout, || connections.is_empty(), sweep, || connections.cut()).await;
        outcome
    }
}

/// Serves a connection in a task of its own, if it is let in.
fn start<S>(stream: TcpStream, connections: &Rc<Connections>, serve: &S)
where
    S: AsyncFn(&Connection) -> io::Result<()> + Clone + 'static,
{
    if let Some(live) = connections.admit(stream) {
        let serve = serve.clone();
        spawn(async move {
            let served = serve(live.connection()).await;
            // In a box, as what happens once at the end is larger than all before it, and the
            // size of a connection's task is cache footprint.
            Box::pin(live.connection().end(served)).await;
        });
    }
}

async fn sweep_idle(connections: &Connections, idle_timeout: Duration) -> io::Result<Infallible> {
    let period = (idle_timeout / IDLE_SWEEPS).max(IDLE_SWEEP_MIN);
    let quiet_sweeps = idle_timeout.as_nanos().div_ceil(period.as_nanos()) as u32;
    loop {
        connections.not_empty().await;
        sleep(period).await;
        connections.sweep(Ending::Idle, quiet_sweeps);
    }
}
