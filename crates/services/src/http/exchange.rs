//! The record of one request and its answer: how it ended is written to the access log and to the metrics when the
//! record is dropped, whatever the reason.

use super::Status;
use super::access_log::{AccessLog, Ended, LogLine};
use super::answer::Call;
use super::auth::Credentials;
use super::counters::HostDurations;
use super::proxies::Transport;
use super::request::Request;
use super::response::Response;
use super::worker::Worker;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Logged for a request whose connection broke before it was answered. No server sends this status;
/// nginx introduced it in logs.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// See the module. It is empty as long as nobody reads log or metrics.
#[must_use = "dropping it ends the exchange"]
pub(super) struct Exchange(Option<Box<Record>>);

struct Record {
    worker: Rc<Worker>,
    began: Instant,
    line: Option<LogLine>,
    durations: Option<Arc<HostDurations>>,
    status: Option<Status>,
    stays: bool,
    head_bytes: u64,
    /// Of the answer, head included.
    bytes: u64,
    sent: u64,
}

impl Exchange {
    /// A request that was received at `began`, with its first line, as far as it is known; without a call it could not
    /// be read.
    pub(super) fn begin<'l>(
        worker: &Rc<Worker>,
        transport: Transport,
        call: Option<&Call<'_, '_>>,
        line: impl FnOnce() -> Cow<'l, [u8]>,
        began: Instant,
    ) -> Exchange {
        if !worker.is_observed() {
            return Exchange(None);
        }
        let peer = transport.peer;
        let address = call.map_or(peer.map(|peer| peer.ip()), Call::client);
        // A request through a trusted proxy has no port.
        let port = peer.filter(|peer| address == Some(peer.ip())).map_or(0, |peer| peer.port());
        let request = call.map(|call| call.request);
        let begin = |log: &AccessLog| {
            let field = |name| request?.field(name);
            let credentials = field("authorization").and_then(Credentials::parse);
            let user = credentials.as_ref().map(|credentials| &*credentials.user);
            let host = request.and_then(Request::host);
            let fields = [host, user, field("referer"), field("user-agent")];
            let (client, is_valid) = ((address, port), request.is_some());
            LogLine::begin(log.format, &worker.clock, client, &line(), is_valid, fields)
        };
        let line = worker.http.log.as_deref().map(begin);
        let durations = match call {
            Some(call) => call.generation.durations(call.site).cloned(),
            None => worker.generation().durations(None).cloned(),
        };
        Exchange(Some(Box::new(Record {
            worker: Rc::clone(worker),
            began,
            line,
            durations,
            status: None,
            stays: false,
            head_bytes: 0,
            bytes: 0,
            sent: 0,
        })))
    }

    /// It gets this answer, with a head of so many bytes; the connection stays or not.
    pub(super) fn answered(
        &mut self,
        worker: &Worker,
        response: &Response,
        head_bytes: usize,
        stays: bool,
    ) {
        worker.counters.count_answer(response.status);
        if let Some(record) = &mut self.0 {
            record.status = Some(response.status);
            record.stays = stays;
            record.head_bytes = head_bytes as u64;
            record.bytes = record.head_bytes + response.content_bytes();
        }
    }

    pub(super) fn sent(&mut self, bytes: u64) {
        if let Some(record) = &mut self.0 {
            record.sent += bytes;
        }
    }

    pub(super) fn sent_whole(&mut self) {
        if let Some(record) = &mut self.0 {
            record.sent = record.bytes;
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let worker = &self.worker;
        worker.clock.tick();
        let duration = worker.clock.now().saturating_duration_since(self.began);
        if let (Some(status), Some(durations)) = (self.status, &self.durations) {
            durations.observe(status, duration);
        }
        let (Some(log), Some(line)) = (&worker.http.log, self.line.take()) else { return };
        let bytes = self.sent.min(self.bytes);
        let complete = self.status.is_some() && self.sent >= self.bytes;
        let ended = Ended {
            status: self.status.map_or(CLIENT_CLOSED_REQUEST, |status| status.as_u16()),
            bytes,
            body_bytes: bytes.saturating_sub(self.head_bytes),
            worker: worker.number,
            duration_s: duration.as_micros() as f64 / 1e6,
            complete,
            connection: match (complete, self.stays) {
                (false, _) => "broken",
                (true, true) => "stays",
                (true, false) => "ends",
            },
        };
        log.add(line.end(log.format, &ended).as_bytes());
    }
}
