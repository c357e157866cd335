//! What a run is made with, and which run it is.

use std::ffi::OsString;
use std::time::Instant;

use crate::cpus::Cpus;
use crate::experiment::{Cell, Experiment, Subject};
use crate::peers::find::Found;
use crate::placement;
use crate::site::Site;
use crate::stop::Stop;

pub(crate) struct Bench<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) cpus: &'a Cpus,
    pub(crate) helper: &'a [OsString],
    /// The `twinring` binary, for `{twinring}` in commands.
    pub(crate) binary: &'a str,
    pub(crate) stop: &'a Stop,
    pub(crate) site: Option<&'a Site>,
    pub(crate) peers: &'a Found,
    /// The engine of our load generator where it is not under test.
    pub(crate) load_engine: &'a str,
    pub(crate) began: Instant,
}

#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) cell: Cell,
    /// The block; nothing for a calibration.
    pub(crate) block: Option<usize>,
    pub(crate) subject: &'a Subject,
    /// Requests per second, where the cell says a share of what can be served.
    pub(crate) rate_per_s: Option<u32>,
}

impl Bench<'_> {
    /// A cache line from the server's first CPU to the client's first and back. With load generators
    /// elsewhere there is none.
    pub(crate) fn round_trip_ns(&self) -> Option<f64> {
        let here = self.experiment.via.is_none();
        here.then(|| placement::round_trip_ns(self.cpus.server.first(), self.cpus.client.first()))
            .flatten()
    }
}
