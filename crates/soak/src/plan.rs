//! The choices of a seed.

use oorandom::Rand64;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;
use twinring_load::Workers;

/// The kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The echo, and requests over TCP.
    Echo,
    /// The reflector, and streams of datagrams.
    Udp,
    /// A file server, and requests over HTTP.
    Http,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Echo => "echo",
            Kind::Udp => "udp",
            Kind::Http => "http",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        match text {
            "echo" => Ok(Kind::Echo),
            "udp" => Ok(Kind::Udp),
            "http" => Ok(Kind::Http),
            _ => Err("expected echo, udp or http".into()),
        }
    }
}

/// The command that repeats a run.
pub fn replay_command(seed: u64, kind: Option<Kind>) -> String {
    let kind = kind.map_or(String::new(), |kind| format!(" --kind {kind}"));
    format!("cargo run -p twinring-soak --features sim -- --seed {seed}{kind}")
}

/// Choices, the same for the same seed.
pub(crate) struct Plan(Rand64);

impl Plan {
    pub(crate) fn new(seed: u64) -> Plan {
        Plan(Rand64::new(u128::from(seed) << 64 | 0x50a4))
    }

    pub(crate) fn kind(&mut self) -> Kind {
        *self.one_of(&[Kind::Echo, Kind::Udp, Kind::Http])
    }

    /// From `low` to `high`, small ones as often as large ones.
    pub(crate) fn about(&mut self, low: u64, high: u64) -> u64 {
        let octaves = (high / low.max(1)).max(1).ilog2();
        let top = (low.max(1) << self.0.rand_range(0..u64::from(octaves) + 1)).clamp(low, high);
        self.0.rand_range(low..(2 * top).min(high) + 1)
    }

    /// Load generators with up to this many threads.
    pub(crate) fn workers(&mut self, most: u64) -> Workers {
        Workers { threads: self.about(1, most) as usize, ..Workers::default() }
    }

    pub(crate) fn chance(&mut self, one_in: u64) -> bool {
        self.0.rand_range(0..one_in) == 0
    }

    /// With a probability of 1 in `one_in`, a number as of [`about`](Plan::about).
    pub(crate) fn sometimes(&mut self, one_in: u64, low: u64, high: u64) -> Option<u64> {
        self.chance(one_in).then(|| self.about(low, high))
    }

    pub(crate) fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.0.rand_range(0..choices.len() as u64) as usize]
    }

    pub(crate) fn milliseconds(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.about(low, high))
    }

    /// An independent sequence of choices.
    pub(crate) fn branch(&mut self) -> Plan {
        Plan(Rand64::new(u128::from(self.0.rand_u64())))
    }

    /// So many bytes, of any value.
    pub(crate) fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.0.rand_u64() as u8).collect()
    }

    /// Where a service listens.
    pub(crate) fn address(&mut self) -> SocketAddr {
        *self.one_of(&[
            SocketAddr::from(([127, 0, 0, 1], 0)),
            SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1u16], 0)),
        ])
    }
}
