//! `hyper-price tokio|epoll|io_uring|native REQUESTS`: answers so many requests of a client, which
//! is a process of its own, on one connection, and ends. Run it under `valgrind --tool=callgrind`
//! or `strace -c` with two numbers of requests: the difference is what requests cost
//! (`hyper-price/count` does that).
//!
//! `native` is no HTTP server: it sends the same bytes by twinring's own API, for comparison.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use twinring_compat::Compat;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// Of a body of 13 bytes, without a date, which would differ.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\nHello, World!";
/// The argument that makes this process the client.
const CLIENT: &str = "client";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, number] = &arguments[..] else {
        return Err("usage: hyper-price tokio|epoll|io_uring|native REQUESTS".into());
    };
    match what.as_str() {
        CLIENT => request(number),
        "tokio" => on_tokio(number),
        "native" => on_twinring("epoll", number, true),
        engine => on_twinring(engine, number, false),
    }
}

/// The client: `ADDRESS,REQUESTS`.
fn request(to: &str) -> Result<(), Box<dyn Error>> {
    let (address, number) = to.split_once(',').ok_or("ADDRESS,REQUESTS")?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answer = [0; ANSWER.len()];
    for _ in 0..number.parse::<u64>()? {
        stream.write_all(REQUEST)?;
        stream.read_exact(&mut answer)?;
        if answer != ANSWER {
            return Err(format!("another answer: {}", String::from_utf8_lossy(&answer)).into());
        }
    }
    Ok(())
}

fn start_client(address: SocketAddr, number: &str) -> Result<(), Box<dyn Error>> {
    let program = std::env::current_exe()?;
    Command::new(program).args([CLIENT, &format!("{address},{number}")]).spawn()?;
    Ok(())
}

fn server() -> http1::Builder {
    let mut server = http1::Builder::new();
    server.auto_date_header(false);
    server
}

async fn answer(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
}

fn on_tokio(number: &str) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        start_client(listener.local_addr()?, number)?;
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let stream = hyper_util::rt::TokioIo::new(stream);
        Ok(server().serve_connection(stream, service_fn(answer)).await?)
    })
}

fn on_twinring(engine: &str, number: &str, native: bool) -> Result<(), Box<dyn Error>> {
    let (engine, number) = (engine.parse()?, number.to_owned());
    twinring::Runtime::builder().engine(engine).build()?.block_on(async move {
        let listener = twinring::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        start_client(listener.local_addr(), &number)?;
        let stream = listener.accept().await?;
        if native {
            while !stream.recv().await?.is_empty() {
                stream.send(ANSWER).await?;
            }
            return Ok(());
        }
        let service = service_fn(answer);
        Ok(server().serve_connection(Compat::new(stream), service).await?)
    })?
}
