//! The sandbox that a server enters once it is ready, so that an attacker that takes it over gains
//! little: its rings and system calls are limited to those that the service uses, it reaches only its
//! own files, and it has no capabilities. `docs/security.md` has the threat model.
//!
//! The order matters. Rings are restricted when they are created. Capabilities, no_new_privs and
//! Landlock hold for a thread and those that it starts: they come when all addresses are bound and
//! before there is a second thread. The filter of system calls comes last, when every worker has
//! its ring, and holds for all threads.

mod check;
mod filter;
pub(super) mod paths;
mod profile;

pub(crate) use profile::{Format, profile};

use super::arguments::ServerArgs;
use super::user::Identity;
use caps::CapSet;
use filter::Needs;
use nix::unistd::Gid;
use paths::{Paths, Restricted};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use twinring::confine::Uses;
use twinring::probe::Environment;
use twinring::{Builder, Engine, Runtime};

/// A part of the sandbox, by its name.
pub(super) type Part = &'static str;

const RING: Part = "ring";
const SECCOMP: Part = "seccomp";
pub(super) const LANDLOCK: Part = "landlock";
const NO_NEW_PRIVS: Part = "no_new_privs";
pub(super) const CAPABILITIES: Part = "capabilities";
const PARTS: [Part; 5] = [RING, SECCOMP, LANDLOCK, NO_NEW_PRIVS, CAPABILITIES];

/// The named parts; an empty list is `off`.
#[derive(Clone, Debug)]
pub(super) struct Selection(Vec<Part>);

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Selection, String> {
        if text == "off" {
            return Ok(Selection(Vec::new()));
        }
        let parts = text.split(',').map(|name| {
            let part = PARTS.into_iter().find(|part| *part == name.trim());
            let known = PARTS.join(", ");
            part.ok_or(format!(
                "`{name}` is not a part of the sandbox: expected off, or some of {known}"
            ))
        });
        parts.collect::<Result<_, _>>().map(Selection)
    }
}

#[derive(Clone, Debug, Serialize)]
struct Outcome {
    on: bool,
    details: String,
}

/// What became of each part, for the ready line.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report(BTreeMap<Part, Outcome>);

impl Report {
    pub(super) fn has(&self, part: &str) -> bool {
        self.0.get(part).is_some_and(|outcome| outcome.on)
    }
}

impl fmt::Display for Report {
    /// `sandbox ring, seccomp; without landlock (why)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on: Vec<Part> = PARTS.into_iter().filter(|part| self.has(part)).collect();
        let names = if on.is_empty() { "off".to_owned() } else { on.join(", ") };
        write!(f, "sandbox {names}")?;
        let refused = |is: &Outcome| !is.on && ![NOT_ASKED, NO_RING].contains(&&*is.details);
        for (part, outcome) in self.0.iter().filter(|(_, is)| refused(is)) {
            write!(f, "; without {part} ({})", outcome.details)?;
        }
        Ok(())
    }
}

/// Why a part is off although the kernel supports it.
const NOT_ASKED: &str = "not requested";
const NO_RING: &str = "epoll has no ring";

/// The sandbox of one service, on its way from arguments to a ready service.
pub(super) struct Sandbox {
    /// `None` selects all supported parts.
    selection: Option<Selection>,
    pub(super) only_checks: bool,
    json: bool,
    pub(super) report: Report,
    /// Why capabilities are kept for rings, which workers create later. Determined once, before any
    /// right is dropped: behind Landlock the setting is no longer readable.
    rings_need_capabilities: Option<&'static str>,
    needs: Needs,
    /// Kept for the rules of /proc, as long as the process lives.
    restricted: Option<Restricted>,
}

impl Sandbox {
    /// Also makes the runtime restrict its rings, if the kernel supports that, and tells it which rights will
    /// be dropped by then.
    pub(super) fn new(
        args: &ServerArgs,
        uses: Uses,
        builder: Builder,
        identity: Option<&Identity>,
    ) -> (Sandbox, Builder) {
        let off = Outcome { on: false, details: NOT_ASKED.to_owned() };
        let mut sandbox = Sandbox {
            selection: args.sandbox.clone(),
            only_checks: args.sandbox_check,
            json: args.json,
            report: Report(PARTS.map(|part| (part, off.clone())).into()),
            rings_need_capabilities: None,
            needs: Needs { files: uses.files, ..Needs::default() },
            restricted: None,
        };
        let mut later = Environment::read();
        if let Some(identity) = identity {
            let allowed = later.io_uring_group.and_then(|group| u32::try_from(group).ok());
            later.in_io_uring_group =
                allowed.is_some_and(|group| identity.groups.contains(&Gid::from_raw(group)));
        }
        let mut drops = identity.is_some_and(Identity::leaves_root);
        if sandbox.wants(CAPABILITIES) && !drops {
            // By default the faster engine takes precedence over this part; a named part does not give way.
            let by_default = sandbox.selection.is_none();
            if by_default && later.rings_need_capabilities() && args.may_use_rings() {
                sandbox.rings_need_capabilities =
                    Some("kernel.io_uring_disabled=1: only privileged processes may create rings");
            } else {
                drops = true;
            }
        }
        if drops {
            (later.cap_sys_admin, later.cap_ipc_lock) = (false, false);
        }
        let builder = builder.starts_in(later);
        let confines = sandbox.wants(RING) && args.may_use_rings();
        (sandbox, if confines { builder.confine(uses) } else { builder })
    }

    fn wants(&self, part: Part) -> bool {
        self.selection.as_ref().is_none_or(|selection| selection.0.contains(&part))
    }

    /// Drops the rights that a thread drops for those that it starts. Call it before there is another
    /// thread, and after all addresses are bound.
    pub(super) fn enter(
        &mut self,
        runtime: &Runtime,
        paths: &Paths,
        identity: Option<&Identity>,
    ) -> Result<(), String> {
        self.needs.uring = runtime.features().engine() == Engine::IoUring;
        self.needs.paths = paths.by_name();
        if self.wants(RING) {
            let (on, details) = match self.needs.uring {
                true => (true, "operations of the service"),
                false => (false, NO_RING),
            };
            self.report.0.insert(RING, Outcome { on, details: details.to_owned() });
        }
        // Without it the kernel accepts Landlock and filters only from root.
        if [NO_NEW_PRIVS, LANDLOCK, SECCOMP].into_iter().any(|part| self.wants(part)) {
            // Executed programs gain no rights: no set-user-ID, no file capabilities.
            let set = nix::sys::prctl::set_no_new_privs().map_err(|error| error.desc().to_owned());
            self.settle(NO_NEW_PRIVS, set.map(|()| "no program gains rights".to_owned()))?;
        }
        if self.wants(LANDLOCK) {
            let restricted = paths::restrict(paths).map(|restricted| {
                let abi = restricted.abi;
                self.restricted = Some(restricted);
                format!("ABI {abi}: {}", paths::summary(abi, paths))
            });
            self.settle(LANDLOCK, restricted)?;
        }
        // Last, as the directories above may be open to root only.
        if self.wants(CAPABILITIES) {
            let dropped = match self.rings_need_capabilities {
                Some(why) if self.needs.uring => Err(why.to_owned()),
                _ => drop_capabilities(identity),
            };
            self.settle(CAPABILITIES, dropped)?;
        }
        Ok(())
    }

    /// Filters the system calls of all threads. Call it on a worker when everything has started. Then
    /// runs the check, if it was requested; true if it found an attempt that succeeded.
    pub(super) fn seal(&self) -> Result<(Report, bool), String> {
        // Behind the filter these calls are refused.
        let rights = self.only_checks.then(check::rights);
        let mut report = self.report.clone();
        if self.wants(SECCOMP) {
            let installed = filter::install(self.needs, self.only_checks);
            let installed =
                installed.map(|()| format!("{} system calls", self.needs.names().len()));
            report.0.insert(SECCOMP, self.outcome(SECCOMP, installed)?);
        }
        let abi = self.restricted.as_ref().map_or(0, |restricted| restricted.abi);
        let is_leaky =
            rights.is_some_and(|rights| check::run(&report, self.needs, abi, rights, self.json));
        Ok((report, is_leaky))
    }

    fn settle(&mut self, part: Part, taken: Result<String, String>) -> Result<(), String> {
        let outcome = self.outcome(part, taken)?;
        self.report.0.insert(part, outcome);
        Ok(())
    }

    /// An error if the part was named.
    fn outcome(&self, part: Part, taken: Result<String, String>) -> Result<Outcome, String> {
        match taken {
            Ok(details) => Ok(Outcome { on: true, details }),
            Err(why) if self.selection.is_some() && self.wants(part) => Err(format!(
                "--sandbox: {part} is not supported: {why}; leave it out of the list to run without it"
            )),
            Err(details) => Ok(Outcome { on: false, details }),
        }
    }
}

/// Drops all capabilities of this thread and those that it starts from now on, and returns a description.
fn drop_capabilities(identity: Option<&Identity>) -> Result<String, String> {
    if let Some(identity) = identity {
        if identity.leaves_root() {
            return Ok(format!("dropped with the change to {}", identity.name));
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
