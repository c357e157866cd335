//! The work of one thread of the load: it connects, begins with the others, and returns its counts.

use super::connection::{Connection, Ending, Lost, Protocol};
use super::counts::Counts;
use super::head::HeadReader;
use super::http1::Http1;
use super::http2::Http2;
use super::link::Link;
use super::outbox::Outbox;
use super::tls::{Agreed, TlsClient};
use super::worker::{Shared, Worker};
use crate::cpu::CpuUse;
use crate::recorder::Trouble;
use crate::run::{
    Connections, Control, Loaded, Share, Thread, connect_failure, connect_share, dial, not_within,
};
use http::Method;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::{Either, monotonic_ns, race, shutdown_requested, sleep, spawn, timeout};

/// Heads that a thread remembers, a power of two; URLs beyond share their places.
const HEADS_MAX: usize = 64;

/// Consecutive failed attempts to connect before a connection is abandoned.
const CONNECT_FAILURES_MAX: u32 = 10;

/// Pause after the second failure in a row; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The result of a thread.
pub(super) struct Outcome {
    pub(super) share: Share,
    pub(super) counts: Counts,
    pub(super) handshakes: u64,
    pub(super) resumed: u64,
    pub(super) agreed: Option<Agreed>,
    pub(super) streams_max: Option<u64>,
}

/// Runs the share of the load of thread `index`.
pub(super) async fn work(index: usize, shared: Arc<Shared>, control: Arc<Control>) -> Outcome {
    let settings = &shared.settings;
    let to_head = settings.request.method == Method::HEAD;
    let heads = settings.targets.len().next_power_of_two().min(HEADS_MAX);
    let worker = Rc::new(Worker {
        thread: Thread::new(index, control),
        outbox: Outbox::new(settings),
        heads: RefCell::new((0..heads).map(|_| HeadReader::new(to_head)).collect()),
        counts: RefCell::new(Counts::new(settings)),
        handshakes: Cell::new(0),
        resumed: Cell::new(0),
        agreed: RefCell::new(None),
        streams_max: Cell::new(None),
        shared,
    });
    let share = match worker.settings.http2 {
        true => worker.run::<Http2>().await,
        false => worker.run::<Http1>().await,
    };
    Outcome {
        share,
        counts: worker.counts.replace(Counts::new(&worker.settings)),
        handshakes: worker.handshakes.get(),
        resumed: worker.resumed.get(),
        agreed: worker.agreed.take(),
        streams_max: worker.streams_max.get(),
    }
}

impl Worker {
    async fn run<P: Protocol>(self: &Rc<Worker>) -> Share {
        let nothing =
            || Share::of(&self.thread, &Connections::<Connection<P>>::new(), CpuUse::default());
        let Either::Left(links) = race(self.connect_all::<P>(), shutdown_requested()).await else {
            return nothing();
        };
        if !self.thread.stand_ready(links.len()).await {
            return nothing();
        }
        let connections = self.begin::<P>(links).await;
        let cpu = self.thread.measure().await;
        connections.iter().for_each(|connection| connection.borrow().wake());
        self.thread.drain().await;
        self.thread.part().await;
        Share::of(&self.thread, &connections, cpu)
    }

    /// Opens this thread's connections. Failures are counted.
    async fn connect_all<P: Protocol>(self: &Rc<Worker>) -> Vec<(u64, P::Link)> {
        if let Some(Err(error)) = self.tls.as_ref().map(TlsClient::warm_up) {
            self.thread.trouble(0, Trouble::Tls, || format!("TLS: {error}"));
            return Vec::new();
        }
        let (total, threads) = (self.settings.connections, self.settings.workers.threads);
        let worker = Rc::clone(self);
        connect_share(0..total, threads, self.thread.index, move |number| {
            let worker = Rc::clone(&worker);
            async move { worker.connect::<P>(number, 0).await }
        })
        .await
    }

    /// One attempt to connect, counted.
    async fn connect<P: Protocol>(self: &Rc<Worker>, number: u64, life: u64) -> Option<P::Link> {
        let began = Instant::now();
        let link = match self.try_connect::<P>(number + life).await {
            Ok(link) => link,
            Err(Lost(kind, what)) => {
                self.thread.trouble(number, kind, || what);
                return None;
            }
        };
        let took_ns = began.elapsed().as_nanos() as u64;
        self.counts.borrow_mut().connect_ns.saturating_record(took_ns.max(1));
        Some(link)
    }

    async fn try_connect<P: Protocol>(self: &Rc<Worker>, turn: u64) -> Result<P::Link, Lost> {
        let settings = &self.settings;
        let limit = settings.connect_timeout;
        let began = Instant::now();
        let stream = dial(settings.address, &settings.local, turn, limit).await;
        let stream = stream.map_err(|error| Lost(Trouble::Connect, connect_failure(&error)))?;
        let refused = |error: std::io::Error| Lost(Trouble::Tls, format!("TLS: {error}"));
        let session = self.tls.as_ref().map(TlsClient::session).transpose().map_err(refused)?;
        let mut link = Link::new(stream, session);
        let left = || limit.saturating_sub(began.elapsed());
        match timeout(left(), link.handshake()).await {
            Ok(done) => done.map_err(refused)?,
            Err(_) => return Err(refused(not_within(limit))),
        }
        if let Some(tls) = link.tls() {
            self.handshakes.set(self.handshakes.get() + 1);
            self.resumed.set(self.resumed.get() + u64::from(tls.is_resumed()));
            self.agreed.borrow_mut().get_or_insert_with(|| tls.agreed());
        }
        match timeout(left(), P::agree(self, link)).await {
            Ok(agreed) => agreed,
            Err(_) => {
                let what = format!("HTTP: {}", not_within(limit));
                Err(Lost(Trouble::Connect, what))
            }
        }
    }

    /// Starts the traffic.
    async fn begin<P: Protocol>(
        self: &Rc<Worker>,
        links: Vec<(u64, P::Link)>,
    ) -> Connections<Connection<P>> {
        let settings = &self.settings;
        let (warmup, rate) = (settings.warmup, settings.schedule());
        self.thread.first_moment(warmup, rate, settings.connections).await;
        let mut connections = Connections::new();
        for (number, link) in links {
            let connection = Rc::new(RefCell::new(Connection::new(self, number)));
            connections.push(Rc::clone(&connection));
            spawn(Rc::clone(self).serve(connection, link));
        }
        self.thread.watch_over(&connections, Some(settings.timeout));
        connections
    }

    /// Runs a connection through its lives.
    async fn serve<P: Protocol>(
        self: Rc<Worker>,
        connection: Rc<RefCell<Connection<P>>>,
        first: P::Link,
    ) {
        let number = connection.borrow().number();
        let mut link = first;
        // In a row: lives without an answer, and attempts to connect.
        let mut failures = 0;
        let lost = loop {
            let ending = poll_fn(|cx| connection.borrow_mut().poll(&mut link, cx)).await;
            let served = connection.borrow_mut().end_life();
            P::close(link).await;
            match ending {
                Ending::Finished => break false,
                Ending::Lost(Lost(kind, what)) => self.thread.trouble(number, kind, || what),
                Ending::Renewed => {}
            }
            failures = if served { 0 } else { failures + 1 };
            link = match self.renew(&connection, failures).await {
                Renewal::Link(link) => link,
                Renewal::Over => break false,
                Renewal::GivenUp => break true,
            };
        };
        self.thread.ended(lost);
    }

    /// Opens the stream for the next life of a connection.
    async fn renew<P: Protocol>(
        self: &Rc<Worker>,
        connection: &RefCell<Connection<P>>,
        mut failures: u32,
    ) -> Renewal<P::Link> {
        for _attempt in 0..CONNECT_FAILURES_MAX {
            if failures > 1 {
                let pause = PAUSE_MIN.saturating_mul(1 << (failures - 2).min(10));
                sleep(pause.min(PAUSE_MAX)).await;
            }
            if monotonic_ns() >= self.thread.control.window().end {
                return Renewal::Over;
            }
            let begun = self.settings.keepalive
                || poll_fn(|cx| connection.borrow_mut().poll_begin(cx)).await;
            if !begun {
                return Renewal::Over;
            }
            let (number, life) = (connection.borrow().number(), connection.borrow().life());
            if let Some(link) = self.connect::<P>(number, life + 1).await {
                self.thread.reconnected();
                connection.borrow_mut().begin_life();
                return Renewal::Link(link);
            }
            connection.borrow_mut().end_life();
            failures += 1;
        }
        Renewal::GivenUp
    }
}

/// The fate of a connection between two lives.
enum Renewal<L> {
    Link(L),
    /// The window is over.
    Over,
    /// It could not be opened.
    GivenUp,
}
