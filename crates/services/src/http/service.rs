//! The service on all workers: how a worker handles a connection, and the time limits.

use super::Status;
use super::access_log::AccessLog;
use super::connection::Connection;
use super::http1::{refusal, serve_connection};
use super::http2;
use super::metrics::{Exposition, append_http};
use super::options::HttpSettings;
use super::tls::Tls;
use super::worker::{Http, LiveSettings, Worker};
use crate::server::{
    ConnectionLimiter, Connections, DRAIN_SWEEP, Ending, Limit, Listener, Phase, Running, Server,
    Service, ServiceCounters, Tracking, WorkerService, contain, counted,
};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::{Handle, RecvBuf, TcpStream, net::ListenOptions, spawn};

const DRAIN_IDLE: Duration = DRAIN_SWEEP.saturating_mul(2);

/// How long a connection is read from after its last answer, until the peer ends it too.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The HTTP service.
pub type HttpService = Server<Http>;

impl HttpService {
    /// For `workers` workers of the runtime that `handle` controls; [`listen`](Server::listen) with TLS or without.
    pub fn new(settings: HttpSettings, workers: usize, handle: Handle) -> HttpService {
        let limiter =
            ConnectionLimiter::new(settings.max_connections, settings.max_connections_per_address);
        let http = Http {
            settings: Arc::new(LiveSettings::new(settings)),
            counters: (0..workers).map(|_| Arc::default()).collect(),
            limiter,
            log: None,
            errors: None,
            durations: Vec::new(),
            observer: None,
        };
        Server::with(http, workers, handle)
    }

    /// Takes over listening sockets, for TLS if it is given. They come behind the others.
    pub fn adopt(
        &mut self,
        listeners: Vec<TcpListener>,
        options: &ListenOptions,
        tls: &Option<Arc<Tls>>,
    ) -> io::Result<()> {
        for listener in listeners {
            let bound = options.adopt(listener, self.workers())?;
            self.add_bound(bound, tls);
        }
        Ok(())
    }

    /// Logs every request in `log`, which must be opened for as many workers as the service has; measures the durations
    /// of requests, for an observer; and calls `tell` with a line for each answer that says that something could not be
    /// had: why it is a 403, 500 or 503, or a 404 because of a symbolic link. It is called by the workers, and must not
    /// block.
    pub fn observed(
        mut self,
        log: Option<Arc<AccessLog>>,
        durations: bool,
        tell: impl Fn(String) + Send + Sync + 'static,
    ) -> HttpService {
        let workers = if durations { self.service.counters.len() } else { 0 };
        self.service.durations = (0..workers).map(|_| Arc::default()).collect();
        self.service.log = log;
        self.service.errors = Some(Arc::new(tell));
        self
    }

    /// The settings, to replace them while the service runs.
    pub fn settings(&self) -> Arc<LiveSettings> {
        Arc::clone(&self.service.settings)
    }
}

impl Service for Http {
    type Socket = Listener<Option<Arc<Tls>>>;
    const NAME: &'static str = "http";
    const UNIT: &'static str = "requests";

    fn run(
        server: &HttpService,
        worker: usize,
        listeners: Vec<Listener<Option<Arc<Tls>>>>,
    ) -> Running<'_> {
        Box::pin(async move {
            let part = Rc::new(Worker::new(&server.service, worker));
            server.serve(listeners, &part).await
        })
    }

    fn append_metrics(&self, text: &mut Exposition) {
        append_http(text, self);
    }

    /// Lines of the log, which all workers share, are among those of the first.
    fn counters(&self) -> Vec<ServiceCounters> {
        let mut counted = counted(self.counters.iter().map(|worker| &**worker));
        let (lines, dropped) = self.log.as_ref().map_or((0, 0), |log| log.counts());
        for (number, counters) in counted.iter_mut().enumerate() {
            let is_first = u64::from(number == 0);
            counters.insert("log_lines".to_owned(), (is_first * lines).into());
            counters.insert("log_dropped".to_owned(), (is_first * dropped).into());
        }
        counted
    }
}

impl WorkerService for Worker {
    type Listener = Option<Arc<Tls>>;

    fn connections(&self) -> &Rc<Connections> {
        &self.connections
    }

    fn start(self: &Rc<Worker>, stream: TcpStream, tls: &Option<Arc<Tls>>) {
        let counters = &self.counters;
        let generation = self.generation();
        let proxies = &generation.settings.proxy_protocol_from;
        let peer = || stream.peer_addr().ok().map(|peer| peer.ip());
        let is_proxied = !proxies.is_empty() && peer().is_some_and(|peer| contain(proxies, peer));
        let limiter = &self.http.limiter;
        let Some(place) = limiter.admit() else { return counters.refused.add(1) };
        // The connections of a proxy are those of its clients.
        let Some(of_address) = limiter.count(|| peer().filter(|_| !is_proxied)) else {
            return counters.refused_of_address.add(1);
        };
        let tls = match tls.as_ref().map(|tls| tls.accept()).transpose() {
            Ok(tls) => tls.map(Box::new),
            // Not caused by the peer: for example, no randomness is available.
            Err(_) => return counters.tls_failures.add(1),
        };
        counters.accepted.add(1);
        let tracking = Tracking::new(stream, &self.connections.activity);
        let connection = Connection::new(tracking, tls, is_proxied, self);
        let connection = self.connections.insert(connection, (place, of_address));
        let worker = Rc::clone(self);
        spawn(async move {
            if serve(&worker, &connection).await.is_err() {
                // Boxed, because this future is larger than all others of the task.
                let late = || refusal(&worker, &connection, b"", Status::REQUEST_TIMEOUT);
                Box::pin(connection.close(late)).await;
            }
        });
    }

    fn limit(&self, phase: Phase) -> Option<Limit> {
        let generation = self.generation();
        let settings = &generation.settings;
        let time = match phase {
            Phase::Silent | Phase::Handshake => settings.tls_handshake_timeout,
            Phase::Idle => settings.idle_timeout,
            Phase::Head => settings.header_timeout,
            Phase::Body => settings.body_timeout,
            Phase::Sending => settings.send_timeout,
            Phase::Closing => CLOSING_MAX,
            // Reading from the disk has no limit.
            Phase::Working => return None,
        };
        // An idle peer may still be taking the answer before.
        let restarts_on_ack = matches!(phase, Phase::Sending | Phase::Idle);
        Some(Limit { time, ending: Ending::TimedOut(phase), restarts_on_ack })
    }

    /// Connections without a request are closed at once; the others finish theirs within their
    /// usual timeouts.
    fn drain_limit(&self, phase: Phase) -> Option<Limit> {
        let limit = self.limit(phase)?;
        match phase {
            Phase::Silent | Phase::Idle | Phase::Closing => {
                Some(Limit { time: DRAIN_IDLE, ending: Ending::Drain, ..limit })
            }
            _ => Some(limit),
        }
    }

    fn drain_timeout(&self) -> Duration {
        self.generation().settings.drain_timeout
    }

    fn housekeeping(&self) -> Option<Instant> {
        self.close_forgotten_files()
    }

    fn begin_drain(&self) {
        self.draining.set(true);
    }
}

async fn serve(worker: &Rc<Worker>, connection: &Connection) -> io::Result<()> {
    if connection.is_proxied {
        let count = |client: SocketAddr| worker.http.limiter.count(|| Some(client.ip()));
        Box::pin(connection.read_proxy_header(count)).await?;
    }
    if let Some(tls) = &connection.tls {
        // For a client that speaks HTTP on a TLS address.
        let not_tls = || refusal(worker, connection, b"", Status::BAD_REQUEST);
        Box::pin(connection.shake_hands(tls, not_tls)).await?;
    }
    let begins_http2 = match &connection.tls {
        Some(tls) if tls.speaks_http2() => Some(RecvBuf::from(Vec::new())),
        _ => serve_connection(worker, connection).await?,
    };
    match begins_http2 {
        Some(first) => Box::pin(http2::serve(worker, connection, first)).await,
        None => Ok(()),
    }
}
