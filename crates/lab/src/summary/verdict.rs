//! What may be said about two subjects.

use serde::{Deserialize, Serialize};

use crate::statistics::{MIN_OCCASIONS, MIN_PAIRS};

/// What may be said about a pair of subjects in a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Verdict {
    /// One of them needs less CPU.
    Ahead {
        /// Which.
        winner: String,
        /// The difference is shown to be below this many percent; left out if it is not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by_less_than_percent: Option<f64>,
    },
    /// One of them keeps the rate that was asked for in pairs in which the other does not, and the
    /// sign test shows that this is not chance.
    #[serde(alias = "only_one_keeps_up")]
    OnlyOneKeepsRate {
        /// Which.
        winner: String,
    },
    /// It would be one of the above if this were the only comparison; among so many it may be
    /// chance.
    NotAfterCorrection {
        /// Which of the above.
        claim: Claim,
        /// Who seems to win.
        winner: String,
        /// How many comparisons were judged together.
        comparisons: usize,
    },
    /// Neither needs this many percent less than the other.
    Equivalent {
        /// The bound.
        within_percent: f64,
        /// What a test of difference would have detected, with the power of [`POWER`](crate::statistics::POWER).
        would_have_seen_percent: f64,
    },
    /// No difference was detected, and equivalence is not shown either.
    NoDifference {
        /// The difference that would have been detected, with the power of [`POWER`](crate::statistics::POWER).
        would_have_seen_percent: f64,
    },
    /// There are fewer than [`MIN_PAIRS`] pairs.
    TooFewPairs {
        /// How many there are.
        pairs: usize,
    },
    /// The runs are of two occasions, whose spread says next to nothing.
    TooFewOccasions {
        /// How many there are.
        occasions: usize,
    },
    /// However large a difference, so few pairs could not show it among so many comparisons.
    TooFewForSoMany {
        /// How many pairs there are.
        pairs: usize,
        /// How many comparisons were judged together.
        comparisons: usize,
        /// How many pairs could; none if no number could.
        needed: Option<usize>,
    },
    /// There are fewer than [`MIN_PAIRS`] pairs in which both kept the rate.
    UnequalWork {
        /// How many there are.
        pairs: usize,
    },
    /// The two are the same but for their names, and no difference was detected.
    #[serde(alias = "alike")]
    AaPassed {
        /// In percent, with the power of [`POWER`](crate::statistics::POWER).
        would_have_seen_percent: f64,
    },
    /// The two are the same but for their names, and a difference was detected: a false positive.
    #[serde(alias = "false_difference")]
    AaFailed {
        /// Who seems to win.
        winner: String,
    },
    /// An audit failed.
    Void {
        /// Which audit, and of which subject.
        why: String,
    },
}

/// What a verdict claims of its winner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// It needs less CPU.
    Ahead,
    /// It alone keeps the rate that was asked for.
    #[serde(alias = "only_one_keeps_up")]
    OnlyOneKeepsRate,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Ahead { winner, by_less_than_percent } => {
                write!(f, "{winner} ahead")?;
                match by_less_than_percent {
                    Some(bound) => write!(f, ", by less than {bound} %"),
                    None => Ok(()),
                }
            }
            Verdict::OnlyOneKeepsRate { winner } => write!(f, "only {winner} keeps the rate"),
            Verdict::NotAfterCorrection { claim, winner, comparisons } => {
                match claim {
                    Claim::Ahead => write!(f, "{winner} seems ahead")?,
                    Claim::OnlyOneKeepsRate => write!(f, "only {winner} seems to keep the rate")?,
                }
                write!(f, ", but not after correction for {comparisons} comparisons")
            }
            Verdict::Equivalent { within_percent, .. } => {
                write!(f, "equivalent within {within_percent} %")
            }
            Verdict::NoDifference { would_have_seen_percent: percent } => {
                write!(f, "no difference detected (would have seen {percent:.1} %)")
            }
            Verdict::TooFewPairs { pairs } => {
                write!(f, "no verdict: {}, and {MIN_PAIRS} are needed", Pairs(*pairs))
            }
            Verdict::TooFewOccasions { occasions } => {
                write!(f, "no verdict: {occasions} occasions, and {MIN_OCCASIONS} are needed")
            }
            Verdict::TooFewForSoMany { pairs, comparisons, needed } => {
                write!(
                    f,
                    "no verdict: {} cannot show any difference among {comparisons} comparisons",
                    Pairs(*pairs)
                )?;
                match needed {
                    Some(needed) => write!(f, ", {needed} can"),
                    None => f.write_str(", and no number can"),
                }
            }
            Verdict::UnequalWork { pairs } => {
                write!(
                    f,
                    "no verdict: both kept the rate in {}, and {MIN_PAIRS} are needed",
                    Pairs(*pairs)
                )
            }
            Verdict::AaPassed { would_have_seen_percent: percent } => {
                write!(f, "A/A passed (would have seen {percent:.1} %)")
            }
            Verdict::AaFailed { winner } => {
                write!(f, "A/A failed, a false positive: {winner} ahead")
            }
            Verdict::Void { why } => write!(f, "void: {why}"),
        }
    }
}

/// A number of pairs, in words.
pub(crate) struct Pairs(pub(crate) usize);

impl std::fmt::Display for Pairs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pair{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// How many pairs would show a difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequiredPairs {
    /// The difference in percent.
    pub percent: f64,
    /// The pairs that find it with the power of [`POWER`](crate::statistics::POWER); none if it takes more than
    /// [`MAX_REQUIRED_PAIRS`](crate::statistics::MAX_REQUIRED_PAIRS).
    pub pairs: Option<usize>,
}
