//! Which hosts to measure between.

use std::net::IpAddr;
use std::path::PathBuf;

/// The word that makes the hidden subcommand the agent.
pub(crate) const AGENT: &str = "agent";

/// Stands for the name of the host in the command to connect.
pub const NODE: &str = "{node}";

/// Which hosts to measure between, and how to get there.
#[derive(Debug, Clone, Default)]
pub struct HostOptions {
    /// The hosts of the servers, as the command to connect knows them; [`LOCAL`](super::LOCAL) or none for this one.
    pub servers: Vec<String>,
    /// The hosts of the load generators; none for this one.
    pub clients: Vec<String>,
    /// The fewest client hosts with which the experiment goes on; without it, it ends when one is lost.
    pub quorum: Option<Quorum>,
    /// The address that each server listens on, if it is not to be found out.
    pub server_addresses: Vec<IpAddr>,
    /// The command that runs a program on a host and connects its standard input and output, in
    /// words, one with [`NODE`].
    pub connect: Vec<String>,
    /// Where this program is on the other hosts; by default it is copied there.
    pub remote_binary: Option<PathBuf>,
}

impl HostOptions {
    /// How many hosts servers run on, this one included.
    pub(crate) fn count_servers(&self) -> usize {
        self.servers.len().max(1)
    }
}

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
