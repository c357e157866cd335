//! Directory listings. The ring has no operation for that, so a thread does it.

use super::{Dir, Entry, Handle, Metadata, Symlinks, terminated};
use crate::runtime::current;
use crate::sys::file as sys;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

impl Dir {
    /// The content of the directory `path` (`.` is this one), sorted by name: the first `most` names.
    /// Left out are names that [`open_file`](Dir::open_file) would refuse by its policy for
    /// symbolic links, and those that disappear meanwhile.
    ///
    /// # Errors
    /// As [`open_file`](Dir::open_file); ENOTDIR.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn list(&self, path: &Path, symlinks: Symlinks, most: usize) -> io::Result<Listed> {
        let worker = current();
        let (root, path) = (Arc::clone(&self.handle), path.to_owned());
        worker.counters.file_jobs.add(1);
        worker.blocking().run(move || list(&root, &path, symlinks, most)).await?
    }
}

/// The content of a directory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Sorted by name.
    pub entries: Vec<Entry>,
    /// False if there are further names, behind the last one.
    pub is_complete: bool,
}

fn list(root: &Handle, path: &Path, symlinks: Symlinks, most: usize) -> io::Result<Listed> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let directory = sys::open_at(root.fd.as_fd(), &terminated(path)?, &symlinks.how(flags))?;
    // The first names, whatever the order of the directory; the largest of them is on top.
    let mut first = BinaryHeap::new();
    let mut is_complete = true;
    sys::visit_names(directory.as_fd(), |name| {
        first.push(name);
        if first.len() > most {
            first.pop();
            is_complete = false;
        }
        Ok(true)
    })?;
    let mut entries = Vec::with_capacity(first.len());
    for name in first.into_sorted_vec() {
        // From the root, because a link may lead out of `path` and still stay beneath the root.
        let (path, how) = (terminated(&path.join(&name))?, symlinks.how(libc::O_PATH));
        if let Ok(found) = sys::open_at(root.fd.as_fd(), &path, &how) {
            let found = Metadata::of(&sys::status(found.as_fd(), 0)?);
            let Metadata { kind, len, modified, .. } = found;
            entries.push(Entry { name, kind, len, modified });
        }
    }
    Ok(Listed { entries, is_complete })
}
