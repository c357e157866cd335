//! A file server, and requests over HTTP.

use crate::plan::Plan;
use crate::{Unwatched, breaks_nothing, end, runtime};
use std::sync::Arc;
use std::time::Duration;
use twinring::ListenOptions;
use twinring::fs::{Dir, SendStrategy};
use twinring::sim::{Fault, World};
use twinring_load::http::{ExpectedBody, Load, LoadError, Report, Settings, Target};
use twinring_services::http::{HttpService, HttpSettings, Site, Sites};

const FILE_BYTES_MAX: u64 = 400 * 1024;
/// Bytes and requests of a run that is as fast as the network, so that a seed takes seconds.
const RUN_BYTES_MAX: u64 = 8 * 1024 * 1024;
const RUN_REQUESTS_MAX: u64 = 2_000;

/// Returns the number of answers.
pub(crate) fn run(world: &World, plan: &mut Plan) -> u64 {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let content: Vec<u8> = (0..plan.about(0, FILE_BYTES_MAX)).map(|at| (at / 7) as u8).collect();
    std::fs::write(directory.path().join("file"), &content).expect("a file");
    let workers = plan.about(1, 2) as usize;
    let server = runtime(workers);
    let handle = server.handle();
    let root = Dir::open(directory.path()).expect("the directory");
    let mut settings = HttpSettings::new(Sites::new(Some(Site::new(root))));
    settings.sendfile_above = plan.about(0, 128 * 1024);
    settings.send = *plan.one_of(&[SendStrategy::Sendfile, SendStrategy::Read]);
    settings.cache.valid = plan.milliseconds(1, 2_000);
    settings.timeouts.drain = plan.milliseconds(1, 10_000);
    settings.limits.requests = plan.sometimes(4, 1, 50).unwrap_or(u64::MAX);
    let limited = settings.limits.requests < u64::MAX;
    let options = ListenOptions::default();
    let address = plan.address();
    let bound = loop {
        let settings = settings.clone();
        match HttpService::bind(&[address], &options, settings, workers, handle.clone()) {
            Ok(bound) => break bound,
            Err(error) => assert!(!breaks_nothing(world), "binding: {error}"),
        }
    };
    let service = Arc::new(bound);
    let settings = load_settings(plan, service.addresses()[0], content);
    // What a client has sent behind the last request of a connection gets no answer.
    let may_close = limited && settings.pipeline > 1;
    let serving = server.start(move |worker| Arc::clone(&service).run(worker)).expect("workers");
    let load = Load::new(settings).expect("a world has an engine");
    let answered = match load.run(&mut Unwatched) {
        Ok(report) => account(world, &report, may_close),
        Err(LoadError::NoConnection { why, .. }) => {
            assert!(!breaks_nothing(world), "no connection: {why}");
            0
        }
        Err(error) => panic!("{error}"),
    };
    end(world, &handle, serving);
    answered
}

fn load_settings(plan: &mut Plan, server: std::net::SocketAddr, content: Vec<u8>) -> Settings {
    let target = Target::parse(&format!("http://{server}/file"), 1).expect("a URL");
    let connections = plan.about(1, 12);
    let requests_max = (RUN_BYTES_MAX / content.len().max(1) as u64).clamp(2, RUN_REQUESTS_MAX);
    Settings {
        connections,
        pipeline: plan.about(1, 16) as u32,
        keepalive: !plan.chance(4),
        threads: plan.about(1, connections.min(2)) as usize,
        rate_per_s: plan.sometimes(4, 1, 500),
        warmup: plan.milliseconds(1, 4),
        duration: plan.milliseconds(20, 3_000),
        requests: Some(plan.about(1, requests_max)),
        body: ExpectedBody::Bytes(content),
        connect_timeout: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
        ..Settings::new(vec![target]).expect("one server")
    }
}

fn account(world: &World, report: &Report, may_close: bool) -> u64 {
    let (errors, whole) = (&report.errors, report.whole_run);
    let said = || report.first_error.clone().unwrap_or_default();
    assert_eq!(errors.malformed, 0, "{}", said());
    assert_eq!(whole.sent, whole.answered + whole.failed + whole.abandoned, "{whole:?}");
    if world.faults().is_free_of(&[Fault::FileTruncated]) {
        assert_eq!((errors.length, errors.hash), (0, 0), "{}", said());
        if breaks_nothing(world) {
            assert_eq!((errors.status, errors.connect, errors.reset), (0, 0, 0), "{}", said());
            let closed = if may_close { 0 } else { errors.closed_early };
            assert_eq!((closed, errors.other), (0, 0), "{}", said());
        }
    }
    whole.answered
}
