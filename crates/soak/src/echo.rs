//! The echo, and requests over TCP.

use crate::plan::Plan;
use crate::programs::{Programs, run_out_of_descriptors};
use crate::{Claim, Unwatched, breaks_nothing, end, hostile, patiently, runtime};
use std::sync::Arc;
use std::time::Duration;
use twinring::ListenOptions;
use twinring::sim::World;
use twinring_load::tcp::{Load, LoadError, Settings};
use twinring_services::{Connection, Limits, TcpService, echo};

/// Bytes of requests in flight on a connection, at most.
const IN_FLIGHT_BYTES_MAX: u64 = 256 * 1024;
/// Bytes and requests of a run that is as fast as the network, so that a seed takes seconds.
const RUN_BYTES_MAX: u64 = 8 * 1024 * 1024;
const RUN_REQUESTS_MAX: u64 = 5_000;
/// Hostile clients, each with a connection at a time.
const ATTACKERS_MAX: u64 = 4;

/// Returns the answers.
pub(crate) fn run(world: &World, plan: &mut Plan) -> Claim {
    let workers = plan.about(1, 3) as usize;
    let server = runtime(workers);
    let handle = server.handle();
    let limits = Limits {
        idle_timeout: plan.sometimes(4, 50, 5_000).map(Duration::from_millis),
        drain_timeout: plan.milliseconds(1, 10_000),
        ..Limits::default()
    };
    let may_idle_out = limits.idle_timeout.is_some();
    let options = ListenOptions { backlog: plan.about(1, 4096) as u32, ..Default::default() };
    let serve = async |connection: &Connection| echo::echo(connection).await;
    let address = plan.address();
    let service = Arc::new(patiently(world, || {
        TcpService::bind(serve, &[address], &options, limits.clone(), workers, handle.clone())
    }));
    let counters = service.counters();
    let address = service.addresses()[0];
    let settings = settings(plan, address);
    let bytes_each = 2 * u64::from(settings.message_bytes);
    let serving = server.start(move |worker| Arc::clone(&service).run(worker)).expect("workers");
    let (mut attackers, mut programs) = (Programs::default(), Programs::default());
    for _ in 0..plan.about(0, ATTACKERS_MAX) {
        let count = plan.about(1, 100_000);
        let request = plan.bytes(count);
        attackers.spawn_program(hostile::client(plan, address, request));
    }
    let scarce = plan.chance(6);
    if scarce {
        run_out_of_descriptors(world, plan, &mut programs);
    }
    // Clients that a full backlog turns away send their SYNs again, all at the same times.
    let roomy = u64::from(options.backlog) >= settings.connections + settings.idle + ATTACKERS_MAX;
    let calm = breaks_nothing(world) && !scarce && roomy;
    let answered = load(settings, calm, may_idle_out);
    programs.leave();
    // A shutdown with them, or without.
    if plan.chance(2) {
        std::mem::take(&mut attackers).leave();
    }
    end(world, &handle, serving);
    attackers.leave();
    let counted = counters();
    assert_eq!((counted.open, counted.accepted), (0, counted.closed), "{counted:?}");
    Claim { count: answered, bytes_each }
}

fn settings(plan: &mut Plan, target: std::net::SocketAddr) -> Settings {
    let message_bytes = plan.about(1, IN_FLIGHT_BYTES_MAX);
    let depth_max = (IN_FLIGHT_BYTES_MAX / message_bytes).clamp(1, 64);
    let connections = plan.about(1, 24);
    let slow_reader = plan.chance(10);
    if plan.chance(8) {
        // Long and idle: the aim here are timers.
        return Settings {
            connections,
            message_bytes: message_bytes.min(1_000) as u32,
            rate_per_s: Some(plan.about(1, 5)),
            churn: plan.sometimes(2, 1, 10),
            duration: Duration::from_secs(plan.about(60, 3_600)),
            ..Settings::new(target)
        };
    }
    Settings {
        connections,
        message_bytes: message_bytes as u32,
        depth: Some(plan.about(1, depth_max) as u32),
        workers: plan.workers(connections.min(3)),
        rate_per_s: plan.sometimes(4, 1, 2_000).filter(|_| !slow_reader),
        churn: plan.sometimes(4, 1, 100).filter(|_| !slow_reader),
        idle: plan.sometimes(4, 1, 10).unwrap_or(0),
        slow_reader,
        warmup: plan.milliseconds(1, 4),
        duration: plan.milliseconds(20, 3_000),
        messages: Some(plan.about(1, (RUN_BYTES_MAX / message_bytes).clamp(2, RUN_REQUESTS_MAX))),
        connect_timeout: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
        ..Settings::new(target)
    }
}

fn load(settings: Settings, calm: bool, may_idle_out: bool) -> u64 {
    settings.check().expect("settings that make sense");
    let verified = settings.verify;
    let load = Load::new(settings).expect("a world has an engine");
    let report = match load.run(&mut Unwatched) {
        Ok(report) => report,
        Err(LoadError::NoConnection { why, .. }) => {
            assert!(!calm, "no connection: {why}");
            return 0;
        }
        Err(error) => panic!("{error}"),
    };
    let (errors, whole) = (report.errors, report.all.whole_run);
    let said = || report.all.first_error.clone().unwrap_or_default();
    assert!(verified && errors.mismatch == 0, "{}", said());
    assert_eq!(whole.sent, whole.answered + whole.failed + whole.abandoned, "{whole:?}");
    if calm && !may_idle_out {
        assert_eq!((report.all.connections.lost, whole.failed), (0, 0), "{}", said());
        assert_eq!(errors.connect, 0, "{}", said());
    }
    whole.answered
}
