//! The reflector, and streams of datagrams.

use crate::plan::Plan;
use crate::{BREAKING, Claim, Unwatched, end, patiently};
use std::sync::Arc;
use std::time::Duration;
use twinring::UdpOptions;
use twinring::sim::{Fault, World};
use twinring_load::udp::{Load, LoadError, RTP_HEADER_BYTES, Rate, Settings, Spread};
use twinring_services::AllowList;
use twinring_services::udp::{Impairments, UdpCounters, UdpService, UdpSettings};
use twinring_wire::UdpResult;

/// Returns the packets that came back.
pub(crate) fn run(world: &World, plan: &mut Plan) -> Claim {
    let workers = plan.about(1, 3) as usize;
    let mut builder = twinring::Runtime::builder().workers(workers).stop_on_panic(true);
    if plan.chance(3) {
        builder = builder.tick(Duration::from_millis(plan.about(1, 10)));
    }
    let server = builder.build().expect("a world has an engine");
    let handle = server.handle();
    let settings = UdpSettings {
        options: UdpOptions {
            buffer_count: 4 << plan.about(0, 8),
            recv_buffer_bytes: Some(4 << 20),
            ..UdpOptions::default()
        },
        copy_ecn: plan.chance(2),
        impairments: plan.chance(4).then(|| impairments(plan)),
        drain_timeout: plan.milliseconds(1, 5_000),
        allow: AllowList::any(),
        rate_per_source: None,
    };
    let address = plan.address();
    let service = Arc::new(patiently(world, || {
        UdpService::bind(&[address], settings.clone(), workers, handle.clone())
    }));
    let counters = service.counters();
    let impaired = settings.impairments.is_some();
    let settings = load_settings(plan, service.addresses()[0]);
    let bytes_each = 2 * u64::from(settings.packet_bytes);
    let serving = server.start(move |worker| Arc::clone(&service).run(worker)).expect("workers");
    let load = Load::new(settings).expect("a world has an engine");
    let came_back = match load.run(&mut Unwatched, |_| {}) {
        Ok(report) => account(world, &report, impaired),
        Err(LoadError::NoSocket { why, .. }) => {
            assert!(!world.faults().is_free_of(BREAKING), "no socket: {why}");
            0
        }
        Err(error) => panic!("{error}"),
    };
    end(world, &handle, serving);
    let counted = counters();
    check_answers(&counted);
    assert!(came_back <= counted.sockets.sent, "{came_back} came back of {counted:?}");
    Claim { count: came_back, bytes_each }
}

/// Every received datagram was answered, or is counted with its reason.
fn check_answers(counted: &UdpCounters) {
    let (sockets, path) = (&counted.sockets, &counted.impairments);
    let not_for_us = counted.bad_source + counted.not_allowed + counted.over_rate;
    let dropped = path.impaired_lost + path.impaired_overflowed + not_for_us;
    let to_answer = sockets.received + path.impaired_duplicated
        - (sockets.truncated + counted.from_self + dropped);
    let answered = sockets.sent + sockets.send_errors.total();
    assert_eq!(to_answer, answered + counted.waiting, "{counted:?}");
}

fn impairments(plan: &mut Plan) -> Impairments {
    let delay = plan.milliseconds(1, 200);
    Impairments {
        delay,
        jitter: delay / 2,
        loss: plan.about(0, 20) as f64 / 100.0,
        duplicate: plan.about(0, 20) as f64 / 100.0,
        swap: plan.about(0, 20) as f64 / 100.0,
        seed: plan.about(1, 1_000_000),
    }
}

fn load_settings(plan: &mut Plan, target: std::net::SocketAddr) -> Settings {
    let streams = plan.about(1, 60);
    Settings {
        streams,
        rate: Rate::per_second(plan.about(1, 200) as f64),
        packet_bytes: plan.about(RTP_HEADER_BYTES as u64, 2_000) as u32,
        single_socket: plan.chance(4),
        spread: *plan.one_of(&[Spread::Even, Spread::Burst]),
        gso: plan.chance(4),
        tick: Duration::from_millis(plan.about(1, 20)),
        warmup: plan.milliseconds(1, 200),
        duration: plan.milliseconds(20, 2_000),
        workers: plan.workers(streams.min(3)),
        receive_buffer_bytes: Some(4 << 20),
        ..Settings::new(target)
    }
}

fn account(world: &World, report: &UdpResult, impaired: bool) -> u64 {
    let packets = &report.packets;
    let said = || report.first_error.clone().unwrap_or_default();
    assert_eq!((packets.mismatched, packets.foreign), (0, 0), "{packets:?} {}", said());
    let of_stream = report.settings.packets_per_s * report.window.seconds + 1.0;
    assert!(packets.due as f64 <= report.settings.streams as f64 * of_stream, "{packets:?}");
    assert_eq!(packets.due, packets.sent + packets.unsent + packets.refused, "{packets:?}");
    assert_eq!(packets.sent, packets.received + packets.lost, "{packets:?}");
    if impaired {
        return packets.received;
    }
    let losing = [Fault::DatagramLost, Fault::NoBuffers, Fault::Late, Fault::DatagramReordered];
    if world.faults().is_free_of(&losing) && world.faults().is_free_of(BREAKING) {
        assert_eq!((packets.lost, packets.refused), (0, 0), "{packets:?} {}", said());
    }
    if world.faults().is_free_of(&[Fault::DatagramDuplicated]) {
        assert_eq!(packets.duplicated, 0, "{packets:?}");
    }
    packets.received
}
