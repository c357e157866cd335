//! What both versions of HTTP share: state, TLS, and the verification of answers.

use super::answer::Answer;
use super::choice::Choice;
use super::expect::Expectation;
use super::head::Malformed;
use super::link::Link;
use super::outbox::Outbox;
use super::settings::Settings;
use super::tls::TlsClient;
use crate::recorder::{Recorder, Request, Trouble};
use crate::requests::{self, Lost, Protocol, Tally, Worker};
use crate::settings::Common;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use twinring::TcpStream;
use twinring_wire::http as wire;

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
    pub(super) special: RefCell<Special>,
}

impl requests::Shared for Shared {
    type Local = Local;
    type Special = Special;

    fn common(&self) -> &Common {
        &self.settings.common
    }

    fn urls(&self) -> usize {
        self.settings.targets.len()
    }

    fn life(&self) -> u64 {
        if self.settings.keepalive { u64::MAX } else { 1 }
    }

    fn connects_for_each(&self) -> bool {
        !self.settings.keepalive
    }

    fn local(&self) -> Local {
        Local { outbox: Outbox::new(&self.settings), special: RefCell::default() }
    }

    fn special(local: &Local) -> Special {
        local.special.take()
    }

    fn prepare(&self) -> Result<(), Lost> {
        self.tls.as_ref().map_or(Ok(()), TlsClient::warm_up).map_err(refused)
    }

    /// By weight. Bytes of HTTP/2 count when they are sent.
    fn pick(&self, local: &Local, connection: u64, sequence: u64) -> (u32, u64) {
        let target = self.choice.pick(connection, sequence);
        (target, local.outbox.request_bytes(target) as u64)
    }
}

/// What was agreed on with the server.
#[derive(Default)]
pub(super) struct Special {
    handshakes: u64,
    resumed: u64,
    /// Protocol and cipher suite of the first handshake.
    agreed: Option<[String; 2]>,
    /// The fewest streams that the server allowed on a connection.
    streams_max: Option<u64>,
}

impl Special {
    pub(super) fn merge(&mut self, other: Special) {
        self.handshakes += other.handshakes;
        self.resumed += other.resumed;
        self.agreed = self.agreed.take().or(other.agreed);
        self.note_streams_max(other.streams_max);
    }

    /// The server allows this many streams on a connection.
    pub(super) fn note_streams_max(&mut self, limit: Option<u64>) {
        self.streams_max = [self.streams_max, limit].into_iter().flatten().min();
    }

    /// The settings as a result shows them.
    pub(super) fn report(self, settings: &Settings) -> wire::Settings {
        let [protocol, cipher_suite] = self.agreed.map_or([None, None], |both| both.map(Some));
        let tls = settings.is_tls().then(|| wire::Tls {
            ca: settings.tls.ca.as_ref().map(|file| file.display().to_string()),
            insecure: settings.tls.insecure,
            full_handshake: settings.tls.full_handshake,
            protocol,
            cipher_suite,
            handshakes: self.handshakes,
            resumed: self.resumed,
        });
        wire::Settings { tls, streams_max: self.streams_max, ..settings.report() }
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

/// A new stream as bytes of HTTP, behind the TLS handshake if there is one.
pub(super) async fn secure<P>(worker: &Worker<P>, stream: TcpStream) -> Result<Link, Lost>
where
    P: Protocol<Shared = Shared>,
{
    let session =
        worker.shared.tls.as_ref().map(TlsClient::session).transpose().map_err(refused)?;
    let mut link = Link::new(stream, session);
    link.handshake().await.map_err(refused)?;
    if let Some(tls) = link.tls() {
        let mut special = worker.local.special.borrow_mut();
        special.handshakes += 1;
        special.resumed += u64::from(tls.is_resumed());
        special.agreed.get_or_insert_with(|| tls.agreed());
    }
    Ok(link)
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
        Err((kind, what)) => {
            tally.failed(request, 1, now_ns, window, recorder);
            tally.served();
            trouble(tally, request, kind, &what, recorder);
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
