//! Directories with files, on each kind of storage that the runtime distinguishes.

use crate::support::*;
use std::future::Future;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use tempfile::TempDir;
use twinring::fs::{Dir, File, SendStrategy, Symlinks};
use twinring::{Handle, sleep};

/// Where files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    /// The disk of the build directory, if it is one (and not, for example, an overlay: then
    /// elsewhere).
    Disk,
    /// /dev/shm.
    Memory,
    /// /dev/shm as it looks from /dev: another filesystem mounted beneath the directory.
    Elsewhere,
}

/// A temporary directory.
pub(crate) struct Tree {
    holder: TempDir,
    pub(crate) root: Dir,
    /// Where the files are beneath `root`.
    below: PathBuf,
}

impl Tree {
    pub(crate) fn new(ground: Ground) -> Tree {
        let shared_memory = Path::new("/dev/shm");
        let holder = match ground {
            Ground::Disk => TempDir::new_in(env!("CARGO_TARGET_TMPDIR")),
            Ground::Memory | Ground::Elsewhere => TempDir::new_in(shared_memory),
        };
        let holder = holder.expect("a writable directory");
        let (root, below) = match ground {
            Ground::Elsewhere => {
                let below = holder.path().strip_prefix("/dev").expect("made there");
                (Path::new("/dev"), below.to_owned())
            }
            Ground::Disk | Ground::Memory => (holder.path(), PathBuf::new()),
        };
        Tree { root: Dir::open(root).expect("a directory"), below, holder }
    }

    /// The path for other programs.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.holder.path().join(name)
    }

    /// The path for `root`.
    pub(crate) fn name(&self, name: &str) -> PathBuf {
        self.below.join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).expect("room for a file");
    }

    pub(crate) async fn open(&self, name: &str) -> File {
        let opened = self.root.open_file(&self.name(name), Symlinks::Refuse).await;
        opened.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Writes a file of `bytes` bytes of the pattern `seed`, and opens it.
    pub(crate) async fn file(&self, seed: u64, bytes: usize) -> File {
        let name = format!("pattern-{seed}-{bytes}");
        self.write(&name, &pattern(seed, 0..bytes));
        self.open(&name).await
    }

    /// Writes a file to the disk and out of the page cache.
    pub(crate) fn chill(&self, name: &str) {
        let written = std::fs::File::open(self.path(name)).and_then(|file| file.sync_all());
        written.expect("a file on a working disk");
        // On a busy machine pages may stay because another program uses them; on an idle one because packets
        // of an earlier sendfile refer to them, which a CPU frees with the next packet that it receives.
        let to_itself = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        to_itself.connect(to_itself.local_addr().expect("bound")).expect("an address");
        for round in 0..100 {
            to_itself.send(&[0]).expect("a socket that drops what does not fit");
            // coreutils: POSIX_FADV_DONTNEED for the whole file.
            let dropped = Command::new("dd")
                .arg(format!("if={}", self.path(name).display()))
                .args(["iflag=nocache", "count=0", "status=none"])
                .status();
            assert!(dropped.expect("dd").success());
            if self.pages_in_memory(name).map_or(round == 5, |pages| pages == 0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{name} stays in memory");
    }

    /// The count of fincore(1) of util-linux, if it is installed.
    fn pages_in_memory(&self, name: &str) -> Option<u64> {
        let asked =
            Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(self.path(name)).output();
        String::from_utf8_lossy(&asked.ok()?.stdout).trim().parse().ok()
    }

    /// True if the files are on a disk whose cache the runtime can ask about.
    pub(crate) fn is_on_disk(&self) -> bool {
        let asked = Command::new("stat").args(["-f", "-c", "%T"]).arg(self.holder.path()).output();
        let name = asked.expect("stat").stdout;
        ["ext2/ext3", "xfs", "btrfs"].contains(&String::from_utf8_lossy(&name).trim())
    }
}

/// What operations that wait are carried out by, where there is a choice.
fn variants(configuration: Configuration) -> &'static [&'static str] {
    if configuration.is_epoll() { &[""] } else { &["", "files=threads"] }
}

/// Runs a rule for each ground and each way to wait, and in tick mode.
pub(crate) fn in_all_ways<F>(configuration: Configuration, rule: impl Fn(Tree, Handle) -> F)
where
    F: Future<Output = ()> + 'static,
{
    for options in variants(configuration) {
        for ground in [Ground::Disk, Ground::Memory, Ground::Elsewhere] {
            run_on(configuration.builder_with(options), |handle| rule(Tree::new(ground), handle));
        }
    }
    let in_ticks = configuration.builder().tick(Duration::from_millis(1));
    run_on(in_ticks, |handle| rule(Tree::new(Ground::Disk), handle));
}

/// Runs a rule for sendfile(2) in all ways, and for every other strategy of sending a file.
pub(crate) fn by_all_strategies<F>(
    configuration: Configuration,
    rule: impl Fn(Rc<Tree>, SendStrategy) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    in_all_ways(configuration, |tree, _| rule(Rc::new(tree), SendStrategy::Sendfile));
    by_other_strategies(configuration, |tree, strategy, _| rule(tree, strategy));
}

/// Runs a rule for every strategy but sendfile(2): with files on a disk, and in tick mode with files
/// in memory.
pub(crate) fn by_other_strategies<F>(
    configuration: Configuration,
    rule: impl Fn(Rc<Tree>, SendStrategy, Handle) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let in_ticks = || configuration.builder().tick(Duration::from_millis(1));
    for strategy in [SendStrategy::Splice, SendStrategy::ZeroCopy, SendStrategy::Read] {
        let run = |builder, ground| {
            run_on(builder, |handle| rule(Rc::new(Tree::new(ground)), strategy, handle));
        };
        run(configuration.builder(), Ground::Disk);
        run(in_ticks(), Ground::Memory);
    }
}

/// Runs a rule for each way to wait, where everything may have to wait.
pub(crate) fn in_slow_ways<F>(configuration: Configuration, rule: impl Fn(Handle) -> F)
where
    F: Future<Output = ()> + 'static,
{
    for options in variants(configuration) {
        run_on(configuration.builder_with(options), &rule);
    }
}

/// A directory of which everything may have to wait, as far as the runtime knows.
pub(crate) fn proc() -> Dir {
    Dir::open(Path::new("/proc")).expect("/proc is mounted")
}

/// Until as many descriptors are open as before. A thread closes what is not known to be of this
/// machine, and that may take a moment.
pub(crate) async fn closed_down_to(before: usize) {
    for _ in 0..500 {
        // Counting takes a descriptor too.
        if std::fs::read_dir("/proc/self/fd").is_ok() && open_descriptors() == before {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{before} descriptors became {}", open_descriptors());
}
