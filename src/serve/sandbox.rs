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
pub(super) mod parts;
pub(super) mod paths;
mod profile;

pub(crate) use profile::{Format, profile};

use super::user::Identity;
use crate::engine_args::EngineArgs;
use caps::CapSet;
use clap::Args;
use filter::Needs;
pub(super) use parts::Selection;
use parts::{NO_RING, Outcome, Part, Report};
use paths::{Paths, Restricted};
use serde::Deserialize;
use std::sync::atomic::{AtomicBool, Ordering};
use twinring::confine::Uses;
use twinring::probe::Environment;
use twinring::{Builder, Engine, Runtime};
use twinring_services::http::text::optional;

#[derive(Clone, Debug, Default, Args, Deserialize)]
#[command(next_help_heading = "Sandbox")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SandboxArgs {
    /// Parts of the sandbox: `off`, or a list of ring, seccomp, landlock, no_new_privs and
    /// capabilities. A named part that is not supported is an error. By default all supported parts
    /// are on; the ready line shows them.
    #[arg(long, value_name = "off|PART,...")]
    #[serde(deserialize_with = "optional")]
    pub(super) sandbox: Option<Selection>,
    /// Once ready, attempt everything that the sandbox must refuse, print the results, and exit:
    /// with 0 if all of it was refused.
    #[arg(long)]
    #[serde(skip)]
    pub(super) sandbox_check: bool,
}

/// The sandbox of one service, on its way from arguments to a ready service.
pub(super) struct Sandbox {
    /// `None` selects all supported parts.
    selection: Option<Selection>,
    check: bool,
    uses: Uses,
    report: Report,
    /// Why capabilities are kept for rings, which workers create later. Determined once, before any
    /// right is dropped: behind Landlock the setting is no longer readable.
    rings_need_capabilities: Option<&'static str>,
    needs: Needs,
    /// Kept for the rules of /proc, as long as the process lives.
    restricted: Option<Restricted>,
    /// The check found an attempt that succeeded.
    leaky: AtomicBool,
}

impl Sandbox {
    pub(super) fn new(args: &SandboxArgs, uses: Uses) -> Sandbox {
        Sandbox {
            selection: args.sandbox.clone(),
            check: args.sandbox_check,
            uses,
            report: Report::default(),
            rings_need_capabilities: None,
            needs: Needs::default(),
            restricted: None,
            leaky: AtomicBool::new(false),
        }
    }

    fn wants(&self, part: Part) -> bool {
        self.selection.as_ref().is_none_or(|selection| selection.0.contains(&part))
    }

    /// Makes a runtime restrict its rings, if the kernel supports that, and tells it which rights will
    /// be dropped by then.
    pub(super) fn confine(
        &mut self,
        builder: Builder,
        engine: &EngineArgs,
        identity: Option<&Identity>,
    ) -> Builder {
        let mut later = Environment::read();
        if let Some(identity) = identity {
            let groups = identity.groups();
            let allowed = later.io_uring_group.and_then(|group| u32::try_from(group).ok());
            later.in_io_uring_group = allowed.is_some_and(|group| groups.contains(&group));
        }
        let mut drops = identity.is_some_and(Identity::leaves_root);
        let by_name = self.selection.is_some();
        if self.wants(Part::Capabilities) && !drops {
            // By default the faster engine takes precedence over this part; a named part does not give way.
            if later.rings_need_capabilities() && engine.may_use_rings() && !by_name {
                self.rings_need_capabilities =
                    Some("kernel.io_uring_disabled=1: only privileged processes may create rings");
            } else {
                drops = true;
            }
        }
        if drops {
            (later.cap_sys_admin, later.cap_ipc_lock) = (false, false);
        }
        let builder = builder.starts_in(later);
        if !self.wants(Part::Ring) || !engine.may_use_rings() {
            return builder;
        }
        builder.confine(self.uses)
    }

    /// Drops the rights that a thread drops for those that it starts. Call it before there is another
    /// thread, and after all addresses are bound.
    pub(super) fn enter(
        &mut self,
        runtime: &Runtime,
        paths: &Paths,
        identity: Option<&Identity>,
    ) -> Result<(), String> {
        let engine = runtime.features().engine();
        self.needs = Needs {
            uring: engine == Engine::IoUring,
            files: self.uses.files,
            paths: paths.by_name(),
        };
        if self.wants(Part::Ring) {
            match engine {
                Engine::IoUring => {
                    self.settle(Part::Ring, Ok("operations of the service".to_owned()))?
                }
                Engine::Epoll => {
                    let outcome = Outcome { on: false, details: NO_RING.to_owned() };
                    self.report.0.insert(Part::Ring, outcome);
                }
            }
        }
        // Without it the kernel accepts Landlock and filters only from root.
        let needed = [Part::NoNewPrivs, Part::Landlock, Part::Seccomp];
        if needed.into_iter().any(|part| self.wants(part)) {
            // Executed programs gain no rights: no set-user-ID, no file capabilities.
            let set = nix::sys::prctl::set_no_new_privs().map_err(|error| error.desc().to_owned());
            self.settle(Part::NoNewPrivs, set.map(|()| "no program gains rights".to_owned()))?;
        }
        if self.wants(Part::Landlock) {
            let restricted = paths::restrict(paths).map(|restricted| {
                let abi = restricted.abi;
                self.restricted = Some(restricted);
                format!("ABI {abi}: {}", paths::summary(abi, paths))
            });
            self.settle(Part::Landlock, restricted)?;
        }
        // Last, as the directories above may be open to root only.
        if self.wants(Part::Capabilities) {
            let dropped = match self.rings_need_capabilities {
                Some(why) if engine == Engine::IoUring => Err(why.to_owned()),
                _ => drop_capabilities(identity),
            };
            self.settle(Part::Capabilities, dropped)?;
        }
        Ok(())
    }

    pub(super) fn limits_files(&self) -> bool {
        self.restricted.is_some()
    }

    /// True if the process had more rights before [`enter`](Sandbox::enter), as any user.
    pub(super) fn gave_up_capabilities(&self) -> bool {
        self.report.has(Part::Capabilities)
    }

    /// Filters the system calls of all threads. Call it on a worker when everything has started. Then
    /// runs the check, if it was requested.
    pub(super) fn seal(&self, json: bool) -> Result<Report, String> {
        // Behind the filter these calls are refused.
        let rights = self.check.then(check::rights);
        let mut report = self.report.clone();
        if self.wants(Part::Seccomp) {
            let installed = filter::install(self.needs, self.check);
            let installed =
                installed.map(|()| format!("{} system calls", self.needs.names().len()));
            report.0.insert(Part::Seccomp, self.outcome(Part::Seccomp, installed)?);
        }
        if let Some(rights) = rights {
            let abi = self.restricted.as_ref().map_or(0, |restricted| restricted.abi);
            let leaky = check::run(&report, self.needs, abi, rights, json);
            self.leaky.store(leaky, Ordering::Release);
        }
        Ok(report)
    }

    pub(super) fn only_checks(&self) -> bool {
        self.check
    }

    pub(super) fn is_leaky(&self) -> bool {
        self.leaky.load(Ordering::Acquire)
    }

    fn settle(&mut self, part: Part, taken: Result<String, String>) -> Result<(), String> {
        let outcome = self.outcome(part, taken)?;
        self.report.0.insert(part, outcome);
        Ok(())
    }

    /// An error if the part was named.
    fn outcome(&self, part: Part, taken: Result<String, String>) -> Result<Outcome, String> {
        let by_name = self.selection.is_some() && self.wants(part);
        match taken {
            Ok(details) => Ok(Outcome { on: true, details }),
            Err(why) if by_name => Err(format!(
                "--sandbox: {} is not supported: {why}; leave it out of the list to run without it",
                part.name()
            )),
            Err(details) => Ok(Outcome { on: false, details }),
        }
    }
}

/// Drops all capabilities of this thread and those that it starts from now on, and returns a description.
fn drop_capabilities(identity: Option<&Identity>) -> Result<String, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_part_is_an_error_only_if_it_was_named() {
        let args = |sandbox| SandboxArgs { sandbox, sandbox_check: false };
        let refused = || Err("no".to_owned());
        let mut by_default = Sandbox::new(&args(None), Uses::default());
        assert_eq!(by_default.settle(Part::Landlock, refused()), Ok(()));
        let mut by_name = Sandbox::new(&args("landlock".parse().ok()), Uses::default());
        let error = by_name.settle(Part::Landlock, refused()).expect_err("an error");
        assert!(error.contains("landlock is not supported: no"), "{error}");
        let text = by_default.report.to_string();
        assert_eq!(text, "sandbox off; without landlock (no)");
    }
}
