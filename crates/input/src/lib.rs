//! Reads external input: files named by a command line, a configuration or a bundle; numbers with units
//! ([`quantity`]); the CPU quota ([`cgroup`]); and chunked content, which server and client both receive ([`chunked`]).
//!
//! The name of a file can lead to a FIFO, whose open waits for a writer, or to a device that never
//! ends. Here a file is opened without blocking, must be a regular file, and is read up to a bound.
//! (A filesystem whose server is dead still blocks the open. Threads that must not block, such as
//! the signal thread, must not open files at all.)

pub mod cgroup;
pub mod chunked;
pub mod quantity;

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading, without blocking on a FIFO.
///
/// # Errors
/// Those of `open(2)`, and `InvalidInput` if `path` is not a regular file; the message names its
/// actual kind.
pub fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK the open of a FIFO waits for a writer. It has no effect on regular files.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let message = format!("is {}, not a regular file", name_of(kind));
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Reads a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// Those of [`open`] and of `read(2)`, and `FileTooLarge` if the file is larger.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let announced_bytes = file.metadata()?.len();
    if announced_bytes > bytes_max {
        return Err(too_large(bytes_max));
    }
    // It may grow meanwhile, and files of procfs have no length.
    bytes_of(file, bytes_max, Vec::with_capacity(announced_bytes as usize))
}

/// Appends the content, up to a total of `bytes_max` bytes.
fn bytes_of(content: impl Read, bytes_max: u64, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    content.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max { Err(too_large(bytes_max)) } else { Ok(bytes) }
}

fn too_large(bytes_max: u64) -> io::Error {
    let message = format!("is larger than {bytes_max} bytes, the most that is read");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// Reads a regular file of at most `bytes_max` bytes of UTF-8.
///
/// # Errors
/// Those of [`read`], and `InvalidData` if the content is not UTF-8.
pub fn read_to_string(path: &Path, bytes_max: u64) -> io::Result<String> {
    text(read(path, bytes_max)?)
}

/// Reads at most `bytes_max` bytes of UTF-8, from a file of [`open`] or a decompressor of it.
pub fn string_of(content: impl Read, bytes_max: u64) -> io::Result<String> {
    text(bytes_of(content, bytes_max, Vec::new())?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("is not UTF-8 text (at byte {at})"))
    })
}

fn name_of(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_file_up_to_its_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "eight by").unwrap();
        assert_eq!(read_to_string(&path, 8).unwrap(), "eight by");
        assert_eq!(read(&path, 7).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // Its reported length is 0, its content is not.
        assert_eq!(
            read(Path::new("/proc/self/status"), 8).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        std::fs::write(&path, b"ab\xff").unwrap();
        let error = read_to_string(&path, 8).unwrap_err().to_string();
        assert_eq!(error, "is not UTF-8 text (at byte 2)");
    }

    #[test]
    fn refuses_what_is_not_a_regular_file_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        for (path, kind) in [
            (fifo.as_path(), "is a FIFO, not a regular file"),
            (directory.path(), "is a directory, not a regular file"),
            (Path::new("/dev/zero"), "is a device, not a regular file"),
        ] {
            assert_eq!(open(path).unwrap_err().to_string(), kind);
        }
    }
}
