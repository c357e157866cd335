//! The admin service: metrics, health and readiness.
//!
//! It runs on its own thread and engine (epoll), with a bounded number of connections of one
//! request and a few seconds each. It can therefore not starve the service, and the service cannot
//! starve it.

use super::date::Clock;
use super::head::{Head, HeadLimits, Method, Scan, Storage};
use super::metrics;
use super::response::{Persistence, begin, content_length, field, message};
use super::status::Status;
use super::target::Target;
use crate::server::Stage;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use twinring::{
    BoundListener, EngineChoice, Handle, ListenOptions, Runtime, TcpListener, TcpStream, spawn,
    timeout,
};

/// Concurrent connections; further ones are closed immediately.
const CONNECTIONS_MAX: usize = 64;

/// From the beginning of a connection to its end.
const CONNECTION_MAX: Duration = Duration::from_secs(5);

/// Bounds of a request.
const LIMITS: HeadLimits = HeadLimits { head_bytes: 8 * 1024, target_bytes: 1024 };

/// The content of the admin service.
pub trait Pages: Send + Sync + 'static {
    /// For `/readyz`.
    fn stage(&self) -> Stage;

    /// For `/metrics`: the text format of Prometheus.
    fn metrics(&self) -> String;

    /// A further page: its media type, and its content.
    fn page(&self, path: &str) -> Option<(&'static str, String)> {
        let _none = path;
        None
    }
}

/// The bound address of the admin service, which does not answer yet.
#[derive(Debug)]
pub struct Admin {
    listener: BoundListener,
}

impl Admin {
    /// Binds the address.
    ///
    /// # Errors
    /// When it cannot be bound; the message names it.
    pub fn bind(address: SocketAddr) -> io::Result<Admin> {
        let mut bound = ListenOptions::default().bind(address, 1)?;
        match bound.pop() {
            Some(listener) => Ok(Admin { listener }),
            None => Err(io::Error::other(format!("{address}: no listener"))),
        }
    }

    /// The address, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Answers, on its own thread, until the returned value is dropped.
    ///
    /// # Errors
    /// When the thread or its engine cannot be started.
    pub fn start(self, pages: impl Pages) -> io::Result<RunningAdmin> {
        let runtime = Runtime::builder().engine(EngineChoice::Epoll).build()?;
        let handle = runtime.handle();
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            let pages: Arc<dyn Pages> = Arc::new(pages);
            // An error means that it was stopped, or that the listener failed: then the port is
            // closed, which monitoring notices.
            let _stopped = runtime.block_on(serve(self.listener, pages));
        })?;
        Ok(RunningAdmin { handle, thread: Some(thread) })
    }
}

/// Ends the admin service when dropped.
pub struct RunningAdmin {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for RunningAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningAdmin").finish_non_exhaustive()
    }
}

impl Drop for RunningAdmin {
    fn drop(&mut self) {
        self.handle.stop();
        // A panic has been reported where it happened.
        let _panic = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(listener: BoundListener, pages: Arc<dyn Pages>) -> io::Result<()> {
    let listener = TcpListener::from_bound(listener)?;
    let open = Rc::new(Cell::new(0));
    loop {
        let stream = listener.accept().await?;
        if open.get() >= CONNECTIONS_MAX {
            continue;
        }
        open.set(open.get() + 1);
        let (closed, pages) = (Open(Rc::clone(&open)), Arc::clone(&pages));
        spawn(async move {
            let _closed = closed;
            // A peer that is too slow, or leaves, gets no answer.
            let _late_or_gone = timeout(CONNECTION_MAX, serve_connection(&stream, &*pages)).await;
        });
    }
}

/// Counts a connection less when it is dropped.
struct Open(Rc<Cell<usize>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn serve_connection(stream: &TcpStream, pages: &dyn Pages) -> io::Result<()> {
    let mut received = Vec::new();
    let mut scan = Scan::default();
    let reply = loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return Ok(());
        }
        received.extend_from_slice(&chunk);
        match scan.find_end(&received, LIMITS) {
            Ok(None) => {}
            Ok(Some(length)) => break answer(&received[..length], pages),
            Err(status) => break say(status, false),
        }
    };
    stream.send(reply).await?;
    stream.shutdown_write().await?;
    // Closing before the peer has read everything could reset the connection before that.
    while !stream.recv().await?.is_empty() {}
    Ok(())
}

fn answer(head: &[u8], pages: &dyn Pages) -> Vec<u8> {
    let mut storage = Storage::new();
    let head = match Head::parse(head, &mut storage, LIMITS) {
        Ok(head) => head,
        Err(status) => return say(status, false),
    };
    let to_head = head.method == Method::Head;
    let path = match (head.method, head.target) {
        (Method::Get | Method::Head, Target::Resource { path, .. }) => path,
        (Method::Options, _) => return say(Status::NO_CONTENT, false),
        _ => return say(Status::METHOD_NOT_ALLOWED, false),
    };
    match path {
        "/metrics" => text(Status::OK, metrics::CONTENT_TYPE, &pages.metrics(), to_head),
        "/healthz" => plain(Status::OK, "ok\n", to_head),
        "/readyz" => match pages.stage() {
            Stage::Ready => plain(Status::OK, "ready\n", to_head),
            Stage::Starting => plain(Status::UNAVAILABLE, "starting\n", to_head),
            Stage::Draining => plain(Status::UNAVAILABLE, "draining\n", to_head),
        },
        other => match pages.page(other) {
            Some((media_type, content)) => text(Status::OK, media_type, &content, to_head),
            None => say(Status::NOT_FOUND, to_head),
        },
    }
}

fn say(status: Status, to_head: bool) -> Vec<u8> {
    message(status, &[], &Clock::new(), Persistence::Closes, to_head)
}

fn plain(status: Status, content: &str, to_head: bool) -> Vec<u8> {
    text(status, "text/plain; charset=utf-8", content, to_head)
}

fn text(status: Status, content_type: &str, content: &str, to_head: bool) -> Vec<u8> {
    let mut reply = begin(status, &Clock::new(), Persistence::Closes);
    field(&mut reply, "Content-Type", content_type);
    field(&mut reply, "Cache-Control", "no-store");
    content_length(&mut reply, content.len() as u64);
    reply.extend_from_slice(b"\r\n");
    if !to_head {
        reply.extend_from_slice(content.as_bytes());
    }
    reply
}
