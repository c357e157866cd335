//! Services whose new connections or datagrams are moved between the engines, under traffic.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use twinring::net::Targets;
use twinring::{Handle, ListenOptions, Runtime, UdpOptions};
use twinring_services::udp::{UdpService, UdpSettings};
use twinring_services::{
    AllowList, Limits, Meters, Server, Service, Steerer, TcpService, Work, echo,
};

const WORKERS: usize = 2;
const CLIENTS: u64 = 4;
const ROUNDS: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(30);

/// The moves, again and again until the clients are done.
const MOVES: [Targets; 4] = [
    Targets { first: 0, step: 2 },
    Targets { first: 1, step: 2 },
    Targets::ALL,
    Targets { first: 1, step: 1 },
];

fn runtime() -> Runtime {
    Runtime::builder().workers(WORKERS).side_by_side(true).build().expect("a runtime")
}

/// Runs a service while `client` runs on several threads and new arrivals move; the work of each
/// worker.
fn run_while_moving<S: Service + Send + Sync + 'static>(
    server: Server<S>,
    runtime: Runtime,
    client: fn(SocketAddr, u64),
) -> Vec<Work>
where
    S::Socket: Send,
{
    let handle: Handle = runtime.handle();
    let (server, steerer): (Server<S>, Steerer) = server.steered().expect("descriptors");
    let server = server.metered(Duration::from_millis(20));
    let (address, meters): (SocketAddr, Meters) = (server.addresses()[0], server.meters());
    let server = Arc::new(server);
    let service = thread::spawn(move || runtime.run(move |worker| Arc::clone(&server).run(worker)));
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let moves = thread::spawn(move || {
        for targets in MOVES.into_iter().cycle() {
            steerer.steer(targets).expect("the kernel can");
            if is_done.load(Ordering::Acquire) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let clients: Vec<_> =
        (0..CLIENTS).map(|seed| thread::spawn(move || client(address, seed))).collect();
    let failed: Vec<_> = clients.into_iter().filter_map(|client| client.join().err()).collect();
    done.store(true, Ordering::Release);
    moves.join().expect("moved");
    handle.shutdown();
    let ended = service.join().expect("no panic").expect("the engines work");
    assert!(failed.is_empty(), "{} clients failed", failed.len());
    assert!(ended.into_iter().all(|worker| matches!(worker, Some(Ok(())))));
    meters.read().into_iter().map(|reading| reading.work).collect()
}

fn bytes(seed: u64, round: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at * 31 + seed * 7 + round * 13) as u8).collect()
}

#[test]
fn no_connection_breaks_while_new_ones_move() {
    let runtime = runtime();
    let server = TcpService::bind(
        echo::echo,
        &["127.0.0.1:0".parse().expect("an address")],
        &ListenOptions::default(),
        Limits::default(),
        WORKERS,
        runtime.handle(),
    );
    let work = run_while_moving(server.expect("a free port"), runtime, |address, seed| {
        for round in 0..ROUNDS {
            let mut stream = TcpStream::connect(address).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let sent = bytes(seed, round, 3000);
            stream.write_all(&sent).expect("sent");
            stream.shutdown(std::net::Shutdown::Write).expect("half closed");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("no reset");
            assert!(received == sent, "client {seed}, round {round}");
        }
    });
    let all = CLIENTS * ROUNDS;
    assert!(work.iter().all(|of_worker| of_worker.accepted > 0), "{work:?}");
    assert_eq!(work.iter().map(|of_worker| of_worker.accepted).sum::<u64>(), all);
    assert_eq!(work.iter().map(|of_worker| of_worker.units).sum::<u64>(), all * 3000);
}

#[test]
fn no_datagram_is_lost_while_senders_move() {
    let runtime = runtime();
    let settings = UdpSettings {
        options: UdpOptions::default(),
        copy_ecn: false,
        allow: AllowList::any(),
        rate_per_source: None,
        impairments: None,
        drain_timeout: Duration::from_secs(1),
    };
    let address = "127.0.0.1:0".parse().expect("an address");
    let server = UdpService::bind(&[address], settings, WORKERS, runtime.handle());
    let work = run_while_moving(server.expect("a free port"), runtime, |address, seed| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(address).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        for round in 0..ROUNDS * 10 {
            let sent = bytes(seed, round, 200);
            socket.send(&sent).expect("sent");
            let mut received = [0; 300];
            let length = socket.recv(&mut received).expect("reflected");
            assert!(received[..length] == sent[..], "client {seed}, round {round}");
        }
    });
    assert!(work.iter().all(|of_worker| of_worker.units > 0), "{work:?}");
    assert_eq!(work.iter().map(|of_worker| of_worker.units).sum::<u64>(), CLIENTS * ROUNDS * 10);
}
