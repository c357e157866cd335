//! Directory listings, and the bound of their memory.

use super::date::format_date;
use super::target::encode;
use maud::{DOCTYPE, html};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use twinring::fs::{Entry, Kind, Listed};

/// Names in one listing; the rest of a larger directory is left out, and the listing states that.
pub(super) const ENTRIES_MAX: usize = 10_000;

/// Bytes of listings that a worker holds, including those that slow peers have not read yet: dozens
/// of the largest. A request beyond that gets 503.
const HELD_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Listings {
    free: Arc<Semaphore>,
    /// One directory is read at a time: files that are not in memory share its threads.
    pub(super) scans: Semaphore,
}

impl Default for Listings {
    fn default() -> Listings {
        Listings { free: Arc::new(Semaphore::new(HELD_BYTES_MAX)), scans: Semaphore::new(1) }
    }
}

/// A listing that counts as long as this lives.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) content: Rc<[u8]>,
    _held: OwnedSemaphorePermit,
}

impl Listings {
    pub(super) fn are_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Counts a listing; `None` if it does not fit.
    pub(super) fn hold(&self, content: Vec<u8>) -> Option<Listing> {
        let bytes = u32::try_from(content.len()).ok()?;
        let held = Arc::clone(&self.free).try_acquire_many_owned(bytes).ok()?;
        Some(Listing { content: content.into(), _held: held })
    }
}

/// Renders the listing of the directory `path` (clean, and ending with a slash). Hidden names and special files are
/// left out, as they are not served.
pub(super) fn render(path: &[u8], listed: &Listed) -> Vec<u8> {
    let is_served =
        |entry: &&Entry| entry.kind != Kind::Other && !entry.name.as_bytes().starts_with(b".");
    let mut entries: Vec<&Entry> = listed.entries.iter().filter(is_served).collect();
    // Directories first; within a kind they keep the order of the names.
    entries.sort_by_key(|entry| entry.kind != Kind::Directory);
    let title = format!("Index of {}", String::from_utf8_lossy(path));
    let slash = |entry: &Entry| if entry.kind == Kind::Directory { "/" } else { "" };
    // `./` prevents a name with a colon from being read as a scheme.
    let href = |entry: &Entry| format!("./{}{}", encode(entry.name.as_bytes()), slash(entry));
    let page = html! {
        (DOCTYPE)
        html {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style {
                    "body{font-family:sans-serif}td,th{padding:0 1em 0 0;text-align:left}"
                    "td:last-child{text-align:right}"
                }
            }
            body {
                h1 { (title) }
                table {
                    tr { th { "Name" } th { "Modified" } th { "Bytes" } }
                    @if path != b"/" {
                        tr { td { a href="../" { "../" } } td {} td {} }
                    }
                    @for entry in entries {
                        tr {
                            td { a href=(href(entry)) { (entry.name.display()) (slash(entry)) } }
                            td { (date(entry.modified.seconds)) }
                            td { @if entry.kind == Kind::File { (entry.len) } }
                        }
                    }
                }
                @if !listed.is_complete {
                    p { "Further names are left out." }
                }
            }
        }
    };
    page.into_string().into_bytes()
}

/// A date for people; empty for times that have none.
fn date(seconds: i64) -> String {
    let date = format_date(seconds);
    date.map_or(String::new(), |date| String::from_utf8_lossy(&date).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use twinring::fs::Timestamp;

    fn entry(name: &str, kind: Kind) -> Entry {
        let modified = Timestamp { seconds: 784_111_777, nanoseconds: 0 };
        Entry { name: name.into(), kind, len: 7, modified }
    }

    #[test]
    fn listings_that_are_held_have_a_bound() {
        let listings = Listings::default();
        let half = || listings.hold(vec![b'x'; HELD_BYTES_MAX / 2]);
        let (first, second) = (half(), half());
        assert!(first.is_some() && second.is_some() && listings.are_full());
        assert!(listings.hold(vec![b'x']).is_none());
        drop(first);
        assert!(!listings.are_full() && half().is_some());
        drop(second);
        assert_eq!(listings.free.available_permits(), HELD_BYTES_MAX);
    }

    #[test]
    fn listings_escape_names_and_omit_unserved_files() {
        let entries = [
            entry(".hidden", Kind::File),
            entry("<script>", Kind::File),
            entry("a b:c?", Kind::File),
            entry("fifo", Kind::Other),
            entry("sub", Kind::Directory),
            Entry { name: OsString::from_vec(vec![b'a', 0xe4]), ..entry("", Kind::File) },
        ];
        let entries = Listed { entries: entries.into(), is_complete: false };
        let page = String::from_utf8(render(b"/x/", &entries)).unwrap();
        for text in [
            "<a href=\"./a%20b:c%3F\">a b:c?</a>",
            "<a href=\"./%3Cscript%3E\">&lt;script&gt;</a>",
            "<a href=\"./a%E4\">a\u{fffd}</a>",
            "<a href=\"./sub/\">sub/</a></td><td>Sun, 06 Nov 1994 08:49:37 GMT</td><td></td>",
            "<td>7</td>",
            "href=\"../\"",
            "left out",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("hidden") && !page.contains("fifo"), "{page}");
    }
}
