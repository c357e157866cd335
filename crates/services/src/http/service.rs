//! The service on all workers: accepting, limits, timeouts, and the drain at shutdown.

use super::access_log::AccessLog;
use super::conversation::converse;
use super::counters::WorkerCounters;
use super::observer::{Observer, SharedStage, Stage};
use super::options::{HttpSettings, Timeouts};
use super::reply::Reply;
use super::response::{Persistence, message};
use super::session::{Ending, Phase, Session};
use super::status::Status;
use super::tls::Tls;
use super::worker::Worker;
use crate::accepting::{Acceptors, DRAIN_SWEEP, accept, drain, end_vital, spawn_vital};
use crate::audience::Audience;
use crate::descriptors::descriptor_limit;
use crate::guests::{Guests, Refused};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use twinring::{
    BoundListener, Either, Engine, Handle, ListenOptions, TcpListener, TcpStream, race,
    sleep_until, spawn,
};

/// The longest and the shortest time between two sweeps over the connections.
const SWEEP_MAX: Duration = Duration::from_secs(1);
const SWEEP_MIN: Duration = Duration::from_millis(5);

/// Sweeps in the shortest timeout.
const SWEEPS_PER_TIMEOUT: u32 = 4;

/// A connection that was idle for this many sweeps of a drain is closed.
const DRAIN_QUIET_SWEEPS: u32 = 2;

/// How long a connection is read from after its last answer, until the peer ends it too.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The HTTP service, bound and ready to run on the workers of a runtime.
pub struct HttpService {
    settings: Arc<HttpSettings>,
    handle: Handle,
    addresses: Vec<SocketAddr>,
    /// The listening sockets of each worker, until it starts.
    listeners: Mutex<Vec<Vec<Bound>>>,
    counters: Vec<Arc<WorkerCounters>>,
    guests: Arc<Guests>,
    log: Option<AccessLog>,
    stage: Arc<SharedStage>,
    workers_starting: AtomicUsize,
    on_ready: Box<dyn Fn() + Send + Sync>,
}

/// A listening socket of one worker, and the TLS that is spoken there.
struct Bound {
    listener: BoundListener,
    tls: Option<Tls>,
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
        mut settings: HttpSettings,
        workers: usize,
        handle: Handle,
    ) -> io::Result<HttpService> {
        // The other half is for connections.
        let files_max = usize::try_from(descriptor_limit() / 2).unwrap_or(usize::MAX);
        settings.cache.files = settings.cache.files.min(files_max);
        let service = HttpService {
            guests: Guests::new(
                // Files are for whoever can reach them: an answer goes to a peer that shook hands.
                Audience::anybody(),
                settings.limits.connections,
                settings.limits.connections_per_address,
            ),
            settings: Arc::new(settings),
            handle,
            addresses: Vec::new(),
            listeners: Mutex::new((0..workers).map(|_| Vec::new()).collect()),
            counters: (0..workers).map(|_| Arc::default()).collect(),
            log: None,
            stage: Arc::default(),
            workers_starting: AtomicUsize::new(workers),
            on_ready: Box::new(|| {}),
        };
        service.bind_more(addresses, options, None)
    }

    /// Binds further addresses, where TLS is spoken. They come behind the others.
    ///
    /// # Errors
    /// As [`bind`](HttpService::bind).
    pub fn bind_tls(
        self,
        addresses: &[SocketAddr],
        options: &ListenOptions,
        tls: &Tls,
    ) -> io::Result<HttpService> {
        self.bind_more(addresses, options, Some(tls))
    }

    fn bind_more(
        mut self,
        addresses: &[SocketAddr],
        options: &ListenOptions,
        tls: Option<&Tls>,
    ) -> io::Result<HttpService> {
        let listeners = self.listeners.get_mut().unwrap_or_else(PoisonError::into_inner);
        for address in addresses {
            let bound = options.bind(*address, listeners.len())?;
            self.addresses.extend(bound.first().map(BoundListener::local_addr));
            for (of_worker, listener) in listeners.iter_mut().zip(bound) {
                of_worker.push(Bound { listener, tls: tls.cloned() });
            }
        }
        Ok(self)
    }

    /// Called once, on a worker thread, when all workers accept.
    pub fn on_ready(mut self, handler: impl Fn() + Send + Sync + 'static) -> HttpService {
        self.on_ready = Box::new(handler);
        self
    }

    /// Has every request logged. The log has to be opened for as many workers as the service.
    pub fn log_to(mut self, log: &AccessLog) -> HttpService {
        self.log = Some(log.clone());
        self
    }

    /// The addresses it listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A reader of the counters that outlives the service and works on any thread. `engine` is
    /// what the service runs on.
    pub fn observer(&self, engine: Engine) -> Observer {
        Observer {
            workers: self.counters.clone(),
            log: self.log.clone(),
            handle: self.handle.clone(),
            engine,
            stage: Arc::clone(&self.stage),
            started: SystemTime::now(),
        }
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
        let open = |bound: Bound| Ok((TcpListener::from_bound(bound.listener)?, bound.tls));
        let listeners: Vec<_> = bound.into_iter().map(open).collect::<io::Result<_>>()?;
        let counters = Arc::clone(&self.counters[number]);
        let log = self.log.as_ref().and_then(|log| log.of_worker(number));
        let worker = Worker::new(Arc::clone(&self.settings), counters, self.counters.len(), log);
        let acceptors = listeners.into_iter().map(|(listener, tls)| {
            let (worker, guests) = (Rc::clone(&worker), Arc::clone(&self.guests));
            let stage = Arc::clone(&self.stage);
            async move {
                let at_shutdown = || {
                    stage.advance_to(Stage::Draining);
                    worker.draining.set(true);
                };
                let start = |stream| start(stream, tls.as_ref(), &worker, &guests);
                accept(&listener, start, at_shutdown).await
            }
        });
        let acceptors = Acceptors::spawn(&self.handle, acceptors);
        let watched = Rc::clone(&worker);
        let watch = spawn_vital(&self.handle, async move { watch(&watched).await });
        if self.workers_starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.stage.advance_to(Stage::Ready);
            (self.on_ready)();
        }
        let outcome = acceptors.ended().await;
        let outcome = outcome.and(end_vital(watch).await);
        drain_sessions(&worker).await;
        if let Some(log) = &worker.log {
            log.end().await;
        }
        outcome
    }
}

/// Serves a connection in a task of its own, if there is room for it.
fn start(stream: TcpStream, tls: Option<&Tls>, worker: &Rc<Worker>, guests: &Arc<Guests>) {
    let guest = match guests.admit(&stream) {
        Ok(guest) => guest,
        Err(Refused::Full | Refused::NotAllowed) => return worker.counters.refused.add(1),
        Err(Refused::FullForAddress) => return worker.counters.refused_of_address.add(1),
    };
    let tls = match tls.map(Tls::accept).transpose() {
        Ok(tls) => tls.map(Box::new),
        // Not the peer's doing: there is no randomness to be had, or the like.
        Err(_) => return worker.counters.tls_failures.add(1),
    };
    let strategy = worker.settings.send;
    let log = worker.log.as_ref();
    let live = worker.sessions.admit(stream, tls, strategy, &worker.counters, log);
    let worker = Rc::clone(worker);
    spawn(async move {
        let session = live.session();
        let begun = match &session.tls {
            Some(tls) => {
                // To somebody who speaks HTTP where TLS is spoken.
                let not_tls = || last_words(&worker, session, Status::BAD_REQUEST);
                Box::pin(session.shake_hands(tls, not_tls)).await
            }
            None => Ok(()),
        };
        let served = match begun {
            Ok(()) => converse(&worker, session).await,
            Err(error) => Err(error),
        };
        if served.is_err() {
            // In a box, as what happens once at the end is larger than all before it.
            let late = || last_words(&worker, session, Status::REQUEST_TIMEOUT);
            Box::pin(session.close(late)).await;
        }
        drop(live);
        drop(guest);
    });
}

/// Makes, counts and logs an answer to something that is no request, or not all of one.
fn last_words(worker: &Worker, session: &Session, status: Status) -> Vec<u8> {
    worker.clock.tick();
    worker.counters.count_answer(status);
    let message = message(status, &[], &worker.clock, Persistence::Closes, false);
    if let Some(log) = &session.log {
        log.answered(&Reply::new(status, message.clone()), false, session.sent());
    }
    message
}

/// How long a connection may stay in a phase.
fn patience(timeouts: &Timeouts, phase: Phase) -> Option<Duration> {
    match phase {
        Phase::Silent | Phase::Handshake => Some(timeouts.handshake),
        Phase::Idle => Some(timeouts.idle),
        Phase::Head => Some(timeouts.header),
        Phase::Body => Some(timeouts.body),
        Phase::Sending => Some(timeouts.send),
        Phase::Closing => Some(CLOSING_MAX),
        // The disk takes the time it takes.
        Phase::Working => None,
    }
}

/// The same in sweeps, and what becomes of a connection that stays longer.
fn limit(timeouts: &Timeouts, phase: Phase, period: Duration) -> Option<(u32, Ending)> {
    let most = patience(timeouts, phase)?;
    let sweeps = most.as_nanos().div_ceil(period.as_nanos()).try_into();
    Some((sweeps.unwrap_or(u32::MAX), Ending::TimedOut(phase)))
}

/// Ends connections that take too long, and closes files that nobody asks for any more. Sweeps fall on
/// multiples of a period, and those that cannot find anything are left out.
async fn watch(worker: &Worker) -> io::Result<Infallible> {
    let timeouts = &worker.settings.timeouts;
    let all = [timeouts.handshake, timeouts.header, timeouts.body, timeouts.idle, timeouts.send];
    let shortest = all.into_iter().min().unwrap_or(SWEEP_MAX);
    let period = (shortest / SWEEPS_PER_TIMEOUT).clamp(SWEEP_MIN, SWEEP_MAX);
    let start = Instant::now();
    let sweep_at = |number: u64| start + Duration::from_nanos(period.as_nanos() as u64 * number);
    let swept = || (start.elapsed().as_nanos() / period.as_nanos()) as u64;
    let (mut last, mut left) = (0, None);
    loop {
        let (files, next) = (worker.close_forgotten_files(), swept());
        // After a pause of the whole process nobody is blamed for it.
        let passed = (next - last).min(u64::from(left.unwrap_or(1))) as u32;
        last = next;
        left = worker.sessions.sweep(passed, |phase| limit(timeouts, phase, period));
        let sessions = left.map(|left| sweep_at(last + u64::from(left)));
        let due = [files, sessions].into_iter().flatten().min();
        let activity = worker.sessions.activity.wait();
        let moved = match due {
            Some(due) => matches!(race(activity, sleep_until(due)).await, Either::Left(())),
            None => {
                activity.await;
                true
            }
        };
        if moved {
            sleep_until(sweep_at(swept() + 1)).await;
        }
    }
}

/// Closes connections without a request at once, lets the others finish theirs in the time that
/// they have at other times too, and cuts those that have not at the timeout.
async fn drain_sessions(worker: &Worker) {
    let (sessions, timeouts) = (&worker.sessions, &worker.settings.timeouts);
    let sweep = || {
        let _next = sessions.sweep(1, |phase| match phase {
            Phase::Silent | Phase::Idle | Phase::Closing => {
                Some((DRAIN_QUIET_SWEEPS, Ending::Drain))
            }
            _ => limit(timeouts, phase, DRAIN_SWEEP),
        });
    };
    drain(timeouts.drain, || sessions.is_empty(), sweep, || sessions.cut()).await;
}
