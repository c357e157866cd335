//! Where peers are looked for.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::Peer;
use crate::error::LabError;

/// The environment variable with a directory of peers.
const VARIABLE: &str = "TWINRING_PEERS";

/// Where the peers of the checkout are built to, below its directory.
pub(super) const BUILT: &str = "peers/target/release";

/// The directories in which peers are looked for, in this order: those that were named by option
/// and by `TWINRING_PEERS`, that of the running binary, `peers/target/release` below the current
/// directory, and those of PATH.
#[derive(Debug, Clone)]
pub struct Places {
    directories: Vec<PathBuf>,
}

/// Why a peer cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent {
    /// None of the places has it.
    NotFound,
    /// There is a file of its name, but it may not be executed.
    MayNotRun(PathBuf),
}

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Absent::NotFound => f.write_str("not found in any of the places for peers"),
            Absent::MayNotRun(file) => {
                write!(f, "not executable: {} (chmod +x)", file.display())
            }
        }
    }
}

/// The programs of peers, by the peer's name.
pub(crate) type Found = BTreeMap<String, PathBuf>;

impl Places {
    /// The places for a running `binary`, with the directory of an option first.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`] when the option or the variable names no directory.
    pub fn new(named: Option<&Path>, binary: &Path) -> Result<Places, LabError> {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let path = std::env::var_os("PATH");
        let current = std::env::current_dir().map_err(|e| LabError::read(".", e))?;
        let variable = variable.as_deref().map(Path::new);
        Places::of(named, variable, binary, &current, path.as_deref())
    }

    fn of(
        named: Option<&Path>,
        variable: Option<&Path>,
        binary: &Path,
        current: &Path,
        path: Option<&OsStr>,
    ) -> Result<Places, LabError> {
        let mut directories = Vec::new();
        for (place, directory) in [("--peers", named), (VARIABLE, variable)] {
            let Some(directory) = directory else { continue };
            let directory = current.join(directory);
            if !directory.is_dir() {
                return Err(LabError::BadExperiment {
                    place: place.to_owned(),
                    problem: format!("{} is not a directory", directory.display()),
                    expected: "a directory with programs of peers, such as tokio-echo".to_owned(),
                });
            }
            directories.push(directory);
        }
        directories.extend(binary.parent().map(Path::to_owned));
        directories.push(current.join(BUILT));
        // A relative entry of PATH is no place for a program to be measured.
        let path = path.map(std::env::split_paths).into_iter().flatten();
        directories.extend(path.filter(|directory| directory.is_absolute()));
        Ok(Places { directories })
    }

    /// The directories, in their order.
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// The program of a peer.
    ///
    /// # Errors
    /// Why there is none that can be started.
    pub fn find(&self, peer: &Peer) -> Result<PathBuf, Absent> {
        let mut absent = Absent::NotFound;
        for directory in &self.directories {
            let file = directory.join(&peer.program);
            if !file.is_file() {
                continue;
            }
            if access(&file, AccessFlags::X_OK).is_ok() {
                return Ok(file);
            }
            if absent == Absent::NotFound {
                absent = Absent::MayNotRun(file);
            }
        }
        Err(absent)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(directory: &Path, mode: u32) -> PathBuf {
        fs::create_dir_all(directory).unwrap();
        let file = directory.join("tokio-echo");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn the_first_place_that_has_it_wins() {
        let base = tempfile::tempdir().unwrap();
        let tokio = Peer::find("tokio").unwrap();
        let at = |name: &str| base.path().join(name);
        for directory in ["named", "variable", "here"] {
            fs::create_dir(at(directory)).unwrap();
        }
        let path = std::env::join_paths([at("path"), PathBuf::from("relative")]).unwrap();
        let (named, variable, binary) = (at("named"), at("variable"), at("bin/twinring"));
        let places =
            Places::of(Some(&named), Some(&variable), &binary, &at("here"), Some(&path)).unwrap();
        assert_eq!(places.directories().len(), 5, "{places:?}");
        assert_eq!(places.find(tokio), Err(Absent::NotFound));
        // From the last place to the first.
        for directory in [at("path"), at("here").join(BUILT), at("bin"), variable, named] {
            let file = program(&directory, 0o755);
            assert_eq!(places.find(tokio), Ok(file));
        }
    }

    #[test]
    fn what_may_not_be_executed_is_passed_over_and_said() {
        let base = tempfile::tempdir().unwrap();
        let tokio = Peer::find("tokio").unwrap();
        let binary = base.path().join("bin/twinring");
        let places = Places::of(None, None, &binary, base.path(), None).unwrap();
        let file = program(&base.path().join("bin"), 0o644);
        assert_eq!(places.find(tokio), Err(Absent::MayNotRun(file)));
        let good = program(&base.path().join(BUILT), 0o755);
        assert_eq!(places.find(tokio), Ok(good));
        // A directory of that name is no program.
        let other = base.path().join("other");
        fs::create_dir_all(other.join("tokio-echo")).unwrap();
        let places = Places::of(Some(&other), None, &other, &other, None).unwrap();
        assert_eq!(places.find(tokio), Err(Absent::NotFound));
    }

    #[test]
    fn a_named_place_has_to_be_a_directory() {
        let base = tempfile::tempdir().unwrap();
        let wrong = base.path().join("nowhere");
        let binary = base.path().join("twinring");
        let error = Places::of(Some(&wrong), None, &binary, base.path(), None).unwrap_err();
        assert!(error.to_string().starts_with("--peers: "), "{error}");
        assert_eq!(error.exit_code(), 2);
        let error = Places::of(None, Some(&wrong), &binary, base.path(), None).unwrap_err();
        assert!(error.to_string().starts_with("TWINRING_PEERS: "), "{error}");
    }
}
