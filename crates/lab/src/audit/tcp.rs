//! Rules for `twinring load tcp` beside those for all requests.

use super::requests::Loop;
use super::{Audit, Kind, Severity};
use crate::contract::TcpResult;
use crate::contract::tcp::Errors;

impl Audit<'_> {
    pub(super) fn tcp(&mut self, load: &TcpResult, connections: u32) {
        self.echoes(load);
        let settings = &load.settings;
        let asked = u64::from(connections);
        if settings.connections != asked {
            let what = format!("{asked} connections asked for, {} set", settings.connections);
            self.void(Kind::UnequalAdmission, what);
        }
        let (depth, closed) = (settings.depth, settings.mode == "closed");
        self.requests(&load.all, Loop { connections: asked, depth, closed, keepalive: true });
    }

    fn echoes(&mut self, load: &TcpResult) {
        if load.errors.mismatch > 0 {
            let count = load.errors.mismatch;
            self.void(Kind::PayloadMismatch, format!("{count} answers differ from what was sent"));
        }
        if !load.settings.verify {
            let what = "answers were counted, not compared".to_owned();
            self.find(Severity::Warning, Kind::UnverifiedPayload, what);
        }
        let failures = load.errors.failures();
        if failures > 0 {
            let Errors { connect, reset, closed_early, timeout, other, .. } = load.errors;
            let first = load.all.first_error.as_deref().unwrap_or("not told");
            self.void(
                Kind::ClientErrors,
                format!(
                    "{failures} errors (connect {connect}, reset {reset}, closed early \
                     {closed_early}, timeout {timeout}, other {other}); the first: {first}"
                ),
            );
        }
    }
}
