//! What both versions of HTTP share: state, TLS, and the verification of answers.

use super::answer::Answer;
use super::expect::{Content, contents};
use super::link::Link;
use super::settings::HttpSettings;
use super::target::Target;
use super::tls::TlsClient;
use crate::recorder::{Begun, Recorder};
use crate::requests::{Choice, Lost, Plan, Protocol, Tally, Worker};
use std::io;
use std::rc::Rc;
use std::sync::OnceLock;
use twinring::{SendBuf, TcpStream};

/// What both versions need, the same for all threads.
pub(super) struct HttpLoad {
    pub(super) settings: HttpSettings,
    pub(super) contents: Vec<OnceLock<Content>>,
    tls: Option<TlsClient>,
    /// Requests of HTTP/2 by URL, without their body; empty for HTTP/1.1.
    pub(super) http2_requests: Vec<http::Request<()>>,
}

impl HttpLoad {
    pub(super) fn plan(settings: HttpSettings) -> Result<Plan<HttpLoad>, String> {
        let tls = match settings.targets.first().filter(|target| target.tls) {
            Some(target) => Some(TlsClient::new(&settings.tls, &target.host, settings.http2)?),
            None => None,
        };
        // Bytes of HTTP/2 count when they are sent.
        let request_bytes = |target: &Target| match settings.http2 {
            true => 0,
            false => target.bytes(settings.keepalive).len() as u64,
        };
        Ok(Plan {
            requests: settings.requests.clone(),
            idle: 0,
            life: if settings.keepalive { u64::MAX } else { 1 },
            connects_for_each: !settings.keepalive,
            choice: Choice::new(settings.targets.iter().map(|it| it.weight), settings.seed),
            request_bytes: settings.targets.iter().map(request_bytes).collect(),
            own: HttpLoad {
                contents: contents(&settings),
                tls,
                http2_requests: settings.http2_requests()?,
                settings,
            },
        })
    }

    pub(super) fn prepare(&self) -> Result<(), Lost> {
        self.tls.as_ref().map_or(Ok(()), TlsClient::warm_up).map_err(refused)
    }
}

fn refused(error: io::Error) -> Lost {
    Lost(|it| &mut it.tls, format!("TLS: {error}"))
}

/// A new stream as bytes of HTTP, behind the TLS handshake if there is one.
pub(super) async fn secure<P>(worker: &Worker<P>, stream: TcpStream) -> Result<Link, Lost>
where
    P: Protocol<Own = HttpLoad>,
{
    let session =
        worker.plan.own.tls.as_ref().map(TlsClient::session).transpose().map_err(refused)?;
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
pub(super) fn answered<P: Protocol<Own = HttpLoad>>(
    tally: &mut Tally<P>,
    request: &Begun,
    answer: &Answer,
    crc: u32,
    now_ns: u64,
    recorder: &mut Recorder,
) {
    recorder.came(answer.status, answer.bytes, answer.content_bytes, now_ns);
    match tally.worker.plan.own.check(request.target, answer, crc) {
        Ok(()) => {
            if tally.answered(request, 1, now_ns, recorder) {
                recorder.first_byte(request, answer.first_byte_ns);
            }
        }
        Err(lost) => {
            tally.failed(request, 1, now_ns, recorder);
            tally.served();
            trouble(tally, request, &lost, recorder);
        }
    }
}

/// Counts what went wrong with a single request, while its connection stays in use.
pub(super) fn trouble<P: Protocol<Own = HttpLoad>>(
    tally: &Tally<P>,
    request: &Begun,
    Lost(kind, what): &Lost,
    recorder: &mut Recorder,
) {
    let url = &tally.worker.plan.own.settings.target(request.target).url;
    tally.worker.trouble_in(recorder, tally.number, *kind, || format!("{url}: {what}"));
}

/// Bytes of several requests that are sent at once.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// The requests of HTTP/1.1 of a thread: one for each URL, built once.
pub(super) struct Outbox(pub(super) Vec<Rc<[u8]>>);

impl Outbox {
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
