//! A filesystem whose server has died: files are there, and reading one never ends.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// The only file, of this many bytes.
pub(crate) const FILE: &str = "stuck.bin";
const FILE_BYTES: u64 = 1 << 20;

// Operations of the protocol, <linux/fuse.h>.
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;

/// Closing the file, at the end of a process too, asks the server nothing.
const FOPEN_NOFLUSH: u32 = 1 << 5;

const ROOT_NODE: u64 = 1;
const FILE_NODE: u64 = 2;

/// A mounted filesystem; unmounted when dropped, which ends all waiting calls.
pub(crate) struct DeadMount {
    directory: PathBuf,
    device: File,
    server: Option<JoinHandle<()>>,
}

impl DeadMount {
    /// Mounts it over a directory. Its server answers until [`FILE`] is opened, and then nothing any more.
    pub(crate) fn over(directory: &Path) -> DeadMount {
        DeadMount::at(directory.to_owned(), OPEN)
    }

    /// The same where also opening the file blocks.
    pub(crate) fn before_opening(directory: PathBuf) -> DeadMount {
        let mut mount = DeadMount::at(directory, LOOKUP);
        // From now on the name is in the kernel's cache: opening it asks the filesystem for nothing
        // else.
        let path = mount.directory.join(FILE);
        let found = File::options().read(true).custom_flags(libc::O_PATH).open(path);
        found.expect("it answers so far");
        mount.wait_for_its_end();
        mount
    }

    fn at(directory: PathBuf, last: u32) -> DeadMount {
        testing::needs_root("it mounts a file system that does not answer");
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.unwrap_or_else(|error| testing::needs("/dev/fuse", error));
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("dead"), &directory, Some("fuse"), flags, Some(options.as_str()))
            .expect("root may mount");
        let theirs = device.try_clone().expect("a descriptor");
        let server = std::thread::spawn(move || serve_until(last, theirs));
        DeadMount { directory, device, server: Some(server) }
    }

    /// Returns when a call waits for the contents of the file, or to open it.
    pub(crate) fn wait_for_a_reader(&mut self) {
        self.wait_for_its_end();
        let mut request = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(super::PATIENCE).expect("milliseconds");
        assert_eq!(poll(&mut request, patience), Ok(1), "no reader of the file");
    }

    fn wait_for_its_end(&mut self) {
        let server = self.server.take();
        server.into_iter().for_each(|server| server.join().expect("it answers until then"));
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        // Detached in any case: a process that hangs in it must not keep it from going.
        let _gone = umount2(&self.directory, MntFlags::MNT_DETACH);
    }
}

fn serve_until(last: u32, mut device: File) {
    let mut request = vec![0; 64 << 10];
    // An error is the end of the mount.
    while device.read(&mut request).is_ok() {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (operation, unique, node) = (word(4), long(8), long(16));
        let answer = match operation {
            INIT => Ok(words(&[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            LOOKUP if request[40..].starts_with(FILE.as_bytes()) => {
                Ok([longs(&[FILE_NODE, 0, 3600, 3600]), words(&[0, 0]), attributes(FILE_NODE)]
                    .concat())
            }
            LOOKUP => Err(libc::ENOENT),
            GETATTR => Ok([longs(&[3600]), words(&[0, 0]), attributes(node)].concat()),
            OPEN | OPENDIR => Ok(words(&[0, 0, FOPEN_NOFLUSH, 0])),
            STATFS => Ok(vec![0; 80]),
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let head = [16 + body.len() as u32, error as u32];
        let reply = [words(&head), longs(&[unique]), body].concat();
        // Fails if the caller has left or wants no answer.
        let _gone = device.write(&reply);
        if operation == last && error == 0 {
            return;
        }
    }
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let is_root = node == ROOT_NODE;
    let (mode, bytes) = if is_root { (0o040_755, 0) } else { (0o100_644, FILE_BYTES) };
    let head = longs(&[node, bytes, bytes / 512, 1, 1, 1]);
    [head, words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}
