//! Futures and runtimes that go while operations on files are under way.

use crate::support::*;
use crate::tree::*;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use twinring::fs::Symlinks;
use twinring::{Runtime, spawn};

pub(crate) const RULES: &[Rule] = rules![
    dropped_opens_close_what_they_open,
    dropped_reads_leave_nothing_behind,
    a_runtime_that_ends_leaves_nothing_behind,
    a_stop_from_outside_ends_operations_too,
    a_file_that_outlives_its_runtime_is_closed,
];

fn dropped_opens_close_what_they_open(configuration: Configuration) {
    alone(3000, || {
        configuration.run_with_handle(|_| async {
            let root = proc();
            let opening = || root.open_file(Path::new("version"), Symlinks::Refuse);
            let before = open_descriptors();
            drop(opening().await.expect("a file"));
            for number in 0..1000 {
                // Some before the kernel has heard of them, some while it works, some after.
                let opening = spawn({
                    let root = root.clone();
                    async move { root.open_file(Path::new("version"), Symlinks::Refuse).await }
                });
                match number % 4 {
                    0 => drop(poll_once(proc_version(&root)).await),
                    1 => yield_now().await,
                    2 => settle().await,
                    _ => {}
                }
                opening.abort();
            }
            closed_down_to(before).await;
            drop(opening().await.expect("a file"));
        });
    });
}

async fn proc_version(root: &twinring::fs::Dir) {
    drop(root.open_file(Path::new("version"), Symlinks::Refuse).await);
}

fn dropped_reads_leave_nothing_behind(configuration: Configuration) {
    alone(3000, || {
        configuration.run_with_handle(|_| async {
            let tree = Tree::new(Ground::Elsewhere);
            let before = open_descriptors();
            drop(tree.file(1, 100_000).await.read_at(0, 10).await.expect("a file"));
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

fn has_file_threads() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.flatten().flat_map(name).any(|name| name.starts_with("twinring-file"))
}

fn a_runtime_that_ends_leaves_nothing_behind(configuration: Configuration) {
    alone(3000, || {
        let before = open_descriptors();
        let peers = configuration.run(leave_everything_under_way());
        assert_eq!(open_descriptors(), before + peers.len(), "only the peers' ends are left");
        // A thread that was joined is listed for a moment longer.
        while has_file_threads() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(peers);
        assert_eq!(open_descriptors(), before);
    });
}

fn a_stop_from_outside_ends_operations_too(configuration: Configuration) {
    alone(3000, || {
        let before = open_descriptors();
        stop_from_outside(configuration.builder(), leave_everything_under_way());
        // What a thread was doing ends with it, a moment later.
        let deadline = Instant::now() + Duration::from_secs(20);
        while open_descriptors() != before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(open_descriptors(), before);
    });
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
