//! What a server gives up once it is ready, so that whoever takes it over finds little: its rings
//! do only what it does, so do its system calls, it reaches its own files, and has no rights to
//! speak of. `docs/security.md` says against whom.
//!
//! The order matters. Rings are restricted when they are made. Capabilities, no_new_privs and
//! Landlock hold for a thread and those that it starts: they come when all addresses are bound and
//! before there is a second thread. The filter of system calls comes last, when every worker has
//! its ring, and holds for all threads.

mod check;
mod filter;
mod paths;
mod rights;

pub(super) use paths::Paths;

use super::user::Identity;
use crate::engine_args::EngineArgs;
use clap::Args;
use filter::Needs;
use paths::Restricted;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use twinring::confine::Uses;
use twinring::probe::{Environment, Rights};
use twinring::{Builder, Engine};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub(super) struct SandboxArgs {
    /// What to give up once ready: `off`, or parts out of ring, seccomp, landlock, no_new_privs and
    /// capabilities. A part that is named and cannot be had is an error. Without this option all
    /// are taken that can be had; the ready line says which.
    #[arg(long, value_name = "off|PART,...")]
    sandbox: Option<Selection>,
    /// Once ready, try what the sandbox has to refuse, print what came of it, and end: with 0 if all
    /// was refused that had to be.
    #[arg(long)]
    sandbox_check: bool,
}

/// A part of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    Ring,
    Seccomp,
    Landlock,
    NoNewPrivs,
    Capabilities,
}

const PARTS: [Part; 5] =
    [Part::Ring, Part::Seccomp, Part::Landlock, Part::NoNewPrivs, Part::Capabilities];

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Ring => "ring",
            Part::Seccomp => "seccomp",
            Part::Landlock => "landlock",
            Part::NoNewPrivs => "no_new_privs",
            Part::Capabilities => "capabilities",
        }
    }
}

/// The parts that were named; none is `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Selection(Vec<Part>);

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Selection, String> {
        if text == "off" {
            return Ok(Selection(Vec::new()));
        }
        let part = |name: &str| PARTS.into_iter().find(|part| part.name() == name.trim());
        let parts = text.split(',').map(|name| {
            part(name).ok_or_else(|| {
                let known = PARTS.map(Part::name).join(", ");
                format!("`{name}` is no part of the sandbox: expected off, or some of {known}")
            })
        });
        parts.collect::<Result<_, _>>().map(Selection)
    }
}

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Outcome {
    on: bool,
    details: String,
}

/// What became of all parts, for the ready line.
#[derive(Clone, Debug)]
pub(super) struct Report(Vec<(Part, Outcome)>);

impl Report {
    fn has(&self, part: Part) -> bool {
        self.0.iter().any(|(other, outcome)| *other == part && outcome.on)
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(part, outcome)| (part.name(), outcome)))
    }
}

impl fmt::Display for Report {
    /// `sandbox: ring, seccomp; without landlock (why)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            self.0.iter().filter(|(_, is)| is.on).map(|(part, _)| part.name()).collect();
        f.write_str("sandbox ")?;
        f.write_str(&if names.is_empty() { "off".to_owned() } else { names.join(", ") })?;
        let refused = |is: &Outcome| !is.on && ![NOT_ASKED, NO_RING].contains(&&*is.details);
        for (part, outcome) in self.0.iter().filter(|(_, is)| refused(is)) {
            write!(f, "; without {} ({})", part.name(), outcome.details)?;
        }
        Ok(())
    }
}

/// Why a part is not on although nothing refuses it.
const NOT_ASKED: &str = "not asked for";
const NO_RING: &str = "epoll has no ring";

/// The sandbox of one service, on its way from arguments to a ready service.
pub(super) struct Sandbox {
    /// `None` takes what can be had.
    selection: Option<Selection>,
    check: bool,
    uses: Uses,
    report: Vec<(Part, Outcome)>,
    /// Why capabilities are kept for rings, which workers make after the others are gone. Asked for
    /// once, before anything is given up: behind Landlock nobody can read the setting any more.
    rings_need_capabilities: Option<&'static str>,
    /// Whether the kernel restricts rings, if that was asked.
    restricts_rings: Option<Result<(), String>>,
    needs: Needs,
    /// Kept for the rules of /proc, as long as the process lives.
    restricted: Option<Restricted>,
    /// The check found something possible.
    leaky: AtomicBool,
}

impl Sandbox {
    pub(super) fn new(args: &SandboxArgs, uses: Uses) -> Sandbox {
        Sandbox {
            selection: args.sandbox.clone(),
            check: args.sandbox_check,
            uses,
            report: Vec::new(),
            rings_need_capabilities: None,
            restricts_rings: None,
            needs: Needs::default(),
            restricted: None,
            leaky: AtomicBool::new(false),
        }
    }

    fn wants(&self, part: Part) -> bool {
        self.selection.as_ref().is_none_or(|selection| selection.0.contains(&part))
    }

    /// Has the rings of a runtime restricted, where the kernel does that, and tells it what rights
    /// will be gone by then.
    pub(super) fn confine(
        &mut self,
        builder: Builder,
        engine: &EngineArgs,
        identity: Option<&Identity>,
    ) -> Builder {
        let mut rights = Rights {
            no_capabilities: identity.is_some_and(Identity::leaves_root),
            groups: identity.map(Identity::groups),
        };
        let by_name = self.selection.is_some();
        if self.wants(Part::Capabilities) && !rights.no_capabilities {
            // By default the faster engine is worth more than this part; a part that was named is not.
            let needed = Environment::read().with(&rights).rings_need_capabilities();
            if needed && engine.may_use_rings() && !by_name {
                self.rings_need_capabilities =
                    Some("kernel.io_uring_disabled=1 lets nobody else make rings");
            } else {
                rights.no_capabilities = true;
            }
        }
        let builder = builder.starts_with(rights);
        if !self.wants(Part::Ring) || !engine.may_use_rings() {
            return builder;
        }
        let tried = twinring::confine::try_restrictions().map_err(|error| error.to_string());
        let refused = tried.is_err();
        self.restricts_rings = Some(tried);
        if refused { builder } else { builder.confine(self.uses) }
    }

    /// Gives up what a thread can give up for those that it starts: to be called before there is
    /// another one, and when everything is bound.
    ///
    /// # Errors
    /// When a part that was named cannot be had.
    pub(super) fn enter(
        &mut self,
        engine: Engine,
        paths: &Paths,
        identity: Option<&Identity>,
    ) -> Result<(), String> {
        self.needs = Needs {
            uring: engine == Engine::IoUring,
            // The operator's own service always runs on epoll.
            epoll: engine == Engine::Epoll || paths.own_process,
            streams: self.uses.accept || paths.own_process,
            datagrams: self.uses.datagrams,
            files: self.uses.files,
            paths: paths.by_name(),
        };
        let tried = self.restricts_rings.take();
        if engine == Engine::Epoll && self.wants(Part::Ring) {
            self.note(Part::Ring, false, NO_RING.to_owned());
        } else if let Some(tried) = tried {
            let told = |error| format!("the kernel does not restrict rings (Linux 5.10): {error}");
            let restricted = tried.map(|()| "restricted to what the service does".to_owned());
            self.settle(Part::Ring, restricted.map_err(told))?;
        }
        // Without it the kernel takes Landlock and filters from nobody but root.
        let needed = [Part::NoNewPrivs, Part::Landlock, Part::Seccomp];
        if needed.into_iter().any(|part| self.wants(part)) {
            let gained = rights::gain_no_more();
            self.settle(Part::NoNewPrivs, gained.map(|()| "no program gains rights".to_owned()))?;
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
                _ => rights::drop_capabilities(identity),
            };
            self.settle(Part::Capabilities, dropped)?;
        }
        Ok(())
    }

    /// True if the process had more rights before [`enter`](Sandbox::enter), whoever it is.
    pub(super) fn gave_up_capabilities(&self) -> bool {
        self.report.iter().any(|(part, outcome)| *part == Part::Capabilities && outcome.on)
    }

    /// Filters the system calls of all threads: to be called on a worker when everything has
    /// started. Then tries, if that was asked for, what has to be refused.
    ///
    /// # Errors
    /// When the filter was asked for by name and cannot be had.
    pub(super) fn seal(&self, json: bool) -> Result<Report, String> {
        // Behind the filter nobody can ask for these any more.
        let rights = self.check.then(check::rights);
        let mut report = Report(self.report.clone());
        if self.wants(Part::Seccomp) {
            let installed = filter::install(self.needs);
            let installed = installed.map(|()| format!("{} system calls", self.needs.count()));
            report.0.push((Part::Seccomp, self.outcome(Part::Seccomp, installed)?));
        }
        for part in PARTS {
            if !report.0.iter().any(|(other, _)| *other == part) {
                let outcome = Outcome { on: false, details: NOT_ASKED.to_owned() };
                report.0.push((part, outcome));
            }
        }
        report.0.sort_by_key(|(part, _)| PARTS.iter().position(|other| other == part));
        if let Some(rights) = rights {
            let abi = self.restricted.as_ref().map_or(0, |restricted| restricted.abi);
            let leaky = check::run(&report, self.needs, abi, rights, json);
            self.leaky.store(leaky, Ordering::Release);
        }
        Ok(report)
    }

    /// True if the service is to end once it has tried what has to be refused.
    pub(super) fn only_checks(&self) -> bool {
        self.check
    }

    /// True if something was possible that has to be refused.
    pub(super) fn is_leaky(&self) -> bool {
        self.leaky.load(Ordering::Acquire)
    }

    fn settle(&mut self, part: Part, taken: Result<String, String>) -> Result<(), String> {
        let outcome = self.outcome(part, taken)?;
        self.note(part, outcome.on, outcome.details);
        Ok(())
    }

    /// An error if the part was asked for by name.
    fn outcome(&self, part: Part, taken: Result<String, String>) -> Result<Outcome, String> {
        let by_name = self.selection.is_some() && self.wants(part);
        match taken {
            Ok(details) => Ok(Outcome { on: true, details }),
            Err(why) if by_name => Err(format!(
                "--sandbox: {} cannot be had: {why}; leave it out of the list to go without",
                part.name()
            )),
            Err(details) => Ok(Outcome { on: false, details }),
        }
    }

    fn note(&mut self, part: Part, on: bool, details: String) {
        self.report.push((part, Outcome { on, details }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_parse_and_name_what_is_wrong() {
        assert_eq!("off".parse(), Ok(Selection(Vec::new())));
        let two = Selection(vec![Part::Ring, Part::NoNewPrivs]);
        assert_eq!("ring, no_new_privs".parse(), Ok(two));
        for wrong in ["", "on", "ring,off", "ring,,seccomp", "RING"] {
            let error = wrong.parse::<Selection>().expect_err(wrong);
            assert!(error.contains("expected off, or some of ring, seccomp"), "{error}");
        }
    }

    #[test]
    fn what_is_refused_is_an_error_if_it_was_named() {
        let args = |sandbox| SandboxArgs { sandbox, sandbox_check: false };
        let refused = || Err("no".to_owned());
        let mut by_default = Sandbox::new(&args(None), Uses::default());
        assert_eq!(by_default.settle(Part::Landlock, refused()), Ok(()));
        let mut by_name = Sandbox::new(&args("landlock".parse().ok()), Uses::default());
        let error = by_name.settle(Part::Landlock, refused()).expect_err("an error");
        assert!(error.contains("landlock cannot be had: no"), "{error}");
        let text = Report(by_default.report).to_string();
        assert_eq!(text, "sandbox off; without landlock (no)");
    }

    #[test]
    fn the_ready_line_tells_each_part_once() {
        let args = SandboxArgs { sandbox: "off".parse().ok(), sandbox_check: false };
        let report =
            Sandbox::new(&args, Uses::default()).seal(false).expect("nothing was asked for");
        assert_eq!(report.to_string(), "sandbox off");
        let json = serde_json::to_value(&report).expect("JSON");
        for part in PARTS {
            assert_eq!(json[part.name()]["on"], false, "{json}");
        }
    }
}
