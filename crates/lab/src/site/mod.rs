//! What servers of files serve: the lab makes the files, and everything else that HTTP needs on
//! disk, in a directory of the bundle that is gone when the experiment is over.
//!
//! - `root/512.bin`: the file of 512 bytes; `root/512/0.bin` and on: a set of such files;
//! - `certificate.pem`, `key.pem`: where a cell speaks TLS;
//! - `urls.txt`, `server.conf`: written again for each run that needs them.
//!
//! The content of the files is random and follows from the seed of the experiment. No two files
//! have the same content, so that one sent in place of another is noticed.

pub(crate) mod h2o;
pub(crate) mod nginx;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use oorandom::Rand64;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::experiment::{HttpGrid, HttpPoint};

/// The directory in the bundle.
const DIRECTORY: &str = "work";

const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
const URLS: &str = "urls.txt";
/// The configuration of a server that needs one.
const CONFIGURATION: &str = "server.conf";

/// Where the files of an experiment are on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Site {
    directory: PathBuf,
}

/// The files on this host. Dropping it removes them.
pub(crate) struct Made(Site);

/// What servers show to load generators; the same on all hosts of an experiment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Certificate {
    certificate: String,
    key: String,
}

impl Certificate {
    /// Makes one for servers with these addresses.
    ///
    /// # Errors
    /// [`LabError::Machine`].
    pub(crate) fn make(servers: &[IpAddr]) -> Result<Certificate, LabError> {
        let names: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names)
            .map_err(|error| LabError::Machine { why: format!("no certificate: {error}") })?;
        let key = made.signing_key.serialize_pem();
        Ok(Certificate { certificate: made.cert.pem(), key })
    }
}

/// The directory for the files of a bundle.
///
/// # Errors
/// [`LabError::Read`] when there is no such bundle.
pub(crate) fn directory_in(bundle: &Path) -> Result<PathBuf, LabError> {
    // Subjects are started elsewhere, so their arguments need the whole path.
    let bundle = bundle.canonicalize().map_err(|error| LabError::read(bundle, error))?;
    Ok(bundle.join(DIRECTORY))
}

impl Made {
    /// Makes the files of every cell of `grid` in `directory`, which becomes this value's own, and
    /// the certificate if there is one.
    ///
    /// # Errors
    /// [`LabError::Write`].
    pub(crate) fn make(
        directory: PathBuf,
        grid: &HttpGrid,
        seed: u64,
        certificate: Option<&Certificate>,
    ) -> Result<Made, LabError> {
        let made = Made(Site { directory });
        let root = made.0.root();
        make_directory(&root)?;
        let mut random = Rand64::new(u128::from(seed));
        for &file_bytes in &grid.file_bytes {
            for &files in &grid.files {
                if files > 1 {
                    make_directory(&root.join(file_bytes.to_string()))?;
                }
                for number in 0..files {
                    let path = root.join(relative(file_bytes, files, number));
                    write_random(&path, file_bytes, &mut random)
                        .map_err(|error| LabError::write(&path, error))?;
                }
            }
        }
        if let Some(Certificate { certificate, key }) = certificate {
            write_text(made.0.certificate(), 0o644, certificate)?;
            write_text(made.0.key(), 0o600, key)?;
        }
        Ok(made)
    }

    pub(crate) fn site(&self) -> &Site {
        &self.0
    }
}

impl Site {
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.directory.join(KEY)
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.directory.join(CONFIGURATION)
    }

    /// The file of a cell with one file.
    fn file(&self, point: HttpPoint) -> PathBuf {
        self.root().join(relative(point.file_bytes, 1, 0))
    }

    /// The words that tell `twinring load http` what to ask for: a URL, or `--urls` with a file of
    /// them, which is written here.
    ///
    /// # Errors
    /// [`LabError::Write`].
    pub(crate) fn urls(
        &self,
        point: HttpPoint,
        server: SocketAddr,
    ) -> Result<Vec<String>, LabError> {
        let scheme = if point.tls { "https" } else { "http" };
        let url = |number| {
            let path = relative(point.file_bytes, point.files, number);
            format!("{scheme}://{server}/{path}")
        };
        if point.files == 1 {
            return Ok(vec![url(0)]);
        }
        let path = self.directory.join(URLS);
        let list: String = (0..point.files).map(|number| url(number) + "\n").collect();
        fs::write(&path, list).map_err(|error| LabError::write(&path, error))?;
        Ok(vec!["--urls".to_owned(), path.display().to_string()])
    }

    /// The words that tell it what content to expect. Of many files, it compares each with what
    /// came first from the same URL.
    pub(crate) fn verify_body(&self, point: HttpPoint) -> String {
        match point.files {
            1 => format!("--verify-body={}", self.file(point).display()),
            _ => "--verify-body".to_owned(),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What cannot be removed is a few files in a directory of the lab's own.
        let _ = fs::remove_dir_all(&self.0.directory);
    }
}

/// Where a file is beneath the root.
fn relative(file_bytes: u32, files: u32, number: u32) -> String {
    match files {
        1 => format!("{file_bytes}.bin"),
        _ => format!("{file_bytes}/{number}.bin"),
    }
}

fn make_directory(path: &Path) -> Result<(), LabError> {
    fs::create_dir_all(path).map_err(|error| LabError::write(path, error))
}

fn write_text(path: PathBuf, mode: u32, text: &str) -> Result<(), LabError> {
    let file = File::options().write(true).create_new(true).mode(mode).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| LabError::write(&path, error))
}

fn write_random(path: &Path, bytes: u32, random: &mut Rand64) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut left = bytes as usize;
    while left > 0 {
        let chunk = random.rand_u64().to_le_bytes();
        let length = left.min(chunk.len());
        file.write_all(&chunk[..length])?;
        left -= length;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    fn grid(text: &str) -> HttpGrid {
        let head = "schema = \"twinring.lab.experiment/3\"\nname = \"files\"\npairs = 8\n\
                    warmup_s = 0.1\nwindow_s = 0.3\n[http]\nload = [\"load\", \"{urls}\"]\n";
        let tail = "\n[[subjects]]\nname = \"epoll\"\nengine = \"epoll\"\n";
        Experiment::from_toml(&format!("{head}{text}{tail}"), "test").unwrap().http.unwrap()
    }

    #[test]
    fn files_have_their_sizes_differ_follow_from_the_seed_and_are_gone_at_the_end() {
        let grid = grid("connections = [1]\nfile_bytes = [1, 1000]\nfiles = [1, 3]");
        let content = |seed| {
            let bundle = tempfile::tempdir().unwrap();
            let made = Made::make(directory_in(bundle.path()).unwrap(), &grid, seed, None).unwrap();
            let site = made.site();
            let read = |path: &str| fs::read(site.root().join(path)).unwrap();
            let names = ["1000.bin", "1000/0.bin", "1000/1.bin", "1000/2.bin"];
            let files = names.map(read);
            assert_eq!(read("1.bin").len(), 1);
            assert!(!site.certificate().exists());
            drop(made);
            assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 0);
            files
        };
        let files = content(7);
        for (index, file) in files.iter().enumerate() {
            assert_eq!(file.len(), 1000);
            assert!(!files[..index].contains(file));
        }
        assert_eq!(files, content(7));
        assert_ne!(files, content(8));
    }

    #[test]
    fn the_load_is_told_what_to_ask_for() {
        let grid = grid("connections = [1]\nfile_bytes = [10]\nfiles = [1, 3]\ntls = [true]");
        let bundle = tempfile::tempdir().unwrap();
        let server: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let certificate = Certificate::make(&[server.ip()]).unwrap();
        let directory = directory_in(bundle.path()).unwrap();
        let made = Made::make(directory, &grid, 1, Some(&certificate)).unwrap();
        let site = made.site();
        let point = |files, tls| HttpPoint {
            connections: 1,
            file_bytes: 10,
            files,
            depth: 1,
            keepalive: true,
            tls,
            http2: false,
            rate_per_s: 0,
            load_percent: 0,
            generator: 0,
            workers: 1,
        };
        assert_eq!(site.urls(point(1, false), server).unwrap(), ["http://127.0.0.1:9/10.bin"]);
        let words = site.urls(point(3, true), server).unwrap();
        assert_eq!(words[0], "--urls");
        let list = fs::read_to_string(&words[1]).unwrap();
        let last = "https://127.0.0.1:9/10/2.bin";
        assert_eq!((list.lines().count(), list.lines().last()), (3, Some(last)));
        assert!(fs::read_to_string(site.certificate()).unwrap().contains("BEGIN CERTIFICATE"));
        let mode = std::os::unix::fs::PermissionsExt::mode;
        assert_eq!(mode(&fs::metadata(site.key()).unwrap().permissions()) & 0o777, 0o600);
        assert!(site.verify_body(point(1, true)).ends_with("root/10.bin"));
    }
}
