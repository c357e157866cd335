//! A condition that fails a comparison: `FIGURE > N%` or `FIGURE < -N%`. Less is negative, as on every page.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::analysis::{FIGURES, full_name};
use crate::report::wrapped;
use crate::statistics::Estimate;

/// A figure and the most that it may change. The gate is breached if the whole interval is beyond the limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// The figure, by its full name.
    pub figure: String,
    /// The limit in percent; above 0 of growth, below 0 of decline.
    pub limit_percent: f64,
}

/// What a gate says of one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Gated {
    /// The whole interval is within the limit.
    Holds,
    /// A part of the interval is beyond it: not shown.
    Undecided,
    /// The whole interval is beyond it.
    Breached,
}

/// What a gate says of all changes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Verdict {
    /// The gate.
    pub gate: String,
    /// The worst of all changes; nothing if there is none or one could not be judged, unless another breaches it.
    pub is: Option<Gated>,
    /// Where.
    pub at: Vec<String>,
}

impl Gate {
    /// What it says of a ratio; nothing without an interval, or if a figure of the CPU and its limit are both less than
    /// `resolution`, the smallest change that the clock shows, as a share.
    fn judge(&self, change: &Estimate, resolution: f64) -> Option<Gated> {
        let ends = change.ends?;
        let limit = 1.0 + self.limit_percent / 100.0;
        let is_shown = |ratio: f64| ratio.ln().abs() >= resolution;
        if self.figure.contains("cpu") && !is_shown(change.ratio) && !is_shown(limit) {
            return None;
        }
        let (nearest, farthest) =
            if self.limit_percent < 0.0 { (ends.high, ends.low) } else { (ends.low, ends.high) };
        let is_beyond = |end: f64| if self.limit_percent < 0.0 { end < limit } else { end > limit };
        Some(match (is_beyond(nearest), is_beyond(farthest)) {
            (true, _) => Gated::Breached,
            (false, true) => Gated::Undecided,
            (false, false) => Gated::Holds,
        })
    }

    /// What it says of changes, each with the resolution of the clock of the CPU and its place.
    pub(crate) fn over<'a>(
        &self,
        changes: impl Iterator<Item = (Option<&'a Estimate>, f64, String)>,
    ) -> Verdict {
        let judge = |(change, resolution, at): (Option<&Estimate>, f64, String)| {
            (change.and_then(|it| self.judge(it, resolution)), at)
        };
        let found: Vec<(Option<Gated>, String)> = changes.map(judge).collect();
        let order = [Some(Gated::Breached), None, Some(Gated::Undecided), Some(Gated::Holds)];
        let is = order.into_iter().find(|it| found.iter().any(|(gated, _)| gated == it)).flatten();
        let told = found.into_iter().filter(|it| it.0 == is && is != Some(Gated::Holds));
        Verdict { gate: self.to_string(), is, at: told.map(|it| it.1).collect() }
    }
}

/// 3 if a gate was breached, 1 if one could not be judged, else 0.
pub fn gates_exit_code(verdicts: &[Verdict]) -> u8 {
    match verdicts.iter().any(|it| it.is == Some(Gated::Breached)) {
        true => 3,
        false => u8::from(verdicts.iter().any(|it| it.is.is_none())),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = match self.is {
            Some(Gated::Breached) => "BREACHED",
            Some(Gated::Undecided) => "not shown to be breached",
            Some(Gated::Holds) => "holds",
            None => "cannot be judged",
        };
        let is_told = !self.at.is_empty() && self.is != Some(Gated::Undecided);
        let at = if is_told { format!(": {}", self.at.join("; ")) } else { String::new() };
        let lines = wrapped(&format!("{}: {is}{at}", self.gate), "GATE   ", "       ");
        f.write_str(&lines.join("\n"))
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Gate, String> {
        let at = text.find(['>', '<']).ok_or_else(|| expected(text))?;
        let (name, rest) = text.split_at(at);
        let number = rest[1..].trim().trim_end_matches('%').trim();
        let limit_percent: f64 = number.parse().map_err(|_| expected(text))?;
        let is_right = if rest.starts_with('>') {
            limit_percent >= 0.0
        } else {
            (-100.0..0.0).contains(&limit_percent)
        };
        if !is_right || !limit_percent.is_finite() {
            return Err(expected(text));
        }
        let name = name.trim();
        let figure = full_name(name).ok_or_else(|| {
            let known = FIGURES.iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
            format!("`{name}` is not a figure; expected one of {known}")
        })?;
        Ok(Gate { figure, limit_percent })
    }
}

fn expected(text: &str) -> String {
    format!("`{text}`: expected FIGURE > N% or FIGURE < -N%, such as `server_cpu > 3%`")
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.limit_percent < 0.0 { '<' } else { '>' };
        write!(f, "{} {sign} {} %", self.figure, self.limit_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Ends;

    #[test]
    fn a_gate_is_breached_by_the_whole_interval() {
        for (text, low, high, expected) in [
            ("server_cpu > 3%", 1.04, 1.10, Gated::Breached),
            ("server_cpu > 3%", 1.01, 1.10, Gated::Undecided),
            ("server_cpu_ns>3", 0.90, 1.03, Gated::Holds),
            ("throughput < -5 %", 0.80, 0.94, Gated::Breached),
            ("throughput < -5 %", 0.80, 1.00, Gated::Undecided),
            ("throughput < -5 %", 0.96, 1.50, Gated::Holds),
        ] {
            let gate: Gate = text.parse().unwrap();
            let change = Estimate { ratio: 1.0, ends: Some(Ends { low, high }), pairs: 8 };
            assert_eq!(gate.judge(&change, 0.0), Some(expected), "{text} [{low}, {high}]");
            assert_eq!(gate.judge(&Estimate { ends: None, ..change }, 0.0), None);
        }
        // A change of 6 % breached a limit of 3 % by a clock that shows no less than 11 %.
        let gate: Gate = "server_cpu > 3%".parse().unwrap();
        for (ratio, resolution, expected) in [
            (1.06, 0.11, None),
            (1.00, 0.11, None),
            (1.06, 0.05, Some(Gated::Breached)),
            (1.20, 0.11, Some(Gated::Breached)),
        ] {
            let ends = Some(Ends { low: ratio - 0.01, high: ratio + 0.01 });
            let change = Estimate { ratio, ends, pairs: 8 };
            assert_eq!(gate.judge(&change, resolution), expected, "{ratio} by {resolution}");
        }
        for wrong in ["", "server_cpu", "server_cpu > -3%", "p99 < 3%", "p99 > inf%"] {
            assert!(wrong.parse::<Gate>().is_err(), "{wrong}");
        }
    }
}
