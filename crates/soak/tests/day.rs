//! A day passes for a service, hour by hour and in one step, as for a suspended machine or a
//! stopped process: on its clock all timers are then due at once.
#![cfg(feature = "sim")]

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use twinring::fs::Dir;
use twinring::sim::{Faults, Running, World};
use twinring::{Handle, ListenOptions, Runtime, TcpStream, UdpOptions, UdpSocket, sleep, timeout};
use twinring_services::http::{HttpService, HttpSettings, Site, Sites};
use twinring_services::udp::{UdpService, UdpSettings};
use twinring_services::{AllowList, Connection, Limits, TcpService, echo};

const HOUR: Duration = Duration::from_secs(3600);

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn runtime() -> Runtime {
    Runtime::builder().stop_on_panic(true).build().expect("a world has an engine")
}

/// Runs until this is over, for four days of the world at most.
fn finish<T: 'static>(world: &World, running: Running<T>) -> T {
    assert!(world.run_until(96 * HOUR, || running.is_over()), "it does not come to its end");
    let output = running.outcome().expect("the engine works").remove(0);
    output.expect("it was not stopped")
}

fn end(world: World, handle: &Handle, service: Running<std::io::Result<()>>) {
    handle.shutdown();
    finish(&world, service).expect("the service works");
    world.finish();
}

/// Runs a client, and on its request suspends the machine for a day. No program may catch up on
/// that time step by step.
fn run_client<Fut>(world: &World, client: impl Fn(Rc<Cell<bool>>) -> Fut)
where
    Fut: Future<Output = ()> + 'static,
{
    let stands_still = Rc::new(Cell::new(false));
    let running = runtime().start(|_| client(Rc::clone(&stands_still))).expect("a worker");
    assert!(world.run_until(96 * HOUR, || stands_still.get()), "the client gets that far");
    let steps = world.summary().steps;
    world.stand_still(24 * HOUR);
    world.run_until(Duration::from_millis(1), || false);
    let taken = world.summary().steps - steps;
    assert!(taken < 200, "{taken} steps for a day in which nothing could happen");
    finish(world, running);
}

/// A question, and how its answer begins and ends.
type Question = [&'static [u8]; 3];

async fn ask(stream: &TcpStream, [question, beginning, end]: Question) {
    stream.send(question).await.expect("the server reads");
    let mut got = Vec::new();
    while !got.ends_with(end) {
        let chunk = stream.recv().await.expect("no reset");
        assert!(!chunk.is_empty(), "the server has closed");
        got.extend_from_slice(&chunk);
    }
    assert!(got.starts_with(beginning), "{}", String::from_utf8_lossy(&got));
}

async fn is_closed(stream: &TcpStream) -> bool {
    let end = timeout(Duration::from_millis(100), stream.recv()).await;
    end.is_ok_and(|end| end.is_ok_and(|bytes| bytes.is_empty()))
}

/// A server with an idle limit of an hour: a connection that is idle for longer is closed, others
/// stay, and a day that passes for all of them at once counts against none.
async fn spend_the_day(server: SocketAddr, stands_still: Rc<Cell<bool>>, question: Question) {
    let connect = || TcpStream::connect(server);
    let (busy, idle) = (connect().await.expect("open"), connect().await.expect("open"));
    for _ in 0..9 {
        ask(&busy, question).await;
        sleep(HOUR / 3).await;
    }
    assert!(is_closed(&idle).await, "an hour of silence was too much");
    let idle = connect().await.expect("the server accepts");
    ask(&idle, question).await;
    stands_still.set(true);
    sleep(HOUR / 60).await;
    // The day is over.
    ask(&busy, question).await;
    assert!(!is_closed(&idle).await, "it could not have said anything");
    sleep(2 * HOUR).await;
    assert!(is_closed(&idle).await && is_closed(&busy).await, "an hour of silence was too much");
    let late = connect().await.expect("the server accepts");
    ask(&late, question).await;
}

#[test]
fn an_echo_goes_through_the_day() {
    let world = World::new(31, Faults::none());
    let server = runtime();
    let handle = server.handle();
    let limits = Limits { idle_timeout: Some(HOUR), ..Limits::default() };
    let serve = async |connection: &Connection| echo::echo(connection).await;
    let options = ListenOptions::default();
    let service = TcpService::bind(serve, &[anywhere()], &options, limits, 1, handle.clone())
        .expect("a port");
    let service = Arc::new(service);
    let (address, counters) = (service.addresses()[0], service.counters());
    let serving = server.start(move |worker| Arc::clone(&service).run(worker)).expect("workers");
    run_client(&world, |stands_still| async move {
        spend_the_day(address, stands_still, [b"hello", b"hello", b"hello"]).await;
    });
    end(world, &handle, serving);
    let counted = counters();
    assert_eq!((counted.accepted, counted.idle_closed, counted.open), (4, 3, 0), "{counted:?}");
}

#[test]
fn a_file_server_goes_through_the_day() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("file"), b"content").expect("a file");
    let world = World::new(32, Faults::none());
    let server = runtime();
    let handle = server.handle();
    let root = Dir::open(directory.path()).expect("the directory");
    let mut settings = HttpSettings::new(Sites::new(Some(Site::new(root))));
    settings.timeouts.idle = HOUR;
    let options = ListenOptions::default();
    let service = HttpService::bind(&[anywhere()], &options, settings, 1, handle.clone());
    let service = Arc::new(service.expect("a port"));
    let address = service.addresses()[0];
    let serving = server.start(move |worker| Arc::clone(&service).run(worker)).expect("workers");
    run_client(&world, |stands_still| async move {
        let question = b"HEAD /file HTTP/1.1\r\nHost: h\r\n\r\n";
        spend_the_day(address, stands_still, [question, b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n"]).await;
    });
    end(world, &handle, serving);
}

#[test]
fn a_reflector_that_wakes_each_millisecond_goes_through_the_day() {
    let world = World::new(33, Faults::none());
    let builder = Runtime::builder().tick(Duration::from_millis(1)).stop_on_panic(true);
    let server = builder.build().expect("a world has an engine");
    let handle = server.handle();
    let settings = UdpSettings {
        options: UdpOptions::default(),
        copy_ecn: false,
        impairments: None,
        drain_timeout: Duration::from_secs(1),
        allow: AllowList::any(),
        rate_per_source: Some(100),
    };
    let service = UdpService::bind(&[anywhere()], settings, 1, handle.clone()).expect("a port");
    let service = Arc::new(service);
    let address = service.addresses()[0];
    let serving = server.start(move |worker| Arc::clone(&service).run(worker)).expect("workers");
    run_client(&world, |stands_still| async move {
        let socket = UdpSocket::connect(address).expect("a route");
        for day in 0..2 {
            for number in 0..50u8 {
                socket.send(vec![number; 100]).await.expect("sent");
                let answer = timeout(HOUR, socket.recv_from()).await.expect("an answer");
                assert!(answer.expect("no error").data.iter().all(|byte| *byte == number));
            }
            if day == 0 {
                stands_still.set(true);
                sleep(HOUR / 3600).await;
            }
        }
    });
    let missed = handle.counters().ticks_missed;
    assert!((86_390_000..=86_400_000).contains(&missed), "{missed} ticks of a day passed over");
    end(world, &handle, serving);
}
