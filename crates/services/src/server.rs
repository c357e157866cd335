//! The parts that all services share: sockets bound for every worker, the moment at which all
//! workers are ready, and for services over TCP admission, timeouts and the drain at shutdown.

mod admission;
mod connections;
mod meters;
mod tasks;

pub use admission::{AllowList, Network};
pub use meters::ServiceCounters;

pub(crate) use admission::{
    AddressPermit, ConnectionLimiter, Permit, contain, is_one_host, network_of,
};
use connections::SWEEPS_PER_LIMIT;
pub(crate) use connections::{Activity, Connections, Ending, Limit, Phase, Tracking};
pub(crate) use meters::{Count, counted, difference, sum};
pub(crate) use tasks::{DRAIN_SWEEP, join_vital};

use crate::http::{Exposition, append_plain};
use crate::lock;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tasks::{accept, drain, watch};
use twinring::{
    Handle, TcpListener, TcpStream,
    measure::thread_cpu_time_ns,
    net::{BoundListener, ListenOptions},
    task::JoinSet,
};

/// The shortest and the longest time between two sweeps over the connections: with a limit of 10 s, a connection ends
/// after 10 to 11 s.
const SWEEP_MIN: Duration = Duration::from_millis(5);
const SWEEP_MAX: Duration = Duration::from_secs(1);

/// How far a service is.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// All workers accept.
    pub(crate) is_ready: AtomicBool,
    /// At least one worker was asked to finish.
    pub(crate) is_draining: AtomicBool,
}

/// A service, bound and ready to run on the workers of a runtime.
pub struct Server<S: Service> {
    pub(crate) service: S,
    pub(crate) handle: Handle,
    addresses: Vec<SocketAddr>,
    /// Of each worker.
    sockets: Vec<Mutex<Vec<S::Socket>>>,
    workers_starting: AtomicUsize,
    on_ready: Box<dyn Fn() + Send + Sync>,
    pub(crate) stage: Arc<Stage>,
    /// Of each worker that has ended.
    cpu_ns: Arc<[[Count; 2]]>,
}

/// A worker's part of a service, as it runs. It is boxed where the service is written, so that it is
/// compiled there, for speed: the command around it is compiled for size.
pub type Running<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// The service that a [`Server`] runs.
pub trait Service: Clone + Send + Sync + 'static {
    /// A bound socket of one worker.
    type Socket: Send;

    /// Its name in reports and metrics.
    const NAME: &'static str;

    /// The counter of what it does: of answers, or, for the echo, which sees no messages, of received bytes.
    const UNIT: &'static str;

    /// Runs one worker's part until the runtime is asked to shut down and the drain has ended.
    fn run(server: &Server<Self>, worker: usize, sockets: Vec<Self::Socket>) -> Running<'_>;

    /// The counters of each worker.
    fn counters(&self) -> Vec<ServiceCounters>;

    /// Adds its metrics.
    fn append_metrics(&self, text: &mut Exposition) {
        append_plain(text, Self::NAME, &sum(self.counters()));
    }
}

impl<S: Service> Server<S> {
    pub(crate) fn with(service: S, workers: usize, handle: Handle) -> Server<S> {
        Server {
            service,
            handle,
            addresses: Vec::new(),
            sockets: (0..workers).map(|_| Mutex::default()).collect(),
            workers_starting: AtomicUsize::new(workers),
            on_ready: Box::new(|| {}),
            stage: Arc::default(),
            cpu_ns: (0..workers).map(|_| Default::default()).collect(),
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.sockets.len()
    }

    pub(crate) fn add(
        &mut self,
        address: Option<SocketAddr>,
        sockets: impl IntoIterator<Item = S::Socket>,
    ) {
        self.addresses.extend(address);
        self.sockets.iter().zip(sockets).for_each(|(own, socket)| lock(own).push(socket));
    }

    /// Called once, on a worker thread, when all workers are ready.
    pub fn on_ready(mut self, handler: impl Fn() + Send + Sync + 'static) -> Server<S> {
        self.on_ready = Box::new(handler);
        self
    }

    /// A reader of the counters, summed over the workers, that outlives the service and works on any thread.
    pub fn counters(&self) -> impl Fn() -> ServiceCounters + Send + Sync + 'static {
        let service = self.service.clone();
        move || sum(service.counters())
    }

    /// The same for each worker, with the CPU time in nanoseconds of its thread in user mode and in the kernel, once it
    /// has ended. What the kernel did for its sockets on other threads and CPUs is not in there.
    pub fn readings(
        &self,
    ) -> impl Fn() -> Vec<(ServiceCounters, [u64; 2])> + Send + Sync + 'static {
        let (service, cpu_ns) = (self.service.clone(), Arc::clone(&self.cpu_ns));
        move || {
            let cpu_ns = cpu_ns.iter().map(|times| times.each_ref().map(Count::get));
            service.counters().into_iter().zip(cpu_ns).collect()
        }
    }

    /// The addresses it listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn worker_is_ready(&self) {
        if self.workers_starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.stage.is_ready.store(true, Ordering::Release);
            (self.on_ready)();
        }
    }

    /// Runs the part of worker number `worker` until the runtime is asked to shut down and all
    /// connections have ended and all datagrams are answered, or the drain timeout has expired.
    ///
    /// # Errors
    /// When a socket fails permanently. The other workers are then asked to shut down.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn run(self: Arc<Self>, worker: usize) -> io::Result<()> {
        let sockets = std::mem::take(&mut *lock(&self.sockets[worker]));
        let outcome = S::run(&self, worker, sockets).await;
        let (user_ns, system_ns) = thread_cpu_time_ns();
        let [in_user_mode, in_kernel] = &self.cpu_ns[worker];
        in_user_mode.set(user_ns);
        in_kernel.set(system_ns);
        if outcome.is_err() {
            self.handle.shutdown();
        }
        outcome
    }
}

pub(crate) type Listener<T> = (BoundListener, T);

/// One worker's part of a service over TCP.
pub(crate) trait WorkerService: 'static {
    /// The service's data about a listening socket.
    type Listener: 'static;

    fn connections(&self) -> &Rc<Connections>;

    /// Serves a connection in a task of its own, if it is admitted.
    fn start(self: &Rc<Self>, stream: TcpStream, listener: &Self::Listener);

    /// How long a connection may stay in a phase, and how it ends if it stays longer.
    fn limit(&self, phase: Phase) -> Option<Limit>;

    /// The same during the drain.
    fn drain_limit(&self, phase: Phase) -> Option<Limit>;

    /// The shortest limit before the drain that peers can exceed, if there is one.
    fn shortest_limit(&self) -> Option<Duration> {
        let phases = [Phase::Handshake, Phase::Idle, Phase::Head, Phase::Body, Phase::Sending];
        phases.into_iter().filter_map(|phase| Some(self.limit(phase)?.time)).min()
    }

    fn drain_timeout(&self) -> Duration;

    /// Periodic work of the service. Returns the latest time of the next call.
    fn housekeeping(&self) -> Option<Instant> {
        None
    }

    fn begin_drain(&self) {}
}

impl<S: Service<Socket = Listener<T>>, T: Clone + 'static> Server<S> {
    /// Binds further addresses, which come behind the others. An error names the address.
    pub fn listen(
        &mut self,
        addresses: &[SocketAddr],
        options: &ListenOptions,
        of_listener: &T,
    ) -> io::Result<()> {
        for address in addresses {
            let bound = options.bind(*address, self.workers())?;
            self.add_bound(bound, of_listener);
        }
        Ok(())
    }

    /// Adds the sockets of an address, one for each worker.
    pub(crate) fn add_bound(&mut self, bound: Vec<BoundListener>, of_listener: &T) {
        let address = bound.first().map(BoundListener::local_addr);
        self.add(address, bound.into_iter().map(|one| (one, of_listener.clone())));
    }

    pub(crate) async fn serve<W: WorkerService<Listener = T>>(
        &self,
        listeners: Vec<Listener<T>>,
        service: &Rc<W>,
    ) -> io::Result<()> {
        let mut tasks = JoinSet::new();
        for (bound, of_listener) in listeners {
            let listener = TcpListener::from_bound(bound)?;
            let (service, stage) = (Rc::clone(service), Arc::clone(&self.stage));
            tasks.spawn(async move {
                let start = |stream| service.start(stream, &of_listener);
                let at_shutdown = || {
                    stage.is_draining.store(true, Ordering::Release);
                    service.begin_drain();
                };
                accept(&listener, start, at_shutdown).await
            });
        }
        let limit = service.shortest_limit();
        if let Some(limit) = limit {
            let period = (limit / SWEEPS_PER_LIMIT).clamp(SWEEP_MIN, SWEEP_MAX);
            tasks.spawn(watch(Rc::clone(service), period));
        }
        self.worker_is_ready();
        let outcome = join_vital(tasks, usize::from(limit.is_some()), &self.handle).await;
        drain(&**service).await;
        outcome
    }
}
