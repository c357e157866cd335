//! The state that the connections of a worker share: settings, cache, clock, counters; and the
//! lookup of a path.

use super::access_log::AccessLog;
use super::cache::Outcome;
use super::connection::Connection;
use super::counters::{WorkerCounters, WorkerDurations};
use super::date::Clock;
use super::generation::{Generation, LiveSettings};
use super::index::Listings;
use super::resource::{Resource, find};
use crate::server::{ConnectionLimiter, Connections};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinring::spawn;

/// An unused open file is closed after this time, or at most twice as long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// Takes lines that say why an answer is no success.
type TellError = Arc<dyn Fn(String) + Send + Sync>;

/// What all workers of a service share; see [`HttpService`](crate::http::HttpService).
pub struct Http {
    pub(super) settings: LiveSettings,
    pub(super) counters: Vec<Arc<WorkerCounters>>,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) log: Option<AccessLog>,
    pub(super) errors: Option<TellError>,
    /// Of each worker; none if they are not measured.
    pub(super) durations: Vec<Arc<WorkerDurations>>,
}

pub(super) struct Worker {
    live: LiveSettings,
    current: RefCell<Rc<Generation>>,
    pub(super) number: usize,
    workers: usize,
    pub(super) listings: Listings,
    pub(super) clock: Clock,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) connections: Rc<Connections<Connection>>,
    pub(super) log: Option<AccessLog>,
    /// Reasons of answers that are no success.
    pub(super) errors: Option<TellError>,
    /// Durations are measured, and these are the ones of this worker.
    pub(super) durations: Option<Arc<WorkerDurations>>,
    /// The service shuts down: every answer is the last one of its connection.
    pub(super) draining: Cell<bool>,
    /// When unused files were last closed.
    looked_for_forgotten: Cell<Instant>,
}

impl Worker {
    /// Number `number` of the workers of `http`, which share the bounds of the cache.
    pub(super) fn new(http: &Http, number: usize) -> Worker {
        let workers = http.counters.len();
        let durations = http.durations.get(number).cloned();
        let generation = http.settings.generation(workers, durations.as_deref());
        Worker {
            live: http.settings.clone(),
            current: RefCell::new(Rc::new(generation)),
            number,
            workers,
            listings: Listings::default(),
            clock: Clock::new(),
            counters: Arc::clone(&http.counters[number]),
            limiter: Arc::clone(&http.limiter),
            connections: Connections::new(),
            log: http.log.clone(),
            errors: http.errors.clone(),
            durations,
            draining: Cell::new(false),
            looked_for_forgotten: Cell::new(Instant::now()),
        }
    }

    /// Somebody reads how exchanges end.
    pub(super) fn is_observed(&self) -> bool {
        self.log.is_some() || self.durations.is_some()
    }

    /// The current settings and what belongs to them.
    pub(super) fn generation(&self) -> Rc<Generation> {
        let mut current = self.current.borrow_mut();
        if current.number != self.live.replaced() {
            let durations = self.durations.as_deref();
            *current = Rc::new(self.live.generation(self.workers, durations));
        }
        Rc::clone(&current)
    }

    /// The cached resource of a clean path of a site, if it is not too old. In the second half of
    /// its lifetime it is refreshed, behind the answers, so requests for popular files never wait
    /// for that.
    pub(super) fn cached(
        self: &Rc<Worker>,
        generation: &Rc<Generation>,
        site: usize,
        path: &[u8],
    ) -> Option<Rc<Resource>> {
        let resource = generation.cache.get(site, path)?;
        let now = self.clock.now();
        if now >= resource.expires.get() {
            return None;
        }
        if now >= resource.due.get() && !resource.refreshing.replace(true) {
            let (worker, path) = (Rc::clone(self), path.to_vec());
            let generation = Rc::clone(generation);
            spawn(async move {
                // A missing file is reported to the next request too.
                let _resource = worker.load(&generation, site, &path).await;
            });
        }
        Some(resource)
    }

    /// The resource of a clean path of a site, checked in the file system less than `valid` ago. Concurrent
    /// requests share one load.
    pub(super) async fn resource(
        &self,
        generation: &Generation,
        site: usize,
        path: &[u8],
        valid: Duration,
    ) -> Outcome {
        self.counters.cache_misses.add(1);
        let load = self.load(generation, site, path);
        let outcome = generation.loads.share(site, path, valid, load).await;
        self.clock.tick();
        outcome
    }

    /// Checks the file system, and reads the file if it has changed.
    async fn load(&self, generation: &Generation, site: usize, path: &[u8]) -> Outcome {
        let asked = Instant::now();
        let mut loaded = self.load_asked_at(generation, site, path, asked).await;
        if loaded.as_ref().is_err_and(|missing| missing.is_exhausted())
            && generation.cache.forget_all_files()
        {
            loaded = self.load_asked_at(generation, site, path, asked).await;
        }
        if loaded.is_err() {
            generation.cache.remove(site, path);
        }
        self.count_cache();
        loaded
    }

    pub(super) fn count_cache(&self) {
        // An open file must be closed some day.
        self.connections.activity().note();
        let (bytes, files) = self.current.borrow().cache.load();
        self.counters.cache_bytes.set(bytes as u64);
        self.counters.cache_files.set(files as u64);
    }

    /// Closes unused files. Call it periodically while there are open files: returns the time of
    /// the next call.
    pub(super) fn close_forgotten_files(&self) -> Option<Instant> {
        if self.looked_for_forgotten.get().elapsed() >= FORGOTTEN_AFTER {
            self.looked_for_forgotten.set(Instant::now());
            self.generation().cache.forget_unwanted_files();
            self.count_cache();
        }
        let (_, files) = self.current.borrow().cache.load();
        (files > 0).then(|| self.looked_for_forgotten.get() + FORGOTTEN_AFTER)
    }

    async fn load_asked_at(
        &self,
        generation: &Generation,
        site: usize,
        path: &[u8],
        asked: Instant,
    ) -> Outcome {
        let Generation { settings, cache, .. } = generation;
        let files = settings.sites.site(site);
        let found = find(files, path).await?;
        if let Some(known) = cache.get(site, path)
            && known.is_of(&found, &self.clock)
        {
            known.mark_checked(asked, settings.cache.valid);
            return Ok(known);
        }
        self.counters.cache_loads.add(1);
        let above = settings.sendfile_above;
        let resource =
            Rc::new(Resource::load(files, path, above, found, asked, &self.clock).await?);
        resource.mark_checked(asked, settings.cache.valid);
        // A later request may have finished earlier.
        match cache.get(site, path) {
            Some(newer) if newer.checked.get() > asked => Ok(newer),
            _ => {
                cache.insert(site, path, &resource);
                Ok(resource)
            }
        }
    }
}
