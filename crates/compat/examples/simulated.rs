//! `cargo run -p twinring-compat --features sim --example simulated -- 20`
//!
//! Hyper's server and client, over HTTP/1.1 and HTTP/2, on a number of simulated machines, with the
//! short sends, late events and full queues that each seed chooses. Minutes pass in a moment, and a
//! failure can be repeated: it names its seed.

use http_body_util::Full;
use hyper::{Request, Version};
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use twinring::sim::{Faults, World};
use twinring::{Runtime, TcpListener};

#[path = "http_client.rs"]
mod http_client;
#[path = "http_server.rs"]
mod http_server;

#[allow(dead_code, reason = "tests call `run`")]
fn main() -> Result<(), Box<dyn Error>> {
    let seeds = std::env::args().nth(1).unwrap_or("20".into()).parse()?;
    for seed in 1..=seeds {
        println!("seed {seed}: {}", run(seed)?);
    }
    Ok(())
}

/// A server and a client on one machine; returns the engine that the seed chose.
pub(crate) fn run(seed: u64) -> Result<String, Box<dyn Error>> {
    let world = World::new(seed, Faults::harmless(seed));
    let runtime = Runtime::builder().stop_on_panic(true).build()?;
    let engine = runtime.features().engine().to_string();
    let test = runtime.start(|_| async {
        let listener = TcpListener::bind("127.0.0.1:0".parse().map_err(text)?).map_err(text)?;
        let address = listener.local_addr();
        twinring::spawn(http_server::serve(listener));
        for version in [Version::HTTP_11, Version::HTTP_2] {
            echo(address, version).await.map_err(text)?;
        }
        Ok::<(), String>(())
    })?;
    if !world.run_until(Duration::from_secs(600), || test.is_over()) {
        return Err(format!("seed {seed}: it hangs").into());
    }
    for outcome in test.outcome()?.into_iter().flatten() {
        outcome.map_err(|error| format!("seed {seed}: {error}"))?;
    }
    // No connection, worker or descriptor is left.
    world.finish();
    Ok(engine)
}

async fn echo(address: SocketAddr, version: Version) -> Result<(), Box<dyn Error>> {
    let bodies: Vec<Vec<u8>> = (0..10).map(|at| vec![at as u8; at * at * 1000]).collect();
    let request = |body: &Vec<u8>| {
        Request::post(format!("http://{address}/echo"))
            .header("host", address.to_string())
            .body(Full::from(body.clone()))
    };
    let requests = bodies.iter().map(request).collect::<Result<_, _>>()?;
    let answers = http_client::exchange(address, version, requests).await?;
    match answers.iter().zip(&bodies).all(|(answer, body)| answer.body() == body) {
        true if answers.len() == bodies.len() => Ok(()),
        _ => Err(format!("{version:?}: another answer").into()),
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
