//! A run as the summary sees it.

use super::figures::{Figures, Read};
use crate::audit::Kind;
use crate::record::RunRecord;

/// A run with what was made of it.
pub(super) struct Judged<'a> {
    pub(super) run: &'a RunRecord,
    pub(super) read: Option<Read>,
    /// The first rule by which it is void, and the first that excludes its block.
    pub(super) void: Option<Kind>,
    pub(super) noise: Option<Kind>,
    /// Something disturbed it, and its block with it.
    pub(super) disturbed: bool,
    /// Packets were sent and none came back.
    pub(super) unanswered: bool,
}

impl Judged<'_> {
    pub(super) fn figures(&self) -> Option<&Figures> {
        self.read.as_ref().map(|read| &read.figures)
    }

    /// Whether it counts unless something disturbed its block.
    pub(super) fn can_count(&self) -> bool {
        self.void.is_none() && (self.read.is_some() || self.unanswered)
    }
}
