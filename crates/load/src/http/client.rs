//! What both versions of HTTP share: state, TLS, and the verification of answers.

use super::answer::Answer;
use super::choice::Choice;
use super::expect::Expectation;
use super::head::Malformed;
use super::link::Link;
use super::settings::Settings;
use super::target::Target;
use super::tls::TlsClient;
use crate::recorder::{Recorder, Request, Trouble};
use crate::requests::{self, Lost, Protocol, Tally, Worker};
use crate::settings::Common;
use std::io;
use std::rc::Rc;
use twinring::{SendBuf, TcpStream};

pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) expectation: Expectation,
    choice: Choice,
    tls: Option<TlsClient>,
    /// Requests of HTTP/2 by URL, without their body; empty for HTTP/1.1.
    http2_requests: Vec<http::Request<()>>,
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Result<Shared, String> {
        let tls = match settings.targets.first().filter(|target| target.tls) {
            Some(target) => Some(TlsClient::new(&settings.tls, &target.host, settings.http2)?),
            None => None,
        };
        let expectation = Expectation::new(&settings);
        let weights = settings.targets.iter().map(|target| target.weight);
        let choice = Choice::new(weights, settings.seed);
        let http2_requests = settings.http2_requests()?;
        Ok(Shared { expectation, choice, tls, http2_requests, settings })
    }

    pub(super) fn http2_request(&self, target: u32) -> http::Request<()> {
        self.http2_requests.get(target as usize).cloned().unwrap_or_default()
    }
}

impl requests::Shared for Shared {
    type Local = Outbox;

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

    fn local(&self) -> Outbox {
        Outbox::new(&self.settings)
    }

    fn prepare(&self) -> Result<(), Lost> {
        self.tls.as_ref().map_or(Ok(()), TlsClient::warm_up).map_err(refused)
    }

    /// By weight. Bytes of HTTP/2 count when they are sent.
    fn pick(&self, outbox: &Outbox, connection: u64, sequence: u64) -> (u32, u64) {
        let target = self.choice.pick(connection, sequence);
        (target, outbox.request_bytes(target) as u64)
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
        let mut recorder = worker.recorder.borrow_mut();
        recorder.handshakes += 1;
        recorder.resumed += u64::from(tls.is_resumed());
        recorder.agreed.get_or_insert_with(|| tls.agreed());
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
    recorder: &mut Recorder,
) {
    recorder.came(answer.status, answer.bytes, answer.content_bytes, now_ns);
    match tally.worker.shared.expectation.check(request.target, answer, crc) {
        Ok(()) => {
            if tally.answered(request, 1, now_ns, recorder) {
                recorder.first_byte(request, answer.first_byte_ns);
            }
        }
        Err((kind, what)) => {
            tally.failed(request, 1, now_ns, recorder);
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

/// Bytes of several requests that are sent at once.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// The requests of a thread: one for each URL, built once. Empty for HTTP/2, whose requests are not bytes before they
/// are sent.
#[derive(Debug)]
pub(super) struct Outbox(Vec<Rc<[u8]>>);

impl Outbox {
    pub(super) fn new(settings: &Settings) -> Outbox {
        let bytes = |target: &Target| target.bytes(settings.keepalive).into();
        Outbox(settings.targets.iter().filter(|_| !settings.http2).map(bytes).collect())
    }

    pub(super) fn request_bytes(&self, target: u32) -> usize {
        self.0.get(target as usize).map_or(0, |request| request.len())
    }

    /// The bytes of the first of these requests, and their number: at least one, if there is one.
    pub(super) fn batch(&self, targets: impl Iterator<Item = u32>) -> (SendBuf, usize) {
        let mut requests = targets.filter_map(|target| self.0.get(target as usize)).peekable();
        let Some(first) = requests.next() else { return (Vec::new().into(), 0) };
        if requests.peek().is_none() {
            return (Rc::clone(first).into(), 1);
        }
        let (mut bytes, mut count) = (first.to_vec(), 1);
        while let Some(next) = requests.next_if(|next| bytes.len() + next.len() <= BATCH_BYTES_MAX)
        {
            bytes.extend_from_slice(next);
            count += 1;
        }
        (bytes.into(), count)
    }
}
