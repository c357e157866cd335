//! What the connections of a worker share: settings, cache, clock, counters; and how a path
//! becomes a resource with them.

use super::access_log::WorkerLog;
use super::cache::Cache;
use super::connection::Connection;
use super::counters::WorkerCounters;
use super::date::Clock;
use super::index::Listings;
use super::inflight::{InflightLoads, Outcome};
use super::observer::SharedStage;
use super::options::HttpSettings;
use super::resource::{Missing, Resource, find};
use super::service::Http;
use crate::server::{ConnectionLimiter, Connections};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::spawn;

/// An open file that nobody asks for is closed after this time, or at most twice as long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) settings: Arc<HttpSettings>,
    pub(super) cache: Cache,
    inflight: InflightLoads,
    pub(super) listings: Listings,
    pub(super) clock: Clock,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) connections: Rc<Connections<Connection>>,
    pub(super) log: Option<Rc<WorkerLog>>,
    pub(super) stage: Arc<SharedStage>,
    /// The service shuts down: every answer is the last one of its connection.
    pub(super) draining: Cell<bool>,
    /// When it was last looked for files that nobody asks for.
    looked_for_forgotten: Cell<Instant>,
}

impl Worker {
    /// Number `number` of the workers of `http`, which share the bounds of the cache.
    pub(super) fn new(http: &Http, number: usize) -> Worker {
        let (limits, sites) = (http.settings.cache, http.settings.sites.count());
        let workers = http.counters.len();
        let log = http.log.as_ref().and_then(|log| log.of_worker(number));
        Worker {
            settings: Arc::clone(&http.settings),
            cache: Cache::new(limits.bytes / workers, limits.files.div_ceil(workers), sites),
            inflight: InflightLoads::default(),
            listings: Listings::default(),
            clock: Clock::new(),
            counters: Arc::clone(&http.counters[number]),
            limiter: Arc::clone(&http.limiter),
            connections: Connections::new(),
            log: log.map(Rc::new),
            stage: Arc::clone(&http.stage),
            draining: Cell::new(false),
            looked_for_forgotten: Cell::new(Instant::now()),
        }
    }

    /// What the cache has for a clean path of a site, if it is not too old. In the second half of its time
    /// it is looked at anew, behind the answers, so what is asked for often never waits for that.
    pub(super) fn cached(self: &Rc<Worker>, site: usize, path: &[u8]) -> Option<Rc<Resource>> {
        let resource = self.cache.get(site, path)?;
        let age = self.clock.now().saturating_duration_since(resource.checked.get());
        let valid = self.settings.cache.valid;
        if age >= valid {
            return None;
        }
        if age >= valid / 2 && !resource.refreshing.replace(true) {
            let (worker, path) = (Rc::clone(self), path.to_vec());
            spawn(async move {
                // What is missing now is missing for the next request too.
                let _resource = worker.load(site, &path).await;
            });
        }
        Some(resource)
    }

    /// What answers a clean path of a site. Those who ask while it is read wait for that.
    pub(super) async fn resource(self: &Rc<Worker>, site: usize, path: &[u8]) -> Outcome {
        if let Some(resource) = self.cached(site, path) {
            self.counters.cache_hits.add(1);
            return Ok(resource);
        }
        let valid = self.settings.cache.valid;
        match self.inflight.join(site, path, valid).await {
            Some(outcome) => {
                self.counters.cache_misses.add(1);
                self.clock.tick();
                outcome
            }
            None => self.resource_anew(site, path).await,
        }
    }

    /// The same, asked of the file system from now on.
    pub(super) async fn resource_anew(&self, site: usize, path: &[u8]) -> Outcome {
        self.counters.cache_misses.add(1);
        let outcome = self.inflight.lead(site, path, Instant::now(), self.load(site, path)).await;
        self.clock.tick();
        outcome
    }

    /// Asks the file system, and reads what has changed since it was asked last.
    async fn load(&self, site: usize, path: &[u8]) -> Outcome {
        let asked = Instant::now();
        let mut loaded = self.load_asked_at(site, path, asked).await;
        if matches!(loaded, Err(Missing::Exhausted)) && self.cache.forget_all_files() {
            loaded = self.load_asked_at(site, path, asked).await;
        }
        if loaded.is_err() {
            self.cache.remove(site, path);
        }
        self.count_cache();
        loaded
    }

    fn count_cache(&self) {
        // What is open now is to be closed some day.
        self.connections.activity().note();
        let (bytes, files) = self.cache.load();
        self.counters.cache_bytes.set(bytes as u64);
        self.counters.cache_files.set(files as u64);
    }

    /// Closes files that nobody asks for any more. To be called every now and then while there are open
    /// ones: returns when to do so again.
    pub(super) fn close_forgotten_files(&self) -> Option<Instant> {
        if self.looked_for_forgotten.get().elapsed() >= FORGOTTEN_AFTER {
            self.looked_for_forgotten.set(Instant::now());
            self.cache.forget_unwanted_files();
            self.count_cache();
        }
        let (_, files) = self.cache.load();
        (files > 0).then(|| self.looked_for_forgotten.get() + FORGOTTEN_AFTER)
    }

    async fn load_asked_at(&self, site: usize, path: &[u8], asked: Instant) -> Outcome {
        let files = self.settings.sites.site(site);
        let found = find(files, path).await?;
        if let Some(known) = self.cache.get(site, path)
            && known.is_of(&found, &self.clock)
        {
            known.checked.set(asked.max(known.checked.get()));
            known.refreshing.set(false);
            return Ok(known);
        }
        self.counters.cache_loads.add(1);
        let above = self.settings.sendfile_above;
        let resource = Rc::new(Resource::load(files, above, found, asked, &self.clock).await?);
        // Somebody who asked later may have been quicker.
        match self.cache.get(site, path) {
            Some(newer) if newer.checked.get() > asked => Ok(newer),
            _ => {
                self.cache.insert(site, path, &resource);
                Ok(resource)
            }
        }
    }
}
