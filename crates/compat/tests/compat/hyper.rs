//! Hyper's server and client, HTTP/1.1 and HTTP/2.

use crate::support::*;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::rt::Timer as _;
use hyper::{Request, StatusCode, Version};
use std::time::{Duration, Instant};
use testing::Test;
use twinring_compat::Timer;

#[path = "../../examples/http_client.rs"]
mod http_client;
#[path = "../../examples/http_server.rs"]
mod http_server;

pub(crate) const TESTS: &[Test] =
    on_engines![http1_requests_of_all_sizes, http2_requests_all_at_once, sleeps_can_be_reset];

fn echo_of(address: std::net::SocketAddr, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(format!("http://{address}/echo"))
        .header("host", address.to_string())
        .body(Full::from(body))
        .expect("a valid request")
}

async fn exchange(version: Version, sizes: &[usize]) {
    let listener = listen();
    let address = listener.local_addr();
    twinring::spawn(http_server::serve(listener));
    let mut requests: Vec<_> = sizes.iter().map(|size| echo_of(address, pattern(*size))).collect();
    let count = Request::get(format!("http://{address}/count")).header("host", address.to_string());
    requests.push(count.body(Full::default()).expect("a valid request"));
    let answers = http_client::exchange(address, version, requests).await.expect("answers");
    assert_eq!(answers.len(), sizes.len() + 1);
    for (answer, size) in answers.iter().zip(sizes) {
        assert_eq!((answer.status(), answer.version()), (StatusCode::OK, version));
        assert!(answer.body()[..] == pattern(*size), "{size} bytes");
    }
    let count: usize = std::str::from_utf8(answers[sizes.len()].body()).unwrap().parse().unwrap();
    assert!((1..=sizes.len() + 1).contains(&count), "{count} requests");
    let too_large = vec![echo_of(address, pattern((1 << 20) + 1))];
    let refused = http_client::exchange(address, version, too_large).await;
    // Over HTTP/1.1 the server may close before it has read the body, and its answer be lost.
    assert!(refused.is_err() || refused.is_ok_and(|answers| answers[0].status() == 400));
}

async fn http1_requests_of_all_sizes() {
    exchange(Version::HTTP_11, &[0, 1, 1000, 70_000, 1 << 20, 3]).await;
}

async fn http2_requests_all_at_once() {
    let sizes: Vec<_> = (0..60).map(|at| at * at * 100).collect();
    exchange(Version::HTTP_2, &sizes).await;
}

async fn sleeps_can_be_reset() {
    let began = Instant::now();
    let mut sleep = Timer.sleep(Duration::from_secs(3600));
    assert!(poll_once(&mut sleep).await.is_none());
    Timer.reset(&mut sleep, began + Duration::from_millis(10));
    sleep.await;
    assert!(began.elapsed() >= Duration::from_millis(10));
    Timer.sleep_until(began).await;
}
