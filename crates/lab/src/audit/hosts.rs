//! Rules for runs between hosts, and for several load generators at once.

use std::collections::BTreeSet;

use super::finding::{Audit, Finding, Severity};
use super::kinds::Kind;
use crate::accounting::CpuUse;
use crate::contract::LoadResult;
use crate::host::share::{part, share};
use crate::record::RunRecord;

/// How far apart the windows of several load generators may open or close, as a share of the
/// window. While not all of them are open, the load is not the one that was asked for.
pub const WINDOWS_APART_LIMIT: f64 = 0.05;

impl Audit<'_> {
    /// Each of several load generators by itself, against its share of the load. Returns what was
    /// found; it need not be told of their sum again.
    pub(super) fn clients(&mut self) -> BTreeSet<Kind> {
        let mut told = BTreeSet::new();
        let run = self.run;
        let hosts = run.clients.len();
        for (index, client) in run.clients.iter().enumerate() {
            let Some(Ok(load)) = client.load.as_ref().map(LoadResult::read) else { continue };
            let alone = RunRecord {
                clients: Vec::new(),
                rate_per_s: Some(part(run.rate_per_s(), hosts, index)),
                cpu: run.cpu.as_ref().map(|cpu| cpu.of_client(index)),
                // What the servers say is about all of them.
                server_final: None,
                further_servers: Vec::new(),
                ..run.clone()
            };
            let mut audit = Audit { run: &alone, findings: Vec::new() };
            audit.load(&load, share(run.cell.point, hosts, index));
            let at = |finding: Finding| {
                let what = format!("on {}: {}", client.host, finding.what);
                Finding { what, ..finding }
            };
            told.extend(audit.findings.iter().map(|finding| finding.kind));
            self.findings.extend(audit.findings.into_iter().map(at));
        }
        told
    }

    pub(super) fn between_hosts(&mut self) {
        for host in &self.run.hosts {
            if let Some(others) = &host.others {
                self.other_processes(others, &format!(" on {}", host.host));
            }
        }
        let Some(CpuUse { window_s, between_hosts: Some(between), .. }) = &self.run.cpu else {
            return;
        };
        let apart_us = between.windows_apart_us.into_iter().fold(0.0, f64::max);
        if apart_us > WINDOWS_APART_LIMIT * window_s * 1e6 {
            let what = format!(
                "the windows of the load generators were {apart_us:.0} us apart, of {window_s} s"
            );
            self.find(Severity::Noise, Kind::WindowsApart, what);
        }
    }
}
