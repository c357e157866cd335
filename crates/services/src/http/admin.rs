//! The admin service: metrics, health and readiness, by an [`HttpService`] without sites.
//!
//! It runs on its own thread and engine (epoll), with a bounded number of connections of one
//! request and a few seconds each. It can therefore not starve the service, and the service cannot
//! starve it.

use super::Status;
use super::metrics::{self, Observer};
use super::options::HttpSettings;
use super::request::{Method, Request};
use super::response::Response;
use super::service::HttpService;
use http::HeaderValue;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use twinring::{
    EngineChoice, Runtime,
    net::{BoundListener, ListenOptions},
};

/// Concurrent connections; further ones are closed immediately.
const CONNECTIONS_MAX: usize = 64;

/// For the head of a request, and for its answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The bound address of the admin service, which does not answer yet.
#[derive(Debug)]
pub struct Admin(BoundListener);

impl Admin {
    /// Binds the address. An error names it.
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
    pub fn start(self, observer: Observer) -> io::Result<impl FnOnce()> {
        let runtime = Runtime::builder().engine(EngineChoice::Epoll).build()?;
        let handle = runtime.handle();
        let settings = HttpSettings {
            max_connections: CONNECTIONS_MAX,
            max_header_bytes: 8 * 1024,
            max_uri_bytes: 1024,
            max_requests: 1,
            header_timeout: TIMEOUT,
            body_timeout: TIMEOUT,
            idle_timeout: TIMEOUT,
            send_timeout: TIMEOUT,
            http2: false,
            ..HttpSettings::default()
        };
        let mut service = HttpService::new(settings, 1, runtime.handle());
        service.service.observer = Some(observer);
        service.add_bound(vec![self.0], &None);
        let service = Arc::new(service);
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            // An error means that it was stopped, or that the listener failed: then the port is
            // closed, which monitoring notices.
            let _stopped = runtime.block_on(service.run(0));
        })?;
        Ok(move || {
            handle.stop();
            // A panic has been reported where it happened.
            let _panic = thread.join();
        })
    }
}

impl Observer {
    pub(super) fn answer(&self, request: &Request<'_>) -> Response {
        let plain =
            |status, content: &'static str| text(status, "text/plain; charset=utf-8", content);
        let unavailable = |content| plain(Status::SERVICE_UNAVAILABLE, content);
        match (request.method, request.path) {
            (Method::Options, _) => Response::message(Status::NO_CONTENT),
            (Method::Other, _) => Response::message(Status::METHOD_NOT_ALLOWED),
            (_, "/metrics") => text(Status::OK, metrics::CONTENT_TYPE, self.metrics()),
            (_, "/healthz") => plain(Status::OK, "ok\n"),
            (_, "/readyz") if self.is_ready() => plain(Status::OK, "ready\n"),
            (_, "/readyz") if self.is_draining() => unavailable("draining\n"),
            (_, "/readyz") => unavailable("starting\n"),
            _ => Response::message(Status::NOT_FOUND),
        }
    }
}

fn text(status: Status, media_type: &str, content: impl Into<Vec<u8>>) -> Response {
    let response = Response::new(status).with_content(media_type, content);
    response.with("Cache-Control", HeaderValue::from_static("no-store"))
}
