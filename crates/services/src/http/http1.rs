//! The requests of one connection of HTTP/1, and their answers, in order.
//!
//! Requests that the cache can answer are answered without waiting, directly from the received
//! bytes; answers to requests that arrived together are sent together. All other requests, and the
//! sending of files, take a slower path, which is boxed, so that connections that do not need it do
//! not pay for it.

use super::Status;
use super::answer::{Call, Wait};
use super::body::Skip;
use super::connection::Connection;
use super::exchange::Exchange;
use super::http2::PREFACE;
use super::request::{Framing, Method, Request, Scan, as_1_1, first_line, storage};
use super::response::{Body, Persistence, Response, render};
use super::sending::send_response;
use super::worker::{Generation, Worker};
use crate::server::{Ending, Phase};
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use twinring::{RecvBuf, SendBuf};

/// Answers to pipelined requests are collected up to this many bytes before they are sent. No
/// request is read before the answer to the previous one is collected or sent, so this, the queue
/// of the stream and one received buffer are all that a client can make pile up.
const COLLECTED_BYTES_MAX: usize = 32 * 1024;

#[derive(Debug)]
pub(super) struct Input {
    bytes: RecvBuf,
    scan: Scan,
}

impl Input {
    fn add(&mut self, chunk: RecvBuf) {
        self.bytes = match self.bytes.is_empty() {
            true => chunk,
            false => RecvBuf::from([&*self.bytes, &*chunk].concat()),
        };
    }

    /// Moves the bytes out of the worker's pool, for the time of a wait.
    fn keep(&mut self) {
        self.bytes = std::mem::replace(&mut self.bytes, RecvBuf::from(Vec::new())).detach();
    }

    fn consume(&mut self, bytes: usize) {
        self.scan = Scan::default();
        self.bytes.advance(bytes);
        if self.bytes.is_empty() {
            self.bytes = RecvBuf::from(Vec::new());
        }
    }
}

enum Next {
    More,
    Ready(SendBuf, Exchange, Persistence),
    Slow(Box<Slow>),
}

/// A request of which something must be waited for.
struct Slow {
    generation: Rc<Generation>,
    head: Vec<u8>,
    exchange: Exchange,
    persistence: Persistence,
    /// Its answer so far; none if its body comes first.
    begun: Option<Result<Response, Wait>>,
}

#[derive(Default)]
struct Collected {
    bytes: Vec<u8>,
    exchanges: Vec<Exchange>,
}

impl Collected {
    async fn send(&mut self, connection: &Connection) -> io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        connection.send(std::mem::take(&mut self.bytes)).await?;
        self.exchanges.drain(..).for_each(|mut exchange| exchange.sent_whole());
        Ok(())
    }
}

/// Serves one connection until either side ends it, or the client begins with the preface of HTTP/2:
/// then the bytes so far are returned.
pub(super) async fn serve_connection(
    worker: &Rc<Worker>,
    connection: &Connection,
) -> io::Result<Option<RecvBuf>> {
    let mut input = Input { bytes: RecvBuf::from(Vec::new()), scan: Scan::default() };
    let mut collected = Collected::default();
    let mut answered = 0;
    let mut may_be_http2 = connection.tls.is_none() && worker.generation().settings.http2;
    loop {
        let phase = if input.bytes.is_empty() { Phase::Idle } else { Phase::Head };
        let chunk = connection.recv(phase).await?;
        if chunk.is_empty() {
            return Box::pin(connection.shutdown()).await.map(|()| None);
        }
        input.add(chunk);
        worker.clock.tick();
        if may_be_http2 {
            let begins = input.bytes.len().min(PREFACE.len());
            may_be_http2 = input.bytes[..begins] == PREFACE[..begins];
            match (may_be_http2, begins == PREFACE.len()) {
                (false, _) => {}
                (true, false) => continue,
                (true, true) => return Ok(Some(input.bytes)),
            }
        }
        loop {
            let persistence = match next(worker, connection, &mut input, answered) {
                Next::More => break,
                Next::Ready(message, mut exchange, persistence) => {
                    let nothing_follows = input.bytes.is_empty() || !persistence.stays();
                    if nothing_follows && collected.bytes.is_empty() {
                        connection.send(message).await?;
                        exchange.sent_whole();
                    } else {
                        collected.bytes.extend_from_slice(message.as_slice());
                        collected.exchanges.push(exchange);
                    }
                    persistence
                }
                Next::Slow(slow) => {
                    collected.send(connection).await?;
                    input.keep();
                    Box::pin(take_time(worker, connection, &mut input, *slow)).await?
                }
            };
            answered += 1;
            if !persistence.stays() {
                collected.send(connection).await?;
                // A client that announced its last request sends no data that a close could reset.
                let as_asked = persistence == Persistence::ClosesAsAsked && input.bytes.is_empty();
                return Box::pin(connection.end(as_asked)).await.map(|()| None);
            }
            if collected.bytes.len() >= COLLECTED_BYTES_MAX {
                collected.send(connection).await?;
                worker.clock.tick();
            }
        }
        collected.send(connection).await?;
        if !input.bytes.is_empty() {
            let began = connection.head_began.get();
            connection.head_began.set(began.or(Some(worker.clock.now())));
        }
    }
}

/// Takes the next request off the input. Nearly every request takes this path, so it neither waits
/// nor allocates as long as the cache has a complete answer.
fn next(worker: &Rc<Worker>, connection: &Connection, input: &mut Input, answered: u64) -> Next {
    let generation = worker.generation();
    let limits = generation.settings.head();
    let bytes = &*input.bytes;
    // What may be no request: the start of the next one is unknown.
    let refuse = |status| {
        let (message, exchange) = refusal(worker, connection, bytes, status);
        Next::Ready(message, exchange, Persistence::Closes)
    };
    let length = match input.scan.find_end(bytes, limits) {
        Ok(Some(length)) => length,
        Ok(None) => return Next::More,
        Err(status) => return refuse(status),
    };
    let (head, mut storage) = (&bytes[..length], storage());
    let request = match Request::parse(head, &mut storage, limits) {
        Ok(request) => request,
        Err(status) => {
            let Some(known) = as_1_1(bytes) else {
                return refuse(status);
            };
            *input = Input { bytes: RecvBuf::from(known), scan: Scan::default() };
            return next(worker, connection, input, answered);
        }
    };
    let must_close = answered + 1 >= generation.settings.max_requests || worker.draining.get();
    let is_plain = matches!(request.method, Method::Get | Method::Head);
    let persistence = match (request.keep_alive && !must_close, request.is_1_0) {
        // Behind a body some clients send a line too many.
        (false, _) if !request.keep_alive && is_plain && request.framing == Framing::Empty => {
            Persistence::ClosesAsAsked
        }
        (false, _) => Persistence::Closes,
        (true, true) => Persistence::StaysFor1_0,
        (true, false) => Persistence::Stays,
    };
    // Here, as a reload may add rules that ask for it.
    if generation.settings.sites.know_clients {
        connection.learn_peer();
    }
    let transport = connection.transport();
    let call = Call::new(worker, generation, transport, &request);
    let began = connection.head_began.take().unwrap_or(worker.clock.now());
    let line = || first_line(head).into();
    let mut exchange = Exchange::begin(worker, transport, Some(&call), line, began);
    let begun = (request.framing == Framing::Empty).then(|| call.begin());
    let next = match begun {
        // A file goes behind the collected answers.
        Some(Ok(response)) if !matches!(response.body, Body::File(..)) => {
            let (message, head_bytes) = render(&response, &worker.clock, persistence);
            exchange.answered(worker, &response, head_bytes, persistence.stays());
            Next::Ready(message, exchange, persistence)
        }
        begun => {
            if worker.http.errors.is_some() && !matches!(begun, Some(Ok(_))) {
                connection.learn_peer();
            }
            let (generation, head) = (call.generation, head.to_vec());
            Next::Slow(Box::new(Slow { generation, head, exchange, persistence, begun }))
        }
    };
    input.consume(length);
    next
}

/// An answer to a request that could not be read, which begins with these bytes as far as it is known.
pub(super) fn refusal(
    worker: &Rc<Worker>,
    connection: &Connection,
    bytes: &[u8],
    status: Status,
) -> (SendBuf, Exchange) {
    worker.clock.tick();
    let mut response = Response::message(status);
    // An answer to HEAD has no content, whatever the status (RFC 9110 section 9.3.2).
    if first_line(bytes).starts_with(b"HEAD ") {
        response.body = Body::Empty;
    }
    let began = connection.head_began.take().unwrap_or(worker.clock.now());
    let line = || first_line(bytes).into();
    let mut exchange = Exchange::begin(worker, connection.transport(), None, line, began);
    let (message, head_bytes) = render(&response, &worker.clock, Persistence::Closes);
    exchange.answered(worker, &response, head_bytes, false);
    (message, exchange)
}

/// Answers a request that has a body or must wait; returns what happens to the connection.
async fn take_time(
    worker: &Rc<Worker>,
    connection: &Connection,
    input: &mut Input,
    slow: Slow,
) -> io::Result<Persistence> {
    let Slow { generation, head, mut exchange, mut persistence, begun } = slow;
    // It was parsed before, from memory that others need meanwhile.
    let mut storage = vec![MaybeUninit::uninit(); memchr::memchr_iter(b'\n', &head).count()];
    let request = Request::parse(&head, &mut storage, generation.settings.head());
    let request = request.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let call = Call::new(worker, generation, connection.transport(), &request);
    connection.tracking.enter(Phase::Working);
    let response = match begun {
        Some(Ok(response)) => response,
        Some(Err(wait)) => call.resume(wait).await,
        // What is refused anyway is refused before its body is read.
        None if request.method == Method::Other => {
            persistence = Persistence::Closes;
            call.answer().await
        }
        None => match receive_body(connection, input, &call).await {
            Ok(Ok(())) => {
                connection.tracking.enter(Phase::Working);
                worker.clock.tick();
                call.answer().await
            }
            Ok(Err(status)) => {
                persistence = Persistence::Closes;
                call.refuse(status)
            }
            Err(_) if connection.takes_leave(|ending| ending == Ending::TimedOut(Phase::Body)) => {
                persistence = Persistence::Closes;
                call.refuse(Status::REQUEST_TIMEOUT)
            }
            Err(error) => return Err(error),
        },
    };
    drop(call);
    drop(storage);
    connection.tracking.enter(Phase::Working);
    send_response(connection, worker, &mut exchange, response, persistence).await?;
    // Requests behind it have waited.
    worker.clock.tick();
    Ok(persistence)
}

/// Reads and drops the body; or returns the status that refuses it.
async fn receive_body(
    connection: &Connection,
    input: &mut Input,
    call: &Call<'_, '_>,
) -> io::Result<Result<(), Status>> {
    let mut skip = match Skip::new(call.request.framing, call.generation.settings.max_body_bytes) {
        Ok(skip) => skip,
        Err(status) => return Ok(Err(status)),
    };
    if call.request.expects_continue {
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    loop {
        match skip.take(&input.bytes) {
            Ok(taken) => input.consume(taken),
            Err(status) => return Ok(Err(status)),
        }
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
