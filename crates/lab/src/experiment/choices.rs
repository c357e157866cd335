//! Choices that an experiment or an option makes by a word.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The networks that were asked for, in the order of the report: `auto`, `all`, or some by name, such as `lo,rps`. None is
/// `auto`: `rps` where rights allow, else `lo` with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct NetChoice(Vec<NetKind>);

static LOCAL: [NetKind; 3] = [NetKind::Rps, NetKind::Lo, NetKind::Napi];

impl NetChoice {
    /// The networks; of `auto`, the one that is tried first.
    pub(crate) fn kinds(&self) -> &[NetKind] {
        if self.is_auto() { &LOCAL[..1] } else { &self.0 }
    }

    pub(crate) fn is_auto(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::str::FromStr for NetChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<NetChoice, String> {
        let names: Vec<&str> = match text {
            "auto" => return Ok(NetChoice::default()),
            "all" => vec!["rps", "lo", "napi"],
            _ => text.split(',').map(str::trim).collect(),
        };
        if let Some(wrong) = names.iter().find(|it| !["lo", "rps", "napi"].contains(it)) {
            let expected = "auto, all, or some of lo, rps, napi, such as lo,rps";
            return Err(format!("`{wrong}`: expected {expected}"));
        }
        let is_named = |kind: &NetKind| names.contains(&&*kind.to_string());
        Ok(NetChoice(LOCAL.into_iter().filter(is_named).collect()))
    }
}

impl TryFrom<String> for NetChoice {
    type Error = String;

    fn try_from(text: String) -> Result<NetChoice, String> {
        text.parse()
    }
}

impl From<NetChoice> for String {
    fn from(choice: NetChoice) -> String {
        let names: Vec<String> = choice.0.iter().map(NetKind::to_string).collect();
        match names.len() {
            0 => "auto".to_owned(),
            3 => "all".to_owned(),
            _ => names.join(","),
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

impl fmt::Display for NetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetKind::Rps => "rps",
            NetKind::Lo => "lo",
            NetKind::Napi => "napi",
            NetKind::Hosts => "hosts",
        })
    }
}
