//! What the tasks of one worker thread share: settings of the run, counts, and what it sends.

use super::choice::Choice;
use super::counts::{Books, Counts};
use super::expect::Expectation;
use super::head::HeadReader;
use super::outbox::Outbox;
use super::settings::Settings;
use super::tls::{Agreed, TlsClient};
use crate::run::Thread;
use bytes::Bytes;
use http::Request;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// State shared by all threads.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) expectation: Expectation,
    pub(super) choice: Choice,
    pub(super) tls: Option<TlsClient>,
    /// Requests of HTTP/2 by URL, without their body; empty for HTTP/1.1.
    pub(super) http2_requests: Vec<Request<()>>,
    pub(super) body: Bytes,
}

/// State of the thread that its tasks share.
pub(super) struct Worker {
    pub(super) thread: Thread,
    pub(super) shared: Arc<Shared>,
    pub(super) outbox: Outbox,
    /// By the low bits of a URL's number: a power of two of them.
    pub(super) heads: RefCell<Vec<HeadReader>>,
    pub(super) counts: RefCell<Counts>,
    pub(super) handshakes: Cell<u64>,
    pub(super) resumed: Cell<u64>,
    pub(super) agreed: RefCell<Option<Agreed>>,
    pub(super) streams_max: Cell<Option<u64>>,
}

impl std::ops::Deref for Worker {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Worker {
    pub(super) fn url(&self, target: u32) -> &str {
        self.settings.targets.get(target as usize).map_or("", |target| &target.url)
    }

    pub(super) fn books(&self) -> Books<'_> {
        let recorder = self.thread.recorder.borrow_mut();
        Books { recorder, counts: self.counts.borrow_mut() }
    }

    /// The request of HTTP/2 for a URL, and its body.
    pub(super) fn http2_request(&self, target: u32) -> (Request<()>, Bytes) {
        let head = self.http2_requests.get(target as usize).cloned().unwrap_or_default();
        (head, self.body.clone())
    }

    /// The server allows this many streams on a connection.
    pub(super) fn note_streams_max(&self, streams: usize) {
        // The largest number stands for no limit.
        let limit = Some(streams as u64).filter(|_| streams < usize::MAX);
        self.streams_max.set([self.streams_max.get(), limit].into_iter().flatten().min());
    }
}
