//! One request and its answer.

use super::message::{Chunk, head_of};
use crate::http::access_log::ConnectionLog;
use crate::http::durations::HostDurations;
use crate::http::forwarders::Transport;
use crate::http::generation::Generation;
use crate::http::head::{Framing, Head, Method};
use crate::http::open_file::OpenFile;
use crate::http::reply::{FileParts, Reply, Rest};
use crate::http::requests::{answer_to, immediate_reply, refusal};
use crate::http::response::Persistence;
use crate::http::status::Status;
use crate::http::worker::Worker;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::request::Parts;
use http::{Request, Response};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use twinring::{Either, SendBuf, race, timeout, timeout_at};

/// Bytes of an answer that a stream passes on, or reads from a file, at once. A third more saves a fifth of
/// the system calls for a large file, and costs half as much memory again.
pub(super) const CHUNK_BYTES: usize = 24 * 1024;

/// A client that takes less than this, in bytes, within the send timeout counts as stalled. As for
/// connections.
const PROGRESS_BYTES_MIN: usize = 1024;

/// Requests that a client may reset before they are answered, beyond as many as were answered.
const RESETS_MAX: u64 = 200;

/// What the streams of a connection share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) worker: Rc<Worker>,
    open: Cell<usize>,
    sending: Cell<usize>,
    answered: Cell<u64>,
    /// Requests that were reset before they were answered.
    resets: Cell<u64>,
    /// Of the connection, while it waits.
    waker: RefCell<Option<Waker>>,
}

impl Shared {
    pub(super) fn new(worker: &Rc<Worker>) -> Rc<Shared> {
        Rc::new(Shared {
            worker: Rc::clone(worker),
            open: Cell::default(),
            sending: Cell::default(),
            answered: Cell::default(),
            resets: Cell::default(),
            waker: RefCell::default(),
        })
    }

    /// The task of the connection runs.
    pub(super) fn runs(&self) {
        self.waker.take();
    }

    /// The task of the connection waits.
    pub(super) fn waits(&self, waker: &Waker) {
        *self.waker.borrow_mut() = Some(waker.clone());
    }

    pub(super) fn is_working(&self) -> bool {
        self.open.get() > 0
    }

    /// True if the client can take more.
    pub(super) fn is_sending(&self) -> bool {
        self.sending.get() > 0
    }

    /// True if the client resets its requests rather than taking answers.
    pub(super) fn is_flooded(&self) -> bool {
        self.resets.get() > RESETS_MAX + self.answered.get()
    }
}

/// A stream in progress.
pub(super) struct Stream {
    shared: Rc<Shared>,
    log: Option<ConnectionLog>,
    /// The connection stays behind it.
    stays: bool,
    transport: Transport,
    is_sending: bool,
    /// Bytes handed over, with the head as it is in HTTP/1.1.
    sent: u64,
    began: Instant,
    /// Where the duration counts, if it is measured.
    durations: RefCell<Option<Arc<HostDurations>>>,
    /// Of its answer.
    status: Option<Status>,
}

impl Stream {
    pub(super) fn new(
        shared: &Rc<Shared>,
        log: Option<ConnectionLog>,
        stays: bool,
        transport: Transport,
    ) -> Stream {
        shared.open.set(shared.open.get() + 1);
        Stream {
            log,
            stays,
            transport,
            is_sending: false,
            sent: 0,
            began: shared.worker.clock.now(),
            durations: RefCell::default(),
            status: None,
            shared: Rc::clone(shared),
        }
    }

    /// Logs the request as one of HTTP/1.1, with its version.
    fn log_request(&self, request: &Parts, head: Option<&Head<'_, '_>>) {
        if let Some(log) = &self.log {
            let target = match request.uri.path_and_query() {
                Some(target) => target.as_str(),
                None => request.uri.authority().map_or("", |authority| authority.as_str()),
            };
            let line = format!("{} {target} HTTP/2.0", request.method);
            log.received(line.as_bytes(), head, self.shared.worker.clock.now());
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            log.end(self.sent);
        }
        if let (Some(durations), Some(status)) = (self.durations.take(), self.status) {
            let clock = &self.shared.worker.clock;
            clock.tick();
            durations.observe(status, clock.now().saturating_duration_since(self.began));
        }
        let Shared { open, sending, waker, .. } = &*self.shared;
        open.set(open.get() - 1);
        sending.set(sending.get() - usize::from(self.is_sending));
        // What the connection waits for has changed.
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }
}

/// Why an answer is not completed.
struct Broken;

/// Answers a request.
pub(super) async fn exchange(
    mut stream: Stream,
    request: Request<RecvStream>,
    respond: SendResponse<Chunk>,
) {
    let (request, mut body) = request.into_parts();
    let respond = RefCell::new(respond);
    let reply = {
        let reply = reply_to(&stream, &request, &mut body, &respond);
        let reset = poll_fn(|cx| respond.borrow_mut().poll_reset(cx));
        match race(reply, reset).await {
            Either::Left(reply) => reply,
            Either::Right(reset) => {
                let resets = &stream.shared.resets;
                resets.set(resets.get() + u64::from(reset.is_ok()));
                return;
            }
        }
    };
    drop(request);
    stream.status = Some(reply.status);
    if let Some(log) = &stream.log {
        log.answered(&reply, stream.stays, 0);
    }
    let (head, head_bytes) = (head_of(&reply), reply.head_bytes() as u64);
    let left = reply.length() - head_bytes;
    let Ok(send) = respond.into_inner().send_response(head, left == 0) else { return };
    stream.sent = head_bytes;
    stream.shared.answered.set(stream.shared.answered.get() + 1);
    if left > 0 {
        stream.is_sending = true;
        stream.shared.sending.set(stream.shared.sending.get() + 1);
        let patience = stream.shared.worker.generation().settings.timeouts.send;
        let mut content =
            Content { stream: &mut stream, send, left, patience, deadline: None, progress: 0 };
        let _broken = content.send(reply).await;
    }
}

/// Builds and counts the answer.
async fn reply_to(
    stream: &Stream,
    request: &Parts,
    body: &mut RecvStream,
    respond: &RefCell<SendResponse<Chunk>>,
) -> Reply {
    let worker = &stream.shared.worker;
    let generation = worker.generation();
    let limits = generation.settings.limits;
    let mut fields = Vec::new();
    let head = Head::from_http2(request, !body.is_end_stream(), &mut fields, limits.head);
    stream.log_request(request, head.as_ref().ok());
    let site = head.as_ref().ok().and_then(|head| generation.settings.sites.find(head));
    *stream.durations.borrow_mut() = generation.durations(site).cloned();
    let head = match head {
        Ok(head) => head,
        Err(status) => return refusal(worker, status, request.method == http::Method::HEAD),
    };
    let persistence = Persistence::Stays;
    let transport = stream.transport;
    if let Some(reply) = immediate_reply(worker, &generation, &head, persistence, transport) {
        worker.counters.count_answer(reply.status);
        return reply;
    }
    // A method that is refused anyway is refused for any body. That is read nevertheless, because the
    // h2 crate finds out meanwhile whether the request is malformed.
    if head.framing != Framing::Empty
        && let Err(status) = skip_body(&generation, &head, body, respond).await
        && head.method != Method::Other
    {
        worker.counters.body_timeouts.add(u64::from(status == Status::REQUEST_TIMEOUT));
        return refusal(worker, status, head.method == Method::Head);
    }
    worker.clock.tick();
    let reply = Box::pin(answer_to(worker, generation, &head, persistence, transport)).await;
    worker.counters.count_answer(reply.status);
    reply
}

/// Reads and drops the body.
async fn skip_body(
    generation: &Rc<Generation>,
    head: &Head<'_, '_>,
    body: &mut RecvStream,
    respond: &RefCell<SendResponse<Chunk>>,
) -> Result<(), Status> {
    let mut allowance = generation.settings.limits.body_bytes;
    if let Framing::Length(length) = head.framing
        && length > allowance
    {
        return Err(Status::CONTENT_TOO_LARGE);
    }
    if head.expects_continue && head.method != Method::Other {
        let mut response = Response::new(());
        *response.status_mut() = http::StatusCode::CONTINUE;
        // A stream that has ended is noticed below.
        let _sent = respond.borrow_mut().send_informational(response);
    }
    let skip = async {
        while let Some(data) = body.data().await {
            // A stream that was reset, which the caller learns by itself.
            let Ok(data) = data else { return pending().await };
            let bytes = data.len();
            let left = allowance.checked_sub(bytes as u64);
            allowance = left.ok_or(Status::CONTENT_TOO_LARGE)?;
            // Fails only for more than was received.
            let _released = body.flow_control().release_capacity(bytes);
        }
        Ok(())
    };
    let in_time = timeout(generation.settings.timeouts.body, skip).await;
    in_time.unwrap_or(Err(Status::REQUEST_TIMEOUT))
}

/// Sends the content of an answer.
struct Content<'s> {
    stream: &'s mut Stream,
    send: SendStream<Chunk>,
    /// Bytes that were not passed on yet.
    left: u64,
    /// How long the client may take for [`PROGRESS_BYTES_MIN`].
    patience: Duration,
    deadline: Option<Instant>,
    /// Bytes that the client took since then.
    progress: usize,
}

impl Content<'_> {
    async fn send(&mut self, reply: Reply) -> Result<(), Broken> {
        let (head, length) = (reply.head_bytes(), reply.message.len());
        self.send_bytes(reply.message, head..length).await?;
        match reply.rest {
            None => Ok(()),
            Some(Rest::File(parts)) => self.send_parts(&parts).await,
            Some(Rest::Listing(listing)) => {
                let whole = 0..listing.content.len();
                let bytes = SendBuf::shared(Rc::clone(&listing.content), whole.clone());
                self.send_bytes(bytes, whole).await
            }
        }
    }

    async fn send_parts(&mut self, parts: &FileParts) -> Result<(), Broken> {
        for (head, range) in &parts.parts {
            self.send_bytes(head.clone().into(), 0..head.len()).await?;
            self.send_file(&parts.file, range.clone()).await?;
        }
        self.send_bytes(parts.end.clone().into(), 0..parts.end.len()).await
    }

    /// Reads and sends a part of a file. Nothing is sent that was not checked after reading it, as
    /// for connections with TLS (`crate::http::sending`).
    async fn send_file(&mut self, file: &OpenFile, range: Range<u64>) -> Result<(), Broken> {
        let mut from = range.start;
        while from < range.end {
            let length = (range.end - from).min(CHUNK_BYTES as u64) as usize;
            // A stream that the client does not take from holds nothing.
            self.window(length).await?;
            let bytes = file.file.read_at(from, length).await.unwrap_or_default();
            if bytes.len() != length || !file.is_sound().await.unwrap_or(false) {
                self.stream.shared.worker.counters.broken_off.add(1);
                self.send.send_reset(Reason::INTERNAL_ERROR);
                return Err(Broken);
            }
            self.send_bytes(bytes.into(), 0..length).await?;
            self.stream.shared.worker.counters.sent_file_bytes.add(length as u64);
            from += length as u64;
        }
        Ok(())
    }

    async fn send_bytes(&mut self, bytes: SendBuf, mut range: Range<usize>) -> Result<(), Broken> {
        let bytes = Rc::new(bytes);
        while !range.is_empty() {
            let length = self.window(range.len()).await?;
            self.left -= length as u64;
            let chunk = Chunk::new(&bytes, range.start..range.start + length);
            self.send.send_data(chunk, self.left == 0).map_err(|_| Broken)?;
            range.start += length;
            self.stream.sent += length as u64;
            self.progress += length;
            if self.progress >= PROGRESS_BYTES_MIN {
                (self.progress, self.deadline) = (0, None);
            }
        }
        Ok(())
    }

    /// Waits until the client takes something of this stream: how much of `wanted`, at least a byte.
    async fn window(&mut self, wanted: usize) -> Result<usize, Broken> {
        let wanted = wanted.min(CHUNK_BYTES);
        self.send.reserve_capacity(wanted);
        loop {
            let granted = self.send.capacity().min(wanted);
            if granted > 0 {
                return Ok(granted);
            }
            let patience = self.patience;
            let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + patience);
            let more = poll_fn(|cx| self.send.poll_capacity(cx));
            match timeout_at(deadline, more).await {
                Ok(Some(Ok(_))) => {}
                Ok(None | Some(Err(_))) => return Err(Broken),
                Err(_elapsed) => {
                    self.stream.shared.worker.counters.send_timeouts.add(1);
                    self.send.send_reset(Reason::CANCEL);
                    return Err(Broken);
                }
            }
        }
    }
}
