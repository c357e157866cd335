//! Datagrams. Most rules run for several sets of socket options too, so that the slower ways of receiving and sending
//! (single-shot receives, one call per datagram) keep the same promises.

mod delivery;
mod dropping;
mod limits;
mod peers;

use crate::support::Rule;

pub(crate) const RULES: &[&[Rule]] = &[delivery::RULES, dropping::RULES, limits::RULES];
