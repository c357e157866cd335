//! Datagrams. Most rules run for single-shot receives, too.

mod delivery;
mod dropping;
mod limits;
mod peers;

use crate::support::Rule;

pub(crate) const RULES: &[&[Rule]] = &[delivery::RULES, dropping::RULES, limits::RULES];
