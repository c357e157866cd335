//! The service as seen from other threads.

use super::access_log::AccessLog;
use super::counters::{HttpCounters, WorkerCounters};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;
use twinring::{Engine, Handle};

/// The stage of the service. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Starting,
    /// All workers accept.
    Ready,
    /// At least one worker was asked to finish.
    Draining,
}

/// The stage, for all threads to see.
#[derive(Debug, Default)]
pub(super) struct SharedStage(AtomicU8);

impl SharedStage {
    pub(super) fn advance_to(&self, stage: Stage) {
        self.0.fetch_max(stage as u8, Ordering::AcqRel);
    }

    fn get(&self) -> Stage {
        match self.0.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Ready,
            _ => Stage::Draining,
        }
    }
}

/// Reads the counters and the stage of the service. It outlives the service.
#[derive(Clone)]
pub struct Observer {
    pub(super) workers: Vec<Arc<WorkerCounters>>,
    pub(super) log: Option<AccessLog>,
    pub(super) handle: Handle,
    pub(super) engine: Engine,
    pub(super) stage: Arc<SharedStage>,
    pub(super) started: SystemTime,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("stage", &self.stage.get()).finish_non_exhaustive()
    }
}

impl Observer {
    /// The counters, over all workers.
    pub fn counters(&self) -> HttpCounters {
        let mut sum = HttpCounters::sum(self.workers.iter().map(|worker| &**worker));
        if let Some(log) = &self.log {
            let lines = log.counts();
            (sum.log_lines, sum.log_dropped) = (lines.written, lines.dropped);
        }
        sum
    }

    /// True from when all workers accept until one is asked to finish.
    pub fn is_ready(&self) -> bool {
        self.stage.get() == Stage::Ready
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }
}
