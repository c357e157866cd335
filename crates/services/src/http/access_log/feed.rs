//! The ends of the log at which lines are produced: one for each worker, one for each connection.

use super::line::{Line, Outcome};
use super::writer::Message;
use super::{BATCH_BYTES, LogFormat, Shared};
use crate::http::date::Clock;
use crate::http::head::Head;
use crate::http::options::HttpSettings;
use crate::http::reply::Reply;
use crate::http::status::Status;
use memchr::memchr;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant};
use twinring::{sleep, spawn};

/// How long a line waits for others before it is passed on.
const BATCH_AGE: Duration = Duration::from_millis(100);

/// How long the end of a worker waits for space for its last lines.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Longest part of a request line that is logged, in bytes; longer ones are truncated.
const REQUEST_BYTES_MAX: usize = 4096;

/// The same for each of the header fields.
const FIELD_BYTES_MAX: usize = 1024;

/// How much of this memory a connection keeps between requests, in bytes.
const KEPT_BYTES_MAX: usize = 2048;

/// The same in requests.
const KEPT_ENTRIES_MAX: usize = 8;

/// Logged for a request whose connection broke before it was answered. No server sends this status;
/// nginx introduced it in logs.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The end of a worker.
#[derive(Debug)]
pub(in super::super) struct WorkerLog {
    format: LogFormat,
    number: usize,
    batch: RefCell<Batch>,
    messages: SyncSender<Message>,
    returned: Receiver<Vec<u8>>,
    shared: Arc<Shared>,
    clock: Clock,
    /// A task waits to pass the buffer on.
    is_due: Cell<bool>,
    /// Microseconds of all answered requests, and their number.
    latency: Cell<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    lines: u64,
}

impl WorkerLog {
    pub(super) fn new(
        format: LogFormat,
        number: usize,
        messages: SyncSender<Message>,
        returned: Receiver<Vec<u8>>,
        shared: Arc<Shared>,
    ) -> WorkerLog {
        WorkerLog {
            format,
            number,
            batch: RefCell::default(),
            messages,
            returned,
            shared,
            clock: Clock::new(),
            is_due: Cell::new(false),
            latency: Cell::default(),
        }
    }

    /// Microseconds of all answered requests, and their number.
    pub(in super::super) fn latency(&self) -> (u64, u64) {
        self.latency.get()
    }

    /// Passes the buffer on; false if the writing thread is too far behind.
    fn hand_over(&self) -> bool {
        let mut batch = self.batch.borrow_mut();
        if batch.bytes.is_empty() {
            return true;
        }
        if self.under_way() >= self.shared.batches_max {
            return false;
        }
        let (bytes, lines) = (std::mem::take(&mut batch.bytes), batch.lines);
        match self.messages.try_send(Message::Lines { worker: self.number, bytes, lines }) {
            Ok(()) => {
                self.shared.under_way[self.number].fetch_add(1, Ordering::Relaxed);
                batch.lines = 0;
                batch.bytes = self.returned.try_recv().unwrap_or_default();
                true
            }
            Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => {
                if let Message::Lines { bytes, .. } = message {
                    batch.bytes = bytes;
                }
                false
            }
        }
    }

    /// Batches that are handed over and not written yet.
    fn under_way(&self) -> usize {
        self.shared.under_way[self.number].load(Ordering::Relaxed)
    }

    /// Passes the remaining lines on at the end of the worker, and waits a moment for space.
    pub(in super::super) async fn end(&self) {
        let started = Instant::now();
        while !self.hand_over() && started.elapsed() < END_PATIENCE {
            sleep(BATCH_AGE / 10).await;
        }
    }

    fn add(self: &Rc<WorkerLog>, line: &Line<'_>) {
        let is_full = self.batch.borrow().bytes.len() >= BATCH_BYTES;
        if is_full && !self.hand_over() {
            return self.shared.no_room[self.number].add(1);
        }
        let mut batch = self.batch.borrow_mut();
        line.write(self.format, &self.clock, &mut batch.bytes);
        batch.lines += 1;
        let is_full = batch.bytes.len() >= BATCH_BYTES;
        drop(batch);
        if is_full {
            self.hand_over();
        } else if !self.is_due.replace(true) {
            // One timer for all lines of that period, and no timer without lines.
            let log = Rc::clone(self);
            spawn(async move {
                sleep(BATCH_AGE).await;
                // Behind others it would wait anyway, and would take the place of a full one: the
                // bound is in batches.
                while log.under_way() > 0 || !log.hand_over() {
                    sleep(BATCH_AGE).await;
                }
                log.is_due.set(false);
            });
        }
    }
}

impl Drop for WorkerLog {
    fn drop(&mut self) {
        if !self.hand_over() {
            let lines = self.batch.borrow().lines;
            self.shared.no_room[self.number].add(lines);
        }
    }
}

/// The end of a connection: requests that were received and are not logged yet.
#[derive(Debug)]
pub(in super::super) struct ConnectionLog {
    log: Rc<WorkerLog>,
    peer: String,
    port: u16,
    clients: Clients,
    /// When the first part of an incomplete head arrived.
    begun: Cell<Option<Instant>>,
    pending: RefCell<Pending>,
}

/// The client behind a proxy.
#[derive(Clone, Debug, Default)]
struct Clients {
    /// That of the connection, by the PROXY protocol.
    of_connection: Cell<Option<SocketAddr>>,
    /// What finds that of a request, if there is any proxy.
    settings: Option<Arc<HttpSettings>>,
}

#[derive(Debug, Default)]
struct Pending {
    /// The clients' text of all entries.
    text: Vec<u8>,
    entries: VecDeque<Entry>,
    /// Bytes that the connection had sent before the first of these answers.
    sent_before: u64,
}

/// A request, and its answer if there is one. Ranges are of [`Pending::text`].
#[derive(Debug)]
struct Entry {
    began: Instant,
    /// Address and port, if it is not the peer of the connection.
    client: Option<(IpAddr, u16)>,
    is_valid: bool,
    request: Range<usize>,
    host: Option<Range<usize>>,
    referer: Option<Range<usize>>,
    user_agent: Option<Range<usize>>,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    status: Status,
    head_bytes: u64,
    bytes: u64,
    stays: bool,
}

impl Pending {
    /// Stores a client's text, truncated to `max`.
    fn keep(&mut self, bytes: &[u8], max: usize) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(&bytes[..bytes.len().min(max)]);
        if bytes.len() > max {
            self.text.extend_from_slice(b"...");
        }
        start..self.text.len()
    }
}

impl ConnectionLog {
    /// With settings that name proxies in front, if there are any.
    pub(in super::super) fn new(
        log: &Rc<WorkerLog>,
        peer: Option<SocketAddr>,
        settings: Option<Arc<HttpSettings>>,
    ) -> ConnectionLog {
        // A peer that has already left has no address.
        let address = peer.map(|peer| peer.ip().to_canonical().to_string());
        ConnectionLog {
            log: Rc::clone(log),
            peer: address.unwrap_or_else(|| "-".to_owned()),
            port: peer.map_or(0, |peer| peer.port()),
            clients: Clients { settings, ..Clients::default() },
            begun: Cell::new(None),
            pending: RefCell::default(),
        }
    }

    /// The log of one request of several that are answered at once.
    pub(in super::super) fn of_stream(&self) -> ConnectionLog {
        ConnectionLog {
            log: Rc::clone(&self.log),
            peer: self.peer.clone(),
            port: self.port,
            clients: Clients {
                of_connection: self.clients.of_connection.clone(),
                settings: self.clients.settings.clone(),
            },
            begun: Cell::new(None),
            pending: RefCell::default(),
        }
    }

    /// A proxy opened the connection for this client.
    pub(in super::super) fn client_is(&self, client: SocketAddr) {
        self.clients.of_connection.set(Some(client));
    }

    /// The client of a request, if it is not the peer. A request through a trusted proxy has no
    /// port.
    fn client(&self, head: Option<&Head<'_, '_>>) -> Option<(IpAddr, u16)> {
        let of_connection = self.clients.of_connection.get();
        let by_field = || {
            let forwarders = &self.clients.settings.as_ref()?.forwarders;
            let peer = of_connection.map(|client| client.ip()).or_else(|| self.peer.parse().ok());
            Some((forwarders.client(peer?, head?)?, 0))
        };
        by_field()
            .or_else(|| of_connection.map(|client| (client.ip().to_canonical(), client.port())))
    }

    /// An incomplete part of a head arrived at `now`.
    pub(in super::super) fn begin(&self, now: Instant) {
        self.begun.set(self.begun.get().or(Some(now)));
    }

    /// A head is complete at `now`, or invalid: `bytes` begin with it, and `head` is its content if
    /// it is valid.
    pub(in super::super) fn received(
        &self,
        bytes: &[u8],
        head: Option<&Head<'_, '_>>,
        now: Instant,
    ) {
        let mut pending = self.pending.borrow_mut();
        let line = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
        let end = memchr(b'\n', line).unwrap_or(line.len());
        let line = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
        let request = pending.keep(line, REQUEST_BYTES_MAX);
        let mut field = |name| {
            let value = head?.field(name)?;
            Some(pending.keep(value, FIELD_BYTES_MAX))
        };
        // The combined format has no field for it.
        let is_host_logged = self.log.format == LogFormat::Json;
        let host = is_host_logged.then(|| field("host")).flatten();
        let (referer, user_agent) = (field("referer"), field("user-agent"));
        let began = self.begun.take().unwrap_or(now);
        let is_valid = head.is_some();
        let client = self.client(head);
        pending.entries.push_back(Entry {
            began,
            client,
            is_valid,
            request,
            host,
            referer,
            user_agent,
            answer: None,
        });
    }

    /// The last request got this reply, on a connection that has sent `sent` bytes and stays or
    /// not.
    pub(in super::super) fn answered(&self, reply: &Reply, stays: bool, sent: u64) {
        let (status, head_bytes) = (reply.status, reply.head_bytes() as u64);
        let answer = Answer { status, head_bytes, bytes: reply.length(), stays };
        let mut pending = self.pending.borrow_mut();
        let pending = &mut *pending;
        if pending.entries.front().is_none_or(|entry| entry.answer.is_none()) {
            pending.sent_before = sent;
        }
        if pending.entries.back().is_none_or(|entry| entry.answer.is_some()) {
            // Nothing of the request is known: it did not arrive in time.
            let began = self.begun.take().unwrap_or_else(Instant::now);
            let nothing = Entry {
                began,
                client: self.client(None),
                is_valid: false,
                request: 0..0,
                host: None,
                referer: None,
                user_agent: None,
                answer: None,
            };
            pending.entries.push_back(nothing);
        }
        if let Some(entry) = pending.entries.back_mut() {
            entry.answer = Some(answer);
        }
    }

    /// Logs the answered requests, for a connection that has sent `sent` bytes. Missing bytes will
    /// not be sent any more.
    pub(in super::super) fn settle(&self, sent: u64) {
        let answered = |entry: &Entry| entry.answer.is_some();
        let count = self.pending.borrow().entries.iter().take_while(|e| answered(e)).count();
        self.write(count, sent);
    }

    /// Logs all, at the end of the connection.
    pub(in super::super) fn end(&self, sent: u64) {
        let count = self.pending.borrow().entries.len();
        self.write(count, sent);
    }

    fn write(&self, count: usize, sent: u64) {
        if count == 0 {
            return;
        }
        let mut pending = self.pending.borrow_mut();
        let Pending { text, entries, sent_before } = &mut *pending;
        self.log.clock.tick();
        let mut left = sent.saturating_sub(*sent_before);
        let now = self.log.clock.now();
        for entry in entries.drain(..count) {
            let duration = now.saturating_duration_since(entry.began);
            if entry.answer.is_some() {
                let (us, requests) = self.log.latency.get();
                self.log.latency.set((us + duration.as_micros() as u64, requests + 1));
            }
            let bytes = entry.answer.map_or(0, |answer| answer.bytes.min(left));
            left -= bytes;
            let of = |range: Option<Range<usize>>| range.map(|range| &text[range]);
            let (status, head_bytes, outcome) = match entry.answer {
                None => (CLIENT_CLOSED_REQUEST, 0, Outcome::Broken),
                Some(answer) => {
                    let outcome = match (bytes < answer.bytes, answer.stays) {
                        (true, _) => Outcome::Broken,
                        (false, true) => Outcome::Stays,
                        (false, false) => Outcome::Ends,
                    };
                    (answer.status.code(), answer.head_bytes, outcome)
                }
            };
            let client = entry.client.map(|(address, port)| (address.to_string(), port));
            let (peer, port) = match &client {
                Some((address, port)) => (address.as_str(), *port),
                None => (self.peer.as_str(), self.port),
            };
            self.log.add(&Line {
                peer,
                port,
                request: &text[entry.request],
                is_valid: entry.is_valid,
                host: of(entry.host),
                referer: of(entry.referer),
                user_agent: of(entry.user_agent),
                status,
                bytes,
                body_bytes: bytes.saturating_sub(head_bytes),
                duration,
                outcome,
                worker: self.log.number,
            });
        }
        if !entries.is_empty() {
            return;
        }
        text.clear();
        text.shrink_to(KEPT_BYTES_MAX);
        entries.shrink_to(KEPT_ENTRIES_MAX);
    }
}
