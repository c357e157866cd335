//! A TCP service on all workers: the function that serves each connection, and its limits.

use crate::connection::{Connection, Phase};
use crate::server::{
    AllowList, ConnectionLimiter, Connections, DRAIN_SWEEP, Ending, Limit, Listener, Open, Refused,
    Running, Server, Service, ServiceCounters, Tracking, WorkerCounters, WorkerService,
};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use twinring::{Handle, TcpStream, net::ListenOptions, spawn};

/// A drain ends a connection that has been idle for this long: it has no work to finish.
const DRAIN_IDLE: Duration = DRAIN_SWEEP.saturating_mul(4);

/// Sweeps per idle timeout: a connection is closed after the timeout and at most a quarter more.
const IDLE_SWEEPS: u32 = 4;

/// The shortest and the longest time between two idle sweeps.
const IDLE_SWEEP_MIN: Duration = Duration::from_millis(5);
const IDLE_SWEEP_MAX: Duration = Duration::from_secs(3600);

/// The bounds of a TCP service.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Concurrent connections, over all workers; further ones are closed immediately.
    pub max_connections: usize,
    /// Concurrent connections of one IPv4 address, or one IPv6 network of 64 bits; `usize::MAX` is
    /// unlimited.
    pub max_connections_per_address: usize,
    /// The allowed clients; connections of others are closed immediately.
    pub allow: AllowList,
    /// Closes connections on which no data was received, or passed to the kernel, for this long.
    pub idle_timeout: Option<Duration>,
    /// How long a shutdown waits for peers to read their remaining answers.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    /// All clients, as many connections as descriptors, no idle timeout, 10 seconds for the drain.
    fn default() -> Limits {
        Limits {
            max_connections: usize::MAX,
            max_connections_per_address: usize::MAX,
            allow: AllowList::any(),
            idle_timeout: None,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// A service over TCP, which runs a function for each connection.
pub type TcpService = Server<Tcp>;

/// Starts the task of an admitted connection.
type StartTask = Arc<dyn Fn(Open<Connection>) + Send + Sync>;

/// See [`TcpService`].
pub struct Tcp {
    start_task: StartTask,
    limits: Limits,
    counters: Vec<Arc<WorkerCounters>>,
    limiter: Arc<ConnectionLimiter>,
}

impl TcpService {
    /// Binds `addresses` for `workers` workers of the runtime that `handle` controls. `serve`
    /// serves one connection.
    ///
    /// # Errors
    /// When an address cannot be bound; the message names it.
    pub fn bind<S>(
        serve: S,
        addresses: &[SocketAddr],
        options: &ListenOptions,
        limits: Limits,
        workers: usize,
        handle: Handle,
    ) -> io::Result<TcpService>
    where
        S: AsyncFn(&Connection) -> io::Result<()> + Clone + Send + Sync + 'static,
    {
        let limiter = ConnectionLimiter::new(
            limits.allow.clone(),
            limits.max_connections,
            limits.max_connections_per_address,
        );
        let start_task = Arc::new(move |connection: Open<Connection>| {
            let serve = serve.clone();
            spawn(async move {
                let served = serve(&connection).await;
                // Boxed, because this future is larger than all others of the task, and the size of
                // a connection's task is cache footprint.
                Box::pin(connection.end(served)).await;
            });
        });
        let counters = (0..workers).map(|_| Arc::default()).collect();
        let mut server =
            Server::new(Tcp { start_task, limits, counters, limiter }, workers, handle);
        server.listen(addresses, options, &())?;
        Ok(server)
    }

    /// A reader of the counters that outlives the service and works on any thread.
    pub fn counters(&self) -> impl Fn() -> ServiceCounters + Send + Sync + 'static {
        let counters = self.service.counters.clone();
        move || ServiceCounters::sum(counters.iter().map(|worker| &**worker))
    }
}

impl Service for Tcp {
    type Socket = Listener<()>;

    fn run(server: &TcpService, worker: usize, listeners: Vec<Listener<()>>) -> Running<'_> {
        Box::pin(async move {
            let Tcp { start_task, limits, counters, limiter } = &server.service;
            let part = Rc::new(Worker {
                start_task: Arc::clone(start_task),
                idle_timeout: limits.idle_timeout,
                drain_timeout: limits.drain_timeout,
                limiter: Arc::clone(limiter),
                counters: Arc::clone(&counters[worker]),
                connections: Connections::new(),
            });
            let counters = Arc::clone(&counters[worker]);
            let _metering = server.meter(worker, move || counters.work());
            server.serve(listeners, &part).await
        })
    }
}

/// The part of one worker.
struct Worker {
    start_task: StartTask,
    idle_timeout: Option<Duration>,
    drain_timeout: Duration,
    limiter: Arc<ConnectionLimiter>,
    counters: Arc<WorkerCounters>,
    connections: Rc<Connections<Connection>>,
}

impl WorkerService for Worker {
    type Connection = Connection;
    type Listener = ();

    fn connections(&self) -> &Rc<Connections<Connection>> {
        &self.connections
    }

    fn start(self: &Rc<Self>, stream: TcpStream, _: &()) {
        let counters = &self.counters;
        let permit = match self.limiter.admit(&stream) {
            Ok(permit) => permit,
            Err(Refused::Full) => return counters.refused.add(1),
            Err(Refused::FullForAddress) => return counters.refused_of_address.add(1),
            Err(Refused::NotAllowed) => return counters.not_allowed.add(1),
        };
        counters.accepted.add(1);
        let tracking = Tracking::new(stream, Phase::Receiving, self.connections.activity());
        let connection = self.connections.insert(Connection::new(tracking, counters), permit);
        (self.start_task)(connection);
    }

    fn limit(&self, phase: Phase) -> Option<Limit<Phase>> {
        let limit = |time| Limit { time, ending: Ending::TimedOut(phase), restarts_on_ack: false };
        self.idle_timeout.map(limit)
    }

    /// Connections finish the data that they received. No limit applies while they wait for their
    /// peer to read.
    fn drain_limit(&self, phase: Phase) -> Option<Limit<Phase>> {
        let limit = Limit { time: DRAIN_IDLE, ending: Ending::Drain, restarts_on_ack: false };
        (phase == Phase::Receiving).then_some(limit)
    }

    fn sweep_period(&self) -> Option<Duration> {
        let timeout = self.idle_timeout?;
        Some((timeout / IDLE_SWEEPS).clamp(IDLE_SWEEP_MIN, IDLE_SWEEP_MAX))
    }

    fn drain_timeout(&self) -> Duration {
        self.drain_timeout
    }
}
