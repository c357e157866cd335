//! The service as seen from other threads.

use super::access_log::AccessLog;
use super::admin::Pages;
use super::counters::{HttpCounters, WorkerCounters};
use super::durations::WorkerDurations;
use super::generation::LiveSettings;
use super::metrics;
use crate::server::{SharedStage, Stage};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;
use twinring::Handle;

/// Reads the counters and the stage of the service. It outlives the service.
#[derive(Clone)]
pub struct Observer {
    pub(super) workers: Vec<Arc<WorkerCounters>>,
    pub(super) durations: Vec<Arc<WorkerDurations>>,
    pub(super) log: Option<AccessLog>,
    pub(super) handle: Handle,
    pub(super) engine: String,
    pub(super) stage: Arc<SharedStage>,
    pub(super) started: SystemTime,
    pub(super) settings: LiveSettings,
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
}

impl Pages for Observer {
    fn stage(&self) -> Stage {
        self.stage.get()
    }

    fn metrics(&self) -> String {
        metrics::render(self)
    }
}
