//! A file server, and requests over HTTP.

use crate::operator::{Instruments, check_log};
use crate::plan::Plan;
use crate::programs::{Programs, run_out_of_descriptors};
use crate::site::{Answers, Files, Identities, tls_settings};
use crate::visitor::{Door, visit};
use crate::{Claim, Unwatched, breaks_nothing, end, hostile, patiently, runtime};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use twinring::ListenOptions;
use twinring::fs::SendStrategy;
use twinring::sim::{Fault, World};
use twinring_load::http::{ExpectedBody, Load, LoadError, Settings, Target};
use twinring_services::http::{
    AccessLog, Admin, HttpService, HttpSettings, LogFormat, LogSettings, LogTarget, Tls,
};
use twinring_wire::HttpResult;

const FILE_BYTES_MAX: u64 = 400 * 1024;
/// Bytes and requests of a run that is as fast as the network, so that a seed takes seconds.
const RUN_BYTES_MAX: u64 = 8 * 1024 * 1024;
const RUN_REQUESTS_MAX: u64 = 2_000;

/// How long the workers may take to start.
const READY_MAX: Duration = Duration::from_secs(1);
/// How long an access log may take to write its last lines.
const LOG_END_MAX: Duration = Duration::from_secs(5);

/// The first line of a request and that of the shortest answer.
const BYTES_EACH: u64 = ("GET /file HTTP/1.1\r\n".len() + "HTTP/1.1 200 OK\r\n".len()) as u64;

/// Returns the answers.
pub(crate) fn run(world: &World, plan: &mut Plan) -> Claim {
    let content: Vec<u8> = (0..plan.about(0, FILE_BYTES_MAX)).map(|at| (at / 7) as u8).collect();
    let files = Files::new(plan, content.clone());
    let workers = plan.about(1, 2) as usize;
    let server = runtime(workers);
    let handle = server.handle();
    let settings = service_settings(plan, &files);
    let limited = settings.limits.requests < u64::MAX;
    let tls = plan.chance(2).then(|| {
        let settings = tls_settings(&files, plan);
        Identities::all().install(0, &settings);
        (Tls::new(&settings).expect("a certificate and its key"), settings)
    });
    let address = plan.address();
    let service = patiently(world, || {
        let (options, settings) = (ListenOptions::default(), settings.clone());
        let service = HttpService::bind(&[address], &options, settings, workers, handle.clone())?;
        match &tls {
            Some((tls, _)) => service.bind_tls(&[address], &options, tls),
            None => Ok(service),
        }
    });
    let log = plan.chance(2).then(|| open_log(plan, &files, workers));
    let service = match &log {
        Some((log, _)) => service.log_to(log),
        None => service,
    };
    let observer = service.observer(twinring::Engine::Epoll);
    let admin = plan.chance(3).then(|| {
        let admin = patiently(world, || Admin::bind(address));
        let address = admin.address();
        (admin.start(observer.clone()).expect("a thread"), address)
    });
    let instruments = Instruments {
        admin: admin.as_ref().map(|(_, address)| *address),
        log: log.clone(),
        tls: tls.clone(),
    };
    let service = Arc::new(service);
    let doors: Vec<Door> = service
        .addresses()
        .iter()
        .zip([None, tls.is_some().then(|| Identities::all().trust())])
        .map(|(address, tls)| Door { address: *address, tls })
        .collect();
    let settings = load_settings(plan, doors[0].address, content);
    // Data behind the last request of a connection gets no answer.
    let may_close = limited && settings.pipeline > 1;
    let scarce = plan.chance(6);
    let calm = breaks_nothing(world) && !scarce;
    let serving = server.start(move |worker| Arc::clone(&service).run(worker)).expect("workers");
    // Before a worker has begun, the service is not ready.
    world.run_until(READY_MAX, || observer.is_ready());
    let mut programs = Programs::default();
    let mut attackers = Programs::default();
    let strict = calm && !limited && world.faults().is_free_of(&[Fault::FileTruncated]);
    spawn_programs(plan, &files, &doors, &mut programs, &mut attackers, strict);
    programs.spawn_program(instruments.operate(plan, calm));
    if scarce {
        run_out_of_descriptors(world, plan, &mut programs);
    }
    let load = Load::new(settings).expect("a world has an engine");
    let answered = match load.run(&mut Unwatched) {
        Ok(report) => account(world, &report, calm, may_close),
        Err(LoadError::NoConnection { why, .. }) => {
            assert!(!calm, "no connection: {why}");
            0
        }
        Err(error) => panic!("{error}"),
    };
    programs.leave();
    // A shutdown with them, or without.
    if plan.chance(2) {
        std::mem::take(&mut attackers).leave();
    }
    end(world, &handle, serving);
    attackers.leave();
    drop(admin);
    let counted = observer.counters();
    assert_eq!((counted.open, counted.accepted), (0, counted.closed), "{counted:?}");
    if let Some((log, path)) = &log {
        assert!(log.finish(LOG_END_MAX), "the log does not come to an end");
        check_log(path, &observer.counters());
    }
    Claim { count: answered, bytes_each: BYTES_EACH }
}

fn service_settings(plan: &mut Plan, files: &Files) -> HttpSettings {
    let mut settings = HttpSettings::new(files.sites());
    settings.sendfile_above = plan.about(0, 128 * 1024);
    settings.send = *plan.one_of(&[SendStrategy::Sendfile, SendStrategy::Read]);
    settings.cache.valid = plan.milliseconds(1, 2_000);
    settings.timeouts.drain = plan.milliseconds(1, 10_000);
    settings.limits.requests = plan.sometimes(4, 1, 50).unwrap_or(u64::MAX);
    settings
}

fn open_log(plan: &mut Plan, files: &Files, workers: usize) -> (AccessLog, PathBuf) {
    let path = files.path("access.log");
    let settings = LogSettings {
        target: LogTarget::File(path.clone()),
        format: LogFormat::Combined,
        buffer_bytes: plan.about(1, 1 << 20) as usize,
    };
    (AccessLog::open(settings, workers, |_| {}).expect("a file and a thread"), path)
}

/// Visitors at each door, a meddler, and attackers.
fn spawn_programs(
    plan: &mut Plan,
    files: &Files,
    doors: &[Door],
    programs: &mut Programs,
    attackers: &mut Programs,
    strict: bool,
) {
    for _ in 0..plan.about(0, 4) {
        let door = plan.one_of(doors).clone();
        let strict = strict && plan.chance(2);
        let mut pages = files.pages();
        // A changing file may be cut off in the middle.
        pages.retain(|page| !strict || page.answers != Answers::Version);
        programs.spawn_program(visit(plan, door, pages, strict));
    }
    if plan.chance(2) {
        programs.spawn_program(files.meddler(plan));
    }
    for _ in 0..plan.about(0, 6) {
        let door = plan.one_of(doors).address;
        let request = plan.one_of(&files.pages()).request(false);
        attackers.spawn_program(hostile::client(plan, door, request));
    }
}

fn load_settings(plan: &mut Plan, server: std::net::SocketAddr, content: Vec<u8>) -> Settings {
    let target = Target::parse(&format!("http://{server}/file"), 1).expect("a URL");
    let connections = plan.about(1, 12);
    let requests_max = (RUN_BYTES_MAX / content.len().max(1) as u64).clamp(2, RUN_REQUESTS_MAX);
    Settings {
        connections,
        pipeline: plan.about(1, 16) as u32,
        keepalive: !plan.chance(4),
        workers: plan.workers(connections.min(2)),
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

fn account(world: &World, report: &HttpResult, calm: bool, may_close: bool) -> u64 {
    let (errors, whole) = (&report.errors, report.all.whole_run);
    let said = || report.all.first_error.clone().unwrap_or_default();
    assert_eq!(errors.malformed, 0, "{}", said());
    assert_eq!(whole.sent, whole.answered + whole.failed + whole.abandoned, "{whole:?}");
    if world.faults().is_free_of(&[Fault::FileTruncated]) {
        assert_eq!((errors.length, errors.hash), (0, 0), "{}", said());
        if calm {
            assert_eq!((errors.status, errors.connect, errors.reset), (0, 0, 0), "{}", said());
            let closed = if may_close { 0 } else { errors.closed_early };
            assert_eq!((closed, errors.other), (0, 0), "{}", said());
        }
    }
    whole.answered
}
