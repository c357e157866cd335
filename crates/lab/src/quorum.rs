//! How many client hosts may be lost while an experiment goes on.

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::host::Host;
use crate::net::Network;

/// A client host that was lost, and without which the experiment went on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostHost {
    /// Which, as the bundle names it.
    pub host: String,
    /// What happened.
    pub why: String,
    /// When the lab noticed, in UTC.
    pub at: String,
    /// Number of the first run without it.
    pub from_run: usize,
}

/// The client hosts that an experiment can do without.
pub(crate) struct Fleet {
    /// The fewest client hosts with which it goes on.
    pub(crate) least: usize,
    /// Those that were lost.
    pub(crate) lost: Vec<LostHost>,
}

impl Fleet {
    /// Takes the client host that an error is about out of the network, with all others that were lost by now. The
    /// next run is number `from_run`.
    ///
    /// # Errors
    /// The error itself, when it is about something else or too few hosts would be left.
    pub(crate) fn degrade(
        &mut self,
        network: &mut Network,
        error: LabError,
        from_run: usize,
    ) -> Result<(), LabError> {
        let LabError::Host { host, why } = &error else { return Err(error) };
        let why_lost = |end: &Host| match end {
            Host::There(remote) if remote.name() == host => Some(why.clone()),
            Host::There(remote) => remote.why_lost(),
            Host::Here(_) => None,
        };
        let found: Vec<Option<String>> =
            network.clients.iter().map(|end| why_lost(&end.host)).collect();
        let names_a_client = network
            .clients
            .iter()
            .zip(&found)
            .any(|(end, why)| why.is_some() && end.host.name() == host);
        if !names_a_client {
            return Err(error);
        }
        let left = found.iter().filter(|why| why.is_none()).count();
        if left < self.least {
            return Err(too_few(host, why, left, self.least));
        }
        let at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut found = found.into_iter();
        let mut lost = Vec::new();
        network.clients.retain(|end| {
            let Some(why) = found.next().flatten() else { return true };
            let (host, at) = (end.host.name().to_owned(), at.clone());
            lost.push(LostHost { host, why, at, from_run });
            false
        });
        self.lost.extend(lost);
        Ok(())
    }
}

/// The error of an experiment that lost this host and cannot go on.
pub(crate) fn too_few(host: &str, why: &str, left: usize, least: usize) -> LabError {
    let hosts = if left == 1 { "host is" } else { "hosts are" };
    let why = match least {
        usize::MAX => format!("{why}; --quorum goes on without a client host"),
        _ => format!("{why}; {left} client {hosts} left, and the quorum is {least}"),
    };
    LabError::Host { host: host.to_owned(), why }
}
