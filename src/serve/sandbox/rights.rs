//! The rights of the process: capabilities and no_new_privs.

use crate::serve::user::Identity;
use caps::CapSet;

/// Executed programs gain no rights: no set-user-ID, no file capabilities. Holds for this thread and
/// those that it starts from now on.
///
/// # Errors
/// That of the kernel, before Linux 3.5.
pub(super) fn gain_no_more() -> Result<(), String> {
    nix::sys::prctl::set_no_new_privs().map_err(|error| error.desc().to_owned())
}

/// Drops all capabilities of this thread and those that it starts from now on, and returns a
/// description.
///
/// # Errors
/// When they are needed later on, or the kernel refuses.
pub(super) fn drop_capabilities(identity: Option<&Identity>) -> Result<String, String> {
    if let Some(identity) = identity {
        if identity.leaves_root() {
            return Ok(format!("dropped with the change to {}", identity.name()));
        }
        // A process that stays root needs them to set its groups.
        identity.assume()?;
    }
    let told = |error: caps::errors::CapsError| error.to_string();
    if caps::read(None, CapSet::Permitted).map_err(told)?.is_empty() {
        return Ok("the process had none".to_owned());
    }
    // The bounding set does not matter if no program is executed, and no_new_privs covers that.
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).map_err(told)?;
    }
    Ok("all dropped".to_owned())
}
