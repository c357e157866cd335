//! `cargo run -p twinring-compat --example http_server -- 127.0.0.1:8080 [auto|io_uring|epoll]`
//!
//! HTTP/1.1 and HTTP/2 on one port, by hyper and hyper-util. Then:
//! `curl -d hello http://127.0.0.1:8080/echo` and
//! `curl --http2-prior-knowledge http://127.0.0.1:8080/count`.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::server::conn::auto;
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use twinring::{Runtime, TcpListener};
use twinring_compat::{Compat, Executor, Timer};

/// Bytes of the longest body that is echoed.
const BODY_BYTES_MAX: usize = 1 << 20;

#[allow(dead_code, reason = "tests call `serve`")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let engine = std::env::args().nth(2).unwrap_or("auto".into()).parse()?;
    let runtime = Runtime::builder().engine(engine).build()?;
    println!("http://{address}/ ({})", runtime.features().engine());
    runtime.block_on(async move { serve(TcpListener::bind(address)?).await })??;
    Ok(())
}

/// Serves connections for ever.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    // An Rc and a Cell: everything stays on this thread, HTTP/2 streams included.
    let requests = Rc::new(Cell::new(0));
    let mut server = auto::Builder::new(Executor);
    server.http1().timer(Timer).header_read_timeout(Duration::from_secs(10));
    server.http2().timer(Timer).keep_alive_interval(Duration::from_secs(60));
    loop {
        let stream = listener.accept().await?;
        let (server, requests) = (server.clone(), Rc::clone(&requests));
        twinring::spawn(async move {
            let service = service_fn(|request| answer(request, Rc::clone(&requests)));
            if let Err(error) = server.serve_connection(Compat::new(stream), service).await {
                eprintln!("connection: {error}");
            }
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    requests: Rc<Cell<u64>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    requests.set(requests.get() + 1);
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/count") => (StatusCode::OK, Bytes::from(requests.get().to_string())),
        (&Method::POST, "/echo") => {
            match Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await {
                Ok(body) => (StatusCode::OK, body.to_bytes()),
                Err(error) => (StatusCode::BAD_REQUEST, Bytes::from(error.to_string())),
            }
        }
        _ => (StatusCode::NOT_FOUND, Bytes::from_static(b"not found\n")),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}
