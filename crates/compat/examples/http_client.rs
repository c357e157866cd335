//! `cargo run -p twinring-compat --example http_client -- 127.0.0.1:8080 /count [http1|http2]`
//!
//! Requests by hyper's client, over HTTP/1.1 or over HTTP/2 with prior knowledge. The example
//! `http_server` answers.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, Version};
use std::error::Error;
use std::net::SocketAddr;
use twinring::{Runtime, TcpStream};
use twinring_compat::{Compat, Executor};

#[allow(dead_code, reason = "tests call `exchange`")]
fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into()).parse()?;
    let path = std::env::args().nth(2).unwrap_or("/count".into());
    let version = match std::env::args().nth(3).as_deref() {
        None | Some("http1") => Version::HTTP_11,
        Some("http2") => Version::HTTP_2,
        Some(other) => return Err(format!("{other}: expected http1 or http2").into()),
    };
    let request =
        Request::get(format!("http://{address}{path}")).header("host", address.to_string());
    let request = request.body(Full::default())?;
    let answers = Runtime::builder()
        .build()?
        .block_on(async move { exchange(address, version, vec![request]).await })??;
    for answer in answers {
        println!("{} {}", answer.status(), String::from_utf8_lossy(answer.body()));
    }
    Ok(())
}

/// Sends the requests on one connection, with HTTP/2 all at once, and returns the answers in order.
pub(crate) async fn exchange(
    address: SocketAddr,
    version: Version,
    requests: Vec<Request<Full<Bytes>>>,
) -> Result<Vec<Response<Bytes>>, Box<dyn Error>> {
    let stream = Compat::new(TcpStream::connect(address).await?);
    let mut answers = Vec::new();
    if version == Version::HTTP_2 {
        let (sender, connection) = http2::handshake(Executor, stream).await?;
        let connection = twinring::spawn(connection);
        let sent: Vec<_> = requests
            .into_iter()
            .map(|request| {
                let mut sender = sender.clone();
                twinring::spawn(async move { sender.send_request(request).await })
            })
            .collect();
        for answer in sent {
            answers.push(whole(answer.await??).await?);
        }
        // The connection ends when the last sender is dropped.
        drop(sender);
        connection.await??;
    } else {
        let (mut sender, connection) = http1::handshake(stream).await?;
        let connection = twinring::spawn(connection);
        for request in requests {
            answers.push(whole(sender.send_request(request).await?).await?);
            sender.ready().await?;
        }
        drop(sender);
        connection.await??;
    }
    Ok(answers)
}

async fn whole(
    response: Response<hyper::body::Incoming>,
) -> Result<Response<Bytes>, Box<dyn Error>> {
    let (head, body) = response.into_parts();
    Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
}
