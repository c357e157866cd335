//! The admin service: metrics, health and readiness.
//!
//! It runs on its own thread and engine (epoll), with a bounded number of connections of one
//! request and a few seconds each. It can therefore not starve the service, and the service cannot
//! starve it.

use super::Status;
use super::date::Clock;
use super::metrics::{self, Observer};
use super::request::{HeadLimits, Method, Request, Scan, storage};
use super::response::{Body, Persistence, Response, render};
use crate::server::Stage;
use http::HeaderValue;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use twinring::{
    EngineChoice, Runtime, TcpListener, TcpStream,
    net::{BoundListener, ListenOptions},
    spawn, timeout,
};

/// Concurrent connections; further ones are closed immediately.
const CONNECTIONS_MAX: usize = 64;

/// From the beginning of a connection to its end.
const CONNECTION_MAX: Duration = Duration::from_secs(5);

const LIMITS: HeadLimits = HeadLimits { head_bytes: 8 * 1024, target_bytes: 1024 };

/// The bound address of the admin service, which does not answer yet.
#[derive(Debug)]
pub struct Admin(BoundListener);

impl Admin {
    /// Binds the address.
    ///
    /// # Errors
    /// When it cannot be bound; the message names it.
    pub fn bind(address: SocketAddr) -> io::Result<Admin> {
        let mut bound = ListenOptions::default().bind(address, 1)?;
        let no_listener = || io::Error::other(format!("{address}: no listener"));
        bound.pop().map(Admin).ok_or_else(no_listener)
    }

    /// The address, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Answers, on its own thread, until the returned function is called.
    ///
    /// # Errors
    /// When the thread or its engine cannot be started.
    pub fn start(self, observer: Observer) -> io::Result<impl FnOnce()> {
        let runtime = Runtime::builder().engine(EngineChoice::Epoll).build()?;
        let handle = runtime.handle();
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            // An error means that it was stopped, or that the listener failed: then the port is
            // closed, which monitoring notices.
            let _stopped = runtime.block_on(serve(self.0, observer));
        })?;
        Ok(move || {
            handle.stop();
            // A panic has been reported where it happened.
            let _panic = thread.join();
        })
    }
}

async fn serve(listener: BoundListener, observer: Observer) -> io::Result<()> {
    let listener = TcpListener::from_bound(listener)?;
    let open = Rc::new(());
    loop {
        let stream = listener.accept().await?;
        // Each holds one.
        if Rc::strong_count(&open) > CONNECTIONS_MAX {
            continue;
        }
        let (open, observer) = (Rc::clone(&open), observer.clone());
        spawn(async move {
            let _open = open;
            // A peer that is too slow, or leaves, gets no answer.
            let _late_or_gone = timeout(CONNECTION_MAX, serve_connection(&stream, &observer)).await;
        });
    }
}

async fn serve_connection(stream: &TcpStream, observer: &Observer) -> io::Result<()> {
    let mut received = Vec::new();
    let mut scan = Scan::default();
    let response = loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return Ok(());
        }
        received.extend_from_slice(&chunk);
        match scan.find_end(&received, LIMITS) {
            Ok(None) => {}
            Ok(Some(length)) => break answer(&received[..length], observer),
            Err(status) => break Response::message(status),
        }
    };
    let (message, _) = render(&response, &Clock::new(), Persistence::Closes);
    stream.send(message).await?;
    stream.shutdown().await?;
    // Closing before the peer has read everything could reset the connection before that.
    while !stream.recv().await?.is_empty() {}
    Ok(())
}

fn answer(head: &[u8], observer: &Observer) -> Response {
    let mut storage = storage();
    let request = match Request::parse(head, &mut storage, LIMITS) {
        Ok(request) => request,
        Err(status) => return Response::message(status),
    };
    let plain = |status, content: &'static str| text(status, "text/plain; charset=utf-8", content);
    let unavailable = |content| plain(Status::SERVICE_UNAVAILABLE, content);
    let response = match (request.method, request.path) {
        (Method::Options, _) => Response::message(Status::NO_CONTENT),
        (Method::Other, _) => Response::message(Status::METHOD_NOT_ALLOWED),
        (_, "/metrics") => text(Status::OK, metrics::CONTENT_TYPE, observer.metrics()),
        (_, "/healthz") => plain(Status::OK, "ok\n"),
        (_, "/readyz") => match observer.stage() {
            Stage::Ready => plain(Status::OK, "ready\n"),
            Stage::Starting => unavailable("starting\n"),
            Stage::Draining => unavailable("draining\n"),
        },
        _ => Response::message(Status::NOT_FOUND),
    };
    match request.method {
        Method::Head => Response { body: Body::Empty, ..response },
        _ => response,
    }
}

fn text(status: Status, media_type: &str, content: impl Into<Vec<u8>>) -> Response {
    let response = Response::new(status).with_content(media_type, content);
    response.with("Cache-Control", HeaderValue::from_static("no-store"))
}
