//! Choices that an experiment or an option makes by a word.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which network was asked for. `loopback` and `veth` are the names that `lo` and `rps` had in
/// experiments and bundles before there was a third network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetChoice {
    /// `rps` where rights allow, else `lo` with the reason.
    #[default]
    Auto,
    /// See [`NetKind::Lo`].
    #[serde(alias = "loopback")]
    Lo,
    /// See [`NetKind::Rps`].
    #[serde(alias = "veth")]
    Rps,
    /// See [`NetKind::Napi`].
    Napi,
    /// All three side by side.
    All,
    /// `rps` and `lo` side by side, as before there was a third.
    Both,
}

impl NetChoice {
    /// The networks, in the order of the report; of `auto`, the one that is tried first.
    pub(crate) fn kinds(self) -> &'static [NetKind] {
        match self {
            NetChoice::Auto | NetChoice::Rps => &[NetKind::Rps],
            NetChoice::Lo => &[NetKind::Lo],
            NetChoice::Napi => &[NetKind::Napi],
            NetChoice::All => &[NetKind::Rps, NetKind::Lo, NetKind::Napi],
            NetChoice::Both => &[NetKind::Rps, NetKind::Lo],
        }
    }
}

impl std::str::FromStr for NetChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<NetChoice, String> {
        match text {
            "auto" => Ok(NetChoice::Auto),
            "lo" | "loopback" => Ok(NetChoice::Lo),
            "rps" | "veth" => Ok(NetChoice::Rps),
            "napi" => Ok(NetChoice::Napi),
            "all" => Ok(NetChoice::All),
            "both" => Ok(NetChoice::Both),
            _ => Err(format!("`{text}` is none of auto, lo, rps, napi, all")),
        }
    }
}

/// How the busy time of a CPU is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accounting {
    /// By the kernel's idle clock, which changes nothing.
    #[default]
    IdleClock,
    /// The same, without looking at threads, children and memory: what it takes to see what those
    /// looks cost.
    IdleClockOnly,
}

impl std::str::FromStr for Accounting {
    type Err = String;

    fn from_str(text: &str) -> Result<Accounting, String> {
        match text {
            "idle_clock" => Ok(Accounting::IdleClock),
            "idle_clock_only" => Ok(Accounting::IdleClockOnly),
            _ => Err(format!("`{text}` is none of idle_clock, idle_clock_only")),
        }
    }
}

impl fmt::Display for Accounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accounting::IdleClock => "the kernel's idle clock",
            Accounting::IdleClockOnly => "the kernel's idle clock alone",
        })
    }
}

/// What is done about the accidents of many verdicts at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Correction {
    /// Nothing: each verdict stands for itself.
    None,
    /// Of the differences that an experiment claims, at most 5 % are accidents (Benjamini and
    /// Hochberg, Controlling the False Discovery Rate, JRSS B 57(1), 1995).
    #[default]
    BenjaminiHochberg,
}

impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Correction::None => "none",
            Correction::BenjaminiHochberg => "Benjamini-Hochberg",
        })
    }
}

/// Measures until the answer is narrow enough.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// A cell has enough pairs when the interval of each of its ratios is at most this wide, from
    /// its lower to its upper end, in percent.
    pub interval_percent: f64,
    /// It gets no more pairs than this, however wide they are.
    pub max_pairs: usize,
}

/// Which network a cell was measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetKind {
    /// Two namespaces and a veth pair, receive steering (RPS) pinned per end: the receiver's CPU is
    /// notified.
    #[serde(alias = "veth")]
    Rps,
    /// Plain loopback: the sender's CPU does the receive work.
    #[serde(alias = "loopback")]
    Lo,
    /// Two namespaces and a veth pair, received from by a thread of the kernel (threaded NAPI) on the
    /// CPU of each end: the receiver's CPU polls.
    Napi,
    /// The network between the hosts of the experiment.
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

    /// The current name of a network, for one that it had before; any other text as it is.
    pub(crate) fn renamed(name: &str) -> &str {
        match name {
            "veth" => "rps",
            "loopback" => "lo",
            other => other,
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
