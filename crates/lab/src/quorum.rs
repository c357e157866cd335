//! How many client hosts may be lost while an experiment goes on.

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::host::Host;
use crate::net::Network;

/// The fewest client hosts with which an experiment goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quorum {
    /// So many.
    Hosts(usize),
    /// So many percent of those that were asked for, rounded up.
    Percent(usize),
}

impl Quorum {
    /// Reads `14` or `80%`.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(text: &str) -> Result<Quorum, String> {
        let expected = "a number of client hosts, 1 or more, or a percentage such as 80%";
        let (digits, is_percent) = match text.strip_suffix('%') {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let number: usize = digits.parse().map_err(|_| format!("expected {expected}"))?;
        match (number, is_percent) {
            (1..=100, true) => Ok(Quorum::Percent(number)),
            (1.., false) => Ok(Quorum::Hosts(number)),
            _ => Err(format!("expected {expected}")),
        }
    }

    /// The fewest of `clients` hosts.
    pub(crate) fn least(self, clients: usize) -> usize {
        match self {
            Quorum::Hosts(least) => least,
            Quorum::Percent(percent) => (clients * percent).div_ceil(100),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_is_a_number_or_a_share_rounded_up() {
        assert_eq!(Quorum::parse("14").unwrap().least(16), 14);
        assert_eq!(Quorum::parse("80%").unwrap().least(16), 13);
        assert_eq!(Quorum::parse("100%").unwrap().least(3), 3);
        assert_eq!(Quorum::parse("1%").unwrap().least(3), 1);
        for wrong in ["", "0", "0%", "101%", "-1", "1.5", "%", "many", "99999999999999999999"] {
            assert!(Quorum::parse(wrong).unwrap_err().contains("80%"), "{wrong}");
        }
    }
}
