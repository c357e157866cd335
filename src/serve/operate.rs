//! From arguments to what a service is bound on, and from the bound service to its exit code: it runs until a signal
//! ends it, and reports on the way.

use super::Ended;
use super::arguments::{Mode, ServerArgs};
use super::http::finish_log;
use super::listen::with_remedy;
use super::notices::{self, print_once};
use super::report::{Reporter, runs_both};
use super::sandbox::Sandbox;
use super::signals::{self, Actions};
use super::user::Identity;
use crate::output::complain;
use signal_hook::iterator::Signals;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use twinring::config::Features;
use twinring::confine::Uses;
use twinring::{Builder, Runtime};
use twinring_services::http::{AccessLog, Admin};
use twinring_services::{Server, Service};

/// What a server runs with.
pub(super) struct Prepared {
    pub(super) args: ServerArgs,
    pub(super) runtime: Runtime,
    pub(super) identity: Option<Identity>,
    pub(super) sandbox: Sandbox,
    /// Those that were handled from the start.
    pub(super) signals: Option<Signals>,
    pub(super) actions: Actions,
    pub(super) admin: Option<Admin>,
    pub(super) log: Option<Arc<AccessLog>>,
    pub(super) drain_timeout: Duration,
}

impl ServerArgs {
    /// Binds no address and drops no right. On failure, this returns all that is wrong.
    pub(super) fn prepare(&self, uses: Uses) -> Result<Prepared, Vec<String>> {
        let identity = self.identity();
        // A service flushes before it closes; data that is still unsent then was cut on purpose.
        let builder = self.runtime().linger(Duration::ZERO).on_event(print_once());
        let identified = identity.as_ref().ok().and_then(Option::as_ref);
        let (sandbox, builder) = Sandbox::new(self, uses, builder, identified);
        match (identity, self.build(builder)) {
            (Ok(identity), Ok(runtime)) => Ok(Prepared {
                args: self.clone(),
                runtime,
                identity,
                sandbox,
                signals: None,
                actions: Actions::new(),
                admin: None,
                log: None,
                drain_timeout: Duration::ZERO,
            }),
            (identity, runtime) => Err(identity.err().into_iter().chain(runtime.err()).collect()),
        }
    }

    /// If io_uring cannot be used for `--engine both`, this prints why, and the service runs on epoll.
    fn build(&self, builder: Builder) -> Result<Runtime, String> {
        let runtime = builder.build().map_err(|error| error.to_string())?;
        if self.engine != Some(Mode::Both) {
            return Ok(runtime);
        }
        if runtime.workers() < 2 {
            return Err("--engine both needs --workers 2 or more: one for each engine".to_owned());
        }
        if !runs_both(&runtime) {
            let why = runtime.fallback_reason().unwrap_or("unknown");
            complain(&format!(
                "twinring: --engine both: io_uring cannot be used, so the server runs on epoll: {why}"
            ));
        }
        match runtime.features() {
            Features::IoUring(features) if features.sqpoll_idle_ms > 0 => Err(
                "--engine both does not work with sqpoll, which moves a worker's CPU time to a thread of the kernel"
                    .to_owned(),
            ),
            _ => Ok(runtime),
        }
    }
}

impl Prepared {
    pub(super) fn bind_admin(&mut self) -> Result<(), String> {
        let admin = self.args.admin.map(Admin::bind).transpose();
        self.admin = admin.map_err(|error| with_remedy(&error, "ss -ltnp"))?;
        Ok(())
    }

    /// Runs a bound service until a signal ends it, and reports on the way.
    pub(super) fn run<S: Service>(self, service: Server<S>, mut reporter: Reporter) -> Ended {
        let Prepared { args, runtime, sandbox, log, .. } = self;
        let mut end_admin = None;
        if let Some(admin) = self.admin {
            let address = admin.address();
            reporter.add("admin", &address, format!("admin on {address}"));
            let observer = service.observer(&reporter.ready.engine);
            end_admin = Some(admin.start(observer)?);
        }
        let handle = runtime.handle();
        let received =
            signals::watch(self.signals, self.actions, handle.clone(), self.drain_timeout)?;
        let reporter = Arc::new(reporter);
        let ready = Arc::clone(&reporter);
        let sealed = Arc::new(OnceLock::new());
        let outcome = Arc::clone(&sealed);
        let service = Arc::new(service.on_ready(move || match sandbox.seal() {
            Ok((report, leaky)) => {
                ready.ready(&report);
                notices::tell_manager("READY=1");
                let _only_one_is_ready_last = outcome.set(Ok(leaky));
                if sandbox.only_checks {
                    handle.shutdown();
                }
            }
            Err(why) => {
                let _only_one_is_ready_last = outcome.set(Err(why));
                handle.stop();
            }
        }));
        if let Some(seconds) = args.stats {
            reporter.print_every(Duration::from_secs(seconds.get()))?;
        }
        let failure = match runtime.run(move |worker| Arc::clone(&service).run(worker)) {
            Err(error) => Some(error.to_string()),
            // A worker without a result was stopped by the second signal.
            Ok(workers) => {
                workers.into_iter().flatten().find_map(|worker| Some(worker.err()?.to_string()))
            }
        };
        received.workers_have_ended();
        log.iter().for_each(|log| finish_log(log, &received));
        if let Some(end) = end_admin {
            end();
        }
        let sealed = sealed.get().cloned().unwrap_or(Ok(false));
        let failure = failure.or(sealed.clone().err());
        let reason = failure.as_ref().map_or_else(|| received.reason(), |_| "failed".to_owned());
        reporter.statistics(Some(&reason));
        match failure {
            Some(failure) => Err(failure.into()),
            None if sealed == Ok(true) => Ok(ExitCode::FAILURE),
            None => Ok(received.exit_code()),
        }
    }
}
