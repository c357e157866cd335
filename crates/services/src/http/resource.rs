//! The resource of a path: a file, found beneath the root, and its precompressed variants.

use super::compression::Compressed;
use super::conditional::Validators;
use super::date::{Clock, DATE_BYTES, format_date};
use super::encoding::Coding;
use super::hosts::Site;
use super::mime::content_type;
use super::open_file::{OpenFile, is_same_content};
use super::response::{DATE_START, FIELDS_START, OK_START, content_length, field};
use super::status::Status;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;
use twinring::fs::{File, Kind, Metadata, Timestamp};

/// A file that was modified this many seconds ago or less may be modified again without a new
/// time stamp, so its entity tag is weak (RFC 9110 section 8.8.1).
const WEAK_SECONDS: i64 = 1;

/// How often a small file is read again while it is being written to.
const READ_ATTEMPTS: u32 = 3;

/// Why a path has no resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is no file, or it is not served.
    Nothing,
    /// It is a directory, and the path lacks its slash.
    Directory,
    /// It ends with a slash, and there is no index file.
    Index,
    /// It could not be read, for this status.
    Failed(Status),
    /// There was no descriptor or no memory for it.
    Exhausted,
}

impl From<io::Error> for Missing {
    fn from(error: io::Error) -> Missing {
        use nix::errno::Errno;
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::EACCES | Errno::EPERM => Missing::Failed(Status::FORBIDDEN),
            Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => Missing::Exhausted,
            Errno::EAGAIN => Missing::Failed(Status::UNAVAILABLE),
            // ELOOP and EXDEV: a link that is not followed. ENXIO: a socket.
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV => Missing::Nothing,
            Errno::ENAMETOOLONG | Errno::EINVAL | Errno::ENXIO => Missing::Nothing,
            _ => Missing::Failed(Status::INTERNAL_ERROR),
        }
    }
}

/// A file and its variants, open, each with its metadata.
#[derive(Debug)]
pub(super) struct Found {
    path: PathBuf,
    files: Vec<(Coding, File, Metadata)>,
}

/// Finds the file of a clean path.
pub(super) async fn find(site: &Site, path: &[u8]) -> Result<Found, Missing> {
    let relative = Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
    if !path.ends_with(b"/") {
        return find_file(site, relative).await;
    }
    for name in &site.index {
        match find_file(site, &relative.join(name)).await {
            Err(Missing::Nothing | Missing::Directory) => {}
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
        // A variant that is older than the file belongs to an older version.
        if let Ok((file, other)) = open(site, Path::new(&beside)).await
            && other.kind == Kind::File
            && other.modified >= metadata.modified
        {
            files.push((coding, file, other));
        }
    }
    files.push((Coding::Identity, file, metadata));
    Ok(Found { path: path.to_owned(), files })
}

async fn open(site: &Site, path: &Path) -> io::Result<(File, Metadata)> {
    let root = site.root.as_ref().ok_or(nix::errno::Errno::ENOENT)?;
    let file = root.open_file(path, site.symlinks).await?;
    let metadata = file.metadata().await?;
    Ok((file, metadata))
}

/// A resource, ready to be sent.
#[derive(Debug)]
pub(super) struct Resource {
    path: PathBuf,
    /// In the order of preference; the identity is the last one.
    pub(super) variants: Vec<Variant>,
    /// What is compressed on the fly.
    pub(super) compressed: Vec<Compressed>,
    /// When the file system was last checked.
    pub(super) checked: Cell<Instant>,
    /// A task is checking it.
    pub(super) refreshing: Cell<bool>,
}

impl Resource {
    /// Reads the found files of a site, up to `sendfile_above` bytes of each. The file system was
    /// checked at `checked`.
    pub(super) async fn load(
        site: &Site,
        sendfile_above: u64,
        found: Found,
        checked: Instant,
        clock: &Clock,
    ) -> Result<Resource, Missing> {
        let mut compressed = Vec::new();
        if let Some(((_, _, file), precompressed)) = found.files.split_last() {
            let is_there = |coding| precompressed.iter().any(|(other, ..)| *other == coding);
            let content_type = content_type(&found.path);
            compressed = Compressed::of(&site.compress, file, &content_type, is_there);
        }
        let varies = found.files.len() > 1 || !compressed.is_empty();
        // A file that may be modified again is about to be compressed again.
        if found.files.last().is_some_and(|(.., file)| is_recent(file.modified, clock)) {
            compressed.clear();
        }
        let mut variants = Vec::with_capacity(found.files.len());
        for (coding, file, metadata) in found.files {
            let (content, metadata) = if metadata.len <= sendfile_above {
                let (bytes, metadata) = read_whole(&file, metadata, sendfile_above).await?;
                (Content::Bytes(bytes), metadata)
            } else {
                let file = OpenFile::new(file, metadata).await?;
                (Content::File(Rc::new(file)), metadata)
            };
            let fields = Fields { site, path: &found.path, coding, varies, clock };
            variants.push(Variant::new(&fields, content, metadata));
        }
        let (checked, refreshing) = (Cell::new(checked), Cell::new(false));
        Ok(Resource { path: found.path, variants, compressed, checked, refreshing })
    }

    /// True if `found` is the same version, so that it need not be read again.
    pub(super) fn is_of(&self, found: &Found, clock: &Clock) -> bool {
        let same = |(variant, file): (&Variant, &(Coding, File, Metadata))| {
            // A tag that need not be weak any more is rebuilt.
            let weak = is_recent(file.2.modified, clock);
            variant.coding == file.0 && variant.version == file.2 && variant.weak == weak
        };
        self.path == found.path
            && self.variants.len() == found.files.len()
            && self.variants.iter().zip(&found.files).all(same)
    }

    /// A form of it that was compressed on the fly.
    pub(super) fn compressed_variant(
        &self,
        site: &Site,
        coding: Coding,
        bytes: Vec<u8>,
        clock: &Clock,
    ) -> Option<Variant> {
        let identity = self.identity()?;
        let fields = Fields { site, path: &self.path, coding, varies: true, clock };
        let saved = identity.version.len.saturating_sub(bytes.len() as u64);
        let content = Content::Compressed(bytes);
        let source = identity.file.clone();
        Some(Variant { saved, source, ..Variant::new(&fields, content, identity.version) })
    }

    /// The file without a coding.
    pub(super) fn identity(&self) -> Option<&Variant> {
        self.variants.last()
    }

    /// Memory of it, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let compressed = self.compressed.iter().filter_map(Compressed::variant);
        let variants = self.variants.iter().chain(compressed).map(Variant::bytes).sum::<usize>();
        size_of::<Resource>() + self.path.as_os_str().len() + variants
    }

    /// Files that it keeps open.
    pub(super) fn files(&self) -> usize {
        self.variants.iter().filter(|variant| variant.file.is_some()).count()
    }
}

#[cfg(test)]
impl Resource {
    /// A resource without content that takes this many bytes more than an empty one.
    pub(super) fn of_size(bytes: usize) -> Resource {
        let path = PathBuf::from("x".repeat(bytes));
        let (checked, refreshing) = (Cell::new(Instant::now()), Cell::new(false));
        Resource { path, variants: Vec::new(), compressed: Vec::new(), checked, refreshing }
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
    Err(Missing::Failed(Status::UNAVAILABLE))
}

fn is_recent(modified: Timestamp, clock: &Clock) -> bool {
    modified.seconds.saturating_add(WEAK_SECONDS) >= clock.second()
}

/// The content of a file, or the reason to keep it open instead.
enum Content {
    Bytes(Vec<u8>),
    /// Compressed on the fly.
    Compressed(Vec<u8>),
    File(Rc<OpenFile>),
}

/// The inputs of a variant's header fields.
struct Fields<'a> {
    site: &'a Site,
    path: &'a Path,
    coding: Coding,
    varies: bool,
    clock: &'a Clock,
}

/// One representation of a resource.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) coding: Coding,
    /// The metadata of the file when it was read or opened, with the length of this form.
    pub(super) version: Metadata,
    /// The file, if its content is not part of `message`.
    pub(super) file: Option<Rc<OpenFile>>,
    /// The open file that this was compressed from.
    source: Option<Rc<OpenFile>>,
    /// Bytes less than the file, if it was compressed on the fly.
    pub(super) saved: u64,
    pub(super) content_type: Cow<'static, str>,
    tag: Vec<u8>,
    weak: bool,
    modified: Option<i64>,
    /// A complete answer with status 200 for a connection that stays, or its head. The fields that
    /// 304 repeats come first, then those that 206 adds, then those of 200 only.
    message: RefCell<Rc<[u8]>>,
    /// The second of its date.
    dated: Cell<i64>,
    repeated_end: usize,
    content_end: usize,
    head_end: usize,
}

impl Variant {
    fn new(fields: &Fields<'_>, content: Content, mut version: Metadata) -> Variant {
        let clock = fields.clock;
        // Another version of the compressor may make other bytes of the same file.
        let is_compressed = matches!(content, Content::Compressed(_));
        let weak = is_compressed || is_recent(version.modified, clock);
        let tag = tag(&version, fields.coding);
        // A time in the future would be a promise (RFC 9110 section 8.8.2.1).
        let modified = Some(version.modified.seconds).filter(|seconds| *seconds <= clock.second());
        let content_type = content_type(fields.path);
        let mut message = OK_START.to_vec();
        message.extend_from_slice(&clock.date());
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(if weak { b"ETag: W/" } else { b"ETag: " });
        message.extend_from_slice(&tag);
        message.extend_from_slice(b"\r\n");
        if let Some(date) = modified.and_then(format_date) {
            field(&mut message, "Last-Modified", std::str::from_utf8(&date).unwrap_or_default());
        }
        fields.append_chosen(&mut message);
        let repeated_end = message.len();
        if let Content::Compressed(bytes) = &content {
            version.len = bytes.len() as u64;
        } else {
            field(&mut message, "Accept-Ranges", "bytes");
        }
        if fields.coding != Coding::Identity {
            field(&mut message, "Content-Encoding", fields.coding.name());
        }
        let content_end = message.len();
        field(&mut message, "Content-Type", &content_type);
        content_length(&mut message, version.len);
        message.extend_from_slice(b"\r\n");
        let head_end = message.len();
        let file = match content {
            Content::File(file) => Some(file),
            Content::Bytes(bytes) | Content::Compressed(bytes) => {
                message.extend_from_slice(&bytes);
                None
            }
        };
        Variant {
            coding: fields.coding,
            version,
            file,
            source: None,
            saved: 0,
            content_type,
            tag,
            weak,
            modified,
            message: RefCell::new(message.into()),
            dated: Cell::new(clock.second()),
            repeated_end,
            content_end,
            head_end,
        }
    }

    /// The validators for conditions.
    pub(super) fn validators(&self) -> Validators<'_> {
        Validators { tag: &self.tag, weak: self.weak, modified: self.modified }
    }

    /// The answer with status 200 for a connection that stays, dated today: head, and content if
    /// it is in memory.
    pub(super) fn message(&self, clock: &Clock) -> Rc<[u8]> {
        let mut message = self.message.borrow_mut();
        if self.dated.get() != clock.second() {
            // Copied if a send still holds the old one, so a sent answer never changes.
            Rc::make_mut(&mut *message)[DATE_START..DATE_START + DATE_BYTES]
                .copy_from_slice(&clock.date());
            self.dated.set(clock.second());
        }
        Rc::clone(&message)
    }

    /// Where the head ends in [`message`](Variant::message).
    pub(super) fn head_end(&self) -> usize {
        self.head_end
    }

    /// Where in the message the fields are that 304 repeats.
    pub(super) fn repeated_fields(&self) -> Range<usize> {
        FIELDS_START..self.repeated_end
    }

    /// Where the fields are that 206 repeats, but for the type.
    pub(super) fn content_fields(&self) -> Range<usize> {
        FIELDS_START..self.content_end
    }

    /// The open file that must not have changed when an answer begins.
    pub(super) fn checked_file(&self) -> Option<&Rc<OpenFile>> {
        self.file.as_ref().or(self.source.as_ref())
    }

    /// All of its content; none if the file cannot be read or was changed.
    pub(super) async fn content(&self, clock: &Clock) -> Option<Vec<u8>> {
        let Some(file) = &self.file else {
            return Some(self.message(clock)[self.head_end..].to_vec());
        };
        let length = usize::try_from(self.version.len).ok()?;
        let bytes = file.file.read_at(0, length).await.ok()?;
        (bytes.len() == length && file.is_sound().await.ok()?).then_some(bytes)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Variant>() + self.tag.len() + self.message.borrow().len()
    }
}

impl Fields<'_> {
    /// Fields that the operator chose, and `Vary`.
    fn append_chosen(&self, message: &mut Vec<u8>) {
        let path = Path::new("/").join(self.path);
        if self.varies {
            field(message, "Vary", "Accept-Encoding");
        }
        let cache_control = self.site.cache_control_of(&path);
        for (name, value) in cache_control.into_iter().chain(self.site.fields_of(&path)) {
            field(message, name, value);
        }
    }
}

/// The opaque part of the entity tag: when the file was modified, to the nanosecond, and its
/// length. It is the same on every machine that has the same copy.
fn tag(version: &Metadata, coding: Coding) -> Vec<u8> {
    let Timestamp { seconds, nanoseconds } = version.modified;
    let mut tag = format!("\"{seconds:x}.{nanoseconds:x}-{:x}", version.len);
    if coding != Coding::Identity {
        tag.push('-');
        tag.push_str(coding.name());
    }
    tag.push('"');
    tag.into_bytes()
}
