//! Goes on with an experiment whose lab was stopped, killed, or lost a host.
//!
//! The bundle is continued in place, so it can be resumed as often as it takes. Its runs stay one occasion, and
//! `resumed` says where each part begins. What would make them another measurement is refused.

use std::collections::BTreeSet;
use std::path::Path;

use crate::bundle::{self, Stored, Writer};
use crate::error::LabError;
use crate::host::HostRole;
use crate::merge::{OTHER_MACHINE, differences};
use crate::progress::say;
use crate::quorum::LostHost;
use crate::record::RunRecord;
use crate::result::{BUNDLE_SCHEMA, Bundle, Resumed, State};

/// The most times that one bundle is resumed.
const RESUMED_MAX: usize = 64;

/// A bundle that goes on.
pub(crate) struct Opened {
    pub(crate) bundle: Bundle,
    pub(crate) writer: Writer,
    /// The runs that are there.
    pub(crate) runs: Vec<RunRecord>,
}

/// Opens the bundle in `directory` for further runs. `now` describes what this lab would begin.
///
/// # Errors
/// [`LabError::CannotResume`] when nothing is missing or something is not as it was; when the bundle cannot be read or
/// written. It then stays as it is.
pub(crate) fn open(directory: &Path, now: &Bundle) -> Result<Opened, LabError> {
    let writer = Writer::reopen(directory)?;
    let Stored { mut bundle, runs, .. } = bundle::read(directory)?;
    if let Some(why) = why_not(&bundle, now) {
        return Err(LabError::CannotResume { path: directory.to_owned(), why });
    }
    for what in differences(&bundle, now) {
        say(&format!("not the same as before: {what}"));
    }
    say(&format!("{} runs are there already", runs.len()));
    bundle.resumed.push(Resumed {
        started: now.started.clone(),
        command: now.command.clone(),
        from_run: runs.len(),
        before: bundle.state.clone(),
        machine: now.machine.clone(),
        hosts: now.hosts.clone(),
    });
    // Those that could not be reached now.
    let at_start = now.lost_hosts.iter().cloned();
    bundle.lost_hosts.extend(at_start.map(|lost| LostHost { from_run: runs.len(), ..lost }));
    bundle.state = State::Running;
    bundle.summary = None;
    bundle.warnings.clear();
    bundle.profile = None;
    writer.resume(&bundle)?;
    Ok(Opened { bundle, writer, runs })
}

/// Why this lab cannot go on with a bundle, if it cannot.
fn why_not(before: &Bundle, now: &Bundle) -> Option<String> {
    let hashes = |it: &Bundle| -> BTreeSet<Option<String>> {
        it.programs.iter().map(|program| program.sha256.clone()).collect()
    };
    let kinds = |it: &Bundle| it.networks.iter().map(|it| it.kind).collect::<Vec<_>>();
    let is_between_hosts = |it: &Bundle| !it.hosts.is_empty();
    let servers = |it: &Bundle| it.hosts.iter().filter(|it| it.role == HostRole::Server).count();
    let reasons = [
        (before.state == State::Complete, "nothing is missing; --add measures it once more"),
        (before.schema != BUNDLE_SCHEMA, "it is of an earlier schema; measure again"),
        (!before.occasions.is_empty(), "it has several occasions; resume them one by one"),
        (before.resumed.len() >= RESUMED_MAX, "it was resumed 64 times; measure again"),
        (before.lab_version != now.lab_version, "its lab was of another version; use that one"),
        (
            is_between_hosts(before) && !is_between_hosts(now),
            "it is between hosts; give --server-host and --client-host, as before",
        ),
        (
            !is_between_hosts(before) && is_between_hosts(now),
            "it was measured on one host; leave out --server-host and --client-host",
        ),
        (servers(before) != servers(now), "it was measured with another number of servers"),
        (before.experiment != now.experiment, "not all of its subjects can run here any more"),
        (kinds(before) != kinds(now), "its networks cannot be had any more"),
        (!before.machine.is_same_machine(&now.machine), OTHER_MACHINE),
        (
            !is_between_hosts(before) && before.cpus != now.cpus,
            "other CPUs would be used; give those of before to the lab (taskset)",
        ),
        (hashes(before) != hashes(now), "the programs are others (SHA-256 differs); use those"),
    ];
    reasons.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why.to_owned())
}
