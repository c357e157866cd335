//! Reading returns all of a file's content, on the ring and on threads. A worker does not wait for a file that is
//! not in memory: asserted by the runtime's counters, because a clock cannot distinguish a cold file from a slow machine.
//! Futures and runtimes may go meanwhile.

use super::tree::*;
use crate::support::*;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use twinring::fs::{Dir, File, Symlinks};
use twinring::measure::CounterSnapshot;

pub(crate) const RULES: &[Rule] = rules![
    metadata_matches_the_filesystem,
    one_status_check_serves_all_that_arrived_together,
    reads_end_where_the_file_ends,
    many_files_are_read_at_once,
    a_cold_file_is_read_without_the_worker,
    a_cold_file_is_sent_without_the_worker,
    a_file_in_memory_needs_no_thread_and_is_checked_once,
    dropped_opens_and_reads_leave_nothing_behind,
    operations_under_way_end_with_their_runtime,
];

async fn metadata_matches_the_filesystem(tree: Tree) {
    for bytes in [0, 1, 70_000] {
        tree.write("file", &pattern(1, 0..bytes));
        let file = tree.open("file").await;
        let got = file.metadata().await.expect("a file");
        let expected = std::fs::metadata(tree.path("file")).expect("a file");
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
async fn one_status_check_serves_all_that_arrived_together(_: Configuration, handle: Handle) {
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
    // Files of /proc report a length of 0.
    let file = open_version(&proc()).await;
    assert_eq!(file.metadata().await.expect("a file").len, 0);
    let read = file.read_at(0, 1 << 20).await.expect("a file");
    assert_eq!(read, std::fs::read("/proc/version").expect("a file"));
}

/// More than the ring or the queue of the threads holds.
async fn many_files_are_read_at_once(tree: Tree) {
    testing::needs_descriptors(3_000);
    let tree = Rc::new(tree);
    for number in 0..40 {
        tree.write(&format!("file-{number}"), &pattern(number, 0..20_000));
    }
    let readers = (0..700_u64).map(|at| {
        let tree = Rc::clone(&tree);
        spawn(async move {
            let file = tree.open(&format!("file-{}", at % 40)).await;
            assert_eq!(file.metadata().await.expect("a file").len, 20_000);
            let read = file.read_at(at, usize::MAX).await.expect("a file");
            assert_eq!(read.len(), 20_000 - at as usize);
            assert_pattern(at % 40, at as usize, &read);
        })
    });
    join_all(readers.collect::<Vec<_>>()).await;
}

const BYTES: usize = 3_000_000;
const FILE: &str = "pattern-1-3000000";

/// Operations passed to the ring or to a thread.
fn handed_over(counters: &CounterSnapshot) -> u64 {
    counters.file_operations + counters.file_jobs
}

async fn a_cold_file_is_read_without_the_worker(_: Configuration, handle: Handle) {
    let tree = Tree::new(Ground::Disk);
    let file = tree.file(1, BYTES).await;
    // A quick disk may have read everything by the time that the kernel looks for it.
    for _ in 0..20 {
        tree.chill(FILE);
        let before = handle.counters();
        let read = file.read_at(0, BYTES).await.expect("a file");
        assert!(read == pattern(1, 0..BYTES));
        if handed_over(&handle.counters()) > handed_over(&before) {
            return;
        }
    }
    panic!("the worker has read a cold file by itself, 20 times");
}

async fn a_cold_file_is_sent_without_the_worker(_: Configuration, handle: Handle) {
    let tree = Tree::new(Ground::Disk);
    let file = Rc::new(tree.file(1, BYTES).await);
    for _ in 0..3 {
        tree.chill(FILE);
        let before = handle.counters();
        let (stream, reader) = pair().await;
        let reading = reading(reader);
        let own = Rc::clone(&file);
        let sending = spawn(async move { stream.send_file(&own, 0, BYTES as u64).await });
        another_is_served().await;
        assert_eq!(sending.await.expect("not aborted").expect("an open stream"), BYTES as u64);
        assert!(reading.await == pattern(1, 0..BYTES));
        let after = handle.counters();
        assert!(handed_over(&after) > handed_over(&before));
        if tree.is_on_disk() {
            assert!(after.cold_pieces > before.cold_pieces);
            assert!(after.sendfiles > before.sendfiles);
        }
    }
}

/// Each answer used to check, with two system calls and more, whether its file is in memory.
async fn a_file_in_memory_needs_no_thread_and_is_checked_once(_: Configuration, handle: Handle) {
    const SENDS: u64 = 50;
    for ground in [Ground::Disk, Ground::Memory] {
        let tree = Tree::new(ground);
        if ground == Ground::Disk && !tree.is_on_disk() {
            testing::needs("a disk", "the build is not on a disk that can be asked");
        }
        let file = tree.file(1, BYTES).await;
        assert_eq!(file.read_at(0, BYTES).await.expect("a file").len(), BYTES);
        let (stream, reader) = pair().await;
        let reading = reading(reader);
        // The refusal of an offset counted as one of the file, which was read and copied from then on.
        assert_eq!(errno(&stream.send_file(&file, u64::MAX, 10).await), libc::EINVAL);
        let before = handle.counters();
        for _ in 0..SENDS {
            stream.send_file(&file, 0, 1000).await.expect("an open stream");
        }
        let after = handle.counters();
        // Three each, before; one, and now and then three, on a thread that may be kept from its CPU.
        let calls = after.syscalls - before.syscalls - (after.waits - before.waits);
        assert!(calls < 3 * SENDS, "{calls} system calls");
        stream.send_file(&file, 0, BYTES as u64).await.expect("an open stream");
        // Beyond the end, which is different from bytes that are missing in memory.
        assert_eq!(file.read_at(0, BYTES + 10).await.expect("a file").len(), BYTES);
        drop(tree.open(FILE).await.metadata().await);
        drop(stream);
        assert_eq!(reading.await.len(), BYTES + 1000 * SENDS as usize);
        let after = handle.counters();
        assert_eq!(handed_over(&after), handed_over(&before), "on {ground:?}");
        assert_eq!(after.cold_pieces, before.cold_pieces);
        assert!(after.sendfiles > before.sendfiles);
    }
}

async fn open_version(root: &Dir) -> File {
    root.open_file(Path::new("version"), Symlinks::Refuse).await.expect("a file")
}

fn dropped_opens_and_reads_leave_nothing_behind(configuration: Configuration) {
    alone(&[], 3000, || {
        configuration.run(async {
            let (root, tree) = (proc(), Tree::new(Ground::Elsewhere));
            let before = open_descriptors();
            drop(tree.file(1, 100_000).await);
            for number in 0..1000 {
                // Some before the kernel has heard of them, some while it works, some after.
                let own = root.clone();
                let opening = spawn(async move { open_version(&own).await });
                match number % 4 {
                    0 => drop(poll_once(open_version(&root)).await),
                    1 => yield_now().await,
                    2 => settle().await,
                    _ => {}
                }
                opening.abort();
            }
            for number in 0..500 {
                let file = tree.open("pattern-1-100000").await;
                drop(poll_once(file.read_at(0, 100_000)).await);
                drop(poll_once(file.metadata()).await);
                if number % 2 == 0 {
                    yield_now().await;
                }
                // The file goes while it is read.
                drop(file);
            }
            closed_down_to(before).await;
            drop(open_version(&root).await);
            let file = tree.open("pattern-1-100000").await;
            assert_pattern(1, 0, &file.read_at(0, 100_000).await.expect("a file"));
        });
    });
}

/// Opening, reading, listing and sending, all at once and for ever. A runtime that ends waits half a second
/// for the kernel to give operations up, and leaves those that take longer their memory and descriptors: of so
/// few, none does on a busy machine.
async fn leave_everything_under_way() -> Vec<Peer> {
    let mut peers = Vec::new();
    for ground in [Ground::Elsewhere, Ground::Disk] {
        let tree = Rc::new(Tree::new(ground));
        let file = Rc::new(tree.file(1, 400_000).await);
        if ground == Ground::Disk {
            tree.chill("pattern-1-400000");
        }
        for _ in 0..20 {
            let (tree, file) = (Rc::clone(&tree), Rc::clone(&file));
            spawn(async move {
                loop {
                    drop(tree.open("pattern-1-400000").await);
                    file.read_at(0, 400_000).await.expect("a file");
                    let here = tree.name(".");
                    tree.root.list(&here, Symlinks::Refuse, 10).await.expect("a directory");
                }
            });
        }
        for _ in 0..20 {
            let (stream, peer) = narrow_pair().await;
            let file = Rc::clone(&file);
            spawn(async move { stream.send_file(&file, 0, 400_000).await.map(drop) });
            peers.push(peer);
        }
    }
    yield_now().await;
    peers
}

fn operations_under_way_end_with_their_runtime(configuration: Configuration) {
    ends_without_a_trace(configuration, Duration::from_secs(20), leave_everything_under_way);
}
