//! A large open file, whose content is sent while other programs may write to it.

use std::cmp::Ordering;
use std::io;
use std::time::Duration;
use twinring::fs::{File, Metadata};
use twinring::sleep;

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
    /// The metadata at the time of opening.
    version: Metadata,
    /// Its last bytes then.
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
