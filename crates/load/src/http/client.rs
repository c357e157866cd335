//! What both versions of HTTP share: state, TLS, and the verification of answers.

use super::answer::Answer;
use super::choice::Choice;
use super::expect::Expectation;
use super::head::{HeadReader, Malformed};
use super::link::Link;
use super::outbox::Outbox;
use super::settings::Settings;
use super::tls::{Agreed, TlsClient};
use crate::recorder::{Recorder, Request, Trouble};
use crate::requests::{Lost, Protocol, Tally, Worker};
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use twinring::TcpStream;

/// Heads that a thread remembers, a power of two; URLs beyond share their places.
const HEADS_MAX: usize = 64;

/// State shared by all threads.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) expectation: Expectation,
    choice: Choice,
    tls: Option<TlsClient>,
    /// Requests of HTTP/2 by URL, without their body; empty for HTTP/1.1.
    http2_requests: Vec<http::Request<()>>,
}

impl Shared {
    /// # Errors
    /// The setting that cannot be used.
    pub(super) fn new(settings: Settings) -> Result<Shared, String> {
        let tls = match settings.targets.first().filter(|target| target.is_tls()) {
            Some(target) => Some(TlsClient::new(&settings.tls, target.host(), settings.http2)?),
            None => None,
        };
        let expectation = Expectation::new(
            settings.statuses.clone(),
            settings.length,
            &settings.body,
            settings.targets.len(),
        );
        let weights = settings.targets.iter().map(|target| target.weight);
        let choice = Choice::new(weights, settings.seed);
        let http2_requests = settings.http2_requests()?;
        Ok(Shared { expectation, choice, tls, http2_requests, settings })
    }

    pub(super) fn http2_request(&self, target: u32) -> http::Request<()> {
        self.http2_requests.get(target as usize).cloned().unwrap_or_default()
    }
}

/// State of a thread.
pub(super) struct Local {
    pub(super) outbox: Outbox,
    /// By the low bits of a URL's number: a power of two of them.
    pub(super) heads: RefCell<Vec<HeadReader>>,
    handshakes: Cell<u64>,
    resumed: Cell<u64>,
    agreed: RefCell<Option<Agreed>>,
    streams_max: Cell<Option<u64>>,
}

impl Local {
    pub(super) fn new(shared: &Shared) -> Local {
        let heads = shared.settings.targets.len().next_power_of_two().min(HEADS_MAX);
        Local {
            outbox: Outbox::new(&shared.settings),
            heads: RefCell::new((0..heads).map(|_| HeadReader::default()).collect()),
            handshakes: Cell::new(0),
            resumed: Cell::new(0),
            agreed: RefCell::new(None),
            streams_max: Cell::new(None),
        }
    }

    /// The server allows this many streams on a connection.
    pub(super) fn note_streams_max(&self, streams: usize) {
        // The largest number stands for no limit.
        let limit = Some(streams as u64).filter(|_| streams < usize::MAX);
        self.streams_max.set([self.streams_max.get(), limit].into_iter().flatten().min());
    }

    pub(super) fn special(&self) -> Special {
        Special {
            handshakes: self.handshakes.get(),
            resumed: self.resumed.get(),
            agreed: self.agreed.take(),
            streams_max: self.streams_max.get(),
        }
    }
}

/// What was agreed on with the server.
#[derive(Default)]
pub(super) struct Special {
    pub(super) handshakes: u64,
    pub(super) resumed: u64,
    /// By the first handshake.
    pub(super) agreed: Option<Agreed>,
    /// The fewest streams that the server allowed on a connection.
    pub(super) streams_max: Option<u64>,
}

impl Special {
    pub(super) fn merge(&mut self, other: Special) {
        self.handshakes += other.handshakes;
        self.resumed += other.resumed;
        self.agreed = self.agreed.take().or(other.agreed);
        let limits = [self.streams_max, other.streams_max];
        self.streams_max = limits.into_iter().flatten().min();
    }
}

impl From<Malformed> for Lost {
    fn from(Malformed(what): Malformed) -> Lost {
        Lost(Trouble::Malformed, what)
    }
}

fn refused(error: io::Error) -> Lost {
    Lost(Trouble::Tls, format!("TLS: {error}"))
}

/// Makes the thread ready for handshakes.
pub(super) fn prepare<P: Protocol<Shared = Shared>>(worker: &Worker<P>) -> Result<(), Lost> {
    worker.shared.tls.as_ref().map_or(Ok(()), TlsClient::warm_up).map_err(refused)
}

/// A new stream as bytes of HTTP, behind the TLS handshake if there is one.
pub(super) async fn secure<P>(worker: &Worker<P>, stream: TcpStream) -> Result<Link, Lost>
where
    P: Protocol<Shared = Shared, Local = Local>,
{
    let session =
        worker.shared.tls.as_ref().map(TlsClient::session).transpose().map_err(refused)?;
    let mut link = Link::new(stream, session);
    link.handshake().await.map_err(refused)?;
    if let Some(tls) = link.tls() {
        let local = &worker.local;
        local.handshakes.set(local.handshakes.get() + 1);
        local.resumed.set(local.resumed.get() + u64::from(tls.is_resumed()));
        local.agreed.borrow_mut().get_or_insert_with(|| tls.agreed());
    }
    Ok(link)
}

/// Which URL is the next of a connection, and the bytes of its request; with HTTP/2 they count when they are sent.
pub(super) fn pick<P>(worker: &Worker<P>, connection: u64, sequence: u64) -> (u32, u64)
where
    P: Protocol<Shared = Shared, Local = Local>,
{
    let target = worker.shared.choice.pick(connection, sequence);
    (target, worker.local.outbox.request_bytes(target) as u64)
}

/// Counts the answer to a request, whose content has this CRC.
pub(super) fn answered<P: Protocol<Shared = Shared>>(
    tally: &mut Tally<P>,
    request: &Request,
    answer: &Answer,
    crc: u32,
    now_ns: u64,
    window: &Range<u64>,
    recorder: &mut Recorder,
) {
    recorder.came(answer.status, answer.bytes, answer.content_bytes, now_ns, window);
    match tally.worker.shared.expectation.check(request.target, answer, crc) {
        Ok(()) => {
            if tally.answered(request, 1, now_ns, window, recorder) {
                recorder.first_byte(request, answer.first_byte_ns);
            }
        }
        Err(wrong) => {
            tally.failed(request, 1, now_ns, window, recorder);
            tally.served();
            trouble(tally, request, wrong.kind(), &wrong.to_string(), recorder);
        }
    }
}

/// Counts what went wrong with a single request.
pub(super) fn trouble<P: Protocol<Shared = Shared>>(
    tally: &Tally<P>,
    request: &Request,
    kind: Trouble,
    what: &str,
    recorder: &mut Recorder,
) {
    let target = tally.worker.shared.settings.targets.get(request.target as usize);
    let url = target.map_or("", |target| &target.url);
    tally.trouble(kind, || format!("{url}: {what}"), recorder);
}
