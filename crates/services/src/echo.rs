//! Echo over TCP (RFC 862), on all workers.

use crate::server::{
    AllowList, ConnectionLimiter, Connections, Count, DRAIN_SWEEP, Ending, Limit, Listener, Phase,
    Running, Server, Service, ServiceCounters, Tracking, WorkerService, counted,
};
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use twinring::net::{self, ListenOptions, Recv};
use twinring::{Handle, RecvBuf, TcpStream, spawn};

/// A drain ends a connection that has been idle for this long: it has no work to finish.
const DRAIN_IDLE: Duration = DRAIN_SWEEP.saturating_mul(4);

/// The bounds of the echo.
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

/// The echo, bound.
pub type EchoService = Server<Echo>;

/// See [`EchoService`].
#[derive(Clone)]
pub struct Echo {
    limits: Limits,
    counters: Vec<Arc<EchoCounters>>,
    limiter: Arc<ConnectionLimiter>,
}

impl EchoService {
    /// Binds `addresses` for `workers` workers of the runtime that `handle` controls. An error names the address.
    pub fn bind(
        addresses: &[SocketAddr],
        options: &ListenOptions,
        limits: Limits,
        workers: usize,
        handle: Handle,
    ) -> io::Result<EchoService> {
        let Limits { max_connections, max_connections_per_address, .. } = limits;
        let limiter = ConnectionLimiter::new(max_connections, max_connections_per_address);
        let counters = (0..workers).map(|_| Arc::default()).collect();
        let mut server = Server::with(Echo { limits, counters, limiter }, workers, handle);
        server.listen(addresses, options, &())?;
        Ok(server)
    }
}

impl Service for Echo {
    type Socket = Listener<()>;
    const NAME: &'static str = "echo";
    const UNIT: &'static str = "received_bytes";

    fn run(server: &EchoService, worker: usize, listeners: Vec<Listener<()>>) -> Running<'_> {
        Box::pin(async move {
            let echo = server.service.clone();
            let counters = Arc::clone(&echo.counters[worker]);
            let part = Rc::new(EchoWorker { echo, counters, connections: Rc::default() });
            server.serve(listeners, &part).await
        })
    }

    fn counters(&self) -> Vec<ServiceCounters> {
        counted(self.counters.iter().map(|worker| &**worker))
    }
}

/// Counters of a worker, which docs/json.md explains.
#[derive(Debug, Default, Serialize)]
struct EchoCounters {
    closed: Count,
    accepted: Count,
    refused: Count,
    refused_of_address: Count,
    not_allowed: Count,
    reset: Count,
    idle_closed: Count,
    cut: Count,
    received_bytes: Count,
    sent_bytes: Count,
}

struct EchoWorker {
    echo: Echo,
    counters: Arc<EchoCounters>,
    connections: Rc<Connections>,
}

impl WorkerService for EchoWorker {
    type Listener = ();

    fn connections(&self) -> &Rc<Connections> {
        &self.connections
    }

    fn start(self: &Rc<Self>, stream: TcpStream, _: &()) {
        let (counters, Echo { limits, limiter, .. }) = (&self.counters, &self.echo);
        let peer = || stream.peer_addr().ok().map(|peer| peer.ip());
        if limits.allow.is_limited() && peer().is_some_and(|peer| !limits.allow.admits(peer)) {
            return counters.not_allowed.add(1);
        }
        let Some(place) = limiter.admit() else { return counters.refused.add(1) };
        let Some(of_address) = limiter.count(peer) else {
            return counters.refused_of_address.add(1);
        };
        counters.accepted.add(1);
        let tracking = Tracking::new(stream, &self.connections.activity);
        let connection = EchoConnection { tracking, counters: Arc::clone(counters) };
        let connection = self.connections.insert(connection, (place, of_address));
        spawn(async move {
            let served = echo(&connection).await;
            // Boxed, because this future is larger than all others of the task, and the size of
            // a connection's task is cache footprint.
            Box::pin(connection.end(served)).await;
        });
    }

    fn limit(&self, phase: Phase) -> Option<Limit> {
        let limit = |time| Limit { time, ending: Ending::TimedOut(phase), restarts_on_ack: false };
        self.echo.limits.idle_timeout.map(limit)
    }

    /// Connections finish the data that they received. No limit applies while they wait for their
    /// peer to read.
    fn drain_limit(&self, phase: Phase) -> Option<Limit> {
        let limit = Limit { time: DRAIN_IDLE, ending: Ending::Drain, restarts_on_ack: false };
        (phase == Phase::Idle).then_some(limit)
    }

    fn drain_timeout(&self) -> Duration {
        self.echo.limits.drain_timeout
    }
}

/// Serves one connection until the peer sends FIN: then all data is sent back, followed by FIN.
async fn echo(connection: &EchoConnection) -> io::Result<()> {
    loop {
        let chunk = connection.recv().await?;
        if chunk.is_empty() {
            break;
        }
        connection.send(chunk).await?;
    }
    connection.shutdown().await
}

/// One connection, idle or sending. When it must end, its waiting operation fails.
#[derive(Debug)]
struct EchoConnection {
    tracking: Tracking,
    counters: Arc<EchoCounters>,
}

impl EchoConnection {
    fn recv(&self) -> Receiving<'_> {
        Receiving { connection: self, recv: self.tracking.stream.recv() }
    }

    /// Waits while too much is queued for a peer that does not read.
    fn send(&self, bytes: RecvBuf) -> Sending<'_> {
        let length = bytes.len() as u64;
        self.tracking.continue_in(Phase::Sending);
        Sending { connection: self, send: self.tracking.stream.send(bytes), length }
    }

    /// Closes the sending half behind all queued data and waits until the kernel has all of it.
    async fn shutdown(&self) -> io::Result<()> {
        self.tracking.enter(Phase::Sending);
        let finished = self.tracking.stream.shutdown().await;
        self.tracking.enter(Phase::Idle);
        finished
    }

    fn count_received(&self, chunk: &RecvBuf) {
        self.counters.received_bytes.add(chunk.len() as u64);
        self.tracking.step();
    }

    /// Closes the connection after the service returned `served`, in the way in which it was asked
    /// to end.
    async fn end(&self, served: io::Result<()>) {
        let ended = match (served, self.tracking.ending.get()) {
            (Err(_), Some(Ending::Drain)) => self.close_in_order().await,
            (served, _) => served,
        };
        if ended.is_ok() {
            return;
        }
        match self.tracking.ending.get() {
            Some(Ending::TimedOut(_)) => self.counters.idle_closed.add(1),
            Some(Ending::Cut) => self.counters.cut.add(1),
            Some(Ending::Drain | Ending::Failed) | None => return self.counters.reset.add(1),
        }
        self.tracking.reset_if_unsent().await;
    }

    /// Sends FIN behind all queued data and reads until the peer sends FIN too or has been idle.
    /// Closing with unread data, or before late data arrives, would send a reset, which can
    /// overtake data that the peer has not read yet.
    async fn close_in_order(&self) -> io::Result<()> {
        let _drain = self.tracking.ending.take();
        self.shutdown().await?;
        loop {
            match self.tracking.stream.recv().await {
                Ok(chunk) if chunk.is_empty() => return Ok(()),
                Ok(chunk) => self.count_received(&chunk),
                Err(_) if self.tracking.ending.get() == Some(Ending::Drain) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsRef<Tracking> for EchoConnection {
    fn as_ref(&self) -> &Tracking {
        &self.tracking
    }
}

impl Drop for EchoConnection {
    fn drop(&mut self) {
        self.counters.closed.add(1);
    }
}

/// The future of [`EchoConnection::recv`]. Like [`Sending`], it is not an async function: one that
/// calls another stores its arguments and the inner future side by side, and every connection pays
/// for that in cache footprint.
struct Receiving<'a> {
    connection: &'a EchoConnection,
    recv: Recv<'a>,
}

impl Future for Receiving<'_> {
    type Output = io::Result<RecvBuf>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connection = self.connection;
        let received = connection.tracking.poll_recv(&mut self.recv, cx);
        if let Poll::Ready(Ok(chunk)) = &received {
            connection.count_received(chunk);
        }
        received
    }
}

struct Sending<'a> {
    connection: &'a EchoConnection,
    send: net::Send<'a>,
    length: u64,
}

impl Future for Sending<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let sent = Pin::new(&mut self.send).poll(cx);
        if let Poll::Ready(outcome) = &sent {
            self.connection.tracking.enter(Phase::Idle);
            if outcome.is_ok() {
                self.connection.counters.sent_bytes.add(self.length);
            }
        }
        sent
    }
}
