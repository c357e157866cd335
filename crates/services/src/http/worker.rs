//! What the connections of a worker share: settings, cache, clock, counters; and how a path
//! becomes a resource with them.

use super::cache::Cache;
use super::counters::WorkerCounters;
use super::date::Clock;
use super::options::HttpSettings;
use super::resource::{Missing, Resource, find};
use super::session::Sessions;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use twinring::spawn;

/// See the module.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) settings: Arc<HttpSettings>,
    pub(super) cache: Cache,
    pub(super) clock: Clock,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) sessions: Rc<Sessions>,
    /// The service shuts down: every answer is the last one of its connection.
    pub(super) draining: Cell<bool>,
}

impl Worker {
    /// One of `workers`, which share the bounds of the cache.
    pub(super) fn new(
        settings: Arc<HttpSettings>,
        counters: Arc<WorkerCounters>,
        workers: usize,
    ) -> Rc<Worker> {
        let limits = settings.cache;
        Rc::new(Worker {
            cache: Cache::new(limits.bytes / workers, limits.files.div_ceil(workers)),
            clock: Clock::new(),
            counters,
            sessions: Rc::default(),
            draining: Cell::new(false),
            settings,
        })
    }

    /// What the cache has for a clean path, if it is not too old. In the second half of its time
    /// it is looked at anew, behind the answers, so what is asked for often never waits for that.
    pub(super) fn cached(self: &Rc<Worker>, path: &[u8]) -> Option<Rc<Resource>> {
        let resource = self.cache.get(path)?;
        let age = self.clock.now().saturating_duration_since(resource.checked.get());
        let valid = self.settings.cache.valid;
        if age >= valid {
            return None;
        }
        if age >= valid / 2 && !resource.refreshing.replace(true) {
            let (worker, path) = (Rc::clone(self), path.to_vec());
            spawn(async move {
                // What is missing now is missing for the next request too.
                let _resource = worker.load(&path).await;
            });
        }
        Some(resource)
    }

    /// What answers a clean path.
    pub(super) async fn resource(self: &Rc<Worker>, path: &[u8]) -> Result<Rc<Resource>, Missing> {
        if let Some(resource) = self.cached(path) {
            self.counters.cache_hits.add(1);
            return Ok(resource);
        }
        self.counters.cache_misses.add(1);
        let loaded = self.load(path).await;
        self.clock.tick();
        loaded
    }

    /// Asks the file system, and reads what has changed since it was asked last.
    async fn load(&self, path: &[u8]) -> Result<Rc<Resource>, Missing> {
        let asked = Instant::now();
        let loaded = self.load_asked_at(path, asked).await;
        if loaded.is_err() {
            self.cache.remove(path);
        }
        let (bytes, files) = self.cache.load();
        self.counters.cache_bytes.set(bytes as u64);
        self.counters.cache_files.set(files as u64);
        loaded
    }

    async fn load_asked_at(&self, path: &[u8], asked: Instant) -> Result<Rc<Resource>, Missing> {
        let found = find(&self.settings, path).await?;
        if let Some(known) = self.cache.get(path)
            && known.is_of(&found, &self.clock)
        {
            known.checked.set(asked.max(known.checked.get()));
            known.refreshing.set(false);
            return Ok(known);
        }
        self.counters.cache_loads.add(1);
        let resource = Resource::load(&self.settings, found, asked, &self.clock).await?;
        let resource = Rc::new(resource);
        // Somebody who asked later may have been quicker.
        match self.cache.get(path) {
            Some(newer) if newer.checked.get() > asked => Ok(newer),
            _ => {
                self.cache.insert(path, &resource);
                Ok(resource)
            }
        }
    }
}
