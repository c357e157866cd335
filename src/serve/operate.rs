//! From a bound service to its exit code: it runs until a signal ends it, and reports on the way.

use super::both::Both;
use super::report::{LAST_WORDS_MAX, OutputArgs, Reporter, Subject};
use super::sandbox::Sandbox;
use super::{manager, notices, signals};
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use twinring::Runtime;
use twinring_services::{Server, Service};

pub(super) type AtEnd = Box<dyn FnOnce(&signals::Received)>;

#[derive(Default)]
pub(super) struct Hooks {
    pub(super) drain_timeout: Duration,
    pub(super) both: Option<Both>,
    pub(super) signals: signals::Actions,
    /// Called when all workers have ended, before the last line of its report. It may wait for a
    /// bounded time, and not after a second signal.
    pub(super) at_end: Option<AtEnd>,
}

/// Runs a bound service until a signal ends it, and reports on the way.
pub(super) fn operate<S: Service + 'static>(
    runtime: Runtime,
    service: Server<S>,
    subject: Subject,
    output: &OutputArgs,
    hooks: Hooks,
    sandbox: Sandbox,
) -> Result<ExitCode, Box<dyn Error>>
where
    Server<S>: Send + Sync,
{
    let signals = signals::watch(runtime.handle(), hooks.signals, hooks.drain_timeout)?;
    let reporter = Arc::new(Reporter::new(subject, output.json, &runtime, hooks.both));
    let (ready, sandbox) = (Arc::clone(&reporter), Arc::new(sandbox));
    let (sealing, handle, json) = (Arc::clone(&sandbox), runtime.handle(), output.json);
    let unsealed = Arc::new(OnceLock::new());
    let problem = Arc::clone(&unsealed);
    let service = Arc::new(service.on_ready(move || match sealing.seal(json) {
        Ok(report) => {
            ready.ready(&report);
            manager::tell("READY=1");
            if sealing.only_checks() {
                handle.shutdown();
            }
        }
        Err(why) => {
            let _only_one_is_ready_last = problem.set(why);
            handle.stop();
        }
    }));
    if let Some(seconds) = output.stats {
        reporter.print_every(Duration::from_secs(seconds.get()))?;
    }
    let failure = match runtime.run(move |worker| Arc::clone(&service).run(worker)) {
        Err(error) => Some(error.to_string()),
        // A worker without a result was stopped by the second signal.
        Ok(workers) => {
            workers.into_iter().flatten().find_map(|worker| Some(worker.err()?.to_string()))
        }
    };
    signals.workers_have_ended();
    if let Some(at_end) = hooks.at_end {
        at_end(&signals);
    }
    let failure = failure.or(unsealed.get().cloned());
    notices::finish(LAST_WORDS_MAX);
    reporter.last(&failure.as_ref().map_or_else(|| signals.reason(), |_| "failed".to_owned()));
    match failure {
        Some(failure) => Err(failure.into()),
        None if sandbox.is_leaky() => Ok(ExitCode::FAILURE),
        None => Ok(signals.exit_code()),
    }
}
