//! A worker does not wait for a file that is not in memory. Asserted by the runtime's counters: a
//! clock cannot distinguish a cold file from a slow machine.

use crate::support::*;
use crate::tree::*;
use std::rc::Rc;
use std::time::Duration;
use twinring::{measure::CounterSnapshot, sleep, spawn};

pub(crate) const RULES: &[Rule] = rules![
    a_cold_file_is_read_without_the_worker,
    a_cold_file_is_sent_without_the_worker,
    a_file_in_memory_needs_no_thread,
    recently_sent_pages_are_not_checked_again,
];

const BYTES: usize = 3_000_000;

/// Operations passed to the ring or to a thread.
fn handed_over(counters: &CounterSnapshot) -> u64 {
    counters.file_operations + counters.file_jobs
}

async fn a_cold_file_is_read_without_the_worker(handle: Handle) {
    let tree = Tree::new(Ground::Disk);
    tree.write("file", &pattern(1, 0..BYTES));
    let file = tree.open("file").await;
    // A quick disk may have read everything by the time that the kernel looks for it.
    for _ in 0..20 {
        tree.chill("file");
        let before = handle.counters();
        let read = file.read_at(0, BYTES).await.expect("a file");
        assert!(read == pattern(1, 0..BYTES));
        if handed_over(&handle.counters()) > handed_over(&before) {
            return;
        }
    }
    panic!("the worker has read a cold file by itself, 20 times");
}

async fn a_cold_file_is_sent_without_the_worker(handle: Handle) {
    let tree = Tree::new(Ground::Disk);
    tree.write("file", &pattern(1, 0..BYTES));
    let file = Rc::new(tree.open("file").await);
    let (stream, mut peer) = pair().await;
    spawn(echo(stream));
    for round in 0..3 {
        tree.chill("file");
        let before = handle.counters();
        let (stream, reader) = pair().await;
        let reading = reading(reader);
        let own = Rc::clone(&file);
        let sending = spawn(async move { stream.send_file(&own, 0, BYTES as u64).await });
        // Other connections are served meanwhile.
        peer = on_thread(move || {
            ping(&mut peer, &pattern(round, 0..64));
            peer
        })
        .await;
        sleep(Duration::from_micros(100)).await;
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

async fn a_file_in_memory_needs_no_thread(handle: Handle) {
    for ground in [Ground::Disk, Ground::Memory] {
        let tree = Tree::new(ground);
        if ground == Ground::Disk && !tree.is_on_disk() {
            testing::needs("a disk", "the build is not on a disk that can be asked");
        }
        let file = tree.file(1, BYTES).await;
        assert_eq!(file.read_at(0, BYTES).await.expect("a file").len(), BYTES);
        let before = handle.counters();
        let (stream, reader) = pair().await;
        let reading = reading(reader);
        stream.send_file(&file, 0, BYTES as u64).await.expect("an open stream");
        // Beyond the end, which is different from bytes that are missing in memory.
        assert_eq!(file.read_at(0, BYTES + 10).await.expect("a file").len(), BYTES);
        drop(tree.open(&format!("pattern-1-{BYTES}")).await.metadata().await);
        drop(stream);
        assert_eq!(reading.await.len(), BYTES);
        let after = handle.counters();
        assert_eq!(handed_over(&after), handed_over(&before), "on {ground:?}");
        assert_eq!(after.cold_pieces, before.cold_pieces);
        assert!(after.sendfiles > before.sendfiles);
    }
}

/// Each answer used to check, with two system calls and more, whether its file is in memory.
async fn recently_sent_pages_are_not_checked_again(handle: Handle) {
    const SENDS: u64 = 50;
    let tree = Tree::new(Ground::Disk);
    if !tree.is_on_disk() {
        testing::needs("a disk", "the build is not on a disk that can be asked");
    }
    let file = tree.file(1, 1000).await;
    let (stream, reader) = pair().await;
    let reading = reading(reader);
    let before = handle.counters();
    for _ in 0..SENDS {
        stream.send_file(&file, 0, 1000).await.expect("an open stream");
    }
    let after = handle.counters();
    drop(stream);
    assert_eq!(reading.await.len(), 1000 * SENDS as usize);
    // Three each, before; one, and now and then three, on a thread that may be kept from its CPU.
    let calls = after.syscalls - before.syscalls - (after.waits - before.waits);
    assert!(calls < 3 * SENDS, "{calls} system calls");
}
