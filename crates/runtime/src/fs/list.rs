//! Directory listings. The ring has no operation for that, so a thread does it.

use super::{Dir, Entry, Handle, Metadata, Symlinks, terminated};
use crate::runtime::current;
use crate::sys::file as sys;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

impl Dir {
    /// The content of the directory `path` (`.` is this one), at most `most` names, sorted by name.
    /// Left out are names that [`open_file`](Dir::open_file) would refuse by its policy for
    /// symbolic links, and those that disappear meanwhile.
    ///
    /// # Errors
    /// As [`open_file`](Dir::open_file); ENOTDIR.
    ///
    /// # Panics
    /// Outside a twinring runtime.
    pub async fn list(
        &self,
        path: &Path,
        symlinks: Symlinks,
        most: usize,
    ) -> io::Result<Vec<Entry>> {
        let worker = current();
        let (root, path) = (Arc::clone(&self.handle), path.to_owned());
        worker.counters.file_jobs.add(1);
        worker.blocking().run(move || list(&root, &path, symlinks, most)).await?
    }
}

fn list(root: &Handle, path: &Path, symlinks: Symlinks, most: usize) -> io::Result<Vec<Entry>> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let directory = sys::open_at(root.fd.as_fd(), &terminated(path)?, &symlinks.how(flags))?;
    let mut entries = Vec::new();
    sys::visit_names(directory.as_fd(), |name| {
        if entries.len() == most {
            return Ok(false);
        }
        // From the root, because a link may lead out of `path` and still stay beneath the root.
        let (path, how) = (terminated(&path.join(&name))?, symlinks.how(libc::O_PATH));
        if let Ok(found) = sys::open_at(root.fd.as_fd(), &path, &how) {
            let found = Metadata::of(&sys::status(found.as_fd(), 0)?);
            let Metadata { kind, len, modified, .. } = found;
            entries.push(Entry { name, kind, len, modified });
        }
        Ok(true)
    })?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
