//! The parts of the sandbox, their choice by an option, and what became of each.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Ring,
    Seccomp,
    Landlock,
    NoNewPrivs,
    Capabilities,
}

pub(super) const PARTS: [Part; 5] =
    [Part::Ring, Part::Seccomp, Part::Landlock, Part::NoNewPrivs, Part::Capabilities];

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Ring => "ring",
            Part::Seccomp => "seccomp",
            Part::Landlock => "landlock",
            Part::NoNewPrivs => "no_new_privs",
            Part::Capabilities => "capabilities",
        }
    }
}

/// The named parts; an empty list is `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Selection(pub(super) Vec<Part>);

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Selection, String> {
        if text == "off" {
            return Ok(Selection(Vec::new()));
        }
        let part = |name: &str| PARTS.into_iter().find(|part| part.name() == name.trim());
        let parts = text.split(',').map(|name| {
            part(name).ok_or_else(|| {
                let known = PARTS.map(Part::name).join(", ");
                format!("`{name}` is not a part of the sandbox: expected off, or some of {known}")
            })
        });
        parts.collect::<Result<_, _>>().map(Selection)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) on: bool,
    pub(super) details: String,
}

/// For the ready line. Each part is there.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report(pub(super) BTreeMap<Part, Outcome>);

impl Default for Report {
    fn default() -> Report {
        let off = Outcome { on: false, details: NOT_ASKED.to_owned() };
        Report(PARTS.map(|part| (part, off.clone())).into())
    }
}

impl Report {
    pub(super) fn has(&self, part: Part) -> bool {
        self.0.get(&part).is_some_and(|outcome| outcome.on)
    }
}

impl fmt::Display for Report {
    /// `sandbox: ring, seccomp; without landlock (why)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            self.0.iter().filter(|(_, is)| is.on).map(|(part, _)| part.name()).collect();
        f.write_str("sandbox ")?;
        f.write_str(&if names.is_empty() { "off".to_owned() } else { names.join(", ") })?;
        let refused = |is: &Outcome| !is.on && ![NOT_ASKED, NO_RING].contains(&&*is.details);
        for (part, outcome) in self.0.iter().filter(|(_, is)| refused(is)) {
            write!(f, "; without {} ({})", part.name(), outcome.details)?;
        }
        Ok(())
    }
}

/// Why a part is off although the kernel supports it.
pub(super) const NOT_ASKED: &str = "not requested";
pub(super) const NO_RING: &str = "epoll has no ring";
