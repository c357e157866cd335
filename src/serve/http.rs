//! `twinring serve http`: static files.

mod arguments;

pub(super) use arguments::HttpArgs;

use super::report::{Subject, complain};
use super::{operate, print_once, with_remedy};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use twinring::ListenOptions;
use twinring_services::http::HttpService;
use twinring_services::raise_descriptor_limit;

/// Serves files until a signal ends it.
pub(super) fn serve(args: &HttpArgs) -> Result<ExitCode, Box<dyn Error>> {
    if let Err(error) = raise_descriptor_limit() {
        complain(&format!("twinring: the limit of open descriptors stays as it is: {error}"));
    }
    let settings = args.settings()?;
    // The service flushes before it closes; what is then still unsent was cut on purpose.
    let runtime = args.engine.runtime().linger(Duration::ZERO).on_notice(print_once()).build()?;
    let (workers, handle) = (runtime.workers(), runtime.handle());
    let options = ListenOptions { backlog: args.backlog, ..ListenOptions::default() };
    let service = HttpService::bind(&args.listen, &options, settings, workers, handle)
        .map_err(|error| with_remedy(&error, "ss -ltnp"))?;
    let subject = Subject::new("http", service.addresses(), service.counters());
    operate(runtime, subject, &args.output, |ready| {
        let service = Arc::new(service.on_ready(ready));
        move |worker| Arc::clone(&service).run(worker)
    })
}
