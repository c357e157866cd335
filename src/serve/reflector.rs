//! What the services without files have in common: the echo and the reflector of datagrams.

use super::admin::{self, AdminArgs};
use super::allow::AllowArgs;
use super::both::Both;
use super::notices::print_once;
use super::operate::{Hooks, operate};
use super::report::{OutputArgs, Subject, engine_name};
use super::sandbox::paths::Paths;
use super::sandbox::{Sandbox, SandboxArgs};
use super::user::{Identity, UserArgs};
use crate::engine_args::EngineArgs;
use crate::values::duration;
use clap::Args;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use twinring::{Runtime, confine::Uses};
use twinring_services::{Server, Service};

#[derive(Debug, Args)]
pub(crate) struct ReflectorArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    pub(super) allow: AllowArgs,
    /// How long a shutdown waits for peers to read their remaining answers.
    #[arg(long, value_name = "DURATION", help_heading = "Limits", default_value = "10s",
          value_parser = duration)]
    pub(super) drain_timeout: Duration,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    user: UserArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) struct Prepared {
    pub(super) runtime: Runtime,
    sandbox: Sandbox,
    identity: Option<Identity>,
}

impl ReflectorArgs {
    pub(super) fn prepare(&self, uses: Uses) -> Result<Prepared, Box<dyn Error>> {
        // A service flushes before it closes; data that is still unsent then was cut on purpose.
        let builder = self.engine.runtime().linger(Duration::ZERO).on_event(print_once());
        let identity = self.user.identity()?;
        let mut sandbox = Sandbox::new(&self.sandbox, uses);
        let runtime = sandbox.confine(builder, &self.engine, identity.as_ref()).build()?;
        Ok(Prepared { runtime, sandbox, identity })
    }

    pub(super) fn serve<S: Service + 'static>(
        &self,
        prepared: Prepared,
        service: Server<S>,
        subject: Subject,
    ) -> Result<ExitCode, Box<dyn Error>>
    where
        Server<S>: Send + Sync,
    {
        let Prepared { runtime, mut sandbox, identity } = prepared;
        let both = Both::of(&self.engine, &runtime, &service)?;
        let allowed = self.allow.list();
        let subject =
            subject.with_details("allow", &allowed, format!("answers {}", allowed.join(", ")));
        let admin = self.admin.bind()?;
        let subject = admin::with_details(subject, admin.as_ref());
        let paths = Paths { own_process: admin.is_some(), ..Paths::default() };
        // All addresses are bound.
        sandbox.enter(&runtime, &paths, identity.as_ref())?;
        identity.as_ref().map_or(Ok(()), Identity::assume)?;
        let engine = engine_name(runtime.features(), both.is_some());
        let observer = service.observer(engine);
        let at_end = admin::start(admin, observer)?;
        let hooks = Hooks { drain_timeout: self.drain_timeout, both, at_end, ..Hooks::default() };
        operate(runtime, service, subject, &self.output, hooks, sandbox)
    }
}
