//! The files and addresses that a confined service can access: Landlock, Linux 5.13.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    make_bitflags,
};
use std::path::{Path, PathBuf};

/// The newest ABI whose rights this file knows; on older kernels, the rights that they have are used.
const ABI_KNOWN: ABI = ABI::V6;

/// The files that a service needs; none by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    /// Directories that are read, with all beneath them.
    pub(crate) read: Vec<PathBuf>,
    /// Files that are read, and may be replaced: their directories, and those of their link targets,
    /// are read, too.
    pub(crate) read_files: Vec<PathBuf>,
    /// Files that are written, and created again after a rotation.
    pub(crate) written: Vec<PathBuf>,
    /// /proc/self is read, for metrics.
    pub(crate) own_process: bool,
}

impl Paths {
    /// True if files are opened by their names: roots are, at a reload.
    pub(super) fn by_name(&self) -> bool {
        !self.read.is_empty()
            || !self.read_files.is_empty()
            || !self.written.is_empty()
            || self.own_process
    }
}

type Rule = (PathFd, BitFlags<AccessFs>);

/// Restricts this thread, and those that it starts from now on, and returns the rules in force.
pub(super) fn restrict(paths: &Paths) -> Result<Restricted, String> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let write = make_bitflags!(AccessFs::{WriteFile});
    let mut rules: Vec<Rule> = Vec::new();
    let mut add = |path: &Path, access| {
        // A missing file cannot be allowed; its user reports the error.
        rules.extend(PathFd::new(path).ok().map(|fd| (fd, access)));
    };
    paths.read.iter().for_each(|directory| add(directory, read));
    for file in &paths.read_files {
        directories_of(file).iter().for_each(|directory| add(directory, read));
    }
    for file in &paths.written {
        // The file itself, too: a device, a pipe, or a file in a read-only directory.
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
    let told = |error: landlock::RulesetError| error.to_string();
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_KNOWN))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI_KNOWN)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(ABI_KNOWN)))
        .and_then(Ruleset::create)
        .map_err(told)?;
    for (path, access) in &rules {
        // A rule for a file may name only rights that apply to files.
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
            let abi = (effective_abi as i32).min(ABI_KNOWN as i32);
            Ok(Restricted { abi, _rules: rules })
        }
        (_, status) => Err(format!("unexpected Landlock status: {status:?}")),
    }
}

/// The rules in force. They name inodes; those of /proc stay the same as long as they are open.
pub(super) struct Restricted {
    /// The version of Landlock whose rights are in force.
    pub(super) abi: i32,
    _rules: Vec<Rule>,
}

/// The remaining rights, for the ready line.
pub(super) fn summary(abi: i32, paths: &Paths) -> String {
    let mut left = Vec::new();
    if !paths.read.is_empty() || !paths.read_files.is_empty() {
        left.push("reads its directories");
    }
    if !paths.written.is_empty() {
        left.push("writes its log");
    }
    if left.is_empty() {
        left.push(if paths.own_process { "reads /proc/self" } else { "no file system" });
    }
    left.extend((abi >= ABI::V4 as i32).then_some("no TCP bind or connect"));
    left.join(", ")
}

/// The directory of a file, and those of its targets if it is a symbolic link.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let mut directories = vec![parent(file).to_owned()];
    if let Ok(target) = file.canonicalize() {
        directories.push(parent(&target).to_owned());
    }
    directories.dedup();
    directories
}

/// The directory of a file.
pub(in crate::serve) fn parent(file: &Path) -> &Path {
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
