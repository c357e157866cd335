//! Futures and runtimes that go while operations on files are under way.

use super::tree::*;
use crate::support::*;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use twinring::fs::{Dir, File, Symlinks};
use twinring::{Runtime, spawn};

pub(crate) const RULES: &[Rule] = rules![
    dropped_opens_and_reads_leave_nothing_behind,
    operations_under_way_end_with_their_runtime,
    a_file_that_outlives_its_runtime_is_closed,
];

async fn open_version(root: Dir) -> File {
    root.open_file(Path::new("version"), Symlinks::Refuse).await.expect("a file")
}

fn dropped_opens_and_reads_leave_nothing_behind(configuration: Configuration) {
    alone(3000, || {
        configuration.run(async {
            let (root, tree) = (proc(), Tree::new(Ground::Elsewhere));
            let before = open_descriptors();
            drop(tree.file(1, 100_000).await);
            for number in 0..1000 {
                // Some before the kernel has heard of them, some while it works, some after.
                let opening = spawn(open_version(root.clone()));
                match number % 4 {
                    0 => drop(poll_once(open_version(root.clone())).await),
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
            drop(open_version(root).await);
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

fn a_file_that_outlives_its_runtime_is_closed(configuration: Configuration) {
    alone(1000, || {
        let before = open_descriptors();
        let runtime: Runtime = configuration.builder().build().expect("tried before");
        let files = runtime.block_on(async {
            let (disk, elsewhere) = (Tree::new(Ground::Disk), Tree::new(Ground::Elsewhere));
            (disk.file(1, 10).await, elsewhere.file(1, 10).await)
        });
        drop(runtime);
        drop(files);
        assert_eq!(open_descriptors(), before);
    });
}
