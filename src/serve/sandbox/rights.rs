//! The rights of the process: capabilities and no_new_privs.

use crate::serve::user::Identity;
use caps::CapSet;

/// Nothing that is started from here gains rights: no set-user-ID, no file capabilities. Holds for
/// this thread and those that it starts from now on.
///
/// # Errors
/// What the kernel says, before Linux 3.5.
pub(super) fn gain_no_more() -> Result<(), String> {
    nix::sys::prctl::set_no_new_privs().map_err(|error| error.desc().to_owned())
}

/// Gives all capabilities up, of this thread and those that it starts from now on, and says what
/// became of them.
///
/// # Errors
/// When they are needed later on, or the kernel refuses.
pub(super) fn drop_capabilities(identity: Option<&Identity>) -> Result<String, String> {
    if let Some(identity) = identity {
        if identity.leaves_root() {
            return Ok(format!("given up with the change to {}", identity.name()));
        }
        // Who stays root needs them to take its groups.
        identity.assume()?;
    }
    let told = |error: caps::errors::CapsError| error.to_string();
    if caps::read(None, CapSet::Permitted).map_err(told)?.is_empty() {
        return Ok("there were none".to_owned());
    }
    // The bounding set does not matter where nothing is executed, and no_new_privs stands before it.
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).map_err(told)?;
    }
    Ok("all given up".to_owned())
}
