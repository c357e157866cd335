//! The resource of a path: a file, found beneath the root, and its precompressed variants; and a large file that is kept
//! open, whose content is sent while other programs may write to it.

use super::Status;
use super::compression::{Form, Progress, codings_for};
use super::date::Clock;
use super::encoding::Coding;
use super::hosts::Site;
use super::mime::media_type;
use super::response::Reason;
use super::target::as_path;
use super::variant::{Variant, is_recent};
use nix::errno::Errno;
use std::cell::Cell;
use std::cmp::Ordering;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::fs::{File, Kind, Metadata};
use twinring::sleep;

const INDEX: &str = "index.html";

/// How often a small file is read again while it is being written to.
const READ_ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is no file, or it is not served.
    Nothing,
    /// The same, because a symbolic link is not followed.
    Link(Errno),
    /// It is a directory, and the path lacks its slash.
    Directory,
    /// It ends with a slash, and there is no index file.
    Index,
    /// It could not be read, for this status.
    Failed(Status, Reason),
}

impl Missing {
    pub(super) fn is_exhausted(self) -> bool {
        use Errno::{EMFILE, ENFILE, ENOMEM};
        matches!(self, Missing::Failed(_, Reason::System(EMFILE | ENFILE | ENOMEM)))
    }

    /// Its content changes all the time.
    pub(super) const CHANGING: Missing =
        Missing::Failed(Status::SERVICE_UNAVAILABLE, Reason::Limit("the file keeps changing"));
}

impl From<io::Error> for Missing {
    fn from(error: io::Error) -> Missing {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
        let failed = |status| Missing::Failed(status, Reason::System(errno));
        match errno {
            Errno::EACCES | Errno::EPERM => failed(Status::FORBIDDEN),
            Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN => {
                failed(Status::SERVICE_UNAVAILABLE)
            }
            Errno::ELOOP | Errno::EXDEV => Missing::Link(errno),
            Errno::ENOENT | Errno::ENOTDIR => Missing::Nothing,
            // ENXIO: a socket.
            Errno::ENAMETOOLONG | Errno::EINVAL | Errno::ENXIO => Missing::Nothing,
            _ => failed(Status::INTERNAL_SERVER_ERROR),
        }
    }
}

/// A file and its variants, open, each with its metadata.
#[derive(Debug)]
pub(super) struct Found {
    path: PathBuf,
    files: Vec<(Coding, File, Metadata)>,
}

pub(super) async fn find(site: &Site, path: &[u8]) -> Result<Found, Missing> {
    let relative = as_path(path.strip_prefix(b"/").unwrap_or(path));
    if !path.ends_with(b"/") {
        let found = find_file(site, relative).await;
        if let (true, Err(Missing::Nothing | Missing::Directory)) = (site.clean_urls, &found) {
            let mut page = relative.as_os_str().to_owned();
            page.push(".html");
            if let Ok(page) = find_file(site, Path::new(&page)).await {
                return Ok(page);
            }
        }
        return found;
    }
    let default = [INDEX.to_owned()];
    for name in site.index.as_deref().unwrap_or(&default) {
        match find_file(site, &relative.join(name)).await {
            Err(Missing::Nothing | Missing::Link(_) | Missing::Directory) => {}
            other => return other,
        }
    }
    Err(Missing::Index)
}

async fn find_file(site: &Site, path: &Path) -> Result<Found, Missing> {
    let (file, metadata) = open(site, path).await?;
    match metadata.kind {
        Kind::File => {}
        Kind::Directory => return Err(Missing::Directory),
        Kind::Other => return Err(Missing::Nothing),
    }
    let mut files = Vec::with_capacity(1 + site.precompressed.len());
    for coding in site.precompressed.iter().copied() {
        let mut beside = path.as_os_str().to_owned();
        beside.push(coding.suffix());
        if let Ok((file, other)) = open(site, Path::new(&beside)).await
            && other.kind == Kind::File
            && is_variant_of(&metadata, &other)
        {
            files.push((coding, file, other));
        }
    }
    files.push((Coding::Identity, file, metadata));
    Ok(Found { path: path.to_owned(), files })
}

/// Whether a precompressed file can be one of this version. One that is older belongs to an older version;
/// compressors copy the time in whole seconds. No coding makes nothing of something, or of nothing.
fn is_variant_of(file: &Metadata, precompressed: &Metadata) -> bool {
    precompressed.modified.seconds >= file.modified.seconds && precompressed.len > 0
}

async fn open(site: &Site, path: &Path) -> io::Result<(File, Metadata)> {
    let root = site.directory.as_ref().ok_or(Errno::ENOENT)?;
    let file = root.open_file(path, site.symlinks).await?;
    let metadata = file.metadata().await?;
    Ok((file, metadata))
}

#[derive(Debug)]
pub(super) struct Resource {
    path: PathBuf,
    /// In the order of preference; the identity is the last one.
    pub(super) forms: Vec<Form>,
    pub(super) checked: Cell<Instant>,
    pub(super) refreshing: Cell<bool>,
}

impl Resource {
    /// Reads the found files of a site, up to `sendfile_above` bytes of each, for a clean path. The file
    /// system was checked at `checked`.
    pub(super) async fn load(
        site: &Site,
        path: &[u8],
        sendfile_above: u64,
        found: Found,
        checked: Instant,
        clock: &Clock,
    ) -> Result<Resource, Missing> {
        let Some(((_, _, file), precompressed)) = found.files.split_last() else {
            return Err(Missing::Nothing);
        };
        let is_there = |coding| precompressed.iter().any(|(other, ..)| *other == coding);
        let (policy, media_type) =
            (site.rules.policy(as_path(path)), media_type(site, &found.path));
        let compressed = codings_for(site, file, &media_type).iter().copied();
        let mut compressed: Vec<_> = compressed.filter(|coding| !is_there(*coding)).collect();
        let varies = !precompressed.is_empty() || !compressed.is_empty();
        // A file that may be modified again is about to be compressed again.
        if is_recent(file, clock) {
            compressed.clear();
        }
        let mut forms = Vec::with_capacity(found.files.len() + compressed.len());
        for (coding, file, metadata) in found.files {
            let (bytes, file, metadata) = if metadata.len <= sendfile_above {
                let (bytes, metadata) = read_whole(&file, metadata, sendfile_above).await?;
                (bytes, None, metadata)
            } else {
                let file = OpenFile::new(file, metadata).await?;
                (Vec::new(), Some(Rc::new(file)), metadata)
            };
            if coding == Coding::Identity {
                forms.extend(compressed.iter().map(|it| Form::new(*it, Progress::Untried)));
            }
            let (file, content) = ((coding, metadata), (&bytes[..], file));
            let variant = Variant::new(file, content, &policy, &media_type, varies, clock);
            forms.push(Form::stored(variant));
        }
        let (checked, refreshing) = (Cell::new(checked), Cell::default());
        Ok(Resource { path: found.path, forms, checked, refreshing })
    }

    pub(super) fn mark_checked(&self, at: Instant) {
        self.checked.set(at.max(self.checked.get()));
        self.refreshing.set(false);
    }

    /// True if `found` is the same version, so that it need not be read again.
    pub(super) fn is_of(&self, found: &Found, clock: &Clock) -> bool {
        let stored = self.forms.iter().filter(|form| form.progress.get() == Progress::Stored);
        let stored = stored.filter_map(|form| form.variant.get());
        // A tag that need not be weak any more is rebuilt.
        let known = stored.map(|variant| (variant.coding, variant.version, variant.weak));
        let files = found.files.iter();
        let files = files.map(|(coding, _, file)| (*coding, *file, is_recent(file, clock)));
        self.path == found.path && known.eq(files)
    }

    pub(super) fn identity(&self) -> Option<&Rc<Variant>> {
        self.forms.last()?.variant.get()
    }

    fn variants(&self) -> impl Iterator<Item = &Rc<Variant>> {
        self.forms.iter().filter_map(|form| form.variant.get())
    }

    pub(super) fn bytes(&self) -> usize {
        let variants = self.variants().map(|variant| variant.bytes()).sum::<usize>();
        size_of::<Resource>() + self.path.as_os_str().len() + variants
    }

    pub(super) fn files(&self) -> usize {
        self.variants().filter(|variant| variant.file.is_some()).count()
    }
}

#[cfg(test)]
impl Resource {
    /// A resource without content that takes this many bytes more than an empty one.
    pub(super) fn of_size(bytes: usize) -> Resource {
        let (checked, refreshing) = (Cell::new(Instant::now()), Cell::default());
        Resource { path: "x".repeat(bytes).into(), forms: Vec::new(), checked, refreshing }
    }
}

/// Reads a small file between two equal checks: so it is one complete version.
async fn read_whole(
    file: &File,
    mut metadata: Metadata,
    sendfile_above: u64,
) -> Result<(Vec<u8>, Metadata), Missing> {
    for _ in 0..READ_ATTEMPTS {
        if metadata.len > sendfile_above {
            break;
        }
        let bytes = file.read_at(0, metadata.len as usize).await?;
        let after = file.metadata().await?;
        if is_same_content(&after, &metadata) && bytes.len() as u64 == metadata.len {
            return Ok((bytes, metadata));
        }
        metadata = after;
    }
    Err(Missing::CHANGING)
}

/// Bytes at its end by which a file is known again after it grew.
const KNOWN_BYTES: u64 = 1024;

/// How long an append may take.
const APPEND_MAX: Duration = Duration::from_millis(20);

/// How a file changed since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// There is more of it, and where it ended before, it is still the same: as far as can be
    /// seen, it was appended to.
    Grew,
    /// It was written to, and its length is the same: changed in place, or an append is in
    /// progress. Linux sets the time of a write before it writes, and the length after that.
    Touched,
    /// It is shorter, or holds something else.
    Other,
}

#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    version: Metadata,
    end: Vec<u8>,
}

impl OpenFile {
    pub(super) async fn new(file: File, version: Metadata) -> io::Result<OpenFile> {
        let from = version.len.saturating_sub(KNOWN_BYTES);
        let end = file.read_at(from, (version.len - from) as usize).await?;
        Ok(OpenFile { file, version, end })
    }

    /// True if the content at the time of opening can still be there, perhaps with more behind it.
    pub(super) async fn is_sound(&self) -> io::Result<bool> {
        let mut change = self.change().await?;
        if change == Change::Touched {
            sleep(APPEND_MAX).await;
            change = self.change().await?;
        }
        Ok(matches!(change, Change::Nothing | Change::Grew))
    }

    /// These bytes, unless the file was changed until they were read.
    pub(super) async fn read_checked(&self, from: u64, length: usize) -> Option<Vec<u8>> {
        let bytes = self.file.read_at(from, length).await.ok()?;
        (bytes.len() == length && self.is_sound().await.ok()?).then_some(bytes)
    }

    /// Checks it, for an answer that is about to begin: once for all requests that arrived
    /// together.
    pub(super) async fn recent_change(&self) -> io::Result<Change> {
        match self.file.recent_metadata() {
            Some(now) => self.change_to(now?).await,
            None => self.change().await,
        }
    }

    /// True if such a check does not block and finds no change.
    pub(super) fn is_unchanged(&self) -> bool {
        let now = self.file.recent_metadata();
        now.is_some_and(|now| now.is_ok_and(|now| is_same_content(&now, &self.version)))
    }

    async fn change(&self) -> io::Result<Change> {
        self.change_to(self.file.metadata().await?).await
    }

    async fn change_to(&self, now: Metadata) -> io::Result<Change> {
        let version = &self.version;
        if is_same_content(&now, version) {
            return Ok(Change::Nothing);
        }
        match now.len.cmp(&version.len) {
            Ordering::Less => return Ok(Change::Other),
            Ordering::Equal => return Ok(Change::Touched),
            Ordering::Greater => {}
        }
        let from = version.len.saturating_sub(KNOWN_BYTES);
        let end = self.file.read_at(from, (version.len - from) as usize).await?;
        Ok(if end == self.end { Change::Grew } else { Change::Other })
    }
}

/// True if an open file was not written to between two checks. The time of its last change is
/// ignored: it changes when the name is given to another file, which does not affect this one.
pub(super) fn is_same_content(one: &Metadata, other: &Metadata) -> bool {
    one.len == other.len && one.modified == other.modified
}
