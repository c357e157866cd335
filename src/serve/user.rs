//! Dropping the rights of root, once everything that needs them is open.

use super::arguments::ServerArgs;
use super::sandbox::paths::parent;
use nix::unistd::{
    AccessFlags, Gid, Group, Uid, User, access, getgrouplist, getgroups, getresgid, getresuid,
    setgroups, setresgid, setresuid, setuid,
};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::path::Path;

#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    /// `None` keeps the current user.
    pub(super) user: Option<Uid>,
    pub(super) group: Gid,
    /// All groups, including `group`. Read at the start: later the files may not be accessible.
    pub(super) groups: Vec<Gid>,
}

impl ServerArgs {
    /// The user and the group to switch to, if there are any.
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
        let is_current = user.is_none_or(|user| user == Uid::current()) && group == Gid::current();
        if !is_root() && !is_current {
            return Err(format!("cannot switch to {name}: only root may change its user"));
        }
        Ok(Some(Identity { name, user, group, groups }))
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
    let group = Group::from_name(text).map_err(|error| wrong(error.desc()))?.map(|it| it.gid);
    group.or(text.parse().ok().map(Gid::from_raw)).ok_or_else(|| wrong("unknown group"))
}

impl Identity {
    /// True if switching to it drops the capabilities of root.
    pub(super) fn leaves_root(&self) -> bool {
        is_root() && self.user.is_some_and(|user| !user.is_root())
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
        if !is_root() || self.is_assumed() {
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

/// True if this process may create files in the directory of a file.
pub(super) fn may_replace(file: &Path) -> bool {
    access(parent(file), AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}
