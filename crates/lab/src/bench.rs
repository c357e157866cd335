//! What a run is made with, and which run it is.

use std::ffi::OsString;
use std::time::Instant;

use crate::cpus::{CpuList, Cpus};
use crate::experiment::{Cell, Experiment, Subject};
use crate::host::End;
use crate::paths::Paths;
use crate::peers::find::Found;
use crate::placement;
use crate::site::{Site, nginx};
use crate::stop::Stop;

/// What stays the same over all runs of an experiment.
pub(crate) struct Bench<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) cpus: &'a Cpus,
    pub(crate) helper: &'a [OsString],
    /// The `twinring` binary, for `{twinring}` in commands.
    pub(crate) binary: &'a str,
    pub(crate) stop: &'a Stop,
    /// The files of HTTP on this host, if there are cells of it.
    pub(crate) site: Option<&'a Site>,
    /// nginx, if a subject is it.
    pub(crate) nginx: Option<&'a nginx::Installed>,
    /// The programs of those subjects that are peers.
    pub(crate) peers: &'a Found,
    /// What no record says.
    pub(crate) paths: &'a Paths,
    /// When the experiment began.
    pub(crate) began: Instant,
}

/// Which run it is.
pub(crate) struct Slot<'a> {
    pub(crate) index: usize,
    pub(crate) cell: Cell,
    pub(crate) block: usize,
    pub(crate) subject: &'a Subject,
    /// Requests per second, where the cell says a share of what can be served.
    pub(crate) rate_per_s: Option<u32>,
}

impl Bench<'_> {
    /// The CPUs that a run's server has: one for each of its workers.
    pub(crate) fn cpus_of_server(&self, server: &End, slot: &Slot<'_>) -> CpuList {
        server.cpus.first_of(slot.cell.point.workers())
    }

    /// A cache line from the server's first CPU to the client's first and back.
    pub(crate) fn round_trip_ns(&self) -> Option<f64> {
        placement::round_trip_ns(self.cpus.server.first(), self.cpus.client.first())
    }
}
