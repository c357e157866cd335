//! Settings that can be replaced while the service runs.
//!
//! A worker works with one generation of the settings: with them come the cache and the loads under
//! way, which number the sites of these settings. It takes the next generation with its next
//! request. Requests under way keep the previous one until their answer is built, so none is
//! answered by a mix of both.

use super::cache::{Cache, Loads};
use super::counters::{HostDurations, WorkerDurations};
use super::options::HttpSettings;
use crate::process::descriptor_limit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The settings of a running service, for all workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LiveSettings(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    current: RwLock<Arc<HttpSettings>>,
    replaced: AtomicU64,
    /// Reloads that replaced nothing.
    refused: AtomicU64,
}

impl LiveSettings {
    pub(super) fn new(settings: HttpSettings) -> LiveSettings {
        let current = RwLock::new(Arc::new(bounded(settings)));
        LiveSettings(Arc::new(Shared {
            current,
            replaced: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Replaces the settings, for later requests on all connections. The limits of connections, and
    /// how files are sent on existing connections, stay as they are.
    pub fn replace(&self, settings: HttpSettings) {
        let settings = Arc::new(bounded(settings));
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = settings;
        self.0.replaced.fetch_add(1, Ordering::Release);
    }

    /// Counts a reload that replaced nothing.
    pub fn refuse(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Reloads so far: those that replaced the settings, and the others.
    pub(super) fn reloads(&self) -> [u64; 2] {
        [self.replaced(), self.0.refused.load(Ordering::Relaxed)]
    }

    pub(super) fn replaced(&self) -> u64 {
        self.0.replaced.load(Ordering::Acquire)
    }

    /// The current generation, for one of `workers` workers, which measures these durations.
    pub(super) fn generation(
        &self,
        workers: usize,
        durations: Option<&WorkerDurations>,
    ) -> Generation {
        // In this order: a replacement in between is noticed by the next comparison.
        let number = self.replaced();
        let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner);
        let settings = Arc::clone(&current);
        drop(current);
        let (limits, sites) = (settings.cache, settings.sites.names().count());
        let cache = Cache::new(limits.bytes / workers, limits.files.div_ceil(workers), sites);
        let durations = durations.map(|durations| durations.of_sites(&settings.sites));
        let durations = durations.unwrap_or_default();
        Generation { number, settings, cache, loads: Loads::default(), durations }
    }
}

/// Half of the descriptors are for connections.
fn bounded(mut settings: HttpSettings) -> HttpSettings {
    let files_max = usize::try_from(descriptor_limit() / 2).unwrap_or(usize::MAX);
    settings.cache.files = settings.cache.files.min(files_max);
    settings
}

/// One state of the settings, with what depends on it.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) settings: Arc<HttpSettings>,
    pub(super) cache: Cache,
    pub(super) loads: Loads,
    /// Of each site, and of requests without one; empty if they are not measured.
    durations: Vec<Arc<HostDurations>>,
}

impl Generation {
    /// Where the durations of requests for a site, or for none, are counted.
    pub(super) fn durations(&self, site: Option<usize>) -> Option<&Arc<HostDurations>> {
        match site {
            Some(site) => self.durations.get(site),
            None => self.durations.last(),
        }
    }
}
