//! The words of `--fail-if`.
//!
//! ```text
//! gate    = ( [ "possibly" ] [ "relative" ] FIGURE limit | "verdict changed" )
//!           [ "of" SUBJECT ] [ "in" CELL ]
//! limit   = ">" PERCENT "%" | "<" PERCENT "%"
//! ```
//!
//! A cell is written as reports write it, with its network or without. Quotes around it are optional.

use std::fmt;
use std::str::FromStr;

use crate::summary::{METRICS, Metric};

/// A condition under which a comparison fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    pub(super) condition: Condition,
    /// The only subject it is about.
    pub(super) subject: Option<String>,
    /// The only cell it is about.
    pub(super) cell: Option<String>,
}

/// What a gate looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Condition {
    Change(Limit),
    VerdictChanged,
}

/// A limit on the change of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit {
    pub(super) metric: Metric,
    /// Of the ratio to the baseline, not of the figure itself.
    pub(super) relative: bool,
    /// Breached as soon as that cannot be excluded, not only when it is proven.
    pub(super) possibly: bool,
    pub(super) side: LimitSide,
    /// Above 0 or 0 for [`LimitSide::Above`], below or 0 for the other.
    pub(super) percent: f64,
}

/// On which side of a limit a change breaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitSide {
    Above,
    Below,
}

/// What is wrong with a gate, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateError {
    problem: String,
    expected: String,
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; expected {}", self.problem, self.expected)
    }
}

impl std::error::Error for GateError {}

const LIMITS: &str = "`> 3%` for an increase or `< -3%` for a decrease";

impl Gate {
    /// The metric that it is about, if it is about one.
    pub(super) fn metric(&self) -> Option<Metric> {
        match self.condition {
            Condition::Change(limit) => Some(limit.metric),
            Condition::VerdictChanged => None,
        }
    }
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Gate, GateError> {
        let (rest, cell) = named(text, " in ")?;
        let (rest, subject) = named(rest, " of ")?;
        let is_verdict = rest.split_whitespace().eq(["verdict", "changed"]);
        let condition = match is_verdict {
            true => Condition::VerdictChanged,
            false => Condition::Change(rest.parse()?),
        };
        Ok(Gate { condition, subject, cell })
    }
}

/// What stands before a word, and the name behind it.
fn named<'a>(text: &'a str, word: &str) -> Result<(&'a str, Option<String>), GateError> {
    let Some((before, name)) = text.split_once(word) else { return Ok((text, None)) };
    let name = name.trim();
    let bare = ['"', '\''].iter().find_map(|it| name.strip_prefix(*it)?.strip_suffix(*it));
    match bare.unwrap_or(name) {
        "" => Err(wrong(format!("`{text}` ends"), "a name")),
        name => Ok((before, Some(name.to_owned()))),
    }
}

/// What stands behind a word, if the text begins with it.
fn behind<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.trim_start().strip_prefix(word).filter(|rest| rest.starts_with(char::is_whitespace))
}

fn wrong(problem: String, expected: impl Into<String>) -> GateError {
    GateError { problem, expected: expected.into() }
}

impl FromStr for Limit {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Limit, GateError> {
        let possibly = behind(text, "possibly");
        let rest = possibly.unwrap_or(text);
        let relative = behind(rest, "relative");
        let rest = relative.unwrap_or(rest);
        let at = rest.find(['<', '>']).ok_or_else(|| {
            wrong(format!("`{text}`"), format!("`verdict changed`, or a figure and {LIMITS}"))
        })?;
        let (name, limit) = (rest[..at].trim(), &rest[at + 1..]);
        let side = if rest[at..].starts_with('>') { LimitSide::Above } else { LimitSide::Below };
        let metric = Metric::named(name).ok_or_else(|| {
            let headlines = METRICS.iter().filter(|it| it.is_headline()).map(|it| it.name());
            let headlines = headlines.collect::<Vec<_>>().join(", ");
            let expected = format!(
                "`verdict changed`, or a figure: {headlines}, or another field of `figures`, as \
                 notifications or server.user_ns"
            );
            wrong(format!("`{name}`"), expected)
        })?;
        let number = limit.trim().strip_suffix('%').ok_or_else(|| {
            wrong(format!("`{}`", limit.trim()), "a number and `%`, then `of SUBJECT`, `in CELL`")
        })?;
        let percent = number.trim().parse::<f64>().ok().filter(|percent| percent.is_finite());
        let percent = percent.ok_or_else(|| wrong(format!("`{}`", number.trim()), "a number"))?;
        // A limit on the other side of nothing would be breached by no change at all.
        let is_on_its_side = match side {
            LimitSide::Above => percent >= 0.0,
            LimitSide::Below => (-100.0..=0.0).contains(&percent),
        };
        if !is_on_its_side {
            return Err(wrong(format!("`{}`", number.trim()), LIMITS));
        }
        let (relative, possibly) = (relative.is_some(), possibly.is_some());
        Ok(Limit { metric, relative, possibly, side, percent })
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            Condition::VerdictChanged => f.write_str("verdict changed")?,
            Condition::Change(Limit { metric, relative, possibly, side, percent }) => {
                f.write_str(if possibly { "possibly " } else { "" })?;
                f.write_str(if relative { "relative " } else { "" })?;
                let sign = if side == LimitSide::Above { '>' } else { '<' };
                write!(f, "{metric} {sign} {percent}%")?;
            }
        }
        for (word, name) in [("of", &self.subject), ("in", &self.cell)] {
            let Some(name) = name else { continue };
            let is_bare = name.chars().all(|c| !c.is_whitespace() && c != '"' && c != '\'');
            let quote = if is_bare { "" } else { "\"" };
            write!(f, " {word} {quote}{name}{quote}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Gate {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn gates_are_read() {
        let limit = |metric, side, percent| Limit {
            metric,
            relative: false,
            possibly: false,
            side,
            percent,
        };
        let plain = limit(Metric::ServerCpuNs, LimitSide::Above, 3.0);
        for (text, condition, subject, cell) in [
            ("server_cpu > 3%", Condition::Change(plain), None, None),
            (" server_cpu>3 % ", Condition::Change(plain), None, None),
            (
                "throughput < -5% of io_uring in \"100 x 128 B\"",
                Condition::Change(limit(Metric::RequestsPerS, LimitSide::Below, -5.0)),
                Some("io_uring"),
                Some("100 x 128 B"),
            ),
            (
                "possibly relative p99.9 > 10% in 2 connections x 1 KB of 3 files on veth",
                Condition::Change(Limit {
                    relative: true,
                    possibly: true,
                    ..limit(Metric::LatencyUsP99_9, LimitSide::Above, 10.0)
                }),
                None,
                Some("2 connections x 1 KB of 3 files on rps"),
            ),
            ("verdict changed of io_uring", Condition::VerdictChanged, Some("io_uring"), None),
        ] {
            let gate = read(text);
            assert_eq!(gate.condition, condition, "{text}");
            assert_eq!((gate.subject.as_deref(), gate.cell.as_deref()), (subject, cell), "{text}");
            assert_eq!(read(&gate.to_string()), gate);
        }
    }

    #[test]
    fn errors_name_what_is_wrong_and_what_was_expected() {
        for (text, found, expected) in [
            ("", "``", "`> 3%`"),
            ("speed > 3%", "`speed`", "server_cpu, both_cpus"),
            ("possibly verdict changed", "`possibly verdict changed`", "`> 3%`"),
            ("p99 10%", "`p99 10%`", "`> 3%`"),
            ("p99 > ten%", "`ten`", "a number"),
            ("p99 > nan%", "`nan`", "a number"),
            ("p99 > 10", "`10`", "`%`"),
            ("p99 > 10% for x", "`10% for x`", "`of SUBJECT`"),
            ("p99 > -10%", "`-10`", "`> 3%`"),
            ("throughput < 5%", "`5`", "`< -3%`"),
            ("throughput < -101%", "`-101`", "`< -3%`"),
            ("p99 > 10% of \"\"", "ends", "a name"),
        ] {
            let GateError { problem, expected: wanted } = text.parse::<Gate>().unwrap_err();
            assert!(problem.contains(found) && wanted.contains(expected), "{text}: {problem}");
        }
    }

    proptest! {
        #[test]
        fn a_text_is_an_error_or_a_gate_that_is_written_so_that_it_is_read_as_the_same(
            words in prop::collection::vec(prop::sample::select(vec![
                "possibly", "relative", "server_cpu", "p99.9", "verdict", "changed", ">", "<", "%",
                "3", "-3", "of", "in", "x", "\"a b\"", "'", "\"", "on", "veth",
            ]), 0..12),
            text in ".{0,20}",
        ) {
            for text in [words.join(" "), text.clone(), format!("p99 > 3% of {text} in {text}")] {
                if let Ok(gate) = text.parse::<Gate>() {
                    prop_assert_eq!(read(&gate.to_string()), gate);
                }
            }
        }

        #[test]
        fn every_metric_has_gates(metric in prop::sample::select(METRICS), percent in 0..100) {
            let gate = read(&format!("{metric} > {percent}%"));
            prop_assert_eq!(gate.metric(), Some(metric));
        }
    }
}
