//! HTTP/2 on a connection (RFC 9113), by the h2 crate: each request is a stream, and answers come in
//! any order.
//!
//! One task polls the h2 connection and the streams that h2 has woken (`wakes`), so that answers that
//! arrive together cost one clock reading, and the requests that follow them one send.
//!
//! *Bounds.* A connection has at most `--pipeline` streams, and no more than the server allows. The
//! server may send [`STREAM_WINDOW_BYTES`] of content on a stream and [`CONNECTION_WINDOW_BYTES`] on
//! the connection before it must wait; content is checked and released as it arrives. An answer has
//! at most [`HEAD_BYTES_MAX`] of header fields, and the h2 crate ends connections that flood it with
//! CONTINUATION, PING, SETTINGS or small DATA frames. Push is switched off. Of a request body, a
//! stream holds [`UPLOAD_BYTES`] that were not sent yet.

mod stream;
mod wire;

use self::stream::{Exchange, UPLOAD_BYTES, Upload, Wakes};
use self::wire::Wire;
use super::answer::HEAD_BYTES_MAX;
use super::client::{self as common, HttpLoad};
use crate::recorder::{Begun, Recorder, Trouble};
use crate::requests::{Ending, Lost, Protocol, Tally, Worker};
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, client};
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use twinring::{TcpStream, measure::monotonic_ns};
use twinring_compat::Compat;

/// Bytes of content that the server may send on a stream without waiting for us. Large enough not to
/// limit it: content is released as it arrives.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// The same for a connection.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The payload of a received frame; the smallest maximum that HTTP/2 allows, and what browsers use.
const FRAME_BYTES_MAX: u32 = 16_384;

pub(super) struct Http2Link {
    send: SendRequest<Bytes>,
    h2: client::Connection<Compat<Rc<Wire>>, Bytes>,
    wire: Rc<Wire>,
}

#[derive(Default)]
pub(super) struct Http2 {
    /// Begun, and not yet streams.
    begun: VecDeque<Begun>,
    streams: Slab<Exchange>,
    wakes: Wakes,
    /// The server takes no further requests on this connection.
    closing: bool,
    /// A request was lost to GOAWAY, with its reason.
    refused_by: Option<String>,
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_send_buffer_size(UPLOAD_BYTES)
        // None before the server has said how many: a stream that has to wait for a place would count
        // as sent.
        .initial_max_send_streams(0);
    builder
}

impl Protocol for Http2 {
    type Own = HttpLoad;
    type Local = ();
    type Link = Http2Link;

    const REPLACES_LOST: bool = true;

    fn local(_: &HttpLoad) {}

    fn prepare(own: &HttpLoad) -> Result<(), Lost> {
        own.prepare()
    }

    fn new(_: &HttpLoad, _: u64) -> Http2 {
        Http2::default()
    }

    async fn agree(worker: &Rc<Worker<Http2>>, stream: TcpStream) -> Result<Http2Link, Lost> {
        let link = common::secure(worker, stream).await?;
        if link.tls().is_some_and(|tls| !tls.is_http2()) {
            let what = "HTTP/2: the server did not choose it in the TLS handshake (ALPN); leave out \
                        --http2, or switch HTTP/2 on in the server";
            return Err(Lost(|it| &mut it.connect, what.to_owned()));
        }
        let has_tls = link.tls().is_some();
        let failed = |why: &dyn std::fmt::Display| {
            let advice = match has_tls {
                true => "",
                false => {
                    "; without TLS, the server must speak HTTP/2 from the first byte (prior \
                          knowledge): leave out --http2, or ask it by https://"
                }
            };
            Lost(|it| &mut it.connect, format!("HTTP/2: {why}{advice}"))
        };
        let wire = Rc::new(Wire { link: RefCell::new(link), worker: Rc::clone(worker) });
        let begun = builder().handshake(Compat::new(Rc::clone(&wire))).await;
        let (send, mut h2) = begun.map_err(|error| failed(&error))?;
        poll_fn(|cx| match Pin::new(&mut h2).poll(cx) {
            _ if send.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) => Poll::Ready(Err(failed(&"the server closed the connection"))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(failed(&error))),
            Poll::Pending => match wire.poll_encrypted(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(failed(&error))),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            },
        })
        .await?;
        // The largest number stands for no limit.
        let limit = Some(send.current_max_send_streams()).filter(|limit| *limit < usize::MAX);
        let limits = [worker.recorder.borrow().streams_max, limit.map(|limit| limit as u64)];
        worker.recorder.borrow_mut().streams_max = limits.into_iter().flatten().min();
        Ok(Http2Link { send, h2, wire })
    }

    fn begin_life(&mut self, _: u64) {
        self.closing = false;
        self.refused_by = None;
        self.wakes.woken().clear();
    }

    fn push(&mut self, request: Begun) {
        self.begun.push_back(request);
    }

    fn unanswered(&self) -> impl Iterator<Item = (Begun, u64)> {
        let of_streams = self.streams.iter().map(|(_, stream)| stream.request);
        of_streams.chain(self.begun.iter().copied()).map(|request| (request, 1))
    }

    fn abandon(&mut self) {
        self.streams.clear();
        self.begun.clear();
    }

    fn poll(
        &mut self,
        tally: &mut Tally<Http2>,
        link: &mut Http2Link,
        cx: &mut Context<'_>,
        end_ns: u64,
    ) -> Result<Option<Ending>, Lost> {
        // The last poll of the connection in each round registers the task. h2 wakes it whenever a
        // stream has something to send, which is the case right behind the first one; with the task's
        // own waker, every request would cost another round.
        let mut unheard = Context::from_waker(Waker::noop());
        loop {
            let ended = Pin::new(&mut link.h2).poll(&mut unheard);
            let now_ns = monotonic_ns();
            self.advance(tally, now_ns);
            if let Poll::Ready(ended) = ended {
                return self.ended(ended).map(Some);
            }
            if now_ns < end_ns {
                self.begin(tally, link, cx, now_ns)?;
            } else if self.streams.is_empty() {
                return Ok(Some(Ending::Finished));
            }
            if let Poll::Ready(ended) = Pin::new(&mut link.h2).poll(cx) {
                self.advance(tally, monotonic_ns());
                return self.ended(ended).map(Some);
            }
            if self.closing && self.streams.is_empty() {
                return self.ended(Ok(())).map(Some);
            }
            if self.wakes.woken().is_empty() {
                return match link.wire.poll_encrypted(cx) {
                    Poll::Ready(Err(error)) => Err(error.into()),
                    Poll::Ready(Ok(())) | Poll::Pending => Ok(None),
                };
            }
        }
    }

    /// GOAWAY, and close_notify with TLS.
    async fn close(link: Http2Link) {
        let Http2Link { send, mut h2, wire } = link;
        // Without it and without streams, h2 ends the connection.
        drop(send);
        poll_fn(|cx| {
            let _ended = Pin::new(&mut h2).poll(cx);
            Poll::Ready(())
        })
        .await;
        drop(h2);
        if let Some(wire) = Rc::into_inner(wire) {
            wire.link.into_inner().close().await;
        }
    }
}

impl Http2 {
    fn advance(&mut self, tally: &mut Tally<Http2>, now_ns: u64) {
        if self.wakes.woken().is_empty() {
            return;
        }
        let worker = Rc::clone(&tally.worker);
        let mut recorder = worker.recorder.borrow_mut();
        loop {
            let Some(number) = self.wakes.woken().pop() else { break };
            self.advance_one(number, tally, now_ns, &mut recorder);
        }
        worker.show_progress(&recorder);
    }

    fn advance_one(
        &mut self,
        number: usize,
        tally: &mut Tally<Http2>,
        now_ns: u64,
        recorder: &mut Recorder,
    ) {
        let Some(stream) = self.streams.get_mut(number) else { return };
        let verify = tally.worker.plan.own.settings.verify_body.is_some();
        let mut cx = Context::from_waker(self.wakes.waker(number));
        let Poll::Ready(ended) = stream.poll(&mut cx, now_ns, verify) else { return };
        let error = match ended {
            Ok(()) => {
                let stream = self.streams.remove(number);
                let (answer, crc) = (stream.answer, stream.crc.finalize());
                return common::answered(tally, &stream.request, &answer, crc, now_ns, recorder);
            }
            Err(error) => error,
        };
        if error.is_reset() {
            let request = self.streams.remove(number).request;
            tally.failed(&request, 1, now_ns, recorder);
            common::trouble(tally, &request, &reset(&error), recorder);
        } else if error.is_go_away() && error.is_remote() {
            // The server did not process it; streams with smaller numbers may still be answered.
            let request = self.streams.remove(number).request;
            tally.failed(&request, 1, now_ns, recorder);
            self.refused_by.get_or_insert_with(|| error.to_string());
        }
        // All others are those of the connection, which ends with them.
    }

    fn begin(
        &mut self,
        tally: &mut Tally<Http2>,
        link: &mut Http2Link,
        cx: &mut Context<'_>,
        now_ns: u64,
    ) -> Result<(), Lost> {
        if self.closing {
            return Ok(());
        }
        match link.send.poll_ready(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => {
                // GOAWAY, the end of the connection, or the last number of a stream was used.
                self.closing = true;
                return Ok(());
            }
            Poll::Pending => return Ok(()),
        }
        let asked = tally.worker.plan.own.settings.pipeline as usize;
        let most = asked.min(link.send.current_max_send_streams());
        let room = most.saturating_sub(self.streams.len()) as u64;
        tally.begin(room, now_ns, |request| self.begun.push_back(request));
        while let Some(request) = self.begun.pop_front() {
            let own = &tally.worker.plan.own;
            let head = own.http2_requests[request.target as usize].clone();
            let body = own.settings.target(request.target).request.body.clone();
            let sent = link.send.send_request(head, body.is_empty());
            let (response, send) = match sent {
                Ok(sent) => sent,
                Err(error) => {
                    self.begun.push_front(request);
                    return Err(Lost(|it| &mut it.other, format!("HTTP/2: {error}")));
                }
            };
            let upload = (!body.is_empty()).then_some(Upload { send, body });
            let number = self.streams.insert(Exchange::new(request, response, upload));
            self.wakes.woken().push(number);
        }
        // Registers the wakers of the new streams.
        self.advance(tally, now_ns);
        Ok(())
    }

    /// What the end of the connection means. Streams without an answer fail with it.
    fn ended(&self, ended: Result<(), h2::Error>) -> Result<Ending, Lost> {
        if let Some(why) = &self.refused_by {
            return Err(Lost(|it| &mut it.goaway, why.clone()));
        }
        match (ended, self.streams.len()) {
            (Ok(()), 0) => Ok(Ending::Renewed),
            // An idle connection may be ended at any time, and in any way.
            (Err(error), 0) if error.is_io() => Ok(Ending::Renewed),
            (Err(error), _) => Err(lost(error)),
            (Ok(()), open) => {
                let what = format!("the server closed with {open} requests in flight");
                Err(Lost(|it| &mut it.closed_early, what))
            }
        }
    }
}

fn reset(error: &h2::Error) -> Lost {
    let kind: Trouble = match error.reason() {
        _ if !error.is_remote() => |it| &mut it.malformed,
        Some(Reason::REFUSED_STREAM) => |it| &mut it.refused_stream,
        _ => |it| &mut it.stream_reset,
    };
    Lost(kind, error.to_string())
}

fn lost(error: h2::Error) -> Lost {
    let kind: Trouble = match (error.is_go_away(), error.is_remote()) {
        (true, true) => |it| &mut it.goaway,
        (true, false) => |it| &mut it.malformed,
        _ => |it| &mut it.other,
    };
    let what = error.to_string();
    match error.into_io() {
        Some(error) => error.into(),
        None => Lost(kind, what),
    }
}
