//! The requests of one connection, and their answers, in order.
//!
//! Requests that the cache can answer are answered without waiting, directly from the received
//! bytes; answers to requests that arrived together are sent together. All other requests, and the
//! sending of files, take a slower path, which is boxed, so that connections that do not need it do
//! not pay for it.

mod answer;

use self::answer::{Answer, Before};
use super::body::Skip;
use super::compression::preferred;
use super::connection::{Connection, Phase};
use super::forwarders::Transport;
use super::generation::Generation;
use super::head::{Framing, Head, Method, Scan, Storage};
use super::http2::PREFACE;
use super::path::clean;
use super::reply::{Reply, ResponseContext, reply};
use super::response::{Persistence, message};
use super::sending::send_reply;
use super::status::Status;
use super::target::Target;
use super::worker::Worker;
use std::io;
use std::rc::Rc;
use twinring::RecvBuf;

/// Answers to pipelined requests are collected up to this many bytes before they are sent. No
/// request is read before the answer to the previous one is collected or sent, so this, the queue
/// of the stream and one received buffer are all that a client can make pile up.
const COLLECTED_BYTES_MAX: usize = 32 * 1024;

/// Received bytes that are not dealt with yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    chunk: Option<RecvBuf>,
    /// Bytes that had to be kept, from `start`; then there is no received buffer.
    kept: Vec<u8>,
    start: usize,
    scan: Scan,
}

impl Input {
    fn bytes(&self) -> &[u8] {
        self.chunk.as_deref().unwrap_or(&self.kept[self.start..])
    }

    fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    fn add(&mut self, chunk: RecvBuf) {
        if self.is_empty() {
            (self.kept, self.start) = (Vec::new(), 0);
            self.chunk = Some(chunk);
        } else {
            self.keep();
            self.kept.drain(..self.start);
            self.start = 0;
            self.kept.extend_from_slice(&chunk);
        }
    }

    /// Moves the bytes out of the worker's pool, for the time of a wait.
    fn keep(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            (self.kept, self.start) = (chunk.to_vec(), 0);
        }
    }

    /// All bytes, in one buffer.
    fn into_bytes(self) -> RecvBuf {
        match self.chunk {
            Some(chunk) => chunk,
            None => RecvBuf::from(self.kept[self.start..].to_vec()),
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.scan = Scan::default();
        match &mut self.chunk {
            Some(chunk) => chunk.advance(bytes),
            None => self.start += bytes,
        }
        if self.is_empty() {
            (self.chunk, self.kept, self.start) = (None, Vec::new(), 0);
        }
    }
}

/// The next step for the input.
enum Next {
    /// Wait for more of it.
    More,
    /// Send this; the connection stays or not.
    Reply(Reply, Persistence),
    /// Answer the request with this head, which may wait.
    Exchange(Vec<u8>, Persistence),
    /// Send this and close: the start of the next request is unknown. To HEAD it has no content.
    Refuse { status: Status, to_head: bool },
}

/// Serves one connection until either side ends it, or the client begins with the preface of HTTP/2:
/// then the bytes so far are returned.
///
/// # Errors
/// When the connection broke or must end.
pub(super) async fn serve_connection(
    worker: &Rc<Worker>,
    connection: &Connection,
) -> io::Result<Option<RecvBuf>> {
    let mut input = Input::default();
    let mut collected = Vec::new();
    let mut answered = 0;
    let mut may_be_http2 = connection.tls.is_none() && worker.generation().settings.http2.is_some();
    loop {
        let phase = if input.is_empty() { Phase::Idle } else { Phase::Head };
        let chunk = connection.recv(phase).await?;
        if chunk.is_empty() {
            return Box::pin(connection.shutdown()).await.map(|()| None);
        }
        input.add(chunk);
        worker.clock.tick();
        if may_be_http2 {
            let begins = input.bytes().len().min(PREFACE.len());
            may_be_http2 = input.bytes()[..begins] == PREFACE[..begins];
            match (may_be_http2, begins == PREFACE.len()) {
                (false, _) => {}
                (true, false) => continue,
                (true, true) => return Ok(Some(input.into_bytes())),
            }
        }
        loop {
            let (reply, persistence) = match next(worker, connection, &mut input, answered) {
                Next::More => break,
                Next::Reply(reply, persistence) if reply.rest.is_none() => (reply, persistence),
                Next::Refuse { status, to_head } => {
                    let reply = refusal(worker, status, to_head);
                    if let Some(log) = &connection.log {
                        log.received(input.bytes(), None, worker.clock.now());
                    }
                    if let Some(timing) = &connection.timing {
                        let generation = worker.generation();
                        generation
                            .durations(None)
                            .inspect(|of| timing.begin(of, worker.clock.now()));
                    }
                    connection.answered(&reply, false);
                    (reply, Persistence::Closes)
                }
                slow => {
                    send_collected(connection, &mut collected).await?;
                    input.keep();
                    let persistence =
                        Box::pin(take_time(worker, connection, &mut input, slow)).await?;
                    if !persistence.stays() {
                        return Box::pin(end(connection, &input, persistence)).await.map(|()| None);
                    }
                    answered += 1;
                    continue;
                }
            };
            answered += 1;
            if collected.is_empty() && (input.is_empty() || !persistence.stays()) {
                connection.send(reply.message).await?;
                connection.settle();
            } else {
                collected.extend_from_slice(reply.message.as_slice());
            }
            if !persistence.stays() {
                send_collected(connection, &mut collected).await?;
                return Box::pin(end(connection, &input, persistence)).await.map(|()| None);
            }
            if collected.len() >= COLLECTED_BYTES_MAX {
                send_collected(connection, &mut collected).await?;
                worker.clock.tick();
            }
        }
        send_collected(connection, &mut collected).await?;
        if let (Some(log), false) = (&connection.log, input.is_empty()) {
            log.begin(worker.clock.now());
        }
    }
}

/// Ends the connection behind its last answer. A client that announced its last request sends no
/// data that a close could reset.
async fn end(connection: &Connection, input: &Input, persistence: Persistence) -> io::Result<()> {
    match persistence == Persistence::ClosesAsAsked && input.is_empty() {
        true => connection.close_as_requested().await,
        false => connection.shutdown().await,
    }
}

/// Performs a step that may wait; returns what happens to the connection.
async fn take_time(
    worker: &Rc<Worker>,
    connection: &Connection,
    input: &mut Input,
    next: Next,
) -> io::Result<Persistence> {
    match next {
        Next::Exchange(head, persistence) => {
            exchange(worker, connection, input, head, persistence).await
        }
        Next::Reply(reply, persistence) => {
            connection.answered(&reply, persistence.stays());
            send_waiting(worker, connection, reply).await?;
            Ok(persistence)
        }
        Next::More | Next::Refuse { .. } => Ok(Persistence::Stays),
    }
}

/// Sends an answer of which a part may not be in memory.
async fn send_waiting(worker: &Worker, connection: &Connection, reply: Reply) -> io::Result<()> {
    send_reply(connection, reply).await?;
    connection.settle();
    // Requests behind it have waited.
    worker.clock.tick();
    Ok(())
}

async fn send_collected(connection: &Connection, collected: &mut Vec<u8>) -> io::Result<()> {
    match collected.is_empty() {
        true => Ok(()),
        false => {
            connection.send(std::mem::take(collected)).await?;
            connection.settle();
            Ok(())
        }
    }
}

/// Takes the next request off the input. Nearly every request takes this path, so it neither waits
/// nor allocates as long as the cache has a complete answer.
fn next(worker: &Rc<Worker>, connection: &Connection, input: &mut Input, answered: u64) -> Next {
    let generation = worker.generation();
    let limits = generation.settings.limits.head;
    let bytes = input.chunk.as_deref().unwrap_or(&input.kept[input.start..]);
    let length = match input.scan.find_end(bytes, limits) {
        Ok(Some(length)) => length,
        Ok(None) => return Next::More,
        Err(status) => return Next::Refuse { status, to_head: is_to_head(bytes) },
    };
    let mut storage = Storage::new();
    let head = match Head::parse(&bytes[..length], &mut storage, limits) {
        Ok(head) => head,
        Err(status) => return Next::Refuse { status, to_head: is_to_head(bytes) },
    };
    let is_last = answered + 1 >= generation.settings.limits.requests || worker.draining.get();
    let is_plain = matches!(head.method, Method::Get | Method::Head);
    let persistence = match (head.keep_alive && !is_last, head.is_1_0) {
        // Behind a body some clients send a line too many.
        (false, _) if !head.keep_alive && is_plain && head.framing == Framing::Empty => {
            Persistence::ClosesAsAsked
        }
        (false, _) => Persistence::Closes,
        (true, true) => Persistence::StaysFor1_0,
        (true, false) => Persistence::Stays,
    };
    let transport = connection.transport();
    let reply = immediate_reply(worker, &generation, &head, persistence, transport);
    let next = match reply {
        Some(reply) => {
            worker.counters.count_answer(reply.status);
            Next::Reply(reply, persistence)
        }
        None => Next::Exchange(bytes[..length].to_vec(), persistence),
    };
    if let Some(log) = &connection.log {
        log.received(&bytes[..length], Some(&head), worker.clock.now());
    }
    if let Some(timing) = &connection.timing {
        let site = generation.settings.sites.find(&head);
        generation.durations(site).inspect(|of| timing.begin(of, worker.clock.now()));
    }
    // A file goes behind the collected answers, which are logged first.
    if let Next::Reply(reply, persistence) = &next
        && reply.rest.is_none()
    {
        connection.answered(reply, persistence.stays());
    }
    input.consume(length);
    next
}

/// The answer, if it can be built without waiting: a redirect, a request for a password, or
/// a file that is in memory, or open and unchanged.
pub(super) fn immediate_reply(
    worker: &Rc<Worker>,
    generation: &Rc<Generation>,
    head: &Head<'_, '_>,
    persistence: Persistence,
    transport: Transport,
) -> Option<Reply> {
    let Target::Resource { path, .. } = head.target else { return None };
    if !matches!(head.method, Method::Get | Method::Head) || head.framing != Framing::Empty {
        return None;
    }
    let site = generation.settings.sites.find(head)?;
    if generation.settings.sites.site(site).comes_before_files() {
        let generation = Rc::clone(generation);
        let answer =
            Answer { worker, generation, site, head, persistence, transport, is_last: false };
        match answer.before_files() {
            Before::Files => {}
            // The answer may need a file.
            Before::Refusal(status, _) if answer.has_error_page(status) => return None,
            Before::Refusal(status, fields) => {
                let reply = answer.message(status, &fields);
                return Some(answer.finished(reply, worker.clock.now()));
            }
            Before::Work | Before::Verification(..) => return None,
        }
    }
    let path = clean(path.as_bytes()).ok()?;
    let resource = worker.cached(generation, site, &path)?;
    let variant = preferred(head, &resource)?;
    if variant.checked_file().is_some_and(|file| !file.is_unchanged()) {
        return None;
    }
    worker.counters.cache_hits.add(1);
    worker.compress_for(head, generation, site, &path, &resource);
    let context = ResponseContext { clock: &worker.clock, persistence, ruled: None };
    let reply = reply(head, variant, context);
    worker.count_saved(head, variant, &reply);
    let generation = Rc::clone(generation);
    let answer = Answer { worker, generation, site, head, persistence, transport, is_last: false };
    Some(answer.finished(reply, worker.clock.now()))
}

/// Builds and counts an answer that refuses a request.
pub(super) fn refusal(worker: &Worker, status: Status, to_head: bool) -> Reply {
    worker.counters.count_answer(status);
    Reply::new(status, message(status, &[], &worker.clock, Persistence::Closes, to_head))
}

/// True if a request, of which the rest may be wrong or missing, has the method HEAD: its answer has no content,
/// whatever the status (RFC 9110 section 9.3.2).
fn is_to_head(request: &[u8]) -> bool {
    request.starts_with(b"HEAD ")
}

/// Answers one request that has a body or must wait; returns what happens to the connection.
async fn exchange(
    worker: &Rc<Worker>,
    connection: &Connection,
    input: &mut Input,
    head: Vec<u8>,
    mut persistence: Persistence,
) -> io::Result<Persistence> {
    connection.enter(Phase::Working);
    let generation = worker.generation();
    let limits = &generation.settings.limits;
    let body = {
        let mut storage = Storage::new();
        let parsed = Head::parse(&head, &mut storage, limits.head);
        parsed.map(|head| (head.framing, head.expects_continue, head.method))
    };
    let accepted = match body {
        Ok((Framing::Empty, ..)) => Ok(()),
        // A request that is refused anyway is refused before its body is read.
        Ok((.., Method::Other)) => {
            persistence = Persistence::Closes;
            Ok(())
        }
        Ok((framing, expects_continue, _)) => match Skip::new(framing, limits.body_bytes) {
            Ok(skip) => {
                if expects_continue {
                    connection.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                }
                read_body(connection, input, skip).await?
            }
            Err(status) => Err(status),
        },
        Err(status) => Err(status),
    };
    connection.enter(Phase::Working);
    let reply = match accepted {
        Ok(()) => {
            let transport = connection.transport();
            let reply = Box::pin(answer(worker, generation, &head, persistence, transport)).await;
            worker.counters.count_answer(reply.status);
            reply
        }
        Err(status) => {
            persistence = Persistence::Closes;
            refusal(worker, status, is_to_head(&head))
        }
    };
    drop(head);
    connection.answered(&reply, persistence.stays());
    send_waiting(worker, connection, reply).await?;
    Ok(persistence)
}

/// Reads and drops the body; or returns the status that refuses it.
async fn read_body(
    connection: &Connection,
    input: &mut Input,
    mut skip: Skip,
) -> io::Result<Result<(), Status>> {
    loop {
        let taken = match skip.take(input.bytes()) {
            Ok(taken) => taken,
            Err(status) => return Ok(Err(status)),
        };
        input.consume(taken);
        if skip.is_done() {
            return Ok(Ok(()));
        }
        let chunk = connection.recv(Phase::Body).await?;
        if chunk.is_empty() {
            return Ok(Err(Status::BAD_REQUEST));
        }
        input.add(chunk);
    }
}

/// The answer to a request whose body was read.
async fn answer(
    worker: &Rc<Worker>,
    generation: Rc<Generation>,
    head: &[u8],
    persistence: Persistence,
    transport: Transport,
) -> Reply {
    worker.clock.tick();
    let mut storage = Storage::new();
    match Head::parse(head, &mut storage, generation.settings.limits.head) {
        Ok(head) => answer_to(worker, generation, &head, persistence, transport).await,
        Err(status) => refusal(worker, status, is_to_head(head)),
    }
}

/// The answer to a request without its body.
pub(super) async fn answer_to(
    worker: &Rc<Worker>,
    generation: Rc<Generation>,
    head: &Head<'_, '_>,
    persistence: Persistence,
    transport: Transport,
) -> Reply {
    let began = worker.clock.now();
    match generation.settings.sites.find(head) {
        Some(site) => {
            let answer =
                Answer { worker, generation, site, head, persistence, transport, is_last: true };
            let reply = answer.find().await;
            answer.finished(reply, began)
        }
        None => misdirected(worker, head, persistence),
    }
}

/// The answer to a request for a host that has no site.
fn misdirected(worker: &Worker, head: &Head<'_, '_>, persistence: Persistence) -> Reply {
    let (status, to_head) = (Status::MISDIRECTED_REQUEST, head.method == Method::Head);
    Reply::new(status, message(status, &[], &worker.clock, persistence, to_head))
}
