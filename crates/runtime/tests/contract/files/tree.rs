//! Directories with files, on each kind of storage that the runtime distinguishes.

use crate::support::*;
use rustix::fs::{Advice, fadvise};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use twinring::fs::{Dir, File, Symlinks};

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
        let place = match ground {
            Ground::Disk => env!("CARGO_TARGET_TMPDIR"),
            Ground::Memory | Ground::Elsewhere => "/dev/shm",
        };
        let holder = TempDir::new_in(place).expect("a writable directory");
        let above = if ground == Ground::Elsewhere { Path::new("/dev") } else { holder.path() };
        let root = Dir::open(above).expect("a directory");
        let below = holder.path().strip_prefix(above).expect("made there").to_owned();
        Tree { root, below, holder }
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
        let file = std::fs::File::open(self.path(name)).expect("a file");
        file.sync_all().expect("a working disk");
        // On a busy machine pages may stay because another program uses them; on an idle one because packets
        // of an earlier sendfile refer to them, which a CPU frees with the next packet that it receives.
        let to_itself = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        to_itself.connect(to_itself.local_addr().expect("bound")).expect("an address");
        for round in 0..100 {
            to_itself.send(&[0]).expect("a socket that drops what does not fit");
            fadvise(&file, 0, None, Advice::DontNeed).expect("a file");
            if self.pages_in_memory(name).map_or(round == 5, |pages| pages == 0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{name} stays in memory");
    }

    /// The count of fincore(1) of util-linux, if it is installed. A read would bring pages into memory.
    fn pages_in_memory(&self, name: &str) -> Option<u64> {
        let asked =
            Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(self.path(name)).output();
        String::from_utf8_lossy(&asked.ok()?.stdout).trim().parse().ok()
    }

    /// True if the files are on a disk whose cache the runtime can ask about.
    pub(crate) fn is_on_disk(&self) -> bool {
        let found = rustix::fs::statfs(self.holder.path()).expect("a directory");
        // ext2 to ext4, XFS, Btrfs.
        [0xef53, 0x5846_5342, 0x9123_683e].contains(&(found.f_type as u32))
    }
}

/// A rule for each ground.
impl<F: AsyncFn(Tree)> Check<Tree> for F {
    fn check(self, configuration: Configuration) {
        for ground in [Ground::Disk, Ground::Memory, Ground::Elsewhere] {
            configuration.run(self(Tree::new(ground)));
        }
    }
}

/// A directory of which everything may have to wait, as far as the runtime knows.
pub(crate) fn proc() -> Dir {
    Dir::open(Path::new("/proc")).expect("/proc is mounted")
}

/// Until as many descriptors are open as before. A thread closes what is not known to be of this
/// machine, and that may take a moment.
pub(crate) async fn closed_down_to(before: usize) {
    // Counting takes a descriptor too.
    while std::fs::read_dir("/proc/self/fd").is_err() || open_descriptors() != before {
        sleep(Duration::from_millis(5)).await;
    }
}
