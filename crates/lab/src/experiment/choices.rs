//! Choices that an experiment or an option makes by a word.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which network was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NetChoice {
    /// `rps` where rights allow, else `lo` with the reason.
    #[default]
    Auto,
    /// See [`NetKind::Lo`].
    Lo,
    /// See [`NetKind::Rps`].
    Rps,
    /// See [`NetKind::Napi`].
    Napi,
    /// All three side by side.
    All,
}

impl NetChoice {
    /// The networks, in the order of the report; of `auto`, the one that is tried first.
    pub(crate) fn kinds(self) -> &'static [NetKind] {
        match self {
            NetChoice::Auto | NetChoice::Rps => &[NetKind::Rps],
            NetChoice::Lo => &[NetKind::Lo],
            NetChoice::Napi => &[NetKind::Napi],
            NetChoice::All => &[NetKind::Rps, NetKind::Lo, NetKind::Napi],
        }
    }
}

impl std::str::FromStr for NetChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<NetChoice, String> {
        match text {
            "auto" => Ok(NetChoice::Auto),
            "lo" => Ok(NetChoice::Lo),
            "rps" => Ok(NetChoice::Rps),
            "napi" => Ok(NetChoice::Napi),
            "all" => Ok(NetChoice::All),
            _ => Err(format!("`{text}`: expected auto, lo, rps, napi or all")),
        }
    }
}

/// Which network a cell was measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NetKind {
    /// Two namespaces and a veth pair, receive steering (RPS) pinned per end: the receiver's CPU is
    /// notified.
    Rps,
    /// Plain loopback: the sender's CPU does the receive work.
    Lo,
    /// Two namespaces and a veth pair, received from by a thread of the kernel (threaded NAPI) on the
    /// CPU of each end: the receiver's CPU polls.
    Napi,
    /// The network of this machine, to load generators on others.
    Hosts,
}

impl NetKind {
    /// Where something was measured: `on rps`, `between hosts`.
    pub fn phrase(self) -> String {
        match self {
            NetKind::Rps | NetKind::Lo | NetKind::Napi => format!("on {self}"),
            NetKind::Hosts => self.to_string(),
        }
    }
}

impl fmt::Display for NetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetKind::Rps => "rps",
            NetKind::Lo => "lo",
            NetKind::Napi => "napi",
            NetKind::Hosts => "between hosts",
        })
    }
}
