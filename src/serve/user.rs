//! Dropping the rights of root, once everything that needs them is open.

use clap::Args;
use nix::fcntl::AtFlags;
use nix::unistd::{
    AccessFlags, Gid, Group, Uid, User, access, faccessat, getgrouplist, getgroups, getresgid,
    getresuid, setgroups, setresgid, setresuid, setuid,
};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, Args, Deserialize)]
#[command(next_help_heading = "Operation")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct UserArgs {
    /// Name or number of the user to switch to, once all addresses are bound and all files open.
    /// Also sets the user's groups.
    #[arg(long, value_name = "USER")]
    pub(super) user: Option<String>,
    /// Name or number of the group to switch to, instead of that of --user.
    #[arg(long, value_name = "GROUP")]
    pub(super) group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    name: String,
    /// `None` keeps the current user.
    user: Option<Uid>,
    group: Gid,
    /// All groups, including `group`. Read at the start: later the files may not be accessible.
    groups: Vec<Gid>,
}

impl UserArgs {
    pub(super) fn identity(&self) -> Result<Option<Identity>, String> {
        if self.user.is_none() && self.group.is_none() {
            return Ok(None);
        }
        let user = self.user.as_deref().map(find_user).transpose()?;
        let (user, entry) = user.map_or((None, None), |(uid, entry)| (Some(uid), entry));
        let group = match (&self.group, &entry) {
            (Some(group), _) => find_group(group)?,
            (None, Some(entry)) => entry.gid,
            (None, None) => {
                let user = self.user.as_deref().unwrap_or_default();
                return Err(format!("--user {user} has no entry in passwd: give a --group, too"));
            }
        };
        let name = self.user.clone().or(self.group.clone()).unwrap_or_default();
        let groups = match entry.and_then(|entry| CString::new(entry.name).ok()) {
            Some(listed_as) => getgrouplist(&listed_as, group)
                .map_err(|error| format!("cannot find the groups of {name}: {}", error.desc()))?,
            None => vec![group],
        };
        let identity = Identity { name, user, group, groups };
        if !Uid::effective().is_root() && !identity.is_current() {
            return Err(format!(
                "cannot switch to {}: only root may change its user",
                identity.name
            ));
        }
        Ok(Some(identity))
    }
}

/// By name or number, with its entry in passwd.
fn find_user(text: &str) -> Result<(Uid, Option<User>), String> {
    let wrong = |why: &str| format!("cannot use --user {text}: {why}");
    if let Some(user) = User::from_name(text).map_err(|error| wrong(error.desc()))? {
        return Ok((user.uid, Some(user)));
    }
    let uid = text.parse().map(Uid::from_raw).map_err(|_| wrong("unknown user"))?;
    Ok((uid, User::from_uid(uid).map_err(|error| wrong(error.desc()))?))
}

fn find_group(text: &str) -> Result<Gid, String> {
    let wrong = |why: &str| format!("cannot use --group {text}: {why}");
    match (Group::from_name(text).map_err(|error| wrong(error.desc()))?, text.parse()) {
        (Some(group), _) => Ok(group.gid),
        (None, Ok(gid)) => Ok(Gid::from_raw(gid)),
        (None, Err(_)) => Err(wrong("unknown group")),
    }
}

impl Identity {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn groups(&self) -> Vec<u32> {
        self.groups.iter().map(|group| group.as_raw()).collect()
    }

    /// User and group that own files created for it.
    pub(super) fn owner(&self) -> (Option<u32>, u32) {
        (self.user.map(Uid::as_raw), self.group.as_raw())
    }

    /// True if switching to it drops the capabilities of root.
    pub(super) fn leaves_root(&self) -> bool {
        Uid::effective().is_root() && self.user.is_some_and(|user| !user.is_root())
    }

    fn is_current(&self) -> bool {
        self.user.is_none_or(|user| user == Uid::current()) && self.group == Gid::current()
    }

    /// True if there is nothing to change. (Root without capabilities could not.)
    fn is_assumed(&self) -> bool {
        let numbers = |groups: &[Gid]| groups.iter().map(|group| group.as_raw()).collect();
        let wanted: BTreeSet<u32> = numbers(&self.groups);
        getresuid().is_ok_and(|is| {
            self.user.is_none_or(|user| [is.real, is.effective, is.saved] == [user; 3])
        }) && getresgid().is_ok_and(|is| [is.real, is.effective, is.saved] == [self.group; 3])
            && getgroups().is_ok_and(|groups| numbers(&groups) == wanted)
    }

    /// Switches to it, irrevocably: for all threads of the process, existing and later ones, as the C
    /// library ensures (nptl(7)).
    pub(super) fn assume(&self) -> Result<(), String> {
        let wrong = |what: &str, error: nix::Error| {
            format!("cannot switch to {}: {what}: {}", self.name, io::Error::from(error))
        };
        if !Uid::effective().is_root() || self.is_assumed() {
            return Ok(());
        }
        // In this order: without the user ID of root, the others could not be changed.
        setgroups(&self.groups).map_err(|e| wrong("setgroups", e))?;
        setresgid(self.group, self.group, self.group).map_err(|e| wrong("setresgid", e))?;
        let Some(user) = self.user else { return Ok(()) };
        setresuid(user, user, user).map_err(|e| wrong("setresuid", e))?;
        let root = Gid::from_raw(0);
        if !self.is_assumed() {
            return Err(format!("cannot switch to {}: other users or groups remain", self.name));
        }
        // A capability such as CAP_SETUID that survived would be the way back.
        if !user.is_root() && setuid(Uid::from_raw(0)).is_ok() {
            return Err(format!("{} can become root again, which defeats its purpose", self.name));
        }
        if !user.is_root() && self.group != root && self.groups.contains(&root) {
            return Err(format!("{} is still in the group of root", self.name));
        }
        Ok(())
    }
}

pub(super) fn is_root() -> bool {
    Uid::effective().is_root()
}

/// A directory of files to serve, kept open until it is known whether the new user may read it.
#[derive(Debug)]
pub(super) struct Served {
    path: PathBuf,
    directory: File,
    /// Beneath it, files that the operator named.
    files: Vec<PathBuf>,
    /// The directories themselves are read, to list them.
    lists: bool,
}

impl Served {
    /// `None` if it cannot be opened, which is reported elsewhere.
    pub(super) fn open(path: &Path, files: Vec<PathBuf>, lists: bool) -> Option<Served> {
        let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_DIRECTORY;
        let directory = File::options().read(true).custom_flags(flags.bits()).open(path).ok()?;
        Some(Served { path: path.to_owned(), directory, files, lists })
    }

    /// The first file that this process may not read with its current rights.
    pub(super) fn unreadable(&self) -> Option<String> {
        let may = |name: &Path, mode| {
            let found = faccessat(&self.directory, name, mode, AtFlags::AT_EACCESS);
            found.map_err(io::Error::from)
        };
        let directory = |mode| may(Path::new("."), mode).err();
        if let Some(error) = directory(AccessFlags::X_OK) {
            return Some(format!("may not search --root {}: {error}", self.path.display()));
        }
        if let Some(error) = directory(AccessFlags::R_OK).filter(|_| self.lists) {
            return Some(format!("may not list --root {}: {error}", self.path.display()));
        }
        self.files.iter().find_map(|file| {
            let error = may(file, AccessFlags::R_OK).err()?;
            Some(format!("may not read {}: {error}", self.path.join(file).display()))
        })
    }
}

/// True if this process may create files in the directory of a file.
pub(super) fn may_replace(file: &Path) -> bool {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    access(parent.unwrap_or(Path::new(".")), AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}
