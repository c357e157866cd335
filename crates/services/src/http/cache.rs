//! The cache of a worker: answers that are ready to be sent, within a bound of memory and of open
//! files.
//!
//! It evicts by second chance: entries stand in a circle, and when room is needed, the hand passes
//! over each that was used since it came by last, and takes the first that was not. An entry that
//! is larger than an eighth of the whole is not kept, so one file cannot empty the cache.

use super::resource::Resource;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// What an entry costs beside its resource and its key: the slots in map and circle, and what the
/// allocator adds, rounded up.
const ENTRY_BYTES: usize = 256;

#[derive(Debug)]
struct Entry {
    resource: Rc<Resource>,
    bytes: usize,
    files: usize,
    used: Cell<bool>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Cache {
    bytes_max: usize,
    files_max: usize,
    entries: RefCell<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_path: HashMap<Rc<[u8]>, Entry>,
    /// The paths, the one the hand points at first.
    circle: VecDeque<Rc<[u8]>>,
    bytes: usize,
    files: usize,
}

impl Cache {
    /// A cache for so much memory and so many open files.
    pub(super) fn new(bytes_max: usize, files_max: usize) -> Cache {
        Cache { bytes_max, files_max, entries: RefCell::default() }
    }

    /// What is kept for a clean path, whatever its age.
    pub(super) fn get(&self, path: &[u8]) -> Option<Rc<Resource>> {
        let entries = self.entries.borrow();
        let entry = entries.by_path.get(path)?;
        entry.used.set(true);
        Some(Rc::clone(&entry.resource))
    }

    /// Keeps a resource, in place of what was kept for its path, if there is room for it at all.
    pub(super) fn insert(&self, path: &[u8], resource: &Rc<Resource>) {
        let bytes = resource.bytes() + path.len() + ENTRY_BYTES;
        let files = resource.files();
        let mut entries = self.entries.borrow_mut();
        entries.remove(path);
        if bytes > self.bytes_max / 8 || files > self.files_max {
            return;
        }
        entries.make_room(self.bytes_max - bytes, self.files_max - files);
        let path: Rc<[u8]> = path.into();
        entries.bytes += bytes;
        entries.files += files;
        entries.circle.push_back(Rc::clone(&path));
        let resource = Rc::clone(resource);
        entries.by_path.insert(path, Entry { resource, bytes, files, used: Cell::new(false) });
    }

    /// Forgets what is kept for a path.
    pub(super) fn remove(&self, path: &[u8]) {
        self.entries.borrow_mut().remove(path);
    }

    /// Memory and open files in use.
    pub(super) fn load(&self) -> (usize, usize) {
        let entries = self.entries.borrow();
        (entries.bytes, entries.files)
    }
}

impl Entries {
    fn remove(&mut self, path: &[u8]) {
        if self.take(path) {
            self.circle.retain(|other| **other != *path);
        }
    }

    /// Takes an entry out, but leaves its path in the circle.
    fn take(&mut self, path: &[u8]) -> bool {
        let Some(entry) = self.by_path.remove(path) else { return false };
        self.bytes -= entry.bytes;
        self.files -= entry.files;
        true
    }

    /// Moves the hand on until no more than this is in use.
    fn make_room(&mut self, bytes_max: usize, files_max: usize) {
        while self.bytes > bytes_max || self.files > files_max {
            let Some(path) = self.circle.pop_front() else { return };
            match self.by_path.get(&path) {
                Some(entry) if entry.used.take() => self.circle.push_back(path),
                _ => drop(self.take(&path)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resource(bytes: usize) -> Rc<Resource> {
        Rc::new(Resource::of_size(bytes))
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_makes_room() {
        let cache = Cache::new(16 * 1024, 0);
        let one = resource(0).bytes() + 2 + ENTRY_BYTES;
        let fit = 16 * 1024 / one;
        for number in 0..fit {
            cache.insert(format!("{number:02}").as_bytes(), &resource(0));
        }
        assert!(cache.get(b"00").is_some());
        cache.insert(b"new", &resource(0));
        assert!(cache.get(b"00").is_some(), "used since the hand came by");
        assert!(cache.get(b"01").is_none(), "the first that was not used");
        assert!(cache.get(b"02").is_some() && cache.get(b"new").is_some());
        cache.insert(b"huge", &resource(4 * 1024));
        assert!(cache.get(b"huge").is_none(), "larger than an eighth of the whole");
    }

    proptest! {
        /// It never holds more than it may, counts what it holds, and gives what was put in last.
        #[test]
        fn it_keeps_its_bounds(steps in proptest::collection::vec((0u8..4, 0u8..40, 0usize..900), 1..200)) {
            let cache = Cache::new(8 * 1024, 0);
            let mut last: HashMap<[u8; 1], Rc<Resource>> = HashMap::new();
            for (what, path, size) in steps {
                let path = [path];
                match what {
                    0 => {
                        cache.remove(&path);
                        last.remove(&path);
                    }
                    1 => {
                        if let (Some(found), Some(expected)) = (cache.get(&path), last.get(&path)) {
                            prop_assert!(Rc::ptr_eq(&found, expected));
                        }
                    }
                    _ => {
                        let resource = resource(size);
                        cache.insert(&path, &resource);
                        last.insert(path, resource);
                    }
                }
                let entries = cache.entries.borrow();
                prop_assert!(entries.bytes <= 8 * 1024);
                let sum: usize = entries.by_path.values().map(|entry| entry.bytes).sum();
                prop_assert_eq!(entries.bytes, sum);
                prop_assert_eq!(entries.circle.len(), entries.by_path.len());
                prop_assert!(entries.by_path.keys().all(|path| last.contains_key(&path[..])));
            }
        }
    }
}
