//! Reading returns all of a file's content, on the ring and on threads.

use crate::support::*;
use crate::tree::*;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use twinring::fs::Symlinks;
use twinring::spawn;

pub(crate) const RULES: &[Rule] = rules![
    metadata_matches_the_filesystem,
    one_status_check_serves_all_that_arrived_together,
    reads_end_where_the_file_ends,
    many_files_are_read_at_once,
    files_without_a_length_are_read_to_their_end,
];

async fn metadata_matches_the_filesystem(tree: Tree) {
    for bytes in [0, 1, 70_000] {
        tree.write("file", &pattern(1, 0..bytes));
        let file = tree.open("file").await;
        let (got, expected) = (
            file.metadata().await.expect("a file"),
            std::fs::metadata(tree.path("file")).expect("a file"),
        );
        assert_eq!(got.len, bytes as u64);
        assert_eq!((got.device, got.inode), (expected.dev(), expected.ino()));
        let modified = (got.modified.seconds, i64::from(got.modified.nanoseconds));
        assert_eq!(modified, (expected.mtime(), expected.mtime_nsec()));
        let changed = (got.changed.seconds, i64::from(got.changed.nanoseconds));
        assert_eq!(changed, (expected.ctime(), expected.ctime_nsec()));
        // The same open file, after it was written to.
        tree.write("file", &pattern(1, 0..bytes + 1));
        assert_eq!(file.metadata().await.expect("a file").len, bytes as u64 + 1);
    }
}

/// 100 answers from one file looked at it 100 times before they began.
async fn one_status_check_serves_all_that_arrived_together(handle: Handle) {
    let tree = Tree::new(Ground::Memory);
    tree.write("file", b"short");
    let file = tree.open("file").await;
    let recent = || file.recent_metadata().expect("in memory").expect("a file");
    for round in 1..4 {
        let before = handle.counters().syscalls;
        let first = recent();
        tree.write("file", &pattern(1, 0..round * 1000));
        for _ in 0..10 {
            assert_eq!(recent(), first);
        }
        assert_eq!(handle.counters().syscalls, before + 1);
        // A caller that needs the current metadata reads it, and later calls return the same.
        let now = file.metadata().await.expect("a file");
        assert_eq!(now.len, round as u64 * 1000);
        assert_eq!(recent(), now);
        tree.write("file", b"short again");
        settle().await;
        assert_eq!(recent().len, 11);
        settle().await;
    }
}

async fn reads_end_where_the_file_ends(tree: Tree) {
    for bytes in [0, 1, 4095, 4096, 4097, 131_072, 300_000] {
        let file = tree.file(2, bytes).await;
        for offset in [0, 1, 4096, 131_071, 299_999, 300_000, 1 << 40] {
            for len in [0, 1, 4096, 140_000, usize::MAX] {
                let read = file.read_at(offset as u64, len).await.expect("a file");
                let expected = bytes.saturating_sub(offset).min(len);
                assert_eq!(read.len(), expected, "{len} at {offset} of {bytes}");
                assert_pattern(2, offset, &read);
            }
        }
        assert_eq!(errno(&file.read_at(u64::MAX, 1).await), libc::EINVAL);
    }
}

/// More than the ring or the queue of the threads holds.
async fn many_files_are_read_at_once(tree: Tree) {
    testing::needs_descriptors(3_000);
    let tree = Rc::new(tree);
    for number in 0..40 {
        tree.write(&format!("file-{number}"), &pattern(number, 0..20_000));
    }
    let readers: Vec<_> = (0..700)
        .map(|reader| {
            let tree = Rc::clone(&tree);
            spawn(async move {
                let number = reader % 40;
                let file = tree.open(&format!("file-{number}")).await;
                assert_eq!(file.metadata().await.expect("a file").len, 20_000);
                let at = reader as usize;
                let read = file.read_at(at as u64, usize::MAX).await.expect("a file");
                assert_eq!(read.len(), 20_000 - at);
                assert_pattern(number, at, &read);
            })
        })
        .collect();
    for reader in readers {
        reader.await.expect("not aborted");
    }
}

/// Files of /proc report a length of 0.
async fn files_without_a_length_are_read_to_their_end() {
    let file = proc().open_file(Path::new("version"), Symlinks::Refuse).await.expect("a file");
    assert_eq!(file.metadata().await.expect("a file").len, 0);
    let read = file.read_at(0, 1 << 20).await.expect("a file");
    assert_eq!(read, std::fs::read("/proc/version").expect("a file"));
}
