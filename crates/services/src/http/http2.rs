//! One connection that speaks HTTP/2 (RFC 9113), by the h2 crate.
//!
//! A request becomes the same [`Request`](super::request::Request) as one of HTTP/1.1, and is answered by the same code
//! (`exchange`). `wire` is what the crate reads and writes, with the phases and the TLS of the connection.
//!
//! *Memory.* Each stream holds at most 48 KiB of its answer for a client that does not take it: `exchange::CHUNK_BYTES`
//! in the h2 crate and as many that were read and do not fit there yet (answers from the cache are shared, ranges of
//! them are copied). With that, a connection holds 64 KiB of received content, one incomplete frame, the fields of one
//! request, the queue of its stream (256 KiB), one write of 64 KiB, and 64 KiB of frames that are gathered.
//!
//! *Floods.* The crate bounds concurrent and recently reset streams, the size and the frames of header fields, frames
//! without content, and answers to PING and SETTINGS, which it does not collect. Requests that are reset before they are
//! answered cost the client nothing: if they are the majority, the connection ends (CVE-2023-44487).

mod exchange;
mod wire;

use self::exchange::{CHUNK_BYTES, Chunk, Stream, Streams, exchange};
use self::wire::Wire;
use super::connection::Connection;
use super::options::HttpSettings;
use super::worker::Worker;
use crate::server::{Ending, Phase};
use h2::Reason;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, server};
use http::Request;
use nix::errno::Errno;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use twinring::{RecvBuf, spawn};
use twinring_compat::Compat;

pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of requests that were not read yet, on a connection and on each of its streams. The default
/// of HTTP/2: bodies are dropped here, so no client needs more.
const RECEIVE_WINDOW_BYTES: u32 = 65_535;

/// The payload of a received frame; the smallest maximum that HTTP/2 allows.
const FRAME_BYTES_MAX: u32 = 16_384;

/// Streams that were reset lately, for whose frames nobody is to blame.
const RESET_STREAMS_MAX: usize = 50;

/// Streams that the client reset before they were looked at, and streams that it made the server
/// reset. More end the connection.
const PENDING_RESETS_MAX: usize = 20;
const LOCAL_RESETS_MAX: usize = 1024;

/// Serves a connection that begins with `first`, until either side ends it.
pub(super) async fn serve(
    worker: &Rc<Worker>,
    connection: &Connection,
    first: RecvBuf,
) -> io::Result<()> {
    worker.counters.http2_connections.add(1);
    connection.learn_peer();
    let wire = Wire::new(connection, first);
    let builder = builder(&worker.generation().settings);
    connection.tracking.enter(Phase::Head);
    let mut handshake = pin!(builder.handshake(Compat::new(&wire)));
    let begun = poll_fn(|cx| {
        if connection.must_end() {
            return Poll::Ready(Err(io::Error::from(Errno::ECANCELED)));
        }
        let polled = handshake.as_mut().poll(cx);
        if let Poll::Ready(Err(error)) = wire.poll_send_gathered(cx) {
            return Poll::Ready(Err(error));
        }
        polled.map(|begun| begun.map(Some).or_else(|error| in_order(error).map(|()| None)))
    });
    let begun = match begun.await {
        // Nothing was agreed on, so the client cannot be told why.
        Err(_) if connection.takes_leave(is_polite) => None,
        begun => begun?,
    };
    if let Some(h2) = begun {
        let (shared, leaves) = (Rc::default(), GoAway::No);
        let wire = &wire;
        let mut serving = Serving { h2, worker, connection, wire, shared, accepted: 0, leaves };
        poll_fn(|cx| serving.poll(cx)).await?;
    }
    connection.shutdown().await
}

fn builder(settings: &HttpSettings) -> Builder {
    let head_bytes = u32::try_from(settings.max_header_bytes).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(settings.http2_streams)
        .max_header_list_size(head_bytes)
        .max_frame_size(FRAME_BYTES_MAX)
        .initial_window_size(RECEIVE_WINDOW_BYTES)
        .initial_connection_window_size(RECEIVE_WINDOW_BYTES)
        .max_send_buffer_size(CHUNK_BYTES)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(Some(LOCAL_RESETS_MAX));
    builder
}

/// The client of an ending connection is told.
fn is_polite(ending: Ending) -> bool {
    matches!(ending, Ending::Drain | Ending::TimedOut(Phase::Idle | Phase::Head))
}

/// An error of the network; all others were reported to the client, and the connection ends in
/// order.
fn in_order(error: h2::Error) -> io::Result<()> {
    error.into_io().map_or(Ok(()), Err)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoAway {
    No,
    /// When its streams have ended; the client begins no others.
    WhenDone,
    /// As soon as the client was told.
    Now,
}

struct Serving<'c> {
    h2: server::Connection<Compat<&'c Wire<'c>>, Chunk>,
    worker: &'c Rc<Worker>,
    connection: &'c Connection,
    wire: &'c Wire<'c>,
    shared: Rc<Streams>,
    accepted: u64,
    leaves: GoAway,
}

impl Serving<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.waker.take();
        self.worker.clock.tick();
        if let Err(error) = self.take_leave() {
            return Poll::Ready(Err(error));
        }
        self.wire.begin_turn(self.shared.open.get() > 0);
        loop {
            match self.h2.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.begin(cx, request, respond),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => {
                    let calm = Some(Reason::ENHANCE_YOUR_CALM);
                    let is_flood = error.is_library() && error.reason() == calm;
                    self.worker.counters.http2_floods.add(u64::from(is_flood));
                    return Poll::Ready(in_order(error));
                }
                Poll::Pending => break,
            }
        }
        if let Poll::Ready(Err(error)) = self.wire.poll_send_gathered(cx) {
            return Poll::Ready(Err(error));
        }
        self.shared.blocked.set(self.wire.is_blocked());
        self.connection.tracking.enter(match self.leaves {
            GoAway::Now => Phase::Closing,
            // Even if it reads slowly: only answers that it takes give it more time, not those to its PINGs. The h2
            // crate may have more of them than the network.
            GoAway::No if self.shared.open.get() == 0 => {
                if self.shared.written.take() {
                    self.connection.tracking.step();
                }
                Phase::Idle
            }
            _ if self.shared.blocked.get() || self.shared.sending.get() > 0 => Phase::Sending,
            // Streams have time limits of their own.
            _ if self.shared.open.get() > 0 => Phase::Working,
            // Frames that are no request get no more time, however they are cut.
            _ => Phase::Idle,
        });
        self.shared.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Ends the connection if it is time, and tells the client with GOAWAY.
    fn take_leave(&mut self) -> io::Result<()> {
        let worker = self.worker;
        if self.connection.must_end() {
            if self.leaves == GoAway::Now || !self.connection.takes_leave(is_polite) {
                return Err(io::Error::from(Errno::ECANCELED));
            }
            // What the network has not taken yet would be dropped with its streams.
            if !(worker.draining.get() && self.wire.is_blocked()) {
                self.leave_now(Reason::NO_ERROR);
                return Ok(());
            }
        }
        if self.shared.is_flooded() && self.leaves != GoAway::Now {
            worker.counters.http2_floods.add(1);
            self.leave_now(Reason::ENHANCE_YOUR_CALM);
        } else if self.leaves == GoAway::No
            && (worker.draining.get() || self.accepted >= worker.generation().settings.max_requests)
        {
            self.leaves = GoAway::WhenDone;
            self.h2.graceful_shutdown();
        }
        Ok(())
    }

    fn leave_now(&mut self, reason: Reason) {
        self.leaves = GoAway::Now;
        self.h2.abrupt_shutdown(reason);
        self.connection.tracking.enter(Phase::Closing);
    }

    /// Answers a request: at once if that needs no waiting, which is the usual case, or else in a
    /// task.
    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Chunk>,
    ) {
        // So many may be under way when the client learns of the end. One that does not acknowledge it may begin
        // further streams. Refused like this, they were not processed and can be repeated elsewhere (RFC 9113
        // section 8.7).
        let generation = self.worker.generation();
        let HttpSettings { max_requests, http2_streams, .. } = *generation.settings;
        if self.accepted >= max_requests.saturating_add(http2_streams.into()) {
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        self.accepted += 1;
        // Answered at once, it leaves the connection in the phase in which it was.
        self.connection.tracking.step();
        let stream =
            Stream::new(&self.shared, self.leaves == GoAway::No, self.connection.transport());
        let mut exchange = Box::pin(exchange(Rc::clone(self.worker), stream, request, respond));
        if exchange.as_mut().poll(cx).is_pending() {
            spawn(exchange);
        }
    }
}
