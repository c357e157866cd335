//! `twinring serve udp`: the reflector.

mod arguments;

pub(super) use arguments::UdpArgs;

use super::both::Both;
use super::operate::{Hooks, become_unprivileged, operate};
use super::problems::{USAGE, refuse, with_remedy};
use super::report::{Subject, engine_name};
use super::sandbox::Sandbox;
use super::sandbox::paths::Paths;
use super::{admin, families};
use crate::output::complain;
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use twinring::confine::Uses;
use twinring::net::Granted;
use twinring_services::http::plain_metrics;
use twinring_services::udp::{UdpService, UdpSettings};

/// Additional content of the ready line.
#[derive(Serialize)]
struct Details {
    max_datagram_bytes: u32,
    granted: Granted,
}

/// Runs the reflector until a signal ends it.
pub(super) fn serve(args: &UdpArgs) -> Result<ExitCode, Box<dyn Error>> {
    let allow = match args.allow.list_for(&args.listen) {
        Ok(allow) => allow,
        Err(problem) => return Ok(refuse(&[problem], USAGE)),
    };
    // The service flushes before it closes; data that is still unsent then was cut on purpose.
    let builder = args.engine.runtime().linger(Duration::ZERO);
    let identity = args.user.identity()?;
    let uses = Uses { datagrams: true, ..Uses::default() };
    let mut sandbox = Sandbox::new(&args.sandbox, uses);
    let runtime = sandbox.confine(builder, &args.engine, identity.as_ref()).build()?;
    let settings = UdpSettings {
        options: args.options(),
        copy_ecn: args.copy_ecn,
        allow,
        rate_per_source: args.max_rate_per_source,
        drain_timeout: args.drain_timeout,
    };
    let workers = runtime.workers();
    let [listen] = families::available([&args.listen]);
    let service = UdpService::bind(&listen, settings, workers, runtime.handle())
        .map_err(|error| with_remedy(&error, "ss -lunp"))?;
    let granted = service.granted();
    args.compare(granted).iter().for_each(|shortfall| complain(shortfall));
    let details = Details { max_datagram_bytes: args.max_datagram_with(granted), granted };
    let allowed = args.allow.list();
    let both = Both::of(&args.engine, &runtime, &service)?;
    let subject = Subject::new("udp", service.addresses(), service.counters())
        .with_details("udp", &details, args.details_text(granted))
        .with_details("allow", &allowed, format!("answers {}", allowed.join(", ")));
    let admin = args.admin.bind()?;
    let subject = admin::with_details(subject, admin.as_ref());
    let paths = Paths { own_process: admin.is_some(), ..Paths::default() };
    become_unprivileged(&mut sandbox, &runtime, &paths, identity.as_ref())?;
    let engine = engine_name(runtime.features(), both.is_some());
    let observer = service.observer(engine, plain_metrics("udp", service.counters()));
    let at_end = admin::start(admin, observer)?;
    let hooks = Hooks { drain_timeout: args.drain_timeout, both, at_end, ..Hooks::default() };
    operate(runtime, subject, &args.output, hooks, sandbox, |ready| {
        let service = Arc::new(service.on_ready(ready));
        move |worker| Arc::clone(&service).run(worker)
    })
}
