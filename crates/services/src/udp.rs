//! Reflector over UDP: every datagram goes back to its sender, from the address to which it was
//! sent.
//!
//! Answers are byte for byte equal to the datagrams, in order for each source, also when the send
//! buffer is full. (There is one exception on request: single-shot receives,
//! [`UdpOptions::pending`], may complete in another order.) A datagram that cannot be sent back
//! whole, or at all, is dropped and counted; see [`UdpCounters`]. The service answers to the
//! address that a datagram claims as its source, if that is one host of its [`AllowList`], and with
//! the same number of bytes: there is no amplification. But where
//! sources can be forged, answers can reach third parties.
//!
//! Answers carry the DSCP of the socket, and no ECN codepoint: a reflector has no congestion
//! control, and must not claim that it reacts to marks (RFC 3168). To measure how a path treats
//! ECN, each answer can carry the codepoint of its datagram instead.

mod reflector;

pub use crate::rate::SOURCES_MAX;
pub use reflector::UdpCounters;

use crate::server::{
    Activity, AllowList, Reading, Running, Server, Service, Stage, end_vital, spawn_vital,
};
use reflector::{Port, reflect};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use twinring::net::Granted;
use twinring::{
    Handle, UdpSocket,
    net::{BoundUdp, UdpOptions},
    shutdown_requested, sleep,
};

/// The longest configurable drain.
const DRAIN_MAX: Duration = Duration::from_secs(24 * 3600);

/// How long after a datagram the counters of a worker are published.
const PUBLISHED_AFTER: Duration = Duration::from_millis(100);

/// How the reflector behaves.
#[derive(Clone, Debug)]
pub struct UdpSettings {
    /// The options of its sockets. The service itself sets `pktinfo` and `traffic_class`.
    pub options: UdpOptions,
    /// Gives each answer the ECN codepoint of its datagram.
    pub copy_ecn: bool,
    /// The sources that are answered.
    pub allow: AllowList,
    /// Datagrams per second of one source (an IPv4 address, or an IPv6 network of 64 bits) that
    /// each socket answers; `None` is unlimited. Remembers [`SOURCES_MAX`] sources.
    pub rate_per_source: Option<u32>,
    /// How long a shutdown may take, at most a day, to send pending answers.
    pub drain_timeout: Duration,
}

/// The reflector.
pub type UdpService = Server<Udp>;

/// See [`UdpService`].
pub struct Udp {
    settings: UdpSettings,
    granted: Granted,
    /// Of each worker, as it published them.
    counters: Vec<Arc<Mutex<UdpCounters>>>,
}

impl UdpService {
    /// Binds a socket for each of `addresses` and each of `workers` workers of the runtime that
    /// `handle` controls. Between the sockets of an address the kernel chooses by a hash of the
    /// addresses of a datagram, so a source stays with its worker.
    ///
    /// # Errors
    /// When an address cannot be bound, or an option is out of range; the message names it.
    pub fn bind(
        addresses: &[SocketAddr],
        settings: UdpSettings,
        workers: usize,
        handle: Handle,
    ) -> io::Result<UdpService> {
        let mut all = Vec::with_capacity(addresses.len());
        for address in addresses {
            let options = UdpOptions {
                // A socket bound to one address answers from it anyway, and a send without
                // ancillary data is cheaper.
                pktinfo: address.ip().is_unspecified(),
                traffic_class: settings.copy_ecn,
                ..settings.options.clone()
            };
            all.push(options.bind_shared(*address, workers)?);
        }
        let granted = all.iter().flatten().next().map(BoundUdp::granted);
        let no_address = || io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
        let granted = granted.ok_or_else(no_address)?;
        let counters = (0..workers).map(|_| Arc::default()).collect();
        let mut server = Server::new(Udp { settings, granted, counters }, workers, handle);
        for bound in all {
            server.add(bound.first().map(BoundUdp::local_addr), bound);
        }
        Ok(server)
    }

    /// The buffer sizes that the kernel granted each socket.
    pub fn granted(&self) -> Granted {
        self.service.granted
    }

    /// A reader of the counters, as they were a moment ago. It outlives the service and works on any thread.
    pub fn counters(&self) -> impl Fn() -> UdpCounters + Send + Sync + 'static {
        let workers = self.service.counters.clone();
        move || {
            let mut sum = UdpCounters::default();
            workers.iter().for_each(|worker| sum.merge(&published(worker)));
            sum
        }
    }
}

fn published(worker: &Mutex<UdpCounters>) -> MutexGuard<'_, UdpCounters> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service for Udp {
    type Socket = BoundUdp;

    fn run(server: &UdpService, worker: usize, sockets: Vec<BoundUdp>) -> Running<'_> {
        Box::pin(reflect_all(server, worker, sockets))
    }

    /// The datagrams that a worker answered.
    fn reading(&self, worker: usize) -> Reading {
        let counters = *published(&self.counters[worker]);
        let bytes = counters.received_bytes + counters.sent_bytes;
        Reading { units: counters.sockets.sent, bytes, ..Reading::default() }
    }
}

async fn reflect_all(server: &UdpService, worker: usize, sockets: Vec<BoundUdp>) -> io::Result<()> {
    let settings = &server.service.settings;
    let own: Rc<[SocketAddr]> = server.addresses().into();
    let activity: Rc<Activity> = Rc::default();
    let port = |bound| {
        let socket = UdpSocket::from_bound(bound)?;
        Ok(Rc::new(Port::new(socket, Rc::clone(&own), settings, Rc::clone(&activity))))
    };
    let ports = sockets.into_iter().map(port).collect::<io::Result<Rc<[Rc<Port>]>>>()?;
    let shared = Arc::clone(&server.service.counters[worker]);
    let publisher = Publisher { ports: Rc::clone(&ports), shared };
    let publishing = spawn_vital(server.handle(), publisher.run(activity));
    let reflecting: Vec<_> = ports
        .iter()
        .map(|port| {
            let port = Rc::clone(port);
            spawn_vital(server.handle(), async move { reflect(&port).await })
        })
        .collect();
    server.worker_is_ready();
    shutdown_requested().await;
    server.stage.advance(Stage::Draining);
    let deadline = Instant::now() + settings.drain_timeout.min(DRAIN_MAX);
    ports.iter().for_each(|port| port.drain(deadline));
    let mut outcome = Ok(());
    for task in reflecting {
        outcome = outcome.and(task.await.unwrap_or_else(|gone| Err(io::Error::other(gone))));
    }
    outcome.and(end_vital(publishing).await)
}

/// Publishes the counters of a worker a moment after something has changed, and the final ones when the worker ends,
/// also by a panic. Counting itself therefore needs no atomics, an idle worker sleeps, and what only the worker can
/// read, the kernel's drops, is there too.
struct Publisher {
    ports: Rc<[Rc<Port>]>,
    shared: Arc<Mutex<UdpCounters>>,
}

impl Publisher {
    async fn run(self, activity: Rc<Activity>) -> io::Result<Infallible> {
        loop {
            activity.wait().await;
            sleep(PUBLISHED_AFTER).await;
            activity.forget();
            if self.publish().waiting > 0 {
                activity.note();
            }
        }
    }

    fn publish(&self) -> UdpCounters {
        let mut sum = UdpCounters::default();
        self.ports.iter().for_each(|port| sum.merge(&port.counters()));
        *published(&self.shared) = sum;
        sum
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.publish();
    }
}
