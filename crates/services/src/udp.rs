//! Reflector over UDP: every datagram goes back to its sender, from the address it was sent to.
//!
//! What comes back is byte for byte what was sent, in order for each source, also when the send buffer
//! is full. (The exception is asked for: single-shot receives, [`UdpOptions::pending`], may complete in
//! another order.) A datagram that
//! cannot be sent back whole, or at all, is dropped and counted; see [`UdpCounters`]. The service
//! answers whoever a datagram claims to come from, if that is one host of its [`AllowList`], and with
//! as many bytes: nothing is amplified (duplicates that were asked for aside), but where source
//! addresses can be forged it can be made to send to third parties.
//!
//! Answers carry the DSCP of the socket, and no ECN codepoint: a reflector has no congestion
//! control, and must not claim that it reacts to marks (RFC 3168). For measurements of what a path
//! does to ECN, each answer can carry the codepoint of its datagram instead.

mod counters;
mod impairment;
mod rate;
mod reflector;

pub use counters::UdpCounters;
pub use impairment::{
    ImpairmentCounts, Impairments, SWAP_PATIENCE, WAITING_BYTES_MAX, WAITING_MAX,
};
pub use rate::SOURCES_MAX;

use crate::server::{AllowList, Server, end_vital, spawn_vital};
use counters::StatsRequest;
use reflector::{Impaired, Port, Straight, reflect};
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::net::Granted;
use twinring::{BoundUdp, Handle, JoinHandle, UdpOptions, UdpSocket, shutdown_requested};

/// The longest that a drain can be told to take.
const DRAIN_MAX: Duration = Duration::from_secs(24 * 3600);

/// How the reflector behaves.
#[derive(Clone, Debug)]
pub struct UdpSettings {
    /// How its sockets are made. The service itself decides on `pktinfo` and `traffic_class`.
    pub options: UdpOptions,
    /// Give each answer the ECN codepoint of its datagram.
    pub copy_ecn: bool,
    /// Whose datagrams are answered.
    pub allow: AllowList,
    /// Datagrams of one source (an IPv4 address, or an IPv6 network of 64 bits) that each socket
    /// answers in a second; `None` is no limit. Of [`SOURCES_MAX`] sources at once.
    pub rate_per_source: Option<u32>,
    /// What is done to datagrams on purpose.
    pub impairments: Option<Impairments>,
    /// How long a shutdown may take, a day at most: what was received, and what is held back, is
    /// sent meanwhile.
    pub drain_timeout: Duration,
}

/// A reflector, bound and ready to run on the workers of a runtime.
pub struct UdpService {
    settings: UdpSettings,
    /// A socket for each address.
    server: Server<BoundUdp>,
    granted: Granted,
    stats: Vec<Arc<StatsRequest>>,
}

impl fmt::Debug for UdpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpService")
            .field("addresses", &self.server.addresses())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
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
        let mut server = Server::new(workers, handle);
        let mut granted = None;
        for address in addresses {
            let options = UdpOptions {
                // A socket bound to one address answers from there anyway, and without ancillary
                // data a send is cheaper.
                pktinfo: address.ip().is_unspecified(),
                traffic_class: settings.copy_ecn,
                ..settings.options.clone()
            };
            let bound = options.bind_shared(*address, workers)?;
            granted = granted.or(bound.first().map(BoundUdp::granted));
            server.add(bound.first().map(BoundUdp::local_addr), bound);
        }
        let no_address = || io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
        Ok(UdpService {
            settings,
            server,
            granted: granted.ok_or_else(no_address)?,
            stats: (0..workers).map(|_| Arc::default()).collect(),
        })
    }

    /// Called once, on a worker thread, when all workers receive.
    pub fn on_ready(mut self, handler: impl Fn() + Send + Sync + 'static) -> UdpService {
        self.server.on_ready(handler);
        self
    }

    /// The addresses it listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.server.addresses()
    }

    /// What the kernel granted each socket.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// A reader of the counters that outlives the service and works on any thread but a worker's.
    pub fn counters(&self) -> impl Fn() -> UdpCounters + Send + Sync + 'static {
        let workers = self.stats.clone();
        move || {
            workers.iter().for_each(|worker| worker.send());
            let mut sum = UdpCounters::default();
            workers.iter().for_each(|worker| sum.merge(&worker.reply()));
            sum
        }
    }

    /// Runs the part of worker number `worker` until the runtime is asked to shut down and all is
    /// answered, or the drain timeout is over.
    ///
    /// # Errors
    /// When a socket fails for good. The other workers are then asked to shut down.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn run(self: Arc<Self>, worker: usize) -> io::Result<()> {
        self.server.run(self.run_worker(worker)).await
    }

    async fn run_worker(&self, worker: usize) -> io::Result<()> {
        let own: Rc<[SocketAddr]> = self.server.addresses().into();
        let port = |bound| {
            let socket = UdpSocket::from_bound(bound)?;
            Ok(Rc::new(Port::new(socket, Rc::clone(&own), &self.settings)))
        };
        let bound = self.server.take(worker);
        let ports = bound.into_iter().map(port).collect::<io::Result<Rc<[Rc<Port>]>>>()?;
        let stats = Stats { ports: Rc::clone(&ports), request: Arc::clone(&self.stats[worker]) };
        let answering = spawn_vital(self.server.handle(), stats.answer());
        let reflecting: Vec<_> = (0..)
            .zip(&*ports)
            .map(|(listener, port)| {
                // Each socket has impairments of its own, the same in every run.
                let stream = worker as u64 * ports.len() as u64 + listener;
                self.reflect(Rc::clone(port), stream)
            })
            .collect();
        self.server.worker_is_ready(|| {});
        shutdown_requested().await;
        let deadline = Instant::now() + self.settings.drain_timeout.min(DRAIN_MAX);
        ports.iter().for_each(|port| port.drain(deadline));
        let mut outcome = Ok(());
        for task in reflecting {
            outcome = outcome.and(task.await.unwrap_or_else(|gone| Err(io::Error::other(gone))));
        }
        outcome.and(end_vital(answering).await)
    }

    fn reflect(&self, port: Rc<Port>, stream: u64) -> JoinHandle<io::Result<()>> {
        let impairments = self.settings.impairments.clone();
        spawn_vital(self.server.handle(), async move {
            match impairments {
                None => reflect(&port, Straight).await,
                Some(impairments) => reflect(&port, Impaired::new(&impairments, stream)).await,
            }
        })
    }
}

/// Replies to requests for the counters of one worker, and leaves the last ones behind when the worker
/// ends, however it ends.
struct Stats {
    ports: Rc<[Rc<Port>]>,
    request: Arc<StatsRequest>,
}

impl Stats {
    fn counters(&self) -> UdpCounters {
        let mut sum = UdpCounters::default();
        self.ports.iter().for_each(|port| sum.merge(&port.counters()));
        sum
    }

    async fn answer(self) -> io::Result<Infallible> {
        loop {
            poll_fn(|cx| self.request.poll_sent(cx)).await;
            self.request.answer(self.counters());
        }
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        self.request.close(self.counters());
    }
}
