//! The codings of a cached file that are made on the fly, and how far each is.

use super::encoding::Coding;
use super::mime::is_compressible;
use super::variant::Variant;
use std::cell::{Cell, OnceCell};
use std::ops::RangeInclusive;
use std::rc::Rc;
use twinring::fs::Metadata;

/// Files of these sizes are compressed, in bytes: below, a head weighs more than what is saved; above,
/// a compressor takes a second or more, and its input and output are in memory.
const COMPRESSED_BYTES: RangeInclusive<u64> = 1 << 10..=10 << 20;

/// A coding of a file that can be made.
#[derive(Debug)]
pub(super) struct Compressed {
    pub(super) coding: Coding,
    stage: Cell<Stage>,
    variant: OnceCell<Rc<Variant>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Untried,
    Running,
    /// It is there; or it is not used, for this version of the file: it would be larger than the
    /// file or than the cache allows, or the compressor failed.
    Done,
}

impl Compressed {
    /// Those of a file, in the order of preference, besides the precompressed ones.
    pub(super) fn of(
        codings: &[Coding],
        file: &Metadata,
        content_type: &str,
        is_there: impl Fn(Coding) -> bool,
    ) -> Vec<Compressed> {
        let mut all: Vec<Compressed> = Vec::new();
        if !COMPRESSED_BYTES.contains(&file.len) || !is_compressible(content_type) {
            return all;
        }
        for coding in codings.iter().copied() {
            if !is_there(coding) && !all.iter().any(|other| other.coding == coding) {
                let (stage, variant) = (Cell::new(Stage::Untried), OnceCell::new());
                all.push(Compressed { coding, stage, variant });
            }
        }
        all
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        self.stage.set(stage);
    }

    /// It was made; the first one is kept.
    pub(super) fn made(&self, variant: Variant) {
        let _first = self.variant.set(Rc::new(variant));
    }

    pub(super) fn variant(&self) -> Option<&Rc<Variant>> {
        self.variant.get()
    }

    pub(super) fn may_be_used(&self) -> bool {
        self.stage.get() != Stage::Done || self.variant.get().is_some()
    }
}
