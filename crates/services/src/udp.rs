//! Reflector over UDP: every datagram goes back to its sender, from the address to which it was
//! sent.
//!
//! Answers are byte for byte equal to the datagrams, in order for each source (but not with single-shot receives,
//! [`UdpOptions::pending`]). A datagram that cannot be sent back whole, or at all, is dropped and counted. The service
//! answers to the address that a datagram claims as its source, if that is one host of its [`AllowList`], with the same
//! number of bytes: there is no amplification. But where sources can be forged, answers can reach third parties.
//!
//! Answers carry the DSCP of the socket, and no ECN codepoint: a reflector has no congestion
//! control, and must not claim that it reacts to marks (RFC 3168).

use crate::lock;
use crate::rate::RateLimit;
use crate::server::{
    Activity, AllowList, Running, Server, Service, ServiceCounters, counted, is_one_host,
    join_vital, sum,
};
use nix::errno::Errno;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use twinring::net::{BoundUdp, Granted, UdpOptions, UdpStats};
use twinring::task::JoinSet;
use twinring::{
    Datagram, Either, Handle, Received, UdpSocket, race, shutdown_requested, sleep, sleep_until,
    timeout_at,
};

const DRAIN_MAX: Duration = Duration::from_secs(24 * 3600);

/// The smallest burst of a source, in datagrams: as many as the kernel coalesces at most (UDP_GRO_CNT_MAX), which arrive
/// and are admitted together.
const BURST_MIN: u32 = 64;

/// Otherwise a burst is the allowance of this part of a second.
const BURSTS_PER_SECOND: u32 = 10;

/// How long after a datagram the counters of a worker are published.
const PUBLISHED_AFTER: Duration = Duration::from_millis(100);

/// How the reflector behaves.
#[derive(Clone, Debug)]
pub struct UdpSettings {
    /// The options of its sockets. The service itself sets `pktinfo`.
    pub options: UdpOptions,
    /// The sources that are answered.
    pub allow: AllowList,
    /// Datagrams per second of one source (an IPv4 address, or an IPv6 network of 64 bits) that
    /// each socket answers; `None` is unlimited. Remembers 65,536 sources.
    pub rate_per_source: Option<u32>,
    /// How long a shutdown may take, at most a day, to send pending answers.
    pub drain_timeout: Duration,
}

/// The reflector.
pub type UdpService = Server<Udp>;

/// See [`UdpService`].
#[derive(Clone)]
pub struct Udp {
    settings: UdpSettings,
    granted: Granted,
    counters: Vec<Published>,
}

/// The counters of the sockets of a worker, as they were a moment ago.
type Published = Arc<Mutex<Vec<UdpCounters>>>;

impl UdpService {
    /// Binds a socket for each of `addresses` and each of `workers` workers of the runtime that
    /// `handle` controls. Between the sockets of an address the kernel chooses by a hash of the
    /// addresses of a datagram, so a source stays with its worker. An error names the address or the option.
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
                ..settings.options.clone()
            };
            all.push(options.bind_shared(*address, workers)?);
        }
        let granted = all.iter().flatten().next().map(BoundUdp::granted);
        let granted = granted.ok_or_else(|| io::Error::other("no address to listen on"))?;
        let counters = (0..workers).map(|_| Arc::default()).collect();
        let mut server = Server::with(Udp { settings, granted, counters }, workers, handle);
        for bound in all {
            server.add(bound.first().map(BoundUdp::local_addr), bound);
        }
        Ok(server)
    }

    /// The buffer sizes that the kernel granted each socket.
    pub fn granted(&self) -> Granted {
        self.service.granted
    }
}

impl Service for Udp {
    type Socket = BoundUdp;
    const NAME: &'static str = "udp";
    const UNIT: &'static str = "sent";

    fn run(server: &UdpService, worker: usize, sockets: Vec<BoundUdp>) -> Running<'_> {
        Box::pin(reflect_all(server, worker, sockets))
    }

    fn counters(&self) -> Vec<ServiceCounters> {
        let counters = |worker: &Published| sum(counted(lock(worker).iter()));
        self.counters.iter().map(counters).collect()
    }
}

async fn reflect_all(server: &UdpService, worker: usize, sockets: Vec<BoundUdp>) -> io::Result<()> {
    let settings = &server.service.settings;
    let own: Rc<[SocketAddr]> = server.addresses().into();
    let activity: Rc<Activity> = Rc::default();
    let port = |bound| {
        let limit = |rate: u32| {
            let burst = (rate / BURSTS_PER_SECOND).max(BURST_MIN);
            RefCell::new(RateLimit::new(rate, burst, Instant::now()))
        };
        Ok(Rc::new(Port {
            socket: UdpSocket::from_bound(bound)?,
            own: Rc::clone(&own),
            allow: settings.allow.clone(),
            rate: settings.rate_per_source.map(limit),
            deadline: Cell::default(),
            sealed: Cell::default(),
            failures: Cell::default(),
            activity: Rc::clone(&activity),
            tally: RefCell::default(),
        }))
    };
    let ports = sockets.into_iter().map(port).collect::<io::Result<Rc<[Rc<Port>]>>>()?;
    let published = Arc::clone(&server.service.counters[worker]);
    publish(&ports, &published);
    let mut tasks = JoinSet::new();
    tasks.spawn(publish_changes(Rc::clone(&ports), Arc::clone(&published), activity));
    ports.iter().for_each(|port| tasks.spawn(reflect(Rc::clone(port))));
    let (all, stage) = (Rc::clone(&ports), Arc::clone(&server.stage));
    let drain_timeout = settings.drain_timeout.min(DRAIN_MAX);
    tasks.spawn(async move {
        shutdown_requested().await;
        stage.is_draining.store(true, Ordering::Release);
        all.iter().for_each(|port| port.drain(Instant::now() + drain_timeout));
        Ok(())
    });
    server.worker_is_ready();
    let outcome = join_vital(tasks, 1, &server.handle).await;
    publish(&ports, &published);
    outcome
}

/// Publishes the counters of a worker a moment after something has changed. Counting itself therefore needs no atomics,
/// an idle worker sleeps, and what only the worker can read, the kernel's drops, is there too.
async fn publish_changes(
    ports: Rc<[Rc<Port>]>,
    published: Published,
    activity: Rc<Activity>,
) -> io::Result<()> {
    loop {
        activity.wait().await;
        sleep(PUBLISHED_AFTER).await;
        activity.forget();
        if publish(&ports, &published) {
            activity.note();
        }
    }
}

/// True if answers are waiting, whose end is to be published too.
fn publish(ports: &[Rc<Port>], published: &Published) -> bool {
    let counters: Vec<_> = ports.iter().map(|port| port.counters()).collect();
    let are_waiting = counters.iter().any(|counters| counters.waiting > 0);
    *lock(published) = counters;
    are_waiting
}

const BATCH: usize = 64;
/// A drain regards the socket as empty when no datagram arrived for this long, twice: on a worker
/// with long ticks the first period may pass before the socket was read.
const IDLE: Duration = Duration::from_millis(10);
const IDLE_WAITS: u32 = 2;
/// Receives may fail this many times in a row, with a pause after each, before the socket is
/// abandoned.
const FAILURES_MAX: u32 = 100;
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Port {
    socket: UdpSocket,
    own: Rc<[SocketAddr]>,
    allow: AllowList,
    rate: Option<RefCell<RateLimit>>,
    /// Set when the service is asked to end.
    deadline: Cell<Option<Instant>>,
    /// The kernel accepts no more datagrams: the remaining ones are finite.
    sealed: Cell<bool>,
    failures: Cell<u32>,
    /// Of all sockets of the worker.
    activity: Rc<Activity>,
    /// Counts of the loop; the socket has the others. `waiting` are all answers that were handed over.
    tally: RefCell<UdpCounters>,
}

impl Port {
    /// Makes the kernel accept no more datagrams, and makes [`reflect`] end once all are answered,
    /// or at the deadline.
    fn drain(&self, deadline: Instant) {
        self.deadline.set(Some(deadline));
        // Without memory for that, datagrams that still arrive are answered too, until the
        // deadline.
        self.sealed.set(self.socket.stop_receiving().is_ok());
        self.socket.cancel();
    }

    fn counters(&self) -> UdpCounters {
        // The kernel refuses only the question for its drops, and only before Linux 4.12.
        let sockets = self.socket.stats().unwrap_or_default();
        let mut counters = *self.tally.borrow();
        let over = sockets.sent + sockets.send_errors.total();
        counters.waiting = counters.waiting.saturating_sub(over);
        UdpCounters { sockets, ..counters }
    }

    /// Waits for datagrams; ends without any at `until`, and when the drain begins.
    async fn receive(&self, into: &mut Vec<Received>, until: Option<Instant>) -> io::Result<()> {
        let receive = self.socket.recv_batch(into);
        let received = match until {
            None => receive.await,
            Some(until) => match race(receive, sleep_until(until)).await {
                Either::Left(received) => received,
                Either::Right(()) => return Ok(()),
            },
        };
        self.activity.note();
        match received {
            Ok(_) => self.failures.set(0),
            Err(error) if error.raw_os_error() == Some(Errno::ECANCELED as i32) => {}
            Err(error) => {
                // The runtime has counted it. The cause, such as memory or an interface, may be
                // temporary.
                self.failures.set(self.failures.get() + 1);
                if self.failures.get() == FAILURES_MAX {
                    let address = self.socket.local_addr();
                    let what = format!(
                        "receiving on UDP {address} failed {FAILURES_MAX} times in a row: {error}"
                    );
                    return Err(io::Error::new(error.kind(), what));
                }
                sleep(FAILURE_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Sends all `answers`; those left at the deadline are dropped, and remain among the waiting.
    async fn send(&self, answers: &mut Vec<Datagram>) {
        for answer in answers.iter() {
            let mut tally = self.tally.borrow_mut();
            tally.waiting += answer.datagrams() as u64;
            tally.sent_bytes += answer.data.len() as u64;
        }
        while !answers.is_empty() {
            let send = self.socket.send_batch(answers);
            let goes_on = match self.deadline.get() {
                // Fails when the drain begins, and continues below.
                None => send.await.is_ok() || self.deadline.get().is_some(),
                Some(deadline) => matches!(timeout_at(deadline, send).await, Ok(Ok(()))),
            };
            if !goes_on {
                answers.clear();
            }
        }
    }

    /// Counts a received buffer; true if it is to be answered.
    fn admit(&self, received: &Received) -> bool {
        let mut tally = self.tally.borrow_mut();
        tally.received_bytes += received.data.len() as u64;
        // A truncated datagram is not what was sent. (Counted by the runtime.)
        if received.truncated {
            return false;
        }
        let (source, datagrams) = (received.from, received.datagrams());
        let refused = if self.is_own(source) {
            &mut tally.from_self
        } else if !is_one_host(source) {
            &mut tally.bad_source
        } else if !self.allow.admits(source.ip()) {
            &mut tally.not_allowed
        } else if let Some(limit) = &self.rate
            && !limit.borrow_mut().admits(source.ip(), datagrams, Instant::now())
        {
            &mut tally.over_rate
        } else {
            return true;
        };
        *refused += datagrams as u64;
        false
    }

    /// A socket on all addresses does not know these addresses, and they change: there every source
    /// with its port may be the reflector itself. (Otherwise a datagram with a forged source would
    /// loop between two addresses of this machine for ever.)
    fn is_own(&self, from: SocketAddr) -> bool {
        self.own.iter().any(|own| {
            own.port() == from.port() && (own.ip() == from.ip() || own.ip().is_unspecified())
        })
    }
}

/// The address to answer from, if the datagram was sent to one. A multicast group, such as the
/// ff02::1 of all nodes that reaches every socket bound to `[::]`, is not suitable. A link-local
/// address cannot answer one that is not link-local, because only the scope of the peer's address
/// names the interface.
fn answer_from(received: &Received) -> Option<IpAddr> {
    received.to.filter(|to| match (to, received.from.ip()) {
        (IpAddr::V6(to), IpAddr::V6(from)) if to.is_unicast_link_local() => {
            from.is_unicast_link_local()
        }
        _ => !to.is_multicast(),
    })
}

/// Turns received datagrams into answers, each in the buffer in which it was received; empties `received`.
fn answer(port: &Port, received: &mut Vec<Received>, answers: &mut Vec<Datagram>) {
    let admitted = received.drain(..).filter(|received| port.admit(received));
    let reply =
        |received: Received| Datagram { from: answer_from(&received), ..received.into_reply() };
    answers.extend(admitted.map(reply));
}

/// Reflects until the drain of `port` begins, and ends when all is answered or its time is over.
async fn reflect(port: Rc<Port>) -> io::Result<()> {
    let mut received = Vec::with_capacity(BATCH);
    let mut answers = Vec::with_capacity(BATCH);
    let deadline = loop {
        if let Some(deadline) = port.deadline.get() {
            break deadline;
        }
        port.receive(&mut received, None).await?;
        answer(&port, &mut received, &mut answers);
        port.send(&mut answers).await;
    };
    let mut idle = 0;
    // Beyond the deadline, too: datagrams in the kernel can only be counted by receiving them.
    while idle < IDLE_WAITS && (port.sealed.get() || Instant::now() < deadline) {
        port.receive(&mut received, Some(Instant::now() + IDLE)).await?;
        idle = if received.is_empty() { idle + 1 } else { 0 };
        answer(&port, &mut received, &mut answers);
        port.send(&mut answers).await;
    }
    // Answers that are unsent at the deadline are counted as waiting.
    let _cut = timeout_at(deadline, port.socket.flush()).await;
    Ok(())
}

/// Counters of a socket, which docs/json.md explains. `waiting` are answers that the kernel has not accepted yet; at the
/// end, those that the drain timeout cut.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct UdpCounters {
    #[serde(flatten)]
    sockets: UdpStats,
    received_bytes: u64,
    sent_bytes: u64,
    waiting: u64,
    from_self: u64,
    bad_source: u64,
    not_allowed: u64,
    over_rate: u64,
}
