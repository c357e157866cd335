//! The state that the connections of a worker share: settings, cache, clock, counters; and the lookup of a path.
//!
//! A worker works with one generation of the settings, which can be replaced while the service runs: with them come the
//! cache and the loads under way, which number the sites of these settings. It takes the next generation with its next
//! request. Requests under way keep the previous one until their answer is built, so none is answered by a mix of both.

use super::access_log::AccessLog;
use super::cache::{Cache, Loaded, Loads};
use super::counters::{HostDurations, WorkerCounters, WorkerDurations};
use super::date::Clock;
use super::index::Listings;
use super::metrics::Observer;
use super::options::HttpSettings;
use super::resource::{Resource, find};
use crate::server::{ConnectionLimiter, Connections};
use crate::{descriptor_limit, lock};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use twinring::spawn;

/// The time between two checks for open files that are not used any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

type TellError = Arc<dyn Fn(String) + Send + Sync>;

/// What all workers of a service share, with a copy for each; see [`HttpService`](crate::http::HttpService).
#[derive(Clone)]
pub struct Http {
    pub(super) settings: Arc<LiveSettings>,
    pub(super) counters: Vec<Arc<WorkerCounters>>,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) log: Option<Arc<AccessLog>>,
    pub(super) errors: Option<TellError>,
    /// Of each worker; none if they are not measured.
    pub(super) durations: Vec<Arc<WorkerDurations>>,
    /// Answers, if there are no sites.
    pub(super) observer: Option<Observer>,
}

pub(super) struct Worker {
    pub(super) http: Http,
    current: RefCell<Rc<Generation>>,
    pub(super) number: usize,
    pub(super) listings: Listings,
    pub(super) clock: Clock,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) connections: Rc<Connections>,
    /// The service shuts down: every answer is the last one of its connection.
    pub(super) draining: Cell<bool>,
    looked_for_forgotten: Cell<Instant>,
}

impl Worker {
    /// Number `number` of the workers of `http`, which share the bounds of the cache.
    pub(super) fn new(http: &Http, number: usize) -> Worker {
        Worker {
            http: http.clone(),
            current: RefCell::new(Rc::new(http.generation(number))),
            number,
            listings: Listings::default(),
            clock: Clock::new(),
            counters: Arc::clone(&http.counters[number]),
            connections: Rc::default(),
            draining: Cell::new(false),
            looked_for_forgotten: Cell::new(Instant::now()),
        }
    }

    pub(super) fn is_observed(&self) -> bool {
        self.http.log.is_some() || !self.http.durations.is_empty()
    }

    pub(super) fn generation(&self) -> Rc<Generation> {
        let mut current = self.current.borrow_mut();
        if current.number != self.http.settings.number() {
            *current = Rc::new(self.http.generation(self.number));
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
        let valid = generation.settings.cache_valid;
        let age = self.clock.now().saturating_duration_since(resource.checked.get());
        if age >= valid {
            return None;
        }
        if age >= valid / 2 && !resource.refreshing.replace(true) {
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
    ) -> Loaded {
        self.counters.cache_misses.add(1);
        let load = async || self.load(generation, site, path).await;
        let outcome = generation.loads.share(site, path, valid, load).await;
        self.clock.tick();
        outcome
    }

    async fn load(&self, generation: &Generation, site: usize, path: &[u8]) -> Loaded {
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
        self.connections.activity.note();
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
    ) -> Loaded {
        let Generation { settings, cache, .. } = generation;
        let files = settings.sites.site(site);
        let found = find(files, path).await?;
        if let Some(known) = cache.get(site, path)
            && known.is_of(&found, &self.clock)
        {
            known.mark_checked(asked);
            return Ok(known);
        }
        self.counters.cache_loads.add(1);
        let above = settings.sendfile_above;
        let resource =
            Rc::new(Resource::load(files, path, above, found, asked, &self.clock).await?);
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

/// The settings of a running service, for all workers.
#[derive(Debug)]
pub struct LiveSettings {
    current: Mutex<Arc<HttpSettings>>,
    replaced: AtomicU64,
    refused: AtomicU64,
}

impl LiveSettings {
    pub(super) fn new(settings: HttpSettings) -> LiveSettings {
        let current = Mutex::new(Arc::new(bounded(settings)));
        LiveSettings { current, replaced: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// Replaces the settings, for later requests on all connections. The limits of connections, and
    /// how files are sent on existing connections, stay as they are.
    pub fn replace(&self, settings: HttpSettings) {
        let settings = Arc::new(bounded(settings));
        *lock(&self.current) = settings;
        self.replaced.fetch_add(1, Ordering::Release);
    }

    /// Counts a reload that replaced nothing.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Reloads so far: those that replaced the settings, and the others.
    pub(super) fn reloads(&self) -> [u64; 2] {
        [self.number(), self.refused.load(Ordering::Relaxed)]
    }

    fn number(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }
}

impl Http {
    /// The current generation, for this worker.
    fn generation(&self, worker: usize) -> Generation {
        // In this order: a replacement in between is noticed by the next comparison.
        let number = self.settings.number();
        let settings = Arc::clone(&lock(&self.settings.current));
        let workers = self.counters.len();
        let (bytes, files) =
            (settings.cache_bytes / workers, settings.cache_files.div_ceil(workers));
        let cache = Cache::new(bytes, files, settings.sites.names().count());
        let durations = self.durations.get(worker);
        let durations = durations.map(|durations| durations.of_sites(&settings.sites));
        let (loads, durations) = (Loads::default(), durations.unwrap_or_default());
        Generation { number, settings, cache, loads, durations }
    }
}

/// Half of the descriptors are for connections.
fn bounded(mut settings: HttpSettings) -> HttpSettings {
    let files_max = usize::try_from(descriptor_limit() / 2).unwrap_or(usize::MAX);
    settings.cache_files = settings.cache_files.min(files_max);
    settings
}

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
