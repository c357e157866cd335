//! The stage of a service, for all threads to see.

use std::sync::atomic::{AtomicU8, Ordering};

/// The stage of a service. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Some workers do not accept yet.
    Starting,
    /// All workers accept.
    Ready,
    /// At least one worker was asked to finish.
    Draining,
}

/// What the workers of a service share with other threads.
#[derive(Debug, Default)]
pub(crate) struct SharedStage {
    stage: AtomicU8,
}

impl SharedStage {
    pub(super) fn ready(&self) {
        self.stage.fetch_max(Stage::Ready as u8, Ordering::AcqRel);
    }

    pub(crate) fn begin_drain(&self) {
        self.stage.fetch_max(Stage::Draining as u8, Ordering::AcqRel);
    }

    pub(crate) fn get(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Ready,
            _ => Stage::Draining,
        }
    }
}
