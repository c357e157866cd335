//! What may be wrong with a run of HTTP, beside the rules for all requests.

use crate::audit::{Audit, Kind, Loop, Severity};
use crate::contract::HttpResult;
use crate::contract::http::{Errors, Settings};
use crate::experiment::{Axis, Point};

impl Audit<'_> {
    pub(crate) fn http(&mut self, load: &HttpResult, point: Point) {
        self.settings(&load.settings, point);
        self.answers(load, point);
        let wanted = Loop {
            connections: u64::from(point.get(Axis::Connections)),
            depth: u64::from(point.get(Axis::Depth)),
            closed: load.settings.mode == "closed",
            rate_per_s: self.run.rate_per_s(),
            random: load.settings.arrivals.as_deref() == Some("poisson"),
            keepalive: point.is(Axis::Keepalive),
        };
        self.requests(&load.all, wanted);
    }

    /// The load asked for is the load that was put on.
    fn settings(&mut self, settings: &Settings, point: Point) {
        let &Settings { urls, connections, pipeline, keepalive, .. } = settings;
        let is_as_asked = urls == u64::from(point.get(Axis::Files))
            && connections == u64::from(point.get(Axis::Connections))
            && pipeline == u64::from(point.get(Axis::Depth))
            && keepalive == point.is(Axis::Keepalive)
            && settings.tls.is_some() == point.is(Axis::Tls)
            && (settings.http == "2") == point.is(Axis::Http2)
            // With fewer streams, less would be in flight than asked for.
            && settings.streams_max.is_none_or(|streams| streams >= u64::from(point.get(Axis::Depth)));
        if !is_as_asked {
            let tls = if settings.tls.is_some() { "with TLS" } else { "without TLS" };
            let streams = settings.streams_max;
            let streams =
                streams.map_or_else(String::new, |max| format!(" (at most {max} streams)"));
            self.void(
                Kind::BadResult,
                format!(
                    "{point} was asked for, the result is of {connections} connections x depth \
                     {pipeline}{streams} to {urls} files by HTTP/{} {tls}, keep-alive {keepalive}",
                    settings.http
                ),
            );
        }
    }

    fn answers(&mut self, load: &HttpResult, point: Point) {
        let errors = &load.errors;
        let first = load.all.first_error.as_deref().unwrap_or("not told");
        if errors.wrong() > 0 {
            let Errors { malformed, status, length, hash, .. } = errors;
            self.void(
                Kind::PayloadMismatch,
                format!(
                    "{} wrong answers (malformed {malformed}, status {status}, length {length}, \
                     content {hash}); the first: {first}",
                    errors.wrong()
                ),
            );
        }
        if errors.failures() > 0 {
            let Errors { connect, tls, reset, closed_early, timeout, other, .. } = errors;
            let Errors { goaway, stream_reset, refused_stream, .. } = errors;
            self.void(
                Kind::ClientErrors,
                format!(
                    "{} errors (connect {connect}, TLS {tls}, reset {reset}, closed early \
                     {closed_early}, timeout {timeout}, GOAWAY {goaway}, streams reset \
                     {stream_reset}, streams refused {refused_stream}, other {other}); the first: \
                     {first}",
                    errors.failures()
                ),
            );
        }
        // The lab made the files, so it knows the right answer independently of the load generator.
        let answered = load.all.requests.answered;
        let expected = answered * u64::from(point.get(Axis::Bytes));
        if errors.wrong() == 0 && load.bytes.bodies != expected {
            self.void(
                Kind::PayloadMismatch,
                format!(
                    "{answered} answers had {} bytes of content, not {expected}",
                    load.bytes.bodies
                ),
            );
        }
        if load.settings.verify_body.is_none() {
            let what = "status and length were compared, content was not".to_owned();
            self.find(Severity::Warning, Kind::UnverifiedPayload, what);
        }
    }
}
