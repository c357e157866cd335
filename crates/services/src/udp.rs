//! Reflector over UDP: every datagram goes back to its sender, from the address it was sent to.
//!
//! What comes back is byte for byte what was sent, in order for each source, also when the send buffer
//! is full. (The exception is asked for: single-shot receives, [`UdpOptions::pending`], may complete in
//! another order.) A datagram that
//! cannot be sent back whole, or at all, is dropped and counted; see [`UdpCounters`]. The service
//! answers whoever a datagram claims to come from, if that is one host of its [`Audience`], and with
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

use crate::accepting::{end_vital, spawn_vital};
use crate::audience::Audience;
use counters::Desk;
use reflector::{Impaired, Port, Straight, reflect};
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    pub audience: Audience,
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
    handle: Handle,
    addresses: Vec<SocketAddr>,
    granted: Granted,
    /// The sockets of each worker, one for each address, until it starts.
    sockets: Mutex<Vec<Vec<BoundUdp>>>,
    desks: Vec<Arc<Desk>>,
    workers_starting: AtomicUsize,
    on_ready: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for UdpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpService")
            .field("addresses", &self.addresses)
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
        let mut per_worker: Vec<Vec<BoundUdp>> = (0..workers).map(|_| Vec::new()).collect();
        let mut bound_addresses = Vec::with_capacity(addresses.len());
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
            bound_addresses.extend(bound.first().map(BoundUdp::local_addr));
            granted = granted.or(bound.first().map(BoundUdp::granted));
            per_worker.iter_mut().zip(bound).for_each(|(worker, socket)| worker.push(socket));
        }
        let no_address = || io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
        Ok(UdpService {
            settings,
            handle,
            addresses: bound_addresses,
            granted: granted.ok_or_else(no_address)?,
            sockets: Mutex::new(per_worker),
            desks: (0..workers).map(|_| Arc::default()).collect(),
            workers_starting: AtomicUsize::new(workers),
            on_ready: Box::new(|| {}),
        })
    }

    /// Called once, on a worker thread, when all workers receive.
    pub fn on_ready(mut self, handler: impl Fn() + Send + Sync + 'static) -> UdpService {
        self.on_ready = Box::new(handler);
        self
    }

    /// The addresses it listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the kernel granted each socket.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// A reader of the counters that outlives the service and works on any thread but a worker's.
    pub fn counters(&self) -> impl Fn() -> UdpCounters + Send + Sync + 'static {
        let desks = self.desks.clone();
        move || {
            desks.iter().for_each(|desk| desk.ask());
            let mut sum = UdpCounters::default();
            desks.iter().for_each(|desk| sum.merge(&desk.read()));
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
        let outcome = self.run_worker(worker).await;
        if outcome.is_err() {
            self.handle.shutdown();
        }
        outcome
    }

    async fn run_worker(&self, worker: usize) -> io::Result<()> {
        let bound = {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut sockets[worker])
        };
        let own: Rc<[SocketAddr]> = self.addresses.as_slice().into();
        let port = |bound| {
            let socket = UdpSocket::from_bound(bound)?;
            Ok(Rc::new(Port::new(socket, Rc::clone(&own), &self.settings)))
        };
        let ports = bound.into_iter().map(port).collect::<io::Result<Rc<[Rc<Port>]>>>()?;
        let clerk = Clerk { ports: Rc::clone(&ports), desk: Arc::clone(&self.desks[worker]) };
        let clerk = Rc::new(clerk);
        let answering = spawn_vital(&self.handle, answer_questions(Rc::clone(&clerk)));
        let reflecting: Vec<_> = (0..)
            .zip(&*ports)
            .map(|(listener, port)| {
                // Each socket has impairments of its own, the same in every run.
                let stream = worker as u64 * ports.len() as u64 + listener;
                self.reflect(Rc::clone(port), stream)
            })
            .collect();
        if self.workers_starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            (self.on_ready)();
        }
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
        spawn_vital(&self.handle, async move {
            match impairments {
                None => reflect(&port, Straight).await,
                Some(impairments) => reflect(&port, Impaired::new(&impairments, stream)).await,
            }
        })
    }
}

/// Answers questions about one worker, and leaves the last answer behind when the worker ends,
/// however it ends.
struct Clerk {
    ports: Rc<[Rc<Port>]>,
    desk: Arc<Desk>,
}

impl Clerk {
    fn counters(&self) -> UdpCounters {
        let mut sum = UdpCounters::default();
        self.ports.iter().for_each(|port| sum.merge(&port.counters()));
        sum
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.desk.close(self.counters());
    }
}

async fn answer_questions(clerk: Rc<Clerk>) -> io::Result<Infallible> {
    loop {
        poll_fn(|cx| clerk.desk.poll_asked(cx)).await;
        clerk.desk.answer(clerk.counters());
    }
}
