//! Where peers are looked for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::Peer;
use crate::error::LabError;

const VARIABLE: &str = "TWINRING_PEERS";

/// Where the peers of the checkout are built to, below its directory.
const BUILT: &str = "peers/target/release";

/// The directories in which peers are looked for, in this order: those that were named by option
/// and by `TWINRING_PEERS`, that of the running binary, `peers/target/release` below the current
/// directory, and those of PATH.
#[derive(Debug, Clone)]
pub struct Places(pub Vec<PathBuf>);

pub(crate) type PeerPrograms = BTreeMap<String, PathBuf>;

impl Places {
    /// The places for a running `binary`, with the directory of an option first.
    ///
    /// # Errors
    /// When the option or the variable names no directory.
    pub fn new(named: Option<&Path>, binary: &Path) -> Result<Places, LabError> {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let current = std::env::current_dir().map_err(|e| LabError::read(".", e))?;
        let mut directories = Vec::new();
        for (place, directory) in
            [("--peers", named), (VARIABLE, variable.as_deref().map(Path::new))]
        {
            let Some(directory) = directory else { continue };
            let directory = current.join(directory);
            if !directory.is_dir() {
                let found = format!("{} is not a directory", directory.display());
                let expected = "a directory with programs of peers, such as tokio-echo";
                return Err(LabError::request(place, found, expected));
            }
            directories.push(directory);
        }
        directories.extend(binary.parent().map(Path::to_owned));
        directories.push(current.join(BUILT));
        // A relative entry of PATH is no place for a program to be measured.
        let path = std::env::var_os("PATH").unwrap_or_default();
        directories
            .extend(std::env::split_paths(&path).filter(|directory| directory.is_absolute()));
        Ok(Places(directories))
    }

    /// The program of a peer.
    ///
    /// # Errors
    /// Why there is none that can be started.
    pub fn find(&self, peer: &Peer) -> Result<PathBuf, String> {
        let files = || self.0.iter().map(|it| it.join(&peer.program)).filter(|it| it.is_file());
        if let Some(file) = files().find(|file| access(file, AccessFlags::X_OK).is_ok()) {
            return Ok(file);
        }
        Err(files().next().map_or("not found in any of the places for peers".to_owned(), |file| {
            format!("not executable: {} (chmod +x)", file.display())
        }))
    }
}
