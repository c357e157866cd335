//! QUIC by quinn, on both engines.

use crate::support::{pattern, run};
use futures_util::future::join_all;
use quic_echo::{endpoints, say, serve};
use testing::{Test, engine_tests};

#[path = "../../examples/quic_echo.rs"]
mod quic_echo;

pub(crate) const TESTS: &[Test] = engine_tests![
    streams_are_echoed_beside_each_other,
    a_connection_outlives_idle_time_by_its_timers
];

fn streams_are_echoed_beside_each_other(engine: &str) {
    run(engine, async {
        let (server, client) = endpoints().expect("sockets");
        let address = server.local_addr().expect("bound");
        twinring::spawn(serve(server));
        let connection =
            client.connect(address, "localhost").expect("a name").await.expect("a server");
        let sizes = [0, 1, 1_200, 65_536, 3_000_000];
        let answers = sizes.map(|bytes| {
            let connection = &connection;
            async move { (bytes, say(connection, &pattern(bytes)).await.expect("an answer")) }
        });
        for (bytes, answer) in join_all(answers).await {
            assert!(answer == pattern(bytes), "{bytes}");
        }
        // Buffers of many datagrams were sent and received.
        assert!(connection.stats().udp_tx.ios < connection.stats().udp_tx.datagrams);
        connection.close(0u32.into(), b"done");
        client.wait_idle().await;
    });
}

/// Without a timer that fires, a lost last packet would never be repeated, and a closed endpoint
/// never be idle.
fn a_connection_outlives_idle_time_by_its_timers(engine: &str) {
    run(engine, async {
        let (server, client) = endpoints().expect("sockets");
        let address = server.local_addr().expect("bound");
        let ends = server.clone();
        twinring::spawn(serve(server));
        let connection =
            client.connect(address, "localhost").expect("a name").await.expect("a server");
        twinring::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(say(&connection, b"still here").await.expect("an answer"), b"still here");
        ends.close(7u32.into(), b"the end");
        let why = connection.closed().await.to_string();
        assert!(why.contains("the end"), "{why}");
        client.wait_idle().await;
        ends.wait_idle().await;
    });
}
