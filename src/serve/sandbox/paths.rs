//! The files and addresses that a service may still get at: Landlock, Linux 5.13.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    make_bitflags,
};
use std::path::{Path, PathBuf};

/// The newest ABI whose rights this file knows; of older kernels, what they have is taken.
const ABI_KNOWN: ABI = ABI::V6;

/// What a service needs of the file system; nothing by default.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Paths {
    /// Directories that are read, with all beneath them.
    pub(in crate::serve) read: Vec<PathBuf>,
    /// Files that are read, and may be replaced: their directories are, too, and those of what they
    /// link to.
    pub(in crate::serve) read_files: Vec<PathBuf>,
    /// Files that are written, and made anew after a rotation.
    pub(in crate::serve) written: Vec<PathBuf>,
    /// /proc/self is read, for metrics.
    pub(in crate::serve) own_process: bool,
}

impl Paths {
    /// True if files are opened by their names.
    pub(super) fn by_name(&self) -> bool {
        !self.read_files.is_empty() || !self.written.is_empty() || self.own_process
    }
}

/// Restricts this thread, and those that it starts from now on, and tells what was taken.
///
/// # Errors
/// When nothing could be.
pub(super) fn restrict(paths: &Paths) -> Result<Restricted, String> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let write = make_bitflags!(AccessFs::{WriteFile});
    let mut rules: Vec<(PathFd, BitFlags<AccessFs>)> = Vec::new();
    let mut add = |path: &Path, access| {
        // What is not there cannot be allowed; whoever needs it says so.
        rules.extend(PathFd::new(path).ok().map(|fd| (fd, access)));
    };
    paths.read.iter().for_each(|directory| add(directory, read));
    for file in &paths.read_files {
        directories_of(file).iter().for_each(|directory| add(directory, read));
    }
    for file in &paths.written {
        // The file itself, too: a device, a pipe, or one in a directory that takes no new ones.
        if file.exists() {
            add(file, write);
        }
        let directory = parent(file);
        if !directory.starts_with("/dev") {
            add(directory, write | AccessFs::MakeReg);
        }
    }
    if paths.own_process {
        add(Path::new("/proc/self"), read);
    }
    enforce(&rules).map(|abi| Restricted { abi, _paths: rules })
}

/// What was taken. The rules are of inodes; those of /proc stay the same as long as they are open.
pub(super) struct Restricted {
    /// The version of Landlock whose rights are in force.
    pub(super) abi: i32,
    _paths: Vec<(PathFd, BitFlags<AccessFs>)>,
}

/// What is left, for the ready line.
pub(super) fn summary(abi: i32, paths: &Paths) -> String {
    let mut left = Vec::new();
    if !paths.read.is_empty() || !paths.read_files.is_empty() {
        left.push("reads its directories");
    }
    if !paths.written.is_empty() {
        left.push("writes its log");
    }
    if left.is_empty() {
        left.push("no file system");
    }
    left.extend((abi >= ABI::V4 as i32).then_some("no TCP bind or connect"));
    left.join(", ")
}

fn enforce(rules: &[(PathFd, BitFlags<AccessFs>)]) -> Result<i32, String> {
    let told = |error: landlock::RulesetError| error.to_string();
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_KNOWN))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI_KNOWN)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(ABI_KNOWN)))
        .and_then(Ruleset::create)
        .map_err(told)?;
    for (path, access) in rules {
        // A rule for a file may name only what can be done to files.
        ruleset = ruleset.add_rule(PathBeneath::new(path, *access)).map_err(told)?;
    }
    let status = ruleset.restrict_self().map_err(told)?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotImplemented) => {
            Err("this kernel has no Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK)".to_owned())
        }
        (RulesetStatus::NotEnforced, _) => {
            Err("Landlock is off: add `landlock` to the kernel's lsm= list".to_owned())
        }
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            Ok((effective_abi as i32).min(ABI_KNOWN as i32))
        }
        (_, status) => Err(format!("Landlock does not say what it did: {status:?}")),
    }
}

/// The directory of a file, and those of the files that it leads to by symbolic links.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let mut directories = vec![parent(file).to_owned()];
    if let Ok(target) = file.canonicalize() {
        directories.push(parent(&target).to_owned());
    }
    directories.dedup();
    directories
}

fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linked_file_may_be_replaced_on_either_side_of_its_link() {
        let directory = tempfile::tempdir().expect("a directory");
        let (live, archive) = (directory.path().join("live"), directory.path().join("archive"));
        std::fs::create_dir(&live).expect("a directory");
        std::fs::create_dir(&archive).expect("a directory");
        std::fs::write(archive.join("key2.pem"), "").expect("a file");
        std::os::unix::fs::symlink("../archive/key2.pem", live.join("key.pem")).expect("a link");
        assert_eq!(directories_of(&live.join("key.pem")), [live, archive]);
        assert_eq!(directories_of(Path::new("key.pem"))[0], Path::new("."));
    }
}
