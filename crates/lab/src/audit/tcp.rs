//! What may be wrong with a run of TCP, beside the rules for all requests.

use crate::audit::{Audit, Kind, Loop, Severity};
use crate::contract::TcpResult;
use crate::contract::tcp::Errors;
use crate::experiment::{Axis, Point};

impl Audit<'_> {
    pub(crate) fn tcp(&mut self, load: &TcpResult, point: Point) {
        self.echoes(load);
        let settings = &load.settings;
        let asked = u64::from(point.get(Axis::Connections));
        if settings.connections != asked {
            let what = format!("{asked} connections asked for, {} set", settings.connections);
            self.void(Kind::UnequalAdmission, what);
        }
        let wanted = Loop {
            connections: asked,
            depth: settings.depth,
            closed: settings.mode == "closed",
            rate_per_s: self.run.rate_per_s(),
            random: settings.arrivals.as_deref() == Some("poisson"),
            keepalive: !point.is(Axis::Churn),
        };
        self.requests(&load.all, wanted);
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
