//! The search for the answer to one request.

use crate::http::auth::{Access, Busy, Credentials, Users};
use crate::http::compression::preferred;
use crate::http::forwarders::Transport;
use crate::http::generation::Generation;
use crate::http::head::{Head, Method};
use crate::http::hosts::Site;
use crate::http::index::{ENTRIES_MAX, render};
use crate::http::open_file::Change;
use crate::http::options::ListingFormat;
use crate::http::path::{Refusal, clean, encode};
use crate::http::reply::{Reply, ResponseContext, Rest, not_found, reply};
use crate::http::resource::{Missing, Resource};
use crate::http::response::{Persistence, begin, content_length, field, message};
use crate::http::status::Status;
use crate::http::target::Target;
use crate::http::variant::Variant;
use crate::http::worker::Worker;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// How often an answer is rebuilt because its file was just written to.
const ANSWER_ATTEMPTS: u32 = 3;

/// What comes before the search for a file.
pub(super) enum Before {
    /// Nothing.
    Files,
    /// An answer.
    Reply(Reply),
    /// These credentials must be right.
    Verification(Arc<Users>, Credentials),
}

/// The search for an answer.
pub(super) struct Answer<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) generation: Rc<Generation>,
    pub(super) site: usize,
    pub(super) head: &'a Head<'a, 'a>,
    pub(super) persistence: Persistence,
    pub(super) transport: Transport,
}

impl Answer<'_> {
    pub(super) async fn find(&self) -> Reply {
        match (self.head.method, self.head.target) {
            (Method::Get | Method::Head, Target::Resource { path, query }) => {
                match self.before_files() {
                    Before::Files => {}
                    Before::Reply(reply) => return reply,
                    Before::Verification(users, credentials) => {
                        match users.verify(credentials, self.client()).await {
                            Ok(true) => {}
                            Ok(false) => return self.challenge(),
                            Err(Busy) => return self.message(Status::UNAVAILABLE, &[]),
                        }
                    }
                }
                match clean(path.as_bytes()) {
                    Ok(path) => self.file(&path, query).await,
                    Err(Refusal::NotServed) => self.not_found().await,
                    Err(Refusal::Malformed) => self.message(Status::BAD_REQUEST, &[]),
                }
            }
            (Method::Options, _) => self.message(Status::NO_CONTENT, &[]),
            (_, _) => self.message(Status::METHOD_NOT_ALLOWED, &[]),
        }
    }

    /// What comes before files: redirects, so that no password is asked for without TLS if requests
    /// are redirected to https; then passwords.
    pub(super) fn before_files(&self) -> Before {
        let site = self.site();
        if !site.redirects.is_empty()
            && let Some((status, location)) = site.redirects.find(self.head, self.is_secure())
        {
            return Before::Reply(match location {
                Some(location) => self.message(status, &[("Location", &location)]),
                // HTTP/1.0, or an empty field: a location needs the host.
                None => self.message(Status::BAD_REQUEST, &[]),
            });
        }
        if site.auth.is_empty() {
            return Before::Files;
        }
        let Target::Resource { path, .. } = self.head.target else { return Before::Files };
        // Other paths lead to no file.
        let Ok(path) = clean(path.as_bytes()) else { return Before::Files };
        match site.auth.access(&path, self.head) {
            Access::Granted => Before::Files,
            Access::Denied => Before::Reply(self.challenge()),
            Access::Unknown(users, credentials) => Before::Verification(users, credentials),
        }
    }

    /// The answer that asks for a password.
    fn challenge(&self) -> Reply {
        let challenge = self.site().auth.challenge();
        self.message(Status::UNAUTHORIZED, &[("WWW-Authenticate", &challenge)])
    }

    /// The client uses TLS.
    fn is_secure(&self) -> bool {
        self.transport.is_secure(&self.generation.settings.forwarders, self.head)
    }

    /// The address that the request comes from, by the word of a trusted proxy if there is one.
    fn client(&self) -> Option<IpAddr> {
        let peer = self.transport.peer?;
        Some(self.generation.settings.forwarders.client(peer, self.head).unwrap_or(peer))
    }

    fn site(&self) -> &Site {
        self.generation.settings.sites.site(self.site)
    }

    async fn file(&self, path: &[u8], query: Option<&str>) -> Reply {
        let site = self.site();
        let missing = match self.present(path).await {
            Ok(reply) => return reply,
            Err(missing) => missing,
        };
        let missing = match (missing, site.autoindex) {
            (Missing::Index, Some(format)) => match self.listing(path, format).await {
                Ok(reply) => return reply,
                Err(missing) => missing,
            },
            _ => missing,
        };
        match missing {
            Missing::Failed(status) => return self.message(status, &[]),
            Missing::Exhausted => return self.message(Status::UNAVAILABLE, &[]),
            Missing::Directory => {
                let query = query.map(|query| format!("?{query}")).unwrap_or_default();
                let location = format!("{}/{query}", encode(path));
                return self.message(Status::MOVED_PERMANENTLY, &[("Location", &location)]);
            }
            Missing::Nothing | Missing::Index => {}
        }
        let last_segment = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if let Some(fallback) = &site.fallback
            && !last_segment.contains(&b'.')
            && let Ok(reply) = self.present(fallback).await
        {
            return reply;
        }
        self.not_found().await
    }

    /// The answer from a file that is there.
    async fn present(&self, path: &[u8]) -> Result<Reply, Missing> {
        let answer = |resource: &Rc<Resource>, variant: &Variant| {
            self.worker.compress_for(self.head, &self.generation, self.site, path, resource);
            let reply = reply(self.head, variant, self.context());
            self.worker.count_saved(self.head, variant, &reply);
            reply
        };
        self.unchanged(path, |resource| preferred(self.head, resource), answer).await
    }

    /// The result of `answer` for the variant that `choose` selects of an existing file. A file
    /// that was written to since it was opened is looked up again.
    async fn unchanged(
        &self,
        path: &[u8],
        choose: impl Fn(&Resource) -> Option<&Variant>,
        answer: impl Fn(&Rc<Resource>, &Variant) -> Reply,
    ) -> Result<Reply, Missing> {
        for attempt in 0..ANSWER_ATTEMPTS {
            let resource = match attempt {
                0 => self.worker.resource(&self.generation, self.site, path).await?,
                // An existing load may have begun before the write.
                _ => self.worker.fresh_resource(&self.generation, self.site, path).await?,
            };
            let Some(variant) = choose(&resource) else { break };
            let change = match variant.checked_file() {
                Some(file) => file.recent_change().await?,
                None => Change::Nothing,
            };
            // A file that grew is looked up again once. It may grow continuously.
            if change == Change::Nothing || change == Change::Grew && attempt > 0 {
                return Ok(answer(&resource, variant));
            }
            self.generation.cache.remove(self.site, path);
        }
        Err(Missing::Failed(Status::UNAVAILABLE))
    }

    async fn not_found(&self) -> Reply {
        let Some(page) = &self.site().not_found else {
            return self.message(Status::NOT_FOUND, &[]);
        };
        let asked = self.asked();
        let answer = |_: &Rc<Resource>, page: &Variant| {
            let fields = self.site().fields_of(&asked);
            not_found(page, &fields, self.head.method == Method::Head, self.context())
        };
        match self.unchanged(page, Resource::identity, answer).await {
            Ok(reply) => reply,
            Err(_) => self.message(Status::NOT_FOUND, &[]),
        }
    }

    async fn listing(&self, path: &[u8], format: ListingFormat) -> Result<Reply, Missing> {
        let unavailable = Missing::Failed(Status::UNAVAILABLE);
        let (site, listings) = (self.site(), &self.worker.listings);
        if listings.are_full() {
            return Err(unavailable);
        }
        let relative = match path {
            b"/" => Path::new("."),
            path => Path::new(OsStr::from_bytes(&path[1..])),
        };
        let root = site.root.as_ref().ok_or(Missing::Nothing)?;
        let listed = {
            let _turn = listings.scan().await;
            root.list(relative, site.symlinks, ENTRIES_MAX).await?
        };
        let (content_type, content) = render(format, path, &listed);
        let mut reply = begin(Status::OK, &self.worker.clock, self.persistence);
        field(&mut reply, "Content-Type", content_type);
        field(&mut reply, "Cache-Control", "no-cache");
        for (name, value) in site.fields_of(&self.asked()) {
            field(&mut reply, name, value);
        }
        content_length(&mut reply, content.len() as u64);
        reply.extend_from_slice(b"\r\n");
        let mut reply = Reply::new(Status::OK, reply);
        if self.head.method == Method::Get {
            reply.rest = Some(Rest::Listing(listings.hold(content).ok_or(unavailable)?));
        }
        Ok(reply)
    }

    fn message(&self, status: Status, fields: &[(&str, &str)]) -> Reply {
        let to_head = self.head.method == Method::Head;
        let ResponseContext { clock, persistence } = self.context();
        let asked = self.asked();
        let fields: Vec<_> = fields.iter().copied().chain(self.site().fields_of(&asked)).collect();
        Reply::new(status, message(status, &fields, clock, persistence, to_head))
    }

    /// The requested path, as rules see it; empty if it is invalid.
    fn asked(&self) -> PathBuf {
        match self.head.target {
            Target::Resource { path, .. } => {
                let path = clean(path.as_bytes()).unwrap_or_default();
                PathBuf::from(OsStr::from_bytes(&path))
            }
            _ => PathBuf::new(),
        }
    }

    fn context(&self) -> ResponseContext<'_> {
        ResponseContext { clock: &self.worker.clock, persistence: self.persistence }
    }
}
