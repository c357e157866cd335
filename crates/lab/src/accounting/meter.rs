//! How the busy time of a run's CPUs is found: from the kernel's idle clocks, or by soakers.

use std::ffi::OsString;

use super::{Sides, sample};
use crate::error::LabError;
use crate::experiment::Accounting;
use crate::machine::Cpus;
use crate::soaker::{Curve, Soaker};

/// How the busy time of the two CPUs is found.
pub(crate) enum Meter {
    /// From the kernel's idle clocks.
    IdleClock,
    /// By soakers.
    Soakers(Soakers),
}

impl Meter {
    pub(crate) fn start(
        accounting: Accounting,
        helper: &[OsString],
        cpus: &Cpus,
    ) -> Result<Meter, LabError> {
        sample::prepare();
        match accounting {
            Accounting::IdleClock | Accounting::IdleClockOnly => Ok(Meter::IdleClock),
            Accounting::Soaker => Soakers::start(helper, cpus).map(Meter::Soakers),
        }
    }

    /// Busy time of server and client CPU inside the client's window, in seconds.
    ///
    /// # Errors
    /// What is missing, when the window is not covered.
    pub(super) fn busy_s(
        &self,
        samples: &[Sides; 2],
        window_ns: [u64; 2],
    ) -> Result<[f64; 2], String> {
        let [start, end] = samples;
        match self {
            Meter::IdleClock => {
                let window_s = window_ns[1].saturating_sub(window_ns[0]) as f64 / 1e9;
                // The samples lie a little behind the marks; the share is what carries over.
                let server_share = start.server.busy_share(&end.server);
                let client_share = start.client.busy_share(&end.client);
                Ok([server_share * window_s, client_share * window_s])
            }
            // Soakers publish by the clock of this host, so they are for runs on one host only.
            Meter::Soakers(soakers) => {
                let curves = soakers.curves(window_ns[1]).map_err(|error| error.to_string())?;
                let busy = |side: usize, cpu: usize| {
                    let busy_ns = curves[side].busy_ns(window_ns[0], window_ns[1]);
                    busy_ns.map(|busy_ns| busy_ns / 1e9).ok_or_else(|| {
                        format!(
                            "the soaker on CPU {cpu} published nothing around the window's ends"
                        )
                    })
                };
                Ok([busy(0, start.server.cpu)?, busy(1, start.client.cpu)?])
            }
        }
    }
}

/// The soakers of the two CPUs; with a single CPU there is one.
pub(crate) struct Soakers {
    server: Soaker,
    client: Option<Soaker>,
}

impl Soakers {
    fn start(helper: &[OsString], cpus: &Cpus) -> Result<Soakers, LabError> {
        let client = if cpus.shared { None } else { Some(Soaker::start(helper, cpus.client)?) };
        Ok(Soakers { server: Soaker::start(helper, cpus.server)?, client })
    }

    /// What both saw, up to at least `until_ns` unless they get no turn for too long.
    fn curves(&self, until_ns: u64) -> Result<[Curve; 2], LabError> {
        let (server, client) = (&self.server, self.client.as_ref().unwrap_or(&self.server));
        Ok([server.curve_until(until_ns)?, client.curve_until(until_ns)?])
    }
}
