//! Files. Most rules run for files of a disk, of memory and of "elsewhere", with the ring and with threads for what has
//! to wait: see `tree::Ground`.

mod opening;
mod reading;
mod sending;
pub(crate) mod tree;

use crate::support::Rule;

pub(crate) const RULES: &[&[Rule]] = &[opening::RULES, reading::RULES, sending::RULES];
