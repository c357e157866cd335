//! Runs each test on both engines, and blocking peers on threads of their own.

use std::io::{Read, Write};
use std::time::Duration;
pub(crate) use testing::{on_thread, poll_once};
use twinring::{EngineChoice, Runtime, TcpListener, TcpStream};

pub(crate) type Peer = std::net::TcpStream;

/// How long a test may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on a runtime of its own, on which each task that panics fails it.
pub(crate) fn run(engine: &str, test: impl Future<Output = ()> + 'static) {
    let engine = if engine == "epoll" { EngineChoice::Epoll } else { EngineChoice::IoUring };
    let runtime = Runtime::builder().engine(engine).stop_on_panic(true).build();
    let runtime = runtime.expect("the harness tried this engine");
    let finished = runtime.block_on(async move { twinring::timeout(PATIENCE, test).await });
    finished.expect("the engine works").expect("the test hangs");
}

/// Tests that run on each engine: `async fn`s of this module.
macro_rules! on_engines {
    ($($test:ident),* $(,)?) => {
        &[$(testing::Test {
            name: concat!(module_path!(), "::", stringify!($test)),
            body: testing::Body::EachEngine(|engine| run(engine, $test())),
            long: false,
        }),*]
    };
}

pub(crate) fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

/// Both ends of a connection: ours, and a peer's with blocking calls.
pub(crate) async fn pair() -> (TcpStream, Peer) {
    let listener = listen();
    let peer = Peer::connect(listener.local_addr()).expect("the backlog has room");
    (listener.accept().await.expect("a connection"), peer)
}

/// Reads to the end of the stream.
pub(crate) fn read_to_end(peer: &mut Peer) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).map(|_| bytes)
}

pub(crate) fn write_all(peer: &mut Peer, bytes: &[u8]) {
    peer.write_all(bytes).expect("the other end reads");
}

/// Bytes in which lost, repeated and swapped parts show.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 8) ^ ((at >> 16) * 7)) as u8).collect()
}
