//! The cache of a worker: answers ready to be sent, within bounds of memory and of open files; and the loads of files
//! under way, of which concurrent requests for one file share one.
//!
//! It evicts by second chance: the entries form a circle. When space is needed, the hand passes
//! over each entry that was used since its last visit, and evicts the first that was not. An entry
//! larger than an eighth of the cache is not kept, so one file cannot empty the cache.

use super::resource::{Missing, Resource};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// The cost of an entry besides its resource and key: the slots in map and circle, and the
/// allocator's overhead, rounded up.
const ENTRY_BYTES: usize = 256;

#[derive(Debug)]
struct Entry {
    resource: Rc<Resource>,
    bytes: usize,
    files: usize,
    /// Since the hand came by, or unused files were closed.
    used: Cell<bool>,
}

#[derive(Debug)]
pub(super) struct Cache {
    bytes_max: usize,
    files_max: usize,
    entries: RefCell<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_site: Vec<HashMap<Rc<[u8]>, Entry>>,
    /// Sites and paths; the hand points at the first.
    circle: VecDeque<(usize, Rc<[u8]>)>,
    bytes: usize,
    files: usize,
}

impl Cache {
    pub(super) fn new(bytes_max: usize, files_max: usize, sites: usize) -> Cache {
        let by_site = (0..sites).map(|_| HashMap::new()).collect();
        Cache { bytes_max, files_max, entries: Entries { by_site, ..Entries::default() }.into() }
    }

    /// The entry for a clean path of a site, regardless of its age.
    pub(super) fn get(&self, site: usize, path: &[u8]) -> Option<Rc<Resource>> {
        let entries = self.entries.borrow();
        let entry = entries.by_site[site].get(path)?;
        entry.used.set(true);
        Some(Rc::clone(&entry.resource))
    }

    pub(super) fn holds(&self, site: usize, path: &[u8], resource: &Rc<Resource>) -> bool {
        self.get(site, path).is_some_and(|held| Rc::ptr_eq(&held, resource))
    }

    pub(super) fn fits(&self, path: &[u8], resource_bytes: usize) -> bool {
        resource_bytes + path.len() + ENTRY_BYTES <= self.bytes_max / 8
    }

    /// Stores a resource, replacing the entry of its path, if it fits at all.
    pub(super) fn insert(&self, site: usize, path: &[u8], resource: &Rc<Resource>) {
        let bytes = resource.bytes() + path.len() + ENTRY_BYTES;
        let files = resource.files();
        let mut entries = self.entries.borrow_mut();
        entries.remove(site, path);
        if !self.fits(path, resource.bytes()) || files > self.files_max {
            return;
        }
        entries.make_room(self.bytes_max - bytes, self.files_max - files);
        let path: Rc<[u8]> = path.into();
        entries.bytes += bytes;
        entries.files += files;
        entries.circle.push_back((site, Rc::clone(&path)));
        let entry = Entry { resource: Rc::clone(resource), bytes, files, used: Cell::new(false) };
        entries.by_site[site].insert(path, entry);
    }

    /// Closes open files that were not requested since the last call: a deleted file would keep its
    /// space on the disk.
    pub(super) fn forget_unwanted_files(&self) {
        self.entries.borrow_mut().forget(|entry| entry.files > 0 && !entry.used.take());
    }

    /// Closes all open files, to free descriptors; false if there are none.
    pub(super) fn forget_all_files(&self) -> bool {
        let had_files = self.entries.borrow().files > 0;
        self.entries.borrow_mut().forget(|entry| entry.files > 0);
        had_files
    }

    pub(super) fn remove(&self, site: usize, path: &[u8]) {
        self.entries.borrow_mut().remove(site, path);
    }

    pub(super) fn load(&self) -> (usize, usize) {
        let entries = self.entries.borrow();
        (entries.bytes, entries.files)
    }
}

impl Entries {
    fn remove(&mut self, site: usize, path: &[u8]) {
        if self.take(site, path) {
            self.circle.retain(|(other, of_path)| (*other, &**of_path) != (site, path));
        }
    }

    /// Removes an entry, but leaves its path in the circle.
    fn take(&mut self, site: usize, path: &[u8]) -> bool {
        let Some(entry) = self.by_site[site].remove(path) else { return false };
        self.bytes -= entry.bytes;
        self.files -= entry.files;
        true
    }

    /// Moves the hand on until no more than this is in use.
    fn make_room(&mut self, bytes_max: usize, files_max: usize) {
        while self.bytes > bytes_max || self.files > files_max {
            let Some((site, path)) = self.circle.pop_front() else { return };
            match self.by_site[site].get(&path) {
                Some(entry) if entry.used.take() => self.circle.push_back((site, path)),
                _ => drop(self.take(site, &path)),
            }
        }
    }

    fn forget(&mut self, is_forgotten: impl Fn(&Entry) -> bool) {
        let Entries { by_site, circle, bytes, files } = self;
        for entry in by_site.iter_mut().flat_map(|it| it.extract_if(|_, it| is_forgotten(it))) {
            *bytes -= entry.1.bytes;
            *files -= entry.1.files;
        }
        circle.retain(|(site, path)| by_site[*site].contains_key(path));
    }
}

pub(super) type Loaded = Result<Rc<Resource>, Missing>;

/// The files that one worker is reading: at most one for each request. One that nobody waits for any more is forgotten
/// before the map would grow.
#[derive(Debug, Default)]
pub(super) struct Loads(RefCell<HashMap<Key, Weak<Load>>>);

type Key = (usize, Rc<[u8]>);

#[derive(Debug)]
struct Load {
    began: Instant,
    outcome: OnceCell<Loaded>,
}

impl Loads {
    /// The outcome of `read`, or of another load of this path of a site that began less than `valid` ago. If the
    /// one who reads is dropped, one of those who wait reads in its place.
    pub(super) async fn share(
        &self,
        site: usize,
        path: &[u8],
        valid: Duration,
        read: impl AsyncFnOnce() -> Loaded,
    ) -> Loaded {
        let key: Key = (site, Rc::from(path));
        let is_current =
            |load: &Rc<Load>| !load.outcome.initialized() && load.began.elapsed() < valid;
        let known = self.0.borrow().get(&key).and_then(Weak::upgrade).filter(is_current);
        let load = known.unwrap_or_else(|| {
            let load = Rc::new(Load { began: Instant::now(), outcome: OnceCell::new() });
            let mut loads = self.0.borrow_mut();
            if loads.len() == loads.capacity() {
                loads.retain(|_, load| load.strong_count() > 0);
            }
            loads.insert(key, Rc::downgrade(&load));
            load
        });
        load.outcome.get_or_init(|| Box::pin(read())).await.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn resource(bytes: usize) -> Rc<Resource> {
        Rc::new(Resource::of_size(bytes))
    }

    #[test]
    fn used_entries_stay_and_unused_ones_are_evicted() {
        let cache = Cache::new(16 * 1024, 0, 1);
        let one = resource(0).bytes() + 2 + ENTRY_BYTES;
        for number in 0..16 * 1024 / one {
            cache.insert(0, format!("{number:02}").as_bytes(), &resource(0));
        }
        assert!(cache.get(0, b"00").is_some());
        cache.insert(0, b"new", &resource(0));
        assert!(cache.get(0, b"00").is_some(), "used since the hand came by");
        assert!(cache.get(0, b"01").is_none(), "the first that was not used");
        assert!(cache.get(0, b"02").is_some() && cache.get(0, b"new").is_some());
        cache.insert(0, b"huge", &resource(4 * 1024));
        assert!(cache.get(0, b"huge").is_none(), "larger than an eighth of the whole");
    }

    #[test]
    fn unused_open_files_are_closed() {
        let cache = Cache::new(16 * 1024, 3, 2);
        for (site, path) in [(0, b"/a"), (0, b"/b"), (1, b"/a")] {
            cache.insert(site, path, &resource(0));
        }
        {
            let mut entries = cache.entries.borrow_mut();
            entries.files = 2;
            for site in 0..2 {
                let entry = entries.by_site[site].get_mut(&b"/a"[..]).unwrap();
                (entry.files, entry.used) = (1, true.into());
            }
        }
        cache.forget_unwanted_files();
        assert!(cache.get(0, b"/a").is_some());
        cache.forget_unwanted_files();
        assert!(cache.get(0, b"/a").is_some() && cache.get(1, b"/a").is_none());
        assert!(cache.get(0, b"/b").is_some(), "in memory only");
        assert_eq!((cache.load().1, cache.entries.borrow().circle.len()), (1, 2));
        assert!(cache.forget_all_files() && !cache.forget_all_files());
        assert_eq!(cache.load().1, 0);
    }

    const VALID: Duration = Duration::from_secs(60);

    #[test]
    fn concurrent_requests_share_one_load_and_others_do_not() {
        let loads = Loads::default();
        let mut cx = Context::from_waker(Waker::noop());
        let may_end = std::cell::Cell::new(false);
        let nothing = || Poll::Ready(Err(Missing::Nothing));
        let read = poll_fn(|_| if may_end.get() { nothing() } else { Poll::Pending });
        let mut leads = pin!(loads.share(1, b"/x", VALID, async || read.await));
        assert!(leads.as_mut().poll(&mut cx).is_pending());
        let mut joins = pin!(loads.share(1, b"/x", VALID, async || unreachable!("it joins")));
        assert!(joins.as_mut().poll(&mut cx).is_pending());
        for (site, path, valid) in
            [(0, &b"/x"[..], VALID), (1, b"/y", VALID), (1, b"/x", Duration::ZERO)]
        {
            let own = pin!(loads.share(site, path, valid, async || Err(Missing::Index)));
            assert!(matches!(own.poll(&mut cx), Poll::Ready(Err(Missing::Index))));
        }
        may_end.set(true);
        assert!(matches!(leads.poll(&mut cx), Poll::Ready(Err(Missing::Nothing))));
        assert!(matches!(joins.poll(&mut cx), Poll::Ready(Err(Missing::Nothing))));
        let own = pin!(loads.share(1, b"/x", VALID, async || Err(Missing::Index)));
        assert!(matches!(own.poll(&mut cx), Poll::Ready(Err(Missing::Index))), "the other is over");
    }

    #[test]
    fn one_who_waits_takes_the_place_of_a_reader_that_is_dropped() {
        let loads = Loads::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut leads = Box::pin(loads.share(0, b"/x", VALID, async || pending().await));
        assert!(leads.as_mut().poll(&mut cx).is_pending());
        let mut joins = Box::pin(loads.share(0, b"/x", VALID, async || Err(Missing::Index)));
        assert!(joins.as_mut().poll(&mut cx).is_pending());
        drop(leads);
        assert!(matches!(joins.as_mut().poll(&mut cx), Poll::Ready(Err(Missing::Index))));
        for number in 0..1000_u32 {
            let path = number.to_be_bytes();
            let mut leads = Box::pin(loads.share(0, &path, VALID, async || pending().await));
            assert!(leads.as_mut().poll(&mut cx).is_pending());
        }
        assert!(loads.0.borrow().len() < 10, "nobody waits for them");
    }
}
