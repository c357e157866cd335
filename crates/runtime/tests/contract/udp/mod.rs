//! Datagrams. Most rules run for several sets of socket options too, so that the slower ways of receiving and sending
//! (single-shot receives, one call per datagram) keep the same promises.

mod ancillary;
mod dropping;
mod errors;
mod exhaustion;
mod modes;
mod peers;
mod reflecting;
mod segmentation;

use crate::support::Rule;

pub(crate) const RULES: &[&[Rule]] = &[
    ancillary::RULES,
    dropping::RULES,
    errors::RULES,
    exhaustion::RULES,
    modes::RULES,
    reflecting::RULES,
    segmentation::RULES,
];
