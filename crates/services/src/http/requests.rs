//! The requests of one connection, and their answers, in order.
//!
//! Requests that the cache can answer are answered without waiting, directly from the received
//! bytes; answers to requests that arrived together are sent together. All other requests, and the
//! sending of files, take a slower path, which is boxed, so that connections that do not need it do
//! not pay for it.

use super::body::Skip;
use super::connection::{Connection, Phase};
use super::head::{Framing, Head, Method, Scan, Storage};
use super::hosts::Site;
use super::index::{ENTRIES_MAX, render};
use super::open_file::Change;
use super::options::ListingFormat;
use super::path::{Refusal, clean, encode};
use super::reply::{Reply, ResponseContext, Rest, not_found, preferred, reply};
use super::resource::{Missing, Resource, Variant};
use super::response::{Persistence, begin, content_length, field, message};
use super::sending::send_reply;
use super::status::Status;
use super::target::Target;
use super::worker::Worker;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use twinring::RecvBuf;

/// Answers to pipelined requests are collected up to this many bytes before they are sent. No
/// request is read before the answer to the previous one is collected or sent, so this, the queue
/// of the stream and one received buffer are all that a client can make pile up.
const COLLECTED_BYTES_MAX: usize = 32 * 1024;

/// How often an answer is rebuilt because its file was just written to.
const ANSWER_ATTEMPTS: u32 = 3;

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
    /// Send this and close: the start of the next request is unknown.
    Refuse(Status),
}

/// Serves one connection until either side ends it.
///
/// # Errors
/// When the connection broke or must end.
pub(super) async fn serve_connection(
    worker: &Rc<Worker>,
    connection: &Connection,
) -> io::Result<()> {
    let mut input = Input::default();
    let mut collected = Vec::new();
    let mut answered = 0;
    loop {
        let phase = if input.is_empty() { Phase::Idle } else { Phase::Head };
        let chunk = connection.recv(phase).await?;
        if chunk.is_empty() {
            return Box::pin(connection.shutdown()).await;
        }
        input.add(chunk);
        worker.clock.tick();
        loop {
            let (reply, persistence) = match next(worker, connection, &mut input, answered) {
                Next::More => break,
                Next::Reply(reply, persistence) if reply.rest.is_none() => (reply, persistence),
                Next::Refuse(status) => {
                    let reply = refusal(worker, status);
                    if let Some(log) = &connection.log {
                        log.received(input.bytes(), None, worker.clock.now());
                        log.answered(&reply, false, connection.sent());
                    }
                    (reply, Persistence::Closes)
                }
                slow => {
                    send_collected(connection, &mut collected).await?;
                    input.keep();
                    let persistence =
                        Box::pin(take_time(worker, connection, &mut input, slow)).await?;
                    if !persistence.stays() {
                        return Box::pin(end(connection, &input, persistence)).await;
                    }
                    answered += 1;
                    continue;
                }
            };
            answered += 1;
            if collected.is_empty() && (input.is_empty() || !persistence.stays()) {
                connection.send(reply.message).await?;
                if let Some(log) = &connection.log {
                    log.settle(connection.sent());
                }
            } else {
                collected.extend_from_slice(reply.message.as_slice());
            }
            if !persistence.stays() {
                send_collected(connection, &mut collected).await?;
                return Box::pin(end(connection, &input, persistence)).await;
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
            if let Some(log) = &connection.log {
                log.answered(&reply, persistence.stays(), connection.sent());
            }
            send_waiting(worker, connection, reply).await?;
            Ok(persistence)
        }
        Next::More | Next::Refuse(_) => Ok(Persistence::Stays),
    }
}

/// Sends an answer of which a part may not be in memory.
async fn send_waiting(worker: &Worker, connection: &Connection, reply: Reply) -> io::Result<()> {
    send_reply(connection, reply).await?;
    if let Some(log) = &connection.log {
        log.settle(connection.sent());
    }
    // Requests behind it have waited.
    worker.clock.tick();
    Ok(())
}

async fn send_collected(connection: &Connection, collected: &mut Vec<u8>) -> io::Result<()> {
    match collected.is_empty() {
        true => Ok(()),
        false => {
            connection.send(std::mem::take(collected)).await?;
            if let Some(log) = &connection.log {
                log.settle(connection.sent());
            }
            Ok(())
        }
    }
}

/// Takes the next request off the input. Nearly every request takes this path, so it neither waits
/// nor allocates as long as the cache has a complete answer.
fn next(worker: &Rc<Worker>, connection: &Connection, input: &mut Input, answered: u64) -> Next {
    let limits = worker.settings.limits.head;
    let bytes = input.chunk.as_deref().unwrap_or(&input.kept[input.start..]);
    let length = match input.scan.find_end(bytes, limits) {
        Ok(Some(length)) => length,
        Ok(None) => return Next::More,
        Err(status) => return Next::Refuse(status),
    };
    let mut storage = Storage::new();
    let head = match Head::parse(&bytes[..length], &mut storage, limits) {
        Ok(head) => head,
        Err(status) => return Next::Refuse(status),
    };
    let is_last = answered + 1 >= worker.settings.limits.requests || worker.draining.get();
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
    let next = match cached_reply(worker, &head, persistence) {
        Some(reply) => {
            worker.counters.count_answer(reply.status);
            worker.counters.cache_hits.add(1);
            Next::Reply(reply, persistence)
        }
        None => Next::Exchange(bytes[..length].to_vec(), persistence),
    };
    if let Some(log) = &connection.log {
        log.received(&bytes[..length], Some(&head), worker.clock.now());
        // A file goes behind the collected answers, which are logged first.
        if let Next::Reply(reply, persistence) = &next
            && reply.rest.is_none()
        {
            log.answered(reply, persistence.stays(), connection.sent());
        }
    }
    input.consume(length);
    next
}

/// The answer, if it can be built without waiting: it is in memory, or its file is open and
/// unchanged.
fn cached_reply(
    worker: &Rc<Worker>,
    head: &Head<'_, '_>,
    persistence: Persistence,
) -> Option<Reply> {
    let Target::Resource { path, .. } = head.target else { return None };
    if !matches!(head.method, Method::Get | Method::Head) || head.framing != Framing::Empty {
        return None;
    }
    let site = worker.settings.sites.find(head)?;
    let resource = worker.cached(site, &clean(path.as_bytes()).ok()?)?;
    let variant = preferred(head, &resource)?;
    if variant.file.as_ref().is_some_and(|file| !file.is_unchanged()) {
        return None;
    }
    Some(reply(head, variant, ResponseContext { clock: &worker.clock, persistence }))
}

fn refusal(worker: &Worker, status: Status) -> Reply {
    worker.counters.count_answer(status);
    Reply::new(status, message(status, &[], &worker.clock, Persistence::Closes, false))
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
    let body = {
        let mut storage = Storage::new();
        let parsed = Head::parse(&head, &mut storage, worker.settings.limits.head);
        parsed.map(|head| (head.framing, head.expects_continue, head.method))
    };
    let accepted = match body {
        Ok((Framing::Empty, ..)) => Ok(()),
        // A request that is refused anyway is refused before its body is read.
        Ok((.., Method::Other)) => {
            persistence = Persistence::Closes;
            Ok(())
        }
        Ok((framing, expects_continue, _)) => {
            match Skip::new(framing, worker.settings.limits.body_bytes) {
                Ok(skip) => {
                    if expects_continue {
                        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                    }
                    read_body(connection, input, skip).await?
                }
                Err(status) => Err(status),
            }
        }
        Err(status) => Err(status),
    };
    connection.enter(Phase::Working);
    let reply = match accepted {
        Ok(()) => {
            let reply = Box::pin(answer(worker, &head, persistence)).await;
            worker.counters.count_answer(reply.status);
            reply
        }
        Err(status) => {
            persistence = Persistence::Closes;
            refusal(worker, status)
        }
    };
    drop(head);
    if let Some(log) = &connection.log {
        log.answered(&reply, persistence.stays(), connection.sent());
    }
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
async fn answer(worker: &Rc<Worker>, head: &[u8], persistence: Persistence) -> Reply {
    worker.clock.tick();
    let mut storage = Storage::new();
    match Head::parse(head, &mut storage, worker.settings.limits.head) {
        Ok(head) => match worker.settings.sites.find(&head) {
            Some(site) => Answer { worker, site, head: &head, persistence }.find().await,
            None => misdirected(worker, &head, persistence),
        },
        Err(status) => refusal(worker, status),
    }
}

/// The answer to a request for a host that has no site.
fn misdirected(worker: &Worker, head: &Head<'_, '_>, persistence: Persistence) -> Reply {
    let (status, to_head) = (Status::MISDIRECTED_REQUEST, head.method == Method::Head);
    Reply::new(status, message(status, &[], &worker.clock, persistence, to_head))
}

/// The search for an answer.
struct Answer<'a> {
    worker: &'a Rc<Worker>,
    site: usize,
    head: &'a Head<'a, 'a>,
    persistence: Persistence,
}

impl Answer<'_> {
    async fn find(&self) -> Reply {
        match (self.head.method, self.head.target) {
            (Method::Get | Method::Head, Target::Resource { path, query }) => {
                match clean(path.as_bytes()) {
                    Ok(path) => self.file(&path, query).await,
                    Err(Refusal::NotServed) => self.not_found().await,
                    Err(Refusal::Malformed) => self.message(Status::BAD_REQUEST, &[]),
                }
            }
            (Method::Options, _) => self.message(Status::NO_CONTENT, &[]),
            (_, _) => self.message(Status::METHOD_NOT_ALLOWED, &[]),
        }
    }

    fn site(&self) -> &Site {
        self.worker.settings.sites.site(self.site)
    }

    async fn file(&self, path: &[u8], query: Option<&str>) -> Reply {
        let site = self.site();
        let missing = match self.present(path).await {
            Ok(reply) => return reply,
            Err(missing) => missing,
        };
        let missing = match (missing, site.autoindex) {
            (Missing::Index, Some(format)) => match self.listing(path, format).await {
                Ok(reply) => return reply,
                Err(missing) => missing,
            },
            _ => missing,
        };
        match missing {
            Missing::Failed(status) => return self.message(status, &[]),
            Missing::Exhausted => return self.message(Status::UNAVAILABLE, &[]),
            Missing::Directory => {
                let query = query.map(|query| format!("?{query}")).unwrap_or_default();
                let location = format!("{}/{query}", encode(path));
                return self.message(Status::MOVED_PERMANENTLY, &[("Location", &location)]);
            }
            Missing::Nothing | Missing::Index => {}
        }
        let last_segment = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if let Some(fallback) = &site.fallback
            && !last_segment.contains(&b'.')
            && let Ok(reply) = self.present(fallback).await
        {
            return reply;
        }
        self.not_found().await
    }

    /// The answer from a file that is there.
    async fn present(&self, path: &[u8]) -> Result<Reply, Missing> {
        let answer = |variant: &Variant| reply(self.head, variant, self.context());
        self.unchanged(path, |resource| preferred(self.head, resource), answer).await
    }

    /// The result of `answer` for the variant that `choose` selects of an existing file. A file
    /// that was written to since it was opened is looked up again.
    async fn unchanged(
        &self,
        path: &[u8],
        choose: impl Fn(&Resource) -> Option<&Variant>,
        answer: impl Fn(&Variant) -> Reply,
    ) -> Result<Reply, Missing> {
        for attempt in 0..ANSWER_ATTEMPTS {
            let resource = match attempt {
                0 => self.worker.resource(self.site, path).await?,
                // An existing load may have begun before the write.
                _ => self.worker.fresh_resource(self.site, path).await?,
            };
            let Some(variant) = choose(&resource) else { break };
            let change = match &variant.file {
                Some(file) => file.recent_change().await?,
                None => Change::Nothing,
            };
            // A file that grew is looked up again once. It may grow continuously.
            if change == Change::Nothing || change == Change::Grew && attempt > 0 {
                return Ok(answer(variant));
            }
            self.worker.cache.remove(self.site, path);
        }
        Err(Missing::Failed(Status::UNAVAILABLE))
    }

    async fn not_found(&self) -> Reply {
        let Some(page) = &self.site().not_found else {
            return self.message(Status::NOT_FOUND, &[]);
        };
        let asked = self.asked();
        let answer = |page: &Variant| {
            let fields: Vec<_> = self.site().fields_of(&asked).collect();
            not_found(page, &fields, self.head.method == Method::Head, self.context())
        };
        match self.unchanged(page, Resource::identity, answer).await {
            Ok(reply) => reply,
            Err(_) => self.message(Status::NOT_FOUND, &[]),
        }
    }

    async fn listing(&self, path: &[u8], format: ListingFormat) -> Result<Reply, Missing> {
        let unavailable = Missing::Failed(Status::UNAVAILABLE);
        let (site, listings) = (self.site(), &self.worker.listings);
        if listings.are_full() {
            return Err(unavailable);
        }
        let relative = match path {
            b"/" => Path::new("."),
            path => Path::new(OsStr::from_bytes(&path[1..])),
        };
        let entries = site.root.list(relative, site.symlinks, ENTRIES_MAX).await?;
        let (content_type, content) = render(format, path, &entries);
        let mut reply = begin(Status::OK, &self.worker.clock, self.persistence);
        field(&mut reply, "Content-Type", content_type);
        field(&mut reply, "Cache-Control", "no-cache");
        for (name, value) in site.fields_of(&self.asked()) {
            field(&mut reply, name, value);
        }
        content_length(&mut reply, content.len() as u64);
        reply.extend_from_slice(b"\r\n");
        let mut reply = Reply::new(Status::OK, reply);
        if self.head.method == Method::Get {
            reply.rest = Some(Rest::Listing(listings.hold(content).ok_or(unavailable)?));
        }
        Ok(reply)
    }

    fn message(&self, status: Status, fields: &[(&str, &str)]) -> Reply {
        let to_head = self.head.method == Method::Head;
        let ResponseContext { clock, persistence } = self.context();
        let asked = self.asked();
        let fields: Vec<_> = fields.iter().copied().chain(self.site().fields_of(&asked)).collect();
        Reply::new(status, message(status, &fields, clock, persistence, to_head))
    }

    /// The requested path, as rules see it; empty if it is invalid.
    fn asked(&self) -> PathBuf {
        match self.head.target {
            Target::Resource { path, .. } => {
                let path = clean(path.as_bytes()).unwrap_or_default();
                PathBuf::from(OsStr::from_bytes(&path))
            }
            _ => PathBuf::new(),
        }
    }

    fn context(&self) -> ResponseContext<'_> {
        ResponseContext { clock: &self.worker.clock, persistence: self.persistence }
    }
}
