//! What servers of files serve: the lab makes the files, and everything else that HTTP needs on
//! disk, in a directory of the bundle that is removed when the experiment ends.
//!
//! `root/512.bin` is the file of 512 bytes, `root/512/0.bin` and on a set of such files. Their content is random and
//! follows from the seed of the experiment: one sent in place of another is noticed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use oorandom::Rand64;

use crate::certificate::SelfSigned;
use crate::error::LabError;
use crate::experiment::{Axis, Cell, Point, Protocol};

const DIRECTORY: &str = "work";

pub(crate) const ROOT: &str = "root";
pub(crate) const CERTIFICATE: &str = "certificate.pem";
pub(crate) const KEY: &str = "key.pem";
pub(crate) const CONFIGURATION: &str = "server.conf";

/// The files of an experiment. Dropping it removes them.
pub(crate) struct Site {
    directory: PathBuf,
}

impl Site {
    /// Makes the files of these cells in a bundle, and a certificate for servers at these addresses where
    /// a cell speaks TLS. Without cells of HTTP there is nothing.
    pub(crate) fn make(
        bundle: &Path,
        cells: &[Cell],
        seed: u64,
        servers: &[IpAddr],
    ) -> Result<Option<Site>, LabError> {
        let of_http =
            || cells.iter().map(|it| it.point).filter(|it| it.protocol() == Protocol::Http);
        if of_http().next().is_none() {
            return Ok(None);
        }
        // Subjects are started elsewhere, so their arguments need the whole path.
        let bundle = bundle.canonicalize().map_err(|error| LabError::read(bundle, error))?;
        let site = Site { directory: bundle.join(DIRECTORY) };
        let mut random = Rand64::new(u128::from(seed));
        let sets: BTreeSet<(u32, u32)> =
            of_http().map(|it| (it.get(Axis::Bytes), it.get(Axis::Files))).collect();
        for (file_bytes, files) in sets {
            for number in 0..files {
                let path = site.path(ROOT).join(relative(file_bytes, files, number));
                let words = std::iter::repeat_with(|| random.rand_u64().to_le_bytes());
                let content: Vec<u8> = words.flatten().take(file_bytes as usize).collect();
                path.parent()
                    .map_or(Ok(()), fs::create_dir_all)
                    .and_then(|()| fs::write(&path, content))
                    .map_err(|error| LabError::write(&path, error))?;
            }
        }
        if of_http().any(|it| it.is(Axis::Tls)) {
            let names: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
            let made = SelfSigned::server(names)
                .map_err(|error| LabError::machine(format!("no certificate: {error}")))?;
            write_text(site.path(CERTIFICATE), 0o644, &made.certificate)?;
            write_text(site.path(KEY), 0o600, &made.key)?;
        }
        Ok(Some(site))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The words that tell `twinring load http` what to ask for: a URL, or `--urls` with a file of
    /// them, which is written here.
    pub(crate) fn urls(&self, point: &Point, server: SocketAddr) -> Result<Vec<String>, LabError> {
        let scheme = if point.is(Axis::Tls) { "https" } else { "http" };
        let (file_bytes, files) = (point.get(Axis::Bytes), point.get(Axis::Files));
        let url = |number| format!("{scheme}://{server}/{}", relative(file_bytes, files, number));
        if files == 1 {
            return Ok(vec![url(0)]);
        }
        let path = self.path("urls.txt");
        let list: String = (0..files).map(|number| url(number) + "\n").collect();
        fs::write(&path, list).map_err(|error| LabError::write(&path, error))?;
        Ok(vec!["--urls".to_owned(), path.display().to_string()])
    }

    /// The option that tells it what content to expect. Of many files, it compares each with the
    /// first answer from the same URL.
    pub(crate) fn verify_body(&self, point: &Point) -> String {
        let file = self.path(ROOT).join(relative(point.get(Axis::Bytes), 1, 0));
        match point.get(Axis::Files) {
            1 => format!("--verify-body={}", file.display()),
            _ => "--verify-body".to_owned(),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // What cannot be removed is a few files in a directory of the lab's own.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn relative(file_bytes: u32, files: u32, number: u32) -> String {
    match files {
        1 => format!("{file_bytes}.bin"),
        _ => format!("{file_bytes}/{number}.bin"),
    }
}

fn write_text(path: PathBuf, mode: u32, text: &str) -> Result<(), LabError> {
    let file = File::options().write(true).create_new(true).mode(mode).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| LabError::write(&path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::NetKind;

    fn cell(bytes: u32, files: u32, tls: u32) -> Cell {
        let axes =
            [(Axis::Connections, 1), (Axis::Bytes, bytes), (Axis::Files, files), (Axis::Tls, tls)];
        Cell { net: NetKind::Lo, point: Point::new(Protocol::Http, &axes).unwrap() }
    }

    #[test]
    fn files_have_their_sizes_differ_follow_from_the_seed_and_are_gone_at_the_end() {
        let cells = [cell(1000, 1, 0), cell(1000, 3, 0)];
        let content = |seed| {
            let bundle = tempfile::tempdir().unwrap();
            let site = Site::make(bundle.path(), &cells, seed, &[]).unwrap().unwrap();
            let read = |path: &str| fs::read(site.path(ROOT).join(path)).unwrap();
            let files = ["1000.bin", "1000/0.bin", "1000/1.bin", "1000/2.bin"].map(read);
            drop(site);
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
    fn only_its_owner_reads_the_key() {
        let bundle = tempfile::tempdir().unwrap();
        let server = "127.0.0.1".parse().unwrap();
        let site = Site::make(bundle.path(), &[cell(10, 3, 1)], 1, &[server]).unwrap().unwrap();
        assert!(fs::read_to_string(site.path(CERTIFICATE)).unwrap().contains("BEGIN CERTIFICATE"));
        let mode = std::os::unix::fs::PermissionsExt::mode;
        assert_eq!(mode(&fs::metadata(site.path(KEY)).unwrap().permissions()) & 0o777, 0o600);
    }
}
