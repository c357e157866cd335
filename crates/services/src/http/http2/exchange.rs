//! One request and its answer, as the h2 crate takes them.

use crate::http::Status;
use crate::http::answer::Call;
use crate::http::body::Skip;
use crate::http::date::Clock;
use crate::http::exchange::Exchange;
use crate::http::proxies::Transport;
use crate::http::request::{Framing, Method, Request, fields_of};
use crate::http::resource::OpenFile;
use crate::http::response::{Body, Response};
use crate::http::worker::Worker;
use bytes::Buf;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Version};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::ops::Range;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;
use twinring::{Either, SendBuf, race, timeout, timeout_at};

/// Bytes of an answer that a stream passes on, or reads from a file, at once. A third more saves a fifth of
/// the system calls for a large file, and costs half as much memory again.
pub(super) const CHUNK_BYTES: usize = 24 * 1024;

/// A client that takes less than this, in bytes, within the send timeout counts as stalled. As for
/// connections.
const PROGRESS_BYTES_MIN: usize = 1024;

/// Requests that a client may reset before they are answered, beyond as many as were answered.
const RESETS_MAX: u64 = 200;

#[derive(Default)]
pub(super) struct Streams {
    pub(super) open: Cell<usize>,
    /// Those whose client could take more.
    pub(super) sending: Cell<usize>,
    /// The network takes nothing at present.
    pub(super) blocked: Cell<bool>,
    /// A part of an answer went to the network, or was dropped, since this was asked last.
    pub(super) written: Cell<bool>,
    answered: Cell<u64>,
    resets: Cell<u64>,
    /// Of the task of the connection, while it waits.
    pub(super) waker: Cell<Option<Waker>>,
}

impl Streams {
    /// True if the client resets its requests rather than taking answers.
    pub(super) fn is_flooded(&self) -> bool {
        self.resets.get() > RESETS_MAX + self.answered.get()
    }
}

pub(super) struct Stream {
    shared: Rc<Streams>,
    stays: bool,
    transport: Transport,
    is_sending: bool,
}

impl Stream {
    pub(super) fn new(shared: &Rc<Streams>, stays: bool, transport: Transport) -> Stream {
        shared.open.set(shared.open.get() + 1);
        Stream { stays, transport, is_sending: false, shared: Rc::clone(shared) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Streams { open, sending, waker, .. } = &*self.shared;
        open.set(open.get() - 1);
        sending.set(sending.get() - usize::from(self.is_sending));
        // What the connection waits for has changed.
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }
}

struct Broken;

pub(super) async fn exchange(
    worker: Rc<Worker>,
    mut stream: Stream,
    request: http::Request<RecvStream>,
    respond: SendResponse<Chunk>,
) {
    let (parts, mut body) = request.into_parts();
    let respond = RefCell::new(respond);
    let began = worker.clock.now();
    let generation = worker.generation();
    let limits = generation.settings.head();
    let fields = fields_of(&parts);
    let request = Request::from_http2(&parts, &fields, !body.is_end_stream(), limits);
    let (transport, new) =
        (stream.transport, |it| Call::new(&worker, generation, stream.transport, it));
    let call = request.as_ref().map(new);
    let read = call.as_ref().ok();
    let line = || line_of(&parts).into();
    let mut record = Exchange::begin(&worker, transport, read, line, began);
    let response = async {
        match &call {
            Ok(call) => respond_to(call, &mut body, &respond).await,
            Err(status) => Response::message(**status),
        }
    };
    let reset = poll_fn(|cx| respond.borrow_mut().poll_reset(cx));
    let mut response = match race(response, reset).await {
        Either::Left(response) => response,
        Either::Right(reset) => {
            let resets = &stream.shared.resets;
            resets.set(resets.get() + u64::from(reset.is_ok()));
            return;
        }
    };
    if parts.method == http::Method::HEAD {
        response.body = Body::Empty;
    }
    drop(call);
    drop(fields);
    drop(parts);
    let head = head_of(&response, &worker.clock);
    let head_bytes = head_bytes(&head);
    record.answered(&worker, &response, head_bytes, stream.stays);
    let left = response.content_bytes();
    let Ok(send) = respond.into_inner().send_response(head, left == 0) else { return };
    record.sent(head_bytes as u64);
    stream.shared.answered.set(stream.shared.answered.get() + 1);
    if left > 0 {
        stream.is_sending = true;
        stream.shared.sending.set(stream.shared.sending.get() + 1);
        let (worker, shared, record) = (&worker, &stream.shared, &mut record);
        let (deadline, progress) = (None, 0);
        let mut content = ContentSender { worker, shared, record, send, left, deadline, progress };
        let _broken = content.send(response).await;
    }
}

/// The line that a request of HTTP/1.1 would have, for the log.
fn line_of(request: &Parts) -> Vec<u8> {
    let target = match request.uri.path_and_query() {
        Some(target) => target.as_str(),
        None => request.uri.authority().map_or("", |authority| authority.as_str()),
    };
    format!("{} {target} HTTP/2.0", request.method).into_bytes()
}

/// The answer, behind the body of the request.
async fn respond_to(
    call: &Call<'_, '_>,
    body: &mut RecvStream,
    respond: &RefCell<SendResponse<Chunk>>,
) -> Response {
    // A method that is refused anyway is refused for any body. That is read nevertheless, because the
    // h2 crate finds out meanwhile whether the request is malformed.
    if call.request.framing != Framing::Empty {
        if let Err(status) = skip_body(call, body, respond).await
            && call.request.method != Method::Other
        {
            let is_late = status == Status::REQUEST_TIMEOUT;
            call.worker.counters.body_timeouts.add(u64::from(is_late));
            return call.refuse(status);
        }
        call.worker.clock.tick();
    }
    call.answer().await
}

async fn skip_body(
    call: &Call<'_, '_>,
    body: &mut RecvStream,
    respond: &RefCell<SendResponse<Chunk>>,
) -> Result<(), Status> {
    let settings = &call.generation.settings;
    let mut allowance = settings.max_body_bytes;
    Skip::new(call.request.framing, allowance)?;
    if call.request.expects_continue && call.request.method != Method::Other {
        let mut response = http::Response::new(());
        *response.status_mut() = Status::CONTINUE;
        // A stream that has ended is noticed below.
        let _sent = respond.borrow_mut().send_informational(response);
    }
    let skip = async {
        while let Some(data) = body.data().await {
            // A stream that was reset, which the caller learns by itself.
            let Ok(data) = data else { return pending().await };
            let bytes = data.len();
            let left = allowance.checked_sub(bytes as u64);
            allowance = left.ok_or(Status::PAYLOAD_TOO_LARGE)?;
            // Fails only for more than was received.
            let _released = body.flow_control().release_capacity(bytes);
        }
        Ok(())
    };
    timeout(settings.body_timeout, skip).await.unwrap_or(Err(Status::REQUEST_TIMEOUT))
}

struct ContentSender<'s> {
    worker: &'s Worker,
    shared: &'s Rc<Streams>,
    record: &'s mut Exchange,
    send: SendStream<Chunk>,
    left: u64,
    /// Until when the client must have taken [`PROGRESS_BYTES_MIN`].
    deadline: Option<Instant>,
    progress: usize,
}

impl ContentSender<'_> {
    async fn send(&mut self, mut response: Response) -> Result<(), Broken> {
        match &response.body {
            Body::File(file, range) => self.send_file(file, range.clone()).await,
            _ => self.send_bytes(response.content()).await,
        }
    }

    /// Reads and sends a part of a file. Nothing is sent that was not checked after reading it, as
    /// for connections with TLS (`crate::http::sending`).
    async fn send_file(&mut self, file: &OpenFile, range: Range<u64>) -> Result<(), Broken> {
        let mut from = range.start;
        while from < range.end {
            let length = (range.end - from).min(CHUNK_BYTES as u64) as usize;
            // A stream that the client does not take from holds nothing.
            self.window(length).await?;
            let Some(bytes) = file.read_checked(from, length).await else {
                self.worker.counters.broken_off.add(1);
                self.send.send_reset(Reason::INTERNAL_ERROR);
                return Err(Broken);
            };
            self.send_bytes(bytes.into()).await?;
            self.worker.counters.sent_file_bytes.add(length as u64);
            from += length as u64;
        }
        Ok(())
    }

    async fn send_bytes(&mut self, bytes: SendBuf) -> Result<(), Broken> {
        let mut range = 0..bytes.len();
        let bytes = Rc::new(bytes);
        while !range.is_empty() {
            let length = self.window(range.len()).await?;
            self.left -= length as u64;
            let range_now = range.start..range.start + length;
            let (bytes, shared) = (Rc::clone(&bytes), Rc::clone(self.shared));
            let chunk = Chunk { bytes, range: range_now, shared };
            self.send.send_data(chunk, self.left == 0).map_err(|_| Broken)?;
            range.start += length;
            self.record.sent(length as u64);
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
            let patience = || self.worker.generation().settings.send_timeout;
            let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + patience());
            let more = poll_fn(|cx| self.send.poll_capacity(cx));
            match timeout_at(deadline, more).await {
                Ok(Some(Ok(_))) => {}
                Ok(None | Some(Err(_))) => return Err(Broken),
                // The time limit of the connection decides whether its client reads.
                Err(_elapsed) if self.shared.blocked.get() => self.deadline = None,
                Err(_elapsed) => {
                    self.worker.counters.send_timeouts.add(1);
                    self.send.send_reset(Reason::CANCEL);
                    return Err(Broken);
                }
            }
        }
    }
}

/// A part of bytes that several frames share.
pub(super) struct Chunk {
    bytes: Rc<SendBuf>,
    range: Range<usize>,
    shared: Rc<Streams>,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.written.set(true);
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.range.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes.as_slice()[self.range.clone()]
    }

    fn advance(&mut self, bytes: usize) {
        self.range.start = (self.range.start + bytes).min(self.range.end);
    }
}

pub(super) fn head_of(response: &Response, clock: &Clock) -> http::Response<()> {
    let mut head = http::Response::new(());
    *head.version_mut() = Version::HTTP_2;
    *head.status_mut() = response.status;
    let fields = head.headers_mut();
    fields.insert(
        DATE,
        HeaderValue::from_bytes(&clock.date()).unwrap_or(HeaderValue::from_static("")),
    );
    for (name, value) in response.fields() {
        // Names were checked where they come from, so none is invalid.
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            fields.append(name, value.clone());
        }
    }
    if let Some(length) = response.length {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    head
}

/// The bytes of these fields as HTTP/1.1 has them, by which logs of both protocols can be compared.
pub(super) fn head_bytes(head: &http::Response<()>) -> usize {
    let fields = head.headers().iter();
    fields.map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + 2
}
