//! Directory listings, and the bound of their memory.

use super::options::ListingFormat;
use super::target::encode;
use httpdate::HttpDate;
use maud::{DOCTYPE, html};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use twinring::fs::{Entry, Kind, Listed};

/// Names in one listing; the rest of a larger directory is left out, and the listing states that.
pub(super) const ENTRIES_MAX: usize = 10_000;

/// Bytes of listings that a worker holds, including those that slow peers have not read yet: dozens
/// of the largest. A request beyond that gets 503.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Bounds of the listings on one worker.
#[derive(Debug)]
pub(super) struct Listings {
    /// Bytes that can be held.
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

#[derive(Serialize)]
struct Line {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Seconds since 1970.
    modified_s: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// A reference that is right for any name, also for one that is not UTF-8.
    href: String,
}

/// A listing as JSON.
#[derive(Serialize)]
struct Lines {
    /// False if there are further names, behind the last one.
    complete: bool,
    entries: Vec<Line>,
}

/// Renders the listing of the directory `path` (clean, and ending with a slash): content type and
/// content. Hidden names and special files are left out, as they are not served.
pub(super) fn render(
    format: ListingFormat,
    path: &[u8],
    listed: &Listed,
) -> (&'static str, Vec<u8>) {
    let mut lines: Vec<Line> = listed.entries.iter().filter_map(line).collect();
    // Directories first; within a kind they keep the order of the names.
    lines.sort_by_key(|line| line.kind != "directory");
    match format {
        ListingFormat::Html => {
            ("text/html; charset=utf-8", page(path, &lines, listed.is_complete).into_bytes())
        }
        ListingFormat::Json => {
            let lines = Lines { complete: listed.is_complete, entries: lines };
            // Strings and numbers serialise without fail.
            ("application/json", serde_json::to_vec(&lines).unwrap_or_default())
        }
    }
}

fn line(entry: &Entry) -> Option<Line> {
    let name = entry.name.as_bytes();
    let (kind, slash, size_bytes) = match entry.kind {
        Kind::Directory => ("directory", "/", None),
        Kind::File => ("file", "", Some(entry.len)),
        Kind::Other => return None,
    };
    // `./` prevents a name with a colon from being read as a scheme.
    let href = format!("./{}{slash}", encode(name));
    let name = (!name.starts_with(b".")).then(|| String::from_utf8_lossy(name).into_owned())?;
    Some(Line { name, kind, modified_s: entry.modified.seconds, size_bytes, href })
}

fn page(path: &[u8], lines: &[Line], complete: bool) -> String {
    let title = format!("Index of {}", String::from_utf8_lossy(path));
    let slash = |line: &Line| if line.kind == "directory" { "/" } else { "" };
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
                    @for line in lines {
                        tr {
                            td { a href=(line.href) { (line.name) (slash(line)) } }
                            td { (date(line.modified_s)) }
                            td { @if let Some(bytes) = line.size_bytes { (bytes) } }
                        }
                    }
                }
                @if !complete {
                    p { "Further names are left out." }
                }
            }
        }
    };
    page.into_string()
}

/// A date for people; empty for times that have none.
fn date(seconds: i64) -> String {
    match super::date::format_date(seconds) {
        Some(_) => HttpDate::from(UNIX_EPOCH + Duration::from_secs(seconds as u64)).to_string(),
        None => String::new(),
    }
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

    /// Two names became one in JSON, and it led nowhere.
    #[test]
    fn names_that_are_not_utf_8_have_references_of_their_own() {
        let odd =
            |byte| Entry { name: OsString::from_vec(vec![b'a', byte]), ..entry("", Kind::File) };
        let listed = Listed { entries: vec![odd(0xe4), odd(0xf6)], is_complete: false };
        let (_, json) = render(ListingFormat::Json, b"/", &listed);
        let json = String::from_utf8(json).unwrap();
        assert!(
            json.contains(r#""href":"./a%E4""#) && json.contains(r#""href":"./a%F6""#),
            "{json}"
        );
        assert!(json.starts_with(r#"{"complete":false,"#), "{json}");
    }

    #[test]
    fn listings_escape_names_and_omit_unserved_files() {
        let entries = [
            entry(".hidden", Kind::File),
            entry("<script>", Kind::File),
            entry("a b:c?", Kind::File),
            entry("fifo", Kind::Other),
            entry("sub", Kind::Directory),
        ];
        let entries = Listed { entries: entries.into(), is_complete: true };
        let (content_type, page) = render(ListingFormat::Html, b"/x/", &entries);
        let page = String::from_utf8(page).unwrap();
        assert_eq!(content_type, "text/html; charset=utf-8");
        assert!(page.contains("<a href=\"./a%20b:c%3F\">a b:c?</a>"), "{page}");
        assert!(page.contains("<a href=\"./%3Cscript%3E\">&lt;script&gt;</a>"), "{page}");
        assert!(page.contains("Sun, 06 Nov 1994 08:49:37 GMT") && page.contains("href=\"../\""));
        assert!(!page.contains("hidden") && !page.contains("fifo"), "{page}");
        let (content_type, list) = render(ListingFormat::Json, b"/", &entries);
        assert_eq!(content_type, "application/json");
        let expected = concat!(
            r#"{"complete":true,"entries":["#,
            r#"{"name":"sub","type":"directory","modified_s":784111777,"href":"./sub/"},"#,
            r#"{"name":"<script>","type":"file","modified_s":784111777,"size_bytes":7,"href":"./%3Cscript%3E"},"#,
            r#"{"name":"a b:c?","type":"file","modified_s":784111777,"size_bytes":7,"href":"./a%20b:c%3F"}]}"#,
        );
        assert_eq!(String::from_utf8(list).unwrap(), expected);
    }
}
